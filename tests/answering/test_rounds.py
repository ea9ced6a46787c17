"""Rules 17 and 18: when a round begins, whom it is about, when its model shows; and that it always ends."""

from itertools import islice, pairwise
from threading import Thread

import numpy as np
import pytest

import indknn
from helpers.asking import declared
from helpers.people import ASKING, LABELS, NAMES, QUERIES, RECORDS, SETTINGS, engine, shared, train
from indknn import IndKNNClassifier, PrivacyError
from indknn.answering.trainer import Trainer
from indknn.core.noise import SeededNoise
from indknn.core.releases import Gradient, ModelShown, PublicRows, TallyRelease
from indknn.engine import Engine
from indknn.errors import StoreError
from indknn.ledger import SHARED
from indknn.models.shared_model import STEPS, SharedModel, Terms
from indknn.server import worker
from indknn.server.telemetry import Log
from indknn.settings import Settings
from indknn.store import Store
from indknn.store.verify import problems
from indknn.types import Given

FEW, D = 60, 10
SMALL = Settings(n_features=D, classes=(0, 1, 2), epsilon=4.0)


def few(folder, **options):
    store = declared(Store.create(folder / "few.store", SMALL, **options), "ann", "bob")
    store.add(RECORDS[:FEW], LABELS[:FEW], NAMES[:FEW])
    return store


def finished(predictor, rounds=1):
    """Rounds that ended as they should, and nobody has paid more than the model may cost."""
    model, ledger = predictor.model, predictor.shard.ledger
    assert model.due() is None
    assert model.follow == 0
    assert model.shown.rounds == model.rounds
    assert rounds is None or model.rounds == rounds
    assert ledger.spent(ledger.owners(), SHARED).max() <= ledger.shared_budget


# A round ends, whoever takes its pieces


@pytest.mark.parametrize("at", range(0, 44, 7))
def test_a_query_between_the_pieces_of_a_round_finishes_it(tmp_path, at):
    with few(tmp_path) as store:
        for i, _ in enumerate(store.train()):
            if i == at:
                store.predict(QUERIES[:2])
        finished(store.engine.predictor)
        assert not list(problems(store))
    with indknn.open(store.path) as again:
        finished(again.engine.predictor)
        assert len(again.predict(QUERIES[2:4])) == 2


def test_two_who_take_pieces_in_turn_make_each_step_once():
    model = engine()
    model.start_round()
    both = [model.predictor.training(), model.predictor.training()]
    while both:
        both = [pieces for pieces in both if next(pieces, None)]
    finished(model.predictor)


@pytest.mark.parametrize("seed", range(12))
def test_threads_that_train_ask_add_forget_and_purge_always_end(seed, monkeypatch):
    """Whatever is interleaved, training ends, nobody is drained below the reserve, and the model answers."""
    steps, absorb = [], SharedModel.absorb

    def noted(model, release):
        absorb(model, release)
        steps.extend([release.step] if isinstance(release, Gradient) else [])

    monkeypatch.setattr(SharedModel, "absorb", noted)
    model = Engine(SMALL, SeededNoise(seed))
    model.add(RECORDS[:FEW], LABELS[:FEW], NAMES[:FEW])
    rng = np.random.default_rng(seed)
    work = [
        lambda: train(model),
        lambda: [model.predict(QUERIES[i : i + 2]) for i in range(0, 12, 2)],
        lambda: train(model),
        lambda: [model.add(RECORDS[:1], LABELS[:1], [f"new{i}"]) for i in range(5)],
        lambda: [model.forget_owners([NAMES[i]]) for i in range(5)],
        *([model.purge] if seed % 3 == 0 else []),
    ]
    threads = [Thread(target=work[i], daemon=True) for i in rng.permutation(len(work))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=600)
        assert not thread.is_alive()
    train(model)
    finished(model.predictor, rounds=None)
    assert steps.count(0) <= model.predictor.model.rounds + (seed % 3 == 0)
    assert all(later in {earlier + 1, 0} for earlier, later in pairwise(steps))


# What is not due is refused, when it is made and when it is read back


def begun():
    model = SharedModel(Terms(4, 2, 0.5))
    model.absorb(PublicRows(False, 1, np.zeros((0, 4), np.int8)))
    return model


def count():
    return TallyRelease(0, 1 << 20, np.array([0, 0, 500, 500, 4]) << 20)


def step(model, number, follow):
    return Gradient(number, follow, model.scale, np.zeros(model.weights.whole.size, np.int64))


