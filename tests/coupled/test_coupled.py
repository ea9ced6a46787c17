"""The proof of the theorem, executed: two worlds, with and without one person, on every road and in every mode."""

from itertools import product

import pytest

from coupled.histories import (
    INDEXES,
    MODES,
    TARGET,
    Ask,
    Forget,
    History,
    Hold,
    Later,
    Moment,
    Pieces,
    Records,
    Row,
    random_history,
    short_histories,
)
from coupled.mutants import CAUGHT, COMES, CROWD, NUMBERS, WRITTEN, asks, first_finding
from coupled.roads import ROADS
from coupled.worlds import couple, smallest
from indknn.ledger import SHARED
from indknn.settings import Settings
from indknn.store import Store
from indknn_lab.audits.mutants import MUTANTS

# Histories repeat rows on purpose, and people are few.
pytestmark = pytest.mark.filterwarnings(
    "ignore:.*byte for byte", "ignore::indknn.errors.PrivacyWarning", "ignore:training of the shared model was"
)
SUMS = {"noisy_tally", "noisy_gradient"}
KINDS = {
    "algorithm 3": {"noisy_count", "noisy_votes"},
    "labels": {"noisy_count", "noisy_votes"},
    "model": {"noisy_votes", "noisy_tally", "noisy_gradient"},
    "public rows": {"noisy_votes", "noisy_tally", "noisy_gradient"},
    "numbers": {"noisy_count", "noisy_votes"},
    "numbers, reuse": {"noisy_count", "noisy_votes"},
    "numbers, model": SUMS,
    "numbers, public rows": SUMS,
}
"""What is released in each mode, at least. So few people are seldom asked about residuals of a model."""
SHOWN = {**dict.fromkeys(MODES, 1), "labels": 3}
SEEN = {**dict.fromkeys(MODES, 1), "model": 4}
"""Seeds of histories in which the target shows in the sums, and in those that ann sees."""
PARTS, TRIES = 20, 5
EVERY = [
    pytest.param(road, mode, id=f"{road}-{mode}", marks=[] if road == "engine" else pytest.mark.slow)
    for road, mode in product(ROADS, MODES)
]


def first_that_shows(road, mode, index):
    """The tape of the first history, of a few, in which the target was there and shows in the sums."""
    tapes = (couple(random_history(seed, road, mode, index)) for seed in range(SHOWN[mode], SHOWN[mode] + TRIES))
    return next(tape for tape in tapes if sum(tape.cost.values()) > 0)


@pytest.mark.parametrize(("road", "mode"), EVERY)
def test_nobody_else_sees_whether_somebody_was_there_and_they_paid_for_what_was_released(road, mode):
    tapes = [first_that_shows(road, mode, index) for index in INDEXES]
    assert {release.kind for tape in tapes for release in tape.releases} >= KINDS[mode]


@pytest.mark.parametrize(("road", "mode"), EVERY)
def test_nobody_else_sees_that_a_record_expires_or_is_held(road, mode):
    tapes = [couple(random_history(3, road, mode, index, timely=True)) for index in INDEXES]
    assert any(sum(tape.cost.values()) > 0 for tape in tapes)


@pytest.mark.slow
@pytest.mark.parametrize(("road", "mode"), list(product(ROADS, MODES)))
def test_what_one_analyst_sees_is_paid_for_in_their_own_ledger(road, mode):
    """Whatever is released to others meanwhile."""
    index = list(INDEXES)[sum(map(ord, road + mode)) % len(INDEXES)]
    seeds = range(SEEN[mode], SEEN[mode] + TRIES)
    tapes = (couple(random_history(seed, road, mode, index, apart=True), "ann") for seed in seeds)
    wanted = {"ann", SHARED} if MODES[mode]["mode"] == "model" else {"ann"}
    seldom = {"ann"} if KINDS[mode] == SUMS else set()  # the next test is about votes
    assert any(set(tape.cost) | seldom == wanted for tape in tapes)


@pytest.mark.parametrize("road", ["engine", "cluster"])
def test_votes_about_residuals_are_paid_for_in_the_ledger_of_whoever_asked(road):
    given = {"epsilon": 30.0, "tau": 0.2, "sigma2": 0.02, "model_share": 0.5, "target": "number", "bounds": (0.0, 4.0)}
    settings = Settings(2, (), mode="model", **given)
    tape = couple(History(0, road, settings, (CROWD, COMES, Moment("train"), *asks(1.0, 0.0, n=8))), "ann")
    assert set(tape.cost) == {"ann", SHARED}


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
def test_a_thousand_short_histories(part):
    for history, only in short_histories(1000, part=part, parts=PARTS):
        couple(history, only)


@pytest.mark.parametrize("mutant", NUMBERS, ids=lambda mutant: mutant.name)
def test_broken_variants_about_numbers_are_caught(mutant):
    assert first_finding(mutant)


QUICK = [mutant for mutant in CAUGHT if mutant.name in {*WRITTEN, "counts free in a cluster"}]


