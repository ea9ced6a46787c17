"""Queries without end: one model that everybody pays for once, in memory and in a store."""

import hashlib

import numpy as np
import pytest

import indknn
from conftest import blobs
from indknn import IndKNNClassifier, InvalidInputError
from indknn.answering import predictor as answering
from indknn.answering.predictor import Request
from indknn.core.accounting import from_units
from indknn.core.noise import SecureNoise, SeededNoise
from indknn.core.releases import Gradient, ModelOnly, PublicRows, TallyRelease, Votes, decode, encode
from indknn.engine import Engine
from indknn.ledger import SHARED
from indknn.models import SharedModel
from indknn.models.forecast import forecast
from indknn.settings import Settings
from indknn.store import Store
from indknn.store.chain import entries
from indknn.store.outlook import stream
from indknn.store.reports import status
from indknn.store.verify import problems

X, Y = blobs(3500, 3, 10, spread=1.2)
RECORDS, LABELS, QUERIES, TRUTH = X[:2000], Y[:2000], X[2000:], Y[2000:]
NAMES = [f"person-{i}" for i in range(2000)]
SETTINGS = Settings(n_features=10, classes=(0, 1, 2))
ASKING = Settings(n_features=10, classes=(0, 1, 2), epsilon=8.0, max_queries=150)
"""So much budget for so few queries that votes stand above their noise."""


def engine(settings=SETTINGS, seed=0, **options):
    made = Engine(settings, SeededNoise(seed), **options)
    made.add(RECORDS, LABELS, NAMES)
    return made


def shared(model, names=NAMES):
    """What each has paid for the model."""
    return from_units(model.ledger.spent(names, SHARED))


def train(model):
    """A round to its end; how many gradients it made."""
    return max((progress.made for progress in model.train()), default=0)


def test_it_goes_on_long_after_algorithm_3_is_spent():
    spendthrift = {"max_queries": 100, "reuse": "none", "tau": 0.5, "sigma2": 0.05}
    hopeless = engine(Settings(n_features=10, classes=(0, 1, 2), **spendthrift), seed=1)
    endless = engine(seed=1)
    late = slice(1000, 1500)
    for model in (hopeless, endless):
        model.predict(QUERIES[:1000])
    assert (hopeless.predict(QUERIES[late]) == TRUTH[late]).mean() < 0.6
    assert (endless.predict(QUERIES[late]) == TRUTH[late]).mean() > 0.85
    assert endless.spent().max() <= SETTINGS.budget


# Who pays


def test_the_first_query_trains_the_model_and_a_second_analyst_finds_it_there():
    model = engine()
    told = model.predict(QUERIES[:60], "ann")
    paid, weights = shared(model), model.predictor.model.weights.whole
    assert paid.min() > 0.0
    assert paid.max() <= SETTINGS.shared_budget
    assert (model.predict(QUERIES[:60], "bob") == told).all()  # nobody had to be asked
    assert (shared(model) == paid).all()
    assert (model.predictor.model.weights.whole == weights).all()
    assert model.predictor.model.rounds == 1
    for observer in ("ann", "bob", "somebody who never asked", None):
        assert (model.spent(analyst=observer) == paid).all()


def test_whom_the_model_gets_right_pays_less():
    model = engine()
    train(model)
    says = model.predictor.model.scores(SETTINGS.quantise(RECORDS, "X").values)[0].argmax(axis=1)
    right = says == LABELS
    assert 0.85 < right.mean() < 0.99
    assert np.median(shared(model)[right]) < 0.8 * np.median(shared(model)[~right])


def test_newcomers_join_by_a_further_round_and_others_pay_little():
    model = engine()
    assert train(model) > 0
    first = shared(model)
    assert train(model) == 0  # nobody is new
    before = shared(model)
    assert (before - first).max() < 0.01 * SETTINGS.shared_budget  # what a count costs, at most
    late = [f"late-{i}" for i in range(1000)]
    model.add(X[2000:3000], Y[2000:3000], late)
    assert train(model) > 0
    assert model.predictor.model.rounds == 2
    assert model.predictor.model.count == pytest.approx(3000, rel=0.1)
    assert shared(model, late).min() > 0.0
    assert (shared(model) - before).mean() < 0.5 * before.mean()
    assert max(shared(model).max(), shared(model, late).max()) <= SETTINGS.shared_budget