def test_only_the_release_that_is_due_is_taken():
    model = begun()
    card = TallyRelease(1, 1 << 20, np.zeros(20, np.int64))
    for early in (card, ModelShown(), Gradient(0, STEPS - 1, 9, np.zeros(10, np.int64))):
        with pytest.raises(StoreError, match="came when count was due"):
            model.absorb(early)
    model.absorb(count())
    for wrong in (count(), card, ModelShown(), step(model, 1, STEPS - 2), step(model, 0, STEPS), step(model, 0, -1)):
        with pytest.raises(StoreError, match="came when step was due"):
            model.absorb(wrong)
    for i in range(STEPS):
        model.absorb(step(model, i, STEPS - 1 - i))
    with pytest.raises(StoreError, match="came when card was due"):
        model.absorb(step(model, STEPS, -1))
    model.absorb(card)
    assert not model.ready
    model.absorb(ModelShown())
    assert model.ready
    with pytest.raises(StoreError, match="came when nothing was due"):
        model.absorb(ModelShown())


# Public events begin rounds, and no named analyst's query does


def test_a_purge_begins_the_round_itself(tmp_path):
    with few(tmp_path) as store:
        store.predict(QUERIES[:5], "ann")
        rows = store.engine.predictor.model.public
        store.purge()
        model = store.engine.predictor.model
        finished(store.engine.predictor)  # nobody had to ask
        assert (model.public == rows).all()
        before = model.before
        store.add(RECORDS[FEW : FEW + 9], LABELS[FEW : FEW + 9], NAMES[FEW : FEW + 9])  # too late for this round
        assert not list(problems(store))
    with indknn.open(store.path) as again:
        again.predict(QUERIES[5:9], "bob")
        model = again.engine.predictor.model
        finished(again.engine.predictor)
        assert (model.before, model.since) == (before, before)
        assert not again.engine.ledger.joint
        assert not again.engine.ledger.spent(NAMES[FEW : FEW + 9], SHARED).any()
        assert not list(problems(again))


def test_a_purge_before_anything_was_released_begins_nothing(tmp_path):
    with few(tmp_path) as store:
        store.purge()
        assert not store.engine.predictor.model.started


def test_replacing_all_records_begins_a_round_about_the_new_ones(tmp_path):
    with few(tmp_path) as store:
        store.predict(QUERIES[:3])
        records = store.settings.prepare(RECORDS[100:180], LABELS[100:180])
        for _ in islice(store.train(), 3):  # a round that is running is given up, as it is about nobody any more
            pass
        store.replace_all(Given(*records, NAMES[100:180]))
        assert not list(problems(store))
        finished(store.engine.predictor)
        assert shared(store.engine, NAMES[100:180]).min() > 0


def test_a_refit_begins_the_round_with_the_rows_of_the_last():
    model = IndKNNClassifier(epsilon=4.0, classes=[0, 1, 2], random_state=0).fit(RECORDS[:90], LABELS[:90], NAMES[:90])
    model.predict(QUERIES[:40], "ann")
    rows = model._memory.predictor.model.public
    model.fit(RECORDS[90:180], LABELS[90:180], NAMES[90:180])
    new = model._memory.predictor.model
    assert new.ready  # nobody had to ask
    assert (new.public == rows).all()
    model.partial_fit(RECORDS[180:200], LABELS[180:200], NAMES[180:200])
    model.predict(QUERIES[:3], "bob")
    assert not shared(model._memory, NAMES[180:200]).any()
    assert shared(model._memory, NAMES[90:180]).min() > 0


# Who finishes a round that was interrupted


def interrupted(store):
    """Read back from a process that ended in the middle of a round."""
    for _ in islice(store.train(), 3):
        pass
    store.close()
    return indknn.open(store.path)


def test_the_first_round_is_finished_by_whoever_asks_first(tmp_path):
    with interrupted(few(tmp_path)) as store:
        store.predict(QUERIES[:2], analyst="ann")
        finished(store.engine.predictor)


@pytest.mark.parametrize("asking", ["ann", "bob", None])
def test_a_later_round_waits_for_the_operator(tmp_path, asking):
    store = few(tmp_path)
    store.predict(QUERIES[:2], analyst="ann")
    store.add(RECORDS[FEW:180], LABELS[FEW:180], NAMES[FEW:180])
    with interrupted(store) as again:
        due = again.engine.predictor.model.due()
        assert due is not None
        with pytest.warns(UserWarning, match="indknn train STORE"):
            assert len(again.predict(QUERIES[2:4], analyst=asking)) == 2
        assert again.engine.predictor.model.due() == due
        for _ in again.train():
            pass
        finished(again.engine.predictor, rounds=None)
        again.predict(QUERIES[4:6], analyst=asking)  # without a warning


def test_a_refit_that_was_interrupted_waits_too(monkeypatch):
    """The analyst without a name was told something before, so bob's query must not finish the round of the refit."""
    model = engine()
    model.predict(QUERIES[:2])
    again = model.restarted(SETTINGS, SeededNoise(1))
    with monkeypatch.context() as patch:
        patch.setattr(Engine, "_finish_round", lambda self: list(islice(self.predictor.training(), 3)))
        again.replace_all(Given(*SETTINGS.prepare(RECORDS[:FEW], LABELS[:FEW]), NAMES[:FEW]))
    due = again.predictor.model.due()
    with pytest.warns(UserWarning, match="indknn train STORE"):
        again.predict(QUERIES[2:4], "bob")
    assert again.predictor.model.due() == due is not None