@pytest.mark.parametrize("mutant", QUICK, ids=lambda mutant: mutant.name)
def test_variants_with_a_history_of_their_own_are_caught(mutant):
    assert first_finding(mutant)


@pytest.mark.slow
@pytest.mark.parametrize("mutant", [one for one in CAUGHT if one not in QUICK], ids=lambda mutant: mutant.name)
def test_broken_variants_are_caught(mutant):
    assert first_finding(mutant)


def test_the_histories_are_about_everything():
    written = [random_history(*kind, timely=True) for kind in product((1, 2), ROADS, MODES, INDEXES)]
    events = [event for history in written for event in history.events]
    kinds = {"Records", "Forget", "Ask", "Statement", "Moment", "Pieces", "Refused", "Later", "Hold"}
    assert {type(event).__name__ for event in events} == kinds
    assert {event.how for event in events if isinstance(event, Records)} == {"add", "upsert", "replace_all", "fit"}
    assert {event.how for event in events if isinstance(event, Moment)} == {
        "purge",
        "restart",
        "fail",
        "train",
        "half",
    }
    assert {query.analyst for event in events if isinstance(event, Ask) for query in event.requests} == {
        None,
        "ann",
        "bob",
        "eve",
    }
    queries = [query for event in events if isinstance(event, Ask) for query in event.requests]
    assert {query.unless for query in queries} == {None, 0, 1}
    assert any(row.key for event in events if isinstance(event, Records) for row in event.rows)
    assert {bool(history.table) for history in written} == {True, False}
    between = {type(part) for event in events if isinstance(event, Pieces) for part in event.parts}
    assert between == {Records, Forget, Ask, Later, Hold}
    dated = [row.expires is None for event in events if isinstance(event, Records) for row in event.rows]
    assert set(dated) == {True, False}
    assert {frozenset(history.settings.analysts) for history in written} == set(
        map(frozenset, ((), ("eve",), ("eve", "bob")))
    )
    settings = [history.settings for history in written]
    assert {(s.accountant, s.kernel) for s in settings} == set(product(("gdp", "rdp"), ("cosine", "rbf")))
    assert {s.global_epsilon is None for s in settings} == {True, False}


MODELS = Settings(2, (0, 1), epsilon=4.0, tau=0.5)


@pytest.mark.parametrize("name", WRITTEN)
def test_the_worlds_are_the_same_in_histories_that_were_written_for_a_variant(name):
    couple(*WRITTEN[name])


@pytest.mark.parametrize("road", ROADS)
def test_a_round_that_ends_in_the_middle_goes_on_with_whoever_is_there(road):
    """The target leaves and comes back while a round is half made; bob asks in between; a restart ends the rest."""
    back = Records("add", (Row("t2", TARGET, (1.0, 0.1), 0), Row("t3", TARGET, (0.9, 0.1), 1)))
    events = (
        *(CROWD, COMES, Moment("half"), Forget((TARGET,)), *asks(1.0, 0.1, analyst="bob"), back),
        *(Moment("train"), Moment("restart"), *asks(1.0, 0.2), Moment("purge"), Moment("half"), Moment("train")),
    )
    tape = couple(History(0, road, MODELS, events))
    kinds = [release.kind for release in tape.releases if release.scope == SHARED]
    assert kinds[:6] == ["noisy_tally", *["noisy_gradient"] * 4, "noisy_tally"]
    assert kinds.count("noisy_gradient") == 8  # once before the purge, once after it; nothing is made twice
    assert tape.cost[SHARED] > 0


def test_a_finding_is_cut_down_to_what_it_takes():
    (refund,) = [mutant for mutant in MUTANTS if mutant.name == "refund on return"]
    goes, back = Forget((TARGET,)), Records("add", (Row("t2", TARGET, (1.0, 0.0), 1),))
    (one,), (two,), (three,), (four,) = (asks(1.0, x) for x in (0.5, 0.1, 0.2, 0.3))
    events = (CROWD, one, COMES, two, Moment("purge"), goes, three, back, four)
    history = History(0, "engine", MODELS, events)
    with refund():
        least, finding = smallest(history)
    assert least.events == (COMES, events[3], goes, back)
    assert finding.startswith("event 3: target had paid")
    couple(history)


@pytest.mark.parametrize("road", ROADS)
def test_the_number_of_a_round_does_not_show_who_came_before_a_purge(road):
    events = (CROWD, *asks(1.0, 0.1), COMES, Moment("purge"), Moment("restart"), *asks(1.0, 0.2))
    couple(History(0, road, MODELS, events))


def test_a_receipt_does_not_count_what_happened_to_others(tmp_path):
    receipts = []
    for world in ("with", "without"):
        with Store.create(tmp_path / world, MODELS) as store:
            store.add([[1.0, 0.0], [1.0, 0.1]], [0, 1], ["p0", "p1"])
            if world == "with":
                store.add([[0.0, 1.0]], [1], [TARGET])
            receipt = store.forget(["p0"])
            receipts.append(
                {
                    name: what
                    for name, what in receipt.items()
                    if name not in {"at", "store", "audit_hash", "signed_with", "signature"}
                }
            )
    assert receipts[0] == receipts[1]
