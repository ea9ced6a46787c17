"""A gradient that is computed some people at a time is the gradient, whatever happens in between."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from conftest import blobs
from indknn.core import training
from indknn.core.kernels import Cosine
from indknn.core.quantise import quantise
from indknn.core.statistics import tally_scale
from indknn.core.training import Weights, step_scale
from indknn.ledger import SHARED, MemoryLedger
from indknn.records import derived
from indknn.records.derived import Arguments, Derived
from indknn.records.indexes import make_index
from indknn.records.shard import Shard
from indknn.types import Cohort

CLIP, SCALE = 0.25, step_scale(0.25, 4, 0.1)
WEIGHTS = Weights.of(np.random.default_rng(5).normal(size=(5, 3)))
X, Y = blobs(400, 3, 4)
COHORT = Cohort(before=1, most=1000)
STEP = Arguments(WEIGHTS, CLIP, SCALE, 1000, COHORT), SHARED


def twins():
    """Two shards of the same people: one is asked in pieces, the other at once."""
    pair = [Shard(make_index("exact", Cosine(), 4), MemoryLedger(1 << 47, shared_budget=1 << 46)) for _ in range(2)]
    for shard in pair:
        shard.add(quantise(X[:120]), Y[:120], [f"p{i * i % 47}" for i in range(120)])
    return [(shard, Derived(shard, lambda values, labels: values, COHORT)) for shard in pair]


@pytest.fixture
def short(monkeypatch):
    monkeypatch.setattr(derived, "RECORDS", 7)


@given(st.lists(st.tuples(st.sampled_from("mmmarpo"), st.integers(0, 46)), max_size=40))
def test_whatever_happens_between_the_pieces_it_is_as_if_made_at_the_end(steps):
    """m: a piece, a: add records, r: remove one, o: forget an owner, p: people pay for something else."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(derived, "RECORDS", 7)
        (piecewise, rows), (whole, others) = twins()
        for step, number in steps:
            if step == "m":
                piecewise.prepare_gradient(rows, *STEP)
            for shard in (piecewise, whole):
                if step == "a":
                    shard.add(quantise(X[number : number + 3]), Y[number : number + 3], [f"p{number}", "new", "new"])
                elif step == "r" and len(shard):
                    shard.forget(shard.slots()[number % len(shard)][None])
                elif step == "o":
                    shard.forget(
                        shard.slots_of_owners([name for name in shard.ledger.owners() if name == f"p{number}"])
                    )
                elif step == "p":
                    shard.ledger.charge(shard.ledger.taken()[:9], np.full(9, 1 << 42), SHARED)
        assert np.array_equal(piecewise.gradient(rows, *STEP), whole.gradient(others, *STEP))
        spent = [shard.ledger.column(SHARED).tolist() for shard in (piecewise, whole)]
        assert spent[0] == spent[1]
        assert piecewise.ledger.participation.tolist() == whole.ledger.participation.tolist()


def test_each_piece_is_short_and_nothing_is_computed_twice(short, monkeypatch):
    (shard, rows), (whole, others) = twins()
    original, looked_at = training.gradient, []

    def gradient(values, *rest):
        looked_at.append(len(values))
        return original(values, *rest)

    monkeypatch.setattr(training, "gradient", gradient)
    pieces = 0
    while shard.prepare_gradient(rows, *STEP):
        pieces += 1
    assert sum(looked_at) == len(shard)
    assert pieces == len(looked_at) > 10
    assert max(looked_at) < 7 + 7
    sums = shard.gradient(rows, *STEP)
    assert sum(looked_at) == len(shard)
    assert np.array_equal(sums, whole.gradient(others, *STEP))


def test_what_was_prepared_for_another_step_is_not_used(short):
    (shard, rows), (whole, others) = twins()
    shard.prepare_gradient(rows, *STEP)
    other = replace(STEP[0], weights=Weights.of(-WEIGHTS.whole)), SHARED
    assert np.array_equal(shard.gradient(rows, *other), whole.gradient(others, *other))
    assert rows.slices is None


def test_nobody_pays_before_all_is_computed(short):
    (shard, rows), _ = twins()
    while shard.prepare_gradient(rows, *STEP):
        assert not shard.ledger.anything_spent()
    shard.gradient(rows, *STEP)
    assert shard.ledger.anything_spent()


def test_many_changes_are_looked_for_once_more_in_pieces(short):
    (shard, rows), _ = twins()
    shard.prepare_gradient(rows, *STEP)
    shard.add(quantise(X[120:]), Y[120:], [f"q{i}" for i in range(280)])
    pieces = 0
    while shard.prepare_gradient(rows, *STEP):
        pieces += 1
    assert pieces >= 280 // 7


def test_no_records():
    shard = Shard(make_index("exact", Cosine(), 4), MemoryLedger(1000))
    rows = Derived(shard, lambda values, labels: values, COHORT)
    assert not shard.prepare_gradient(rows, *STEP)
    assert not shard.gradient(rows, *STEP).any()


def crowded(earlier):
    """The gradient of somebody with 60 records of which 10 may take part, and which slots those are in."""
    shard = Shard(make_index("exact", Cosine(), 4), MemoryLedger(1 << 47, shared_budget=1 << 46))
    if earlier:  # others were here and left, so that the records lie in other slots, in another order
        shard.add(quantise(X[:50]), Y[:50], [f"p{i}" for i in range(50)])
        for slot in (31, 4, 17, 48, 2, 40):
            shard.forget(np.array([slot]))
    shard.add(quantise(X[100:160]), Y[100:160], ["many"] * 60)
    shard.forget(shard.slots_of_owners([name for name in shard.ledger.owners() if name != "many"]))
    cohort = Cohort(before=1, most=10)
    rows = Derived(shard, lambda values, labels: values, cohort)
    step = replace(STEP[0], cohort=cohort)
    bodies = {shard.values_of(slot[None]).tobytes() for slot in shard.taking_part(cohort)}
    return shard.gradient(rows, step, SHARED), bodies, shard.ledger.spent(["many"], SHARED).tolist()


def test_which_of_many_records_take_part_depends_on_nobody_else():
    (alone, chosen, charge), (among, same, equal) = crowded(earlier=False), crowded(earlier=True)
    assert len(chosen) == 10
    assert chosen == same
    assert (alone == among).all()
    assert charge == equal


def test_records_that_came_after_the_beginning_take_no_part():
    (shard, rows), (whole, others) = twins()
    shard.epoch = 1
    shard.add(quantise(X[120:200]), Y[120:200], ["new"] * 40 + ["p1"] * 40)
    assert np.array_equal(shard.gradient(rows, *STEP), whole.gradient(others, *STEP))
    assert not shard.ledger.spent(["new"], SHARED).any()
    for at in (shard, whole):
        at.headcount(COHORT, 2, 1, 0, tally_scale(0.01), 1 << 40, SHARED)
    assert shard.ledger.spent(["p1"], SHARED) == whole.ledger.spent(["p1"], SHARED)
    assert not shard.ledger.spent(["new"], SHARED).any()


def test_a_step_is_known_by_its_numbers_and_not_by_its_objects():
    """A model of numbers makes its weights anew each time. If that were another step, a server would never end one."""
    one, same, other = (Weights.of(np.array([[mean]]), 0.5) for mean in (0.25, 0.25, 0.5))
    steps = [Arguments(weights, 0.5, 1000, 0, Cohort(1, 2)) for weights in (one, same, other)]
    assert steps[0].same(steps[1])
    assert not steps[0].same(steps[2])
    assert not steps[0].same(replace(steps[1], clip=0.25))