def test_the_only_analyst_finishes_a_later_round(tmp_path):
    store = few(tmp_path)
    store.predict(QUERIES[:2])
    store.add(RECORDS[FEW:180], LABELS[FEW:180], NAMES[FEW:180])
    with interrupted(store) as again:
        again.predict(QUERIES[2:4])
        finished(again.engine.predictor, rounds=None)


# A round is about those who were there


def test_newcomers_wait_for_the_next_round_and_the_forgotten_are_gone():
    model = engine()
    model.start_round()
    pieces = model.predictor.training()
    next(pieces)
    model.add(RECORDS[:400], LABELS[:400], [f"new{i}" for i in range(400)])
    model.add(RECORDS[1:2], LABELS[1:2], [NAMES[0]])
    paid = shared(model, NAMES[:1])
    model.forget_owners(NAMES[:1])
    for _ in pieces:
        pass
    newcomers = [f"new{i}" for i in range(400)]
    assert not shared(model, newcomers).any()
    assert shared(model, NAMES[:1]) == paid
    assert train(model) == STEPS  # now it is their turn
    assert shared(model, newcomers).min() > 0


def test_the_work_of_one_person_is_bounded():
    model = engine(Settings(n_features=D, classes=(0, 1, 2), max_records_per_round=20))
    model.add(RECORDS, LABELS, ["many"] * len(RECORDS))
    train(model)
    cohort = model.predictor.model.cohort
    assert len(model.shard.taking_part(cohort)) == len(NAMES) + 20
    assert model.predictor.model.records == pytest.approx(len(NAMES) + 20, abs=6 * 20 * 4.0 / SETTINGS.shared_budget)


# A finished model shows at a public moment


class Clock:
    """Seconds that pass when a test says so."""

    def __init__(self):
        self.now = 1000.0

    def monotonic(self):
        """What time.monotonic would say."""
        return self.now


@pytest.fixture
def clock(monkeypatch):
    made = Clock()
    for module in (worker, indknn.answering.predictor):
        monkeypatch.setattr(module, "time", made)
    monkeypatch.setattr(worker, "_SOME", -1.0)  # one piece at a time
    return made


def served(folder, clock):
    store = few(folder)
    work = worker.Training(store, np.inf, Log())
    store.predict(QUERIES[:1], "ann")
    return store, work


def test_whoever_asks_comes_first_while_training_is_ahead_of_its_time(tmp_path, clock):
    store, work = served(tmp_path, clock)
    with store:
        model = store.engine.predictor.model
        assert not work.ahead()  # the count comes first: nobody knows yet how long it may take
        while not (model.mapped and model.step):
            work.piece()
        assert work.ahead()
        seconds = worker._SPREAD * (worker.LEAST_SECONDS + model.work / worker.OPERATIONS)
        clock.now += 1.01 * seconds * (worker._FIRST + (1 - worker._FIRST) / (model.step + model.follow))
        assert not work.ahead()
        while model.step < 3:
            work.piece()
        assert work.ahead()
        while work.piece():
            pass
        assert not work.ahead()  # a report card and the moment to show it wait for nobody


