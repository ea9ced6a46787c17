"""The proof of the theorem, executed: two worlds, with and without one person, on every road and in every mode."""

from itertools import product

import pytest

from coupled.histories import INDEXES, MODES, TARGET, Ask, Forget, History, Moment, Query, Records, Row, random_history
from coupled.mutants import CAUGHT, first_finding
from coupled.roads import ROADS
from coupled.worlds import couple, smallest
from indknn.settings import Settings
from indknn.store import Store
from indknn_lab.audits.mutants import MUTANTS

KINDS = {
    "algorithm 3": {"noisy_count", "noisy_votes"},
    "labels": {"noisy_count", "noisy_votes"},
    "models": {"noisy_votes", "noisy_tally", "noisy_moments"},
    "student": {"noisy_count", "noisy_votes", "noisy_tally"},
    "statistics": {"noisy_votes", "noisy_tally", "noisy_moments"},
}
"""What is released in each mode, at least."""
EVERY = [
    pytest.param(road, mode, id=f"{road}-{mode}", marks=[] if road == "engine" else pytest.mark.slow)
    for road, mode in product(ROADS, MODES)
]


@pytest.mark.parametrize(("road", "mode"), EVERY)
def test_nobody_else_sees_whether_somebody_was_there_and_they_paid_for_what_was_released(road, mode):
    tapes = [couple(random_history(1, road, mode, index)) for index in INDEXES]
    assert {release.kind for tape in tapes for release in tape.releases} >= KINDS[mode]
    assert all(sum(tape.cost.values()) > 0 for tape in tapes)  # the target was there, and it shows in the sums


@pytest.mark.slow
@pytest.mark.parametrize(("road", "mode"), list(product(ROADS, MODES)))
def test_what_one_analyst_sees_is_paid_for_in_their_own_ledger(road, mode):
    """Whatever is released to others meanwhile."""
    index = list(INDEXES)[sum(map(ord, road + mode)) % len(INDEXES)]
    tape = couple(random_history(2, road, mode, index, apart=True), "ann")
    assert set(tape.cost) == {"ann"}


@pytest.mark.slow
@pytest.mark.parametrize("mutant", CAUGHT, ids=lambda mutant: mutant.name)
def test_broken_variants_are_caught(mutant):
    assert first_finding(mutant)


def test_the_histories_are_about_everything():
    written = [random_history(1, *kind) for kind in product(ROADS, MODES, INDEXES)]
    events = [event for history in written for event in history.events]
    assert {type(event).__name__ for event in events} == {"Records", "Forget", "Ask", "Statement", "Moment", "Refused"}
    assert {event.how for event in events if isinstance(event, Records)} == {"add", "upsert", "replace_all", "fit"}
    assert {event.how for event in events if isinstance(event, Moment)} == {"purge", "restart", "fail"}
    assert {query.analyst for event in events if isinstance(event, Ask) for query in event.requests} == {
        None,
        "ann",
        "bob",
    }
    settings = [history.settings for history in written]
    assert {(s.accountant, s.kernel) for s in settings} == set(product(("gdp", "rdp"), ("cosine", "rbf")))
    assert {s.global_epsilon is None for s in settings} == {True, False}


MODELS = Settings(2, (0, 1), epsilon=4.0, tau=0.5)
CROWD = Records("add", tuple(Row(f"r{i}", f"p{i}", (1.0, i / 5), i % 2) for i in range(5)))
COMES = Records("add", (Row("t1", TARGET, (1.0, 0.0), 1),))


def asks(*x):
    return Ask((Query((x,), "ann"),))


def test_a_finding_is_cut_down_to_what_it_takes():
    (refund,) = [mutant for mutant in MUTANTS if mutant.name == "refund on return"]
    goes, back = Forget((TARGET,)), Records("add", (Row("t2", TARGET, (1.0, 0.0), 1),))
    events = (CROWD, asks(1.0, 0.5), COMES, asks(1.0, 0.1), Moment("purge"), goes, asks(1.0, 0.2), back, asks(1.0, 0.3))
    history = History(0, "engine", MODELS, events)
    with refund():
        least, finding = smallest(history)
    assert least.events == (COMES, events[3], goes, back)
    assert finding.startswith("event 3: target had paid")
    couple(history)


@pytest.mark.parametrize("road", ROADS)
def test_the_number_of_a_statistic_does_not_show_who_came_before_a_purge(road):
    events = (CROWD, asks(1.0, 0.1), COMES, Moment("purge"), Moment("restart"), asks(1.0, 0.2))
    couple(History(0, road, MODELS, events))


@pytest.mark.xfail(strict=True, reason="a receipt has its position in the audit trail, which counts everybody's events")
def test_a_receipt_does_not_count_what_happened_to_others(tmp_path):
    positions = []
    for world in ("with", "without"):
        with Store.create(tmp_path / world, MODELS) as store:
            store.add([[1.0, 0.0], [1.0, 0.1]], [0, 1], ["p0", "p1"])
            if world == "with":
                store.add([[0.0, 1.0]], [1], [TARGET])
            positions.append(store.forget(["p0"])["audit_position"])
    assert positions[0] == positions[1]