def test_a_new_class_is_learned_by_a_further_round():
    model, third, names = Engine(ASKING, SeededNoise(0)), LABELS == 2, np.array(NAMES)
    model.add(RECORDS[~third], LABELS[~third], names[~third].tolist())
    model.predict(QUERIES[:100])
    later = QUERIES[100:][TRUTH[100:] == 2]
    assert (model.predict(later[:200]) == 2).mean() < 0.1
    model.add(RECORDS[third], LABELS[third], names[third].tolist())
    train(model)
    assert (model.predict(later[200:]) == 2).mean() > 0.6


# Votes


def test_votes_are_asked_only_where_the_model_is_unsure_and_they_are_charged_to_the_analyst():
    model = engine(ASKING)
    model.predict(QUERIES[:100], "ann")
    adviser, paid = model.predictor.adviser("ann"), shared(model)
    assert 0 < adviser.asked < adviser.answered == 100
    sure = model.predictor.model.scores(ASKING.quantise(QUERIES[100:150], "Q").values)[1]
    assert 0 < sure.sum() < 50
    before = model.spent(analyst="ann")
    model.predict(QUERIES[100:150][sure], "ann")
    assert (model.spent(analyst="ann") == before).all()
    model.predict(QUERIES[100:150][~sure], "ann")
    assert model.spent(analyst="ann").sum() > before.sum()
    assert (shared(model) == paid).all()
    assert (model.spent(analyst="bob") == paid).all()


def test_where_votes_would_drown_in_their_noise_nobody_is_asked():
    model = engine()  # planned for 2,000 questions, which 2,000 people cannot answer
    model.predict(QUERIES[:1])
    paid = model.spent()
    model.predict(QUERIES[1:400])
    assert model.predictor.adviser().asked == 0
    assert (model.spent() == paid).all()


def test_votes_draw_on_what_the_model_leaves_and_never_on_more():
    model = engine(Settings(n_features=10, classes=(0, 1, 2), epsilon=8.0, tau=0.3, sigma2=0.02))
    model.predict(QUERIES[:200], "ann")
    assert model.predictor.adviser("ann").asked > 0
    votes = from_units(model.ledger.spent(NAMES, "ann"))
    limit = model.settings.budget - model.settings.shared_budget
    assert 0.99 * limit < votes.max() <= limit
    assert model.spent(analyst="ann").max() <= model.settings.budget


# When it is trained, and by which rows


def test_queries_of_the_unnamed_analyst_are_a_schedule_and_then_count_for_all(monkeypatch):
    monkeypatch.setattr(answering, "SCHEDULE_FIRST", 40)
    model = engine(ASKING)
    model.predict(QUERIES[:60])
    assert not model.ledger.house
    model.predict(QUERIES[60:61])
    assert model.ledger.house
    assert len(model.predictor.model.public) == 60  # the queries so far
    slots, unnamed = model.ledger.slots_of(NAMES), model.ledger.spent(NAMES, None)
    assert unnamed.max() > 0
    assert (model.ledger.remaining(slots, "ann") == model.ledger.limit("ann") - unnamed).all()
    model.predict(QUERIES[100:200], "ann")
    assert (model.spent(analyst="ann") <= ASKING.budget).all()


def test_queries_of_named_analysts_are_no_schedule(monkeypatch):
    monkeypatch.setattr(answering, "SCHEDULE_FIRST", 40)
    model = engine()
    model.predict(QUERIES[:50], "ann")
    for _ in range(2):
        model.predict(QUERIES[50:100], "ann")
        model.predict(QUERIES[100:200])  # nor those of the unnamed one, once a named one was told something
    assert not model.ledger.house
    assert (model.predictor.model.public == SETTINGS.quantise(QUERIES[:50], "Q").values).all()


def test_declared_rows_go_before_the_first_queries():
    rows = SETTINGS.quantise(X[3000:3200], "public").values
    model = engine(public=rows)
    model.predict(QUERIES[:60])
    assert (model.predictor.model.public == rows).all()


def test_the_estimator_takes_public_rows(tmp_path):
    for store in (None, tmp_path / "people.store"):
        told = IndKNNClassifier(public=X[3000:3200], classes=[0, 1, 2], store=store).fit(RECORDS, LABELS, NAMES)
        told.predict(QUERIES[:5])
        assert len(told._memory.predictor.model.public) == 200
    with pytest.raises(InvalidInputError, match="public must have 10 features per row, got 9"):
        IndKNNClassifier(public=X[3000:3200, :9], classes=[0, 1, 2]).fit(RECORDS, LABELS)


