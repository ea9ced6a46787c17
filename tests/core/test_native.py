"""Votes and charges in C are those of the NumPy twins to the bit; where C is missing the twins do the work."""

import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from contracts.ledger import LedgerContract, units
from indknn.core import mechanism
from indknn.core.accounting import MAX_UNITS, UNIT
from indknn.core.inputs import NEVER
from indknn.core.kernels import Cosine
from indknn.core.mechanism import COLUMNS, Plan
from indknn.core.quantise import as_int64, integer_dots, quantise
from indknn.errors import LedgerError
from indknn.ledger import SHARED, MemoryLedger, memory
from indknn.ledger.promises import Wanted
from indknn.records import shard as records
from indknn.records.indexes import ExactIndex, scan
from indknn.records.indexes.scan import Found
from indknn.records.shard import Shard, new_index
from indknn.settings import Settings
from indknn.store.journal import BLOCK, Debits
from indknn.types import GRID, Selection

pytestmark = pytest.mark.skipif(mechanism._votes is None, reason="the C extension was not built, or is turned off")


def twins(function, *args):
    """The result of C, and that of NumPy."""
    fast = function(*args)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mechanism, "_votes", None)
        return fast, function(*args)


@given(
    st.integers(0, 2**32),
    st.integers(0, 60),
    st.integers(1, 12),
    st.sampled_from([1, 2, 40]),
    st.booleans(),
    st.sampled_from([None, 1, 2]),
)
def test_votes_and_charges_are_those_of_numpy(seed, n, n_classes, per_owner, contrast, cap):
    rng = np.random.default_rng(seed)
    plan = Plan(0.5, float(rng.uniform(0.3, 90)), float(rng.uniform(0.05, 4)), n_classes, cap, contrast)
    owners, labels = rng.integers(max(n // per_owner, 1), size=n), rng.integers(n_classes, size=n)
    group = mechanism.group(owners, labels, rng.integers(GRID // 2, GRID + 1, size=n), plan)
    size = 10.0 ** rng.uniform(-9, 1, size=len(group.owners))
    remaining = np.where(rng.random(len(size)) < 0.2, rng.integers(0, 3, size=len(size)), (size * UNIT).astype(int))
    for fast, slow in (
        twins(mechanism.count, group, remaining, plan),
        twins(mechanism.settle, group, remaining, int(rng.integers(30, 5000)) * GRID, plan),
    ):
        for name, value in vars(slow).items():
            if name == "group":
                assert np.array_equal(fast.group.owners, value.owners)
                assert np.array_equal(fast.group.entry_vote, value.entry_vote)
            else:
                assert np.array_equal(getattr(fast, name), value), name


@given(st.integers(0, 2**32), st.integers(0, 60), st.sampled_from([1, 2, 40]), st.sampled_from(sorted(COLUMNS)))
def test_votes_with_numbers_are_those_of_numpy_and_no_longer_than_paid_for(seed, n, per_owner, ballot):
    rng = np.random.default_rng(seed)
    plan = Plan(0.5, 9.0, float(rng.uniform(0.05, 4)), COLUMNS[ballot], ballot=ballot)
    owners, y = rng.integers(max(n // per_owner, 1), size=n), rng.integers(-GRID, GRID + 1, size=n)
    group = mechanism.group(owners, y, rng.integers(GRID // 2, GRID + 1, size=n), plan)
    remaining = (10.0 ** rng.uniform(-9, 1, size=len(group.owners)) * UNIT).astype(np.int64)
    K = int(rng.integers(30, 5000)) * GRID
    fast, slow = twins(mechanism.settle, group, remaining, K, plan)
    assert np.array_equal(fast.votes, slow.votes)
    assert np.array_equal(fast.charges, slow.charges)
    assert (fast.charges <= remaining).all()
    for i in range(len(group.owners)):  # what each adds alone is what each is charged for
        alone = np.zeros(len(group.owners), dtype=bool)
        alone[i] = True
        one = mechanism.settle(group.only(alone), remaining[alone], K, plan)
        paid = sum(int(v) ** 2 for v in one.votes.tolist()) * UNIT
        assert one.charges[0] == fast.charges[i]
        assert int(one.charges[0]) * 2 * plan.scale2(K) ** 2 >= paid


def test_a_charge_beyond_all_budgets_is_cut_as_by_numpy():
    group = mechanism.Group(*(np.array(a) for a in ([0], [1], [0], [0], [1 << 45])))
    plan = Plan(0.5, 1.0, 2.0**-20, 2)
    fast, slow = twins(mechanism.settle, group, np.array([MAX_UNITS]), 30 * GRID, plan)
    assert (fast.charges, fast.votes.tolist()) == (slow.charges, slow.votes.tolist())


def test_what_does_not_fit_together_is_refused():
    zeros = np.zeros(3, dtype=np.int64)
    with pytest.raises(ValueError, match="entries must be of the owners"):
        mechanism._votes.settle(b"", zeros + 7, zeros, zeros, zeros.copy(), zeros.copy(), False, 1.0, 1.0, 1.0, 9)
    assert not mechanism._votes.room(zeros, b"", b"", zeros + 3, 5, 5, 1, 1, False, zeros.copy())
    assert as_int64(np.arange(6, dtype=np.int32)[::2]).tolist() == [0, 2, 4]


class TestLedgerWithoutC(LedgerContract):
    @pytest.fixture(autouse=True)
    def without(self, monkeypatch):
        monkeypatch.setattr(memory, "_votes", None)

    def make(self, budget, global_budget=None):
        return MemoryLedger(budget, global_budget)


@given(st.integers(0, 2**32), st.sampled_from([None, 150]), st.booleans(), st.booleans())
def test_a_ledger_is_the_same_with_and_without_c(seed, global_budget, shared, house):
    fast, slow = (MemoryLedger(100, global_budget, shared_budget=60 if shared else 0, key=b"k") for _ in "12")
    rng, names = np.random.default_rng(seed), [f"p{i}" for i in range(9)]
    for ledger in (fast, slow):
        ledger.enrol(names)
        ledger.joint, ledger.budgets = house, {"bob": 70}
        few = Wanted(names[:3], np.array([0.5, 0.25, 0.1]), units(80, 25, 3), np.ones(3, dtype=bool))
        ledger.lower(few)
    fraction = rng.choice([(1, 1), (1, 3), (0, 7)])
    fast.fraction = slow.fraction = int(fraction[0]), int(fraction[1])
    for _ in range(20):
        slots = rng.permutation(9)[: rng.integers(10)]
        scope = rng.choice([None, "ann", "bob", SHARED] if shared else [None, "ann", "bob"])
        joining, price = bool(rng.integers(2)), units(*rng.integers(-1 if rng.random() < 0.1 else 0, 40, len(slots)))
        outcomes = []
        for ledger in (fast, slow):
            with pytest.MonkeyPatch.context() as patch:
                if ledger is slow:
                    patch.setattr(memory, "_votes", None)
                left = ledger.remaining(slots, scope).tolist()
                try:
                    ledger.charge(slots, price, scope, joining=joining)
                    outcomes.append((left, True))
                except LedgerError:
                    outcomes.append((left, False))
        assert outcomes[0] == outcomes[1]
        assert [fast.column(s).tolist() for s in fast.scopes] == [slow.column(s).tolist() for s in fast.scopes]
        assert fast.participation.tolist() == slow.participation.tolist()


@given(st.integers(0, 2**32), st.sampled_from([1, 3]), st.booleans(), st.booleans())
def test_a_query_is_counted_settled_and_charged_in_c_as_without(seed, per_owner, contrast, poor):
    fast = answered(seed, per_owner, contrast, poor)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mechanism, "_votes", None)
        patch.setattr(memory, "_votes", None)
        assert answered(seed, per_owner, contrast, poor) == fast


def answered(seed, per_owner, contrast, poor):
    """What four queries to some people told, and what it cost whom."""
    rng, ledger = np.random.default_rng(seed), MemoryLedger(UNIT // 50, shared_budget=UNIT // 100, key=b"k")
    ledger.log = {}
    people = ledger.enrol([f"p{i}" for i in range(40)])
    ledger.charge(people[:9], np.full(9, UNIT // (100 if poor else 150)), None)
    ledger.charge(people[5:7], np.full(2, UNIT // 200), SHARED)
    ledger.lower(Wanted(["p20", "p21"], np.array([0.5, 0.1]), units(UNIT // 80, 7), np.ones(2, dtype=bool)))
    shard = Shard(new_index(Settings(n_features=2, classes=(0, 1))), ledger)
    rows = quantise(rng.standard_normal((40, 2)))
    shard.place(rows, rng.integers(4, size=40), np.arange(40) // per_owner, (0, NEVER))
    plan, told = Plan(0.5, 30.0, float(rng.uniform(0.05, 2)), 4, contrast=contrast), []
    for _ in range(4):
        near = np.sort(rng.permutation(40)[: rng.integers(40)])
        admitted = shard.admit(Selection(near, rng.integers(GRID // 2, GRID, len(near))), plan, None)
        told.append((admitted.total, shard.settle(admitted, 40 * GRID, plan).tolist()))
    charges = [(slots.tolist(), paid.tolist()) for slots, paid in ledger.log[None]]
    return told, charges, ledger.column(None).tolist(), ledger.participation.tolist()


@given(st.lists(st.tuples(st.integers(0, 5 * BLOCK) | st.integers(0, 1 << 31), st.integers(0, MAX_UNITS)), max_size=9))
def test_debits_are_packed_as_by_numpy_and_read_back(pairs):
    pairs = sorted(dict(pairs).items())
    debits = Debits(*(np.array([pair[i] for pair in pairs], dtype=np.int64) for i in (0, 1)))
    body, total, blocks = debits.packed()
    assert (body, total, blocks) == (debits.encode(), debits.total, debits.blocks)
    assert total == sum(units for _, units in pairs)
    back = Debits.decode(body)
    assert (back.slots.tolist(), back.units.tolist()) == (debits.slots.tolist(), debits.units.tolist())


@pytest.mark.parametrize("d", [1, 3, 16, 64, 100, 768, 2100])
def test_one_row_has_exact_products_without_a_copy_of_the_others(d):
    rng = np.random.default_rng(d)
    left, right = (rng.integers(-128, 128, size=(n, 2 * d)).astype(np.int8)[:, ::2] for n in (1, 300))
    left[0], right[0] = -128, -128
    assert (integer_dots(left, right) == left.astype(np.int64) @ right.astype(np.int64).T).all()
    rows = np.ascontiguousarray(right)
    tracemalloc.start()
    integer_dots(left, rows)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 2 * d + 8 * len(rows) + 4096
    assert not mechanism._votes.dots(left[0].tobytes(), rows, np.zeros(7))


@given(st.integers(0, 2**32), st.integers(0, 600), st.sampled_from([3, 300]), st.integers(1, GRID))
def test_records_are_near_by_the_same_cosine_as_with_numpy(seed, n, d, tau):
    rng = np.random.default_rng(seed)
    records, query = (quantise(rng.standard_normal((size, d))) for size in (max(n, 1), 1))
    index = ExactIndex(Cosine(), d)
    index.add(records)
    slots = np.flatnonzero(rng.random(len(records)) < 0.7)
    found = Found(slots, integer_dots(query.values, records.values[slots])[0].astype(np.int32))
    fast = index._decide(found, query, 0, tau)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scan, "_votes", None)
        slow = index._decide(found, query, 0, tau)
    assert fast.slots.tolist() == slow.slots.tolist()
    assert fast.kappa.tolist() == slow.kappa.tolist()
    assert fast.kappa.dtype == slow.kappa.dtype
    with pytest.raises(ValueError, match="every slot"):
        index._decide(Found(np.array([len(index.slots.roots)]), found.dots[:1]), query, 0, tau)


@given(st.integers(0, 2**32), st.integers(1, 300), st.sampled_from([3, 200, 40_000]), st.booleans())
def test_ballots_are_gathered_as_with_numpy(seed, n, n_classes, dated):
    rng = np.random.default_rng(seed)
    settings = Settings(2, tuple(range(n_classes)), tau=0.5, max_queries=5)
    shard = Shard(new_index(settings), MemoryLedger(settings.budget))
    until = rng.integers(shard.hour - 5, shard.hour + 5, size=n) if dated else NEVER
    owners = [f"o{i}" for i in rng.integers(n, size=n)]
    shard.add(quantise(rng.standard_normal((n, 2))), rng.integers(n_classes, size=n), owners, until=until)
    near = Selection(np.flatnonzero(rng.random(n) < 0.7), rng.integers(GRID, size=n))
    near = Selection(near.slots, near.kappa[: len(near.slots)])
    fast = shard._ballots(near, settings.plan(0.5))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(records, "_votes", None)
        slow = shard._ballots(near, settings.plan(0.5))
    for here, there in zip(fast, slow, strict=True):
        assert here.dtype == there.dtype
        assert here.tolist() == there.tolist()
    with pytest.raises(ValueError, match="every slot"):
        shard._ballots(Selection(np.array([len(shard._owner)]), np.array([1])), settings.plan(0.5))