def test_the_first_step_is_spread_over_its_part_of_the_time(tmp_path, clock, monkeypatch):
    """It computes the features of every record, and whoever asks in the first seconds would wait for all of that."""
    monkeypatch.setattr(worker, "PORTION", 2)
    monkeypatch.setattr(indknn.records.derived.Derived.fill, "__defaults__", (2,))
    monkeypatch.setattr(indknn.records.derived, "RECORDS", 2)
    store, work = served(tmp_path, clock)
    with store:
        model = store.engine.predictor.model
        while not model.mapped:
            work.piece()
        model.records = float(len(store.engine.shard))  # with so few people it is mostly noise
        start, seconds = clock.now, worker._SPREAD * (worker.LEAST_SECONDS + model.work / worker.OPERATIONS)
        begun = []
        while model.step == 0:
            while work.ahead():
                clock.now += seconds / 1000
            begun.append((clock.now - start) / seconds)
            work.piece()
        assert len(begun) > 10
        assert begun[len(begun) // 2] > worker._FIRST / 5  # at once until now
        assert begun[-1] <= worker._FIRST * 1.1


def test_a_finished_model_waits_for_its_moment(tmp_path, clock):
    store, work = served(tmp_path, clock)
    with store:
        while work.piece():
            pass
        model = store.engine.predictor.model
        assert model.due() == "show"
        assert not work.piece()
        store.predict(QUERIES[1:2], "ann")  # by votes, as before
        assert store.engine.predictor.adviser("ann").asked == 2
        seconds = worker.LEAST_SECONDS + model.work / worker.OPERATIONS
        assert work.pause() == pytest.approx(seconds)
        clock.now += seconds - 0.01
        assert not work.overdue()
        assert not work.piece()
        assert not model.ready
        clock.now += 0.02
        assert work.overdue()
        while work.piece():
            pass
        assert model.ready
        assert not work.overdue()
        assert work.pause() is None


def test_training_that_fails_is_not_tried_again_at_once_and_nobody_waits_for_it(tmp_path, clock, monkeypatch):
    store, work = served(tmp_path, clock)
    with store:
        model = store.engine.predictor.model
        while model.due() != "step" or not model.mapped:
            work.piece()
        clock.now += 1000.0
        with monkeypatch.context() as failing:
            failing.setattr(Trainer, "piece", lambda trainer: 1 / 0)
            assert work.overdue()
            assert not work.piece()
        assert not work.overdue()
        clock.now += 0.5  # the store was read again, so the round began again
        assert not work.piece()
        assert work.pause() > 0.0
        clock.now += 1000.0
        while work.piece():
            pass
        assert store.engine.predictor.model.ready


def test_the_moment_follows_from_the_count_and_not_from_the_work(tmp_path, clock):
    store, work = served(tmp_path, clock)
    with store:
        model = store.engine.predictor.model
        while model.due() != "step" or not model.mapped:
            work.piece()
        clock.now += worker.LEAST_SECONDS + model.work / worker.OPERATIONS
        assert work.overdue()  # nothing is finished, so whoever asks now has to wait for it
        while work.piece():
            pass
        assert model.ready


def test_a_model_that_was_not_shown_waits_again_after_a_restart(tmp_path, clock):
    store, work = served(tmp_path, clock)
    with store:
        while work.piece():
            pass
    with indknn.open(store.path) as again:
        work = worker.Training(again, np.inf, Log())
        assert not work.piece()
        assert again.engine.predictor.model.due() == "show"
        assert not again.engine.predictor.model.ready
        clock.now += 1000.0
        while work.piece():
            pass
        assert again.engine.predictor.model.ready


def test_a_later_round_answers_with_the_earlier_model_until_it_is_shown():
    model = engine()
    train(model)
    shown = model.predictor.model.shown
    scores = shown.scores(SETTINGS.quantise(QUERIES, "Q").values)[0]
    model.add(RECORDS[:800], LABELS[:800], [f"new{i}" for i in range(800)])
    model.start_round()
    for _ in model.predictor.training(lambda: False):
        pass
    assert model.predictor.model.due() == "show"
    assert model.predictor.model.shown is shown
    assert (shown.scores(SETTINGS.quantise(QUERIES, "Q").values)[0] == scores).all()
    for _ in model.predictor.training():
        pass
    assert model.predictor.model.shown.rounds == shown.rounds + 1


# Refits with other settings


@pytest.mark.parametrize(
    ("first", "then"),
    [({"mode": "votes"}, {"mode": "model"}), ({"mode": "model"}, {"mode": "votes"}), ({}, {"model_share": 0.5})],
)
def test_budgets_are_not_divided_in_another_way_after_they_were_spent(first, then):
    model = IndKNNClassifier(classes=[0, 1, 2], random_state=0, **first).fit(RECORDS[:90], LABELS[:90], NAMES[:90])
    model.fit(RECORDS[:90], LABELS[:90], NAMES[:90])  # nothing was asked yet
    model.predict(QUERIES[:2], "ann")
    spent = model.privacy_spent()
    model.set_params(**then)
    with pytest.raises(PrivacyError, match="keep mode and model_share"):
        model.fit(RECORDS[:90], LABELS[:90], NAMES[:90])
    assert (model.privacy_spent() == spent).all()


@pytest.mark.parametrize("epsilon", [1.0, 12.0])
def test_what_all_see_does_not_depend_on_what_one_analyst_was_told(epsilon):
    """After a refit with another ε, somebody whom ann's queries exhausted takes part in the model as before."""
    seen = []
    for asked in (0, 150):
        model = engine(ASKING)
        train(model)
        if asked:
            model.predict(QUERIES[:asked], "ann")
        model.noise = model.predictor.noise = SeededNoise(5)
        again = model.restarted(Settings(n_features=D, classes=(0, 1, 2), epsilon=epsilon), SeededNoise(5))
        again.replace_all(Given(*again.settings.prepare(RECORDS, LABELS), NAMES))
        train(again)
        assert model.ledger.spent(NAMES, "ann").any() == bool(asked)
        seen.append((again.predictor.model.weights.whole.tolist(), shared(again).tolist()))
    assert seen[0] == seen[1]