def test_training_by_word_needs_no_queries():
    model = engine()
    assert train(model) > 0
    paid = model.spent()
    model.predict(QUERIES[:20])
    assert (model.spent() == paid).all()
    with pytest.raises(InvalidInputError, match="no shared model to train: the settings have prior='none'"):
        train(engine(Settings(n_features=10, classes=(0, 1, 2), prior="none")))


def test_a_single_public_row_does_not_spoil_what_the_card_says():
    model = engine(ASKING)
    model.predict(QUERIES[:1])  # which is then all there is of public rows
    right = (model.predict(QUERIES[1:1001]) == TRUTH[1:1001]).mean()
    card = model.predictor.model.card
    assert card.overall_error < 0.01
    assert abs(card.overall - right) < 0.03


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"reuse": "everything"}, "reuse must be one of 'labels', 'none', got 'everything'"),
        ({"reuse": True}, "reuse must be one of 'labels', 'none', got True"),
        ({"prior": "oracle"}, "prior must be one of 'model', 'none', got 'oracle'"),
        ({"prior": "model", "reuse": "labels"}, "prior='model' goes with reuse='none', got 'labels'"),
        ({"prior_share": 1.0}, "prior_share must be above 0 and below 1, got 1.0"),
        ({"n_features": 5000}, "at most 4096 features, got 5000; use prior='none'"),
    ],
)
def test_what_does_not_go_together_is_refused_by_name(options, complaint):
    with pytest.raises(InvalidInputError, match=complaint):
        Settings(**{"n_features": 2, "classes": (0, 1), **options})


def test_releases_survive_being_written():
    for release in (
        ModelOnly(),
        Votes(5 << 20, 7, 0, 0.25, 0.5, np.array([3, -1, -2])),
        PublicRows(True, np.array([[1, -2], [3, 4]], dtype=np.int8)),
        PublicRows(False, np.zeros((0, 5), dtype=np.int8)),
        Gradient(3, 28, 2, 99, np.array([5, -6])),
        TallyRelease(1, 9, np.arange(20)),
    ):
        again = decode(encode(release))
        assert type(again) is type(release)
        assert encode(again) == encode(release)


class FailingNoise(SecureNoise):
    """Noise that breaks off once, after so many draws."""

    def __init__(self, after):
        super().__init__()
        self.left = after

    def draw(self, scale, size):
        self.left -= 1
        if self.left == -1:
            raise RuntimeError("no entropy")
        return super().draw(scale, size)


def gradients(store):
    """Those in the file."""
    rows = store.db.execute("SELECT release FROM answers WHERE release IS NOT NULL ORDER BY seq")
    return [one for one in (decode(text) for (text,) in rows) if isinstance(one, Gradient)]


class TestStore:
    """The same, durable."""

    @pytest.fixture
    def store(self, tmp_path):
        with Store.create(tmp_path / "people.store", SETTINGS) as made:
            made.add(RECORDS, LABELS, NAMES)
            yield made

    def test_all_that_was_learned_survives_reopening(self, store):
        told = store.predict(QUERIES[:200])
        old, adviser, spent = store.engine.predictor.model, store.engine.predictor.adviser(), store.spent()
        store.close()
        with indknn.open(store.path) as again:
            new = again.engine.predictor.model
            assert not list(problems(again))
            assert (new.weights.whole == old.weights.whole).all()
            assert (new.count, new.since, new.rounds, new.due()) == (old.count, old.since, old.rounds, None)
            assert new.card.right.tolist() == old.card.right.tolist()
            assert (new.card.smooth, new.card.overall) == (old.card.smooth, old.card.overall)
            assert again.engine.predictor.adviser().answered == adviser.answered == 200
            assert (again.predict(QUERIES[:200]) == told).all()
            assert (again.predict(QUERIES[200:400]) == TRUTH[200:400]).mean() > 0.85
            assert (again.spent() == spent).all()  # neither repeats nor a second training

    def test_votes_survive_reopening(self, tmp_path):
        with Store.create(tmp_path / "votes.store", ASKING) as store:
            store.add(RECORDS, LABELS, NAMES)
            told = store.predict(QUERIES[:128], "ann")
            old, spent = store.engine.predictor.adviser("ann"), store.spent()
        with indknn.open(store.path) as again:
            new = again.engine.predictor.adviser("ann")
            assert (new.answered, new.asked, new.kappa) == (old.answered, old.asked, old.kappa)
            assert new.asked > 0
            assert (again.predict(QUERIES[:128], "ann") == told).all()
            assert (again.spent() == spent).all()

    def test_a_round_that_was_stopped_goes_on_where_it_was(self, store):
        for progress in store.train():
            if progress.made == 5:
                steps = progress.made + progress.follow
                break
        spent, weights = store.spent(), store.engine.predictor.model.weights.whole
        store.close()
        with indknn.open(store.path) as again:
            assert (again.spent() == spent).all()
            assert (again.engine.predictor.model.weights.whole == weights).all()
            assert not again.engine.predictor.model.ready
            again.predict(QUERIES[:3])  # which trains the rest
            assert [one.step for one in gradients(again)] == list(range(steps))
            assert again.spent().max() <= SETTINGS.shared_budget
            assert not list(problems(again))

    def test_a_round_that_fails_wastes_nothing_that_was_written(self, tmp_path):
        with Store.create(tmp_path / "s.store", SETTINGS, noise=FailingNoise(6)) as store:  # a count, then gradients
            store.add(RECORDS, LABELS, NAMES)
            with pytest.raises(RuntimeError, match="no entropy"):
                train(store)
            assert len(gradients(store)) == 5
            made = train(store)
            assert [one.step for one in gradients(store)] == list(range(5 + made))
            assert store.engine.predictor.model.ready
            assert not list(problems(store))

    def test_answers_come_between_the_pieces_of_a_round(self, store):
        pieces = store.train()
        while next(pieces).made < 3:
            pass
        store.train_in_background()
        assert len(store.predict(QUERIES[:4], "ann")) == 4  # by votes alone
        assert store.engine.predictor.adviser("ann").asked == 4
        for _ in pieces:
            pass
        assert store.engine.predictor.model.ready
        assert not list(problems(store))

    def test_somebody_forgotten_in_the_middle_of_a_round_is_gone_from_the_rest(self, store):
        pieces = store.train()
        while next(pieces).made < 3:
            pass
        store.forget(["person-7"])
        spent = store.spent(["person-7"])
        for _ in pieces:
            pass
        assert (store.spent(["person-7"]) == spent).all()
        assert not list(problems(store))

    def test_records_know_after_reopening_that_they_were_in_a_round(self, store):
        train(store)
        store.add(X[3000:3005], Y[3000:3005], [f"new-{i}" for i in range(5)])
        store.close()
        with indknn.open(store.path) as again:
            shard = again.engine.shard
            assert (shard.epochs_of(shard.slots()) >= again.engine.predictor.model.since).sum() == 5

    def test_after_a_purge_and_a_restart_nobody_is_taken_for_a_newcomer(self, store):
        store.predict(QUERIES[:10])
        store.add(X[3000:3005], Y[3000:3005], [f"new-{i}" for i in range(5)])
        store.purge()
        store.close()
        with indknn.open(store.path) as again:
            again.predict(QUERIES[:10])  # a model of all who are here
            shard = again.engine.shard
            assert shard.epochs_of(shard.slots()).max() < again.engine.predictor.model.since

    def test_forgetting_keeps_what_was_released_and_a_purge_drops_it(self, store):
        store.predict(QUERIES[:100], request_id="r")
        kept = store.forget(["person-7"])
        assert "kept" in kept["released"]
        assert store.engine.predictor.model.ready
        spent = store.spent(["person-7", "person-8"])
        assert "everybody" in store.purge()["public"]
        assert not list(problems(store))
        assert store.db.execute("SELECT count(*) FROM answers WHERE release IS NOT NULL").get == 0
        assert store.db.execute("SELECT count(*) FROM requests").get == 0
        store.close()
        with indknn.open(store.path) as again:
            assert not list(problems(again))
            assert not again.engine.predictor.model.started
            assert (again.spent(["person-7", "person-8"]) == spent).all()  # nothing is refunded
            again.predict(QUERIES[:3], request_id="r")
            assert again.spent(["person-8"])[0] > spent[1]  # those who remain pay for a new model
            assert again.spent().max() <= SETTINGS.budget
            assert not list(problems(again))

    def test_that_queries_shaped_the_model_survives_reopening_and_a_purge(self, tmp_path, monkeypatch):
        monkeypatch.setattr(answering, "SCHEDULE_FIRST", 40)
        with Store.create(tmp_path / "s.store", ASKING) as store:
            store.add(RECORDS, LABELS, NAMES)
            store.predict(QUERIES[:60])
            store.predict(QUERIES[60:62])
            assert store.engine.ledger.house
        for change in (Store.flush, Store.purge, Store.flush):
            with indknn.open(store.path) as again:
                assert again.engine.ledger.house
                assert not list(problems(again))
                change(again)

    def test_opening_a_store_begins_no_round(self, store):
        first = answering.SCHEDULE_FIRST
        store.predict(QUERIES[:first])
        store.predict(QUERIES[first : first + 1])
        assert store.engine.ledger.house
        spent = store.spent()
        store.close()
        with indknn.open(store.path) as again:
            again.predict(QUERIES[first + 1 : first + 2])
            assert (again.spent() == spent).all()

    def test_status_counts_answers_and_not_steps_of_training(self, store):
        store.predict(QUERIES[:40])
        facts = status(store)
        assert facts["answers"] == 40
        assert facts["analysts"] == [""]
        assert facts["exhausted"] == 0
        assert facts["forecast"]["queries_left_for_median_owner"] is None  # nobody was asked
        assert 0.0 < facts["one_analyst"]["spent"] <= SETTINGS.shared_budget

    def test_a_forecast_tells_what_the_model_is_worth_and_that_it_stays(self, store):
        assert forecast(stream(store)).accuracy_alone is None
        store.predict(QUERIES[:200])
        found = forecast(stream(store))
        assert not found.ends
        assert (found.left, found.asked_share) == (1.0, 0.0)
        assert found.until_half is found.until_used_up is None
        later = (store.predict(QUERIES[200:1200]) == TRUTH[200:1200]).mean()
        assert later > found.accuracy_alone - 2.0 * found.accuracy_alone_error
        assert forecast(stream(store, "ann")).accuracy_alone == found.accuracy_alone  # it is everybody's

    def test_public_rows_are_declared_once_and_before_the_first_answer(self, store):
        store.declare_public(np.concatenate([X[3000:3100], X[3000:3001]]))
        (told,) = [entry for entry in entries(store.db) if entry.kind == "public"]
        rows = SETTINGS.quantise(X[3000:3100], "public").values
        assert told.facts["sha256"] == hashlib.sha256(rows.tobytes()).hexdigest()
        with pytest.raises(InvalidInputError, match="public rows are declared once, before the first answer"):
            store.declare_public(X[3000:3100])
        store.close()
        with indknn.open(store.path) as again:
            again.predict(QUERIES[:60])
            assert (again.engine.predictor.model.public == rows).all()
            assert not list(problems(again))

    def test_public_rows_come_too_late_after_the_first_answer(self, store):
        store.predict(QUERIES[:2])
        with pytest.raises(InvalidInputError, match="declared once, before the first answer"):
            store.declare_public(X[3000:3100])
        assert store.engine.predictor.public is None


@pytest.mark.parametrize("settings", [SETTINGS, ASKING], ids=["the model alone", "with votes"])
def test_requests_of_several_analysts_share_one_look_of_the_model(settings, monkeypatch):
    """The model says the same of a row in any company, so all who wait share a call, and nothing else changes."""
    vectors = settings.quantise(QUERIES, "the queries")
    requests = [Request(vectors[slice(i, i + 1 + i % 3)], f"analyst-{i % 4}") for i in range(0, 90, 3)]
    looks, seen, scores = [], [], SharedModel.scores
    monkeypatch.setattr(SharedModel, "scores", lambda model, values: looks.append(1) or scores(model, values))
    for groups in ([requests], [[request] for request in requests]):
        model = engine(settings)
        model.declare_public(QUERIES[1000:1200])
        train(model)
        looks.clear()
        replies = [reply for group in groups for reply in model.predictor.compute(group)]
        assert len(looks) == len(groups)
        seen.append(([reply.labels.tolist() for reply in replies], model.spent().tolist()))
    assert seen[0] == seen[1]
