"""Queries without end: one model that everybody pays for once, in memory and in a store."""

import numpy as np
import pytest

from helpers.people import ASKING, LABELS, NAMES, QUERIES, RECORDS, SETTINGS, TRUTH, X, Y, engine, shared, train
from indknn import IndKNNClassifier, InvalidInputError
from indknn.answering import predictor as answering
from indknn.answering.requests import Request
from indknn.core.accounting import from_units
from indknn.core.noise import SeededNoise
from indknn.core.releases import Gradient, ModelOnly, ModelShown, PublicRows, TallyRelease, Votes, decode, encode
from indknn.engine import Engine
from indknn.models.shared_model import ShownModel
from indknn.settings import Settings


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
    says = model.predictor.model.shown.scores(SETTINGS.quantise(RECORDS, "X").values)[0].argmax(axis=1)
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
    sure = model.predictor.model.shown.scores(ASKING.quantise(QUERIES[100:150], "Q").values)[1]
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
    assert not model.ledger.joint
    model.predict(QUERIES[60:61])
    assert model.ledger.joint
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
    assert not model.ledger.joint
    assert (model.predictor.model.public == SETTINGS.quantise(QUERIES[:50], "Q").values).all()


def test_declared_rows_go_before_the_first_queries():
    rows = SETTINGS.quantise(X[3000:3200], "public").values
    model = engine(public=PublicRows(False, 0, rows))
    model.predict(QUERIES[:60])
    assert (model.predictor.model.public == rows).all()


def test_the_estimator_takes_public_rows(tmp_path):
    for store in (None, tmp_path / "people.store"):
        told = IndKNNClassifier(public=X[3000:3200], classes=[0, 1, 2], store=store).fit(RECORDS, LABELS, NAMES)
        told.predict(QUERIES[:5])
        assert len(told._memory.predictor.model.public) == 200
    with pytest.raises(InvalidInputError, match="public must have 10 features per row, got 9"):
        IndKNNClassifier(public=X[3000:3200, :9], classes=[0, 1, 2]).fit(RECORDS, LABELS)


def test_an_estimator_can_be_warmed_up_and_answers_the_same_under_a_seed(tmp_path):
    options = {"public": X[3000:3200], "classes": [0, 1, 2], "random_state": 5}
    cold, warm = (IndKNNClassifier(**options).fit(RECORDS, LABELS, NAMES) for _ in range(2))
    assert warm.warm_up() is warm
    assert warm._memory.predictor.model.ready
    assert warm.privacy_spent().any()
    assert warm.predict(QUERIES[:5]).tolist() == cold.predict(QUERIES[:5]).tolist()
    assert (warm.privacy_spent() == cold.privacy_spent()).all()
    durable = IndKNNClassifier(classes=[0, 1, 2], store=tmp_path / "a.store").fit(RECORDS, LABELS, NAMES).warm_up()
    assert durable._memory.predictor.model.ready
    plain = IndKNNClassifier(classes=[0, 1, 2], mode="votes", random_state=5).fit(RECORDS, LABELS, NAMES)
    assert not plain.warm_up().privacy_spent().any()  # there is nothing to train


def test_training_by_word_needs_no_queries():
    model = engine()
    assert train(model) > 0
    paid = model.spent()
    model.predict(QUERIES[:20])
    assert (model.spent() == paid).all()
    with pytest.raises(InvalidInputError, match="no shared model to train: the settings have mode='votes'"):
        train(engine(Settings(n_features=10, classes=(0, 1, 2), mode="votes")))


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
        ({"mode": "oracle"}, "mode must be one of 'model', 'votes', got 'oracle'"),
        ({"mode": "model", "reuse": "labels"}, "mode='model' needs reuse='none', got reuse='labels'"),
        ({"model_share": 1.0}, "model_share must be above 0 and below 1, got 1.0"),
        ({"n_features": 5000}, "at most 4096 features, got 5000; use mode='votes'"),
    ],
)
def test_what_does_not_go_together_is_refused_by_name(options, complaint):
    with pytest.raises(InvalidInputError, match=complaint):
        Settings(**{"n_features": 2, "classes": (0, 1), **options})


def test_releases_survive_being_written():
    for release in (
        ModelOnly(),
        Votes(5 << 20, 7, 0, 0.25, 0.5, np.array([3, -1, -2])),
        PublicRows(True, 3, np.array([[1, -2], [3, 4]], dtype=np.int8)),
        PublicRows(False, 1, np.zeros((0, 5), dtype=np.int8)),
        PublicRows(True, 3, np.array([[1, -2], [3, 4]], dtype=np.int8), np.array([1, 0])),
        Gradient(3, 28, 99, np.array([5, -6])),
        ModelShown(),
        TallyRelease(1, 9, np.arange(20)),
    ):
        again = decode(encode(release))
        assert type(again) is type(release)
        assert encode(again) == encode(release)
        assert repr(again) == repr(release)


@pytest.mark.parametrize("settings", [SETTINGS, ASKING], ids=["the model alone", "with votes"])
def test_requests_of_several_analysts_share_one_look_of_the_model(settings, monkeypatch):
    """The model says the same of a row in any company, so all who wait share a call, and nothing else changes."""
    vectors = settings.quantise(QUERIES, "the queries")
    requests = [Request(vectors[slice(i, i + 1 + i % 3)], f"analyst-{i % 4}") for i in range(0, 90, 3)]
    looks, seen, scores = [], [], ShownModel.scores
    monkeypatch.setattr(ShownModel, "scores", lambda model, values: looks.append(1) or scores(model, values))
    for groups in ([requests], [[request] for request in requests]):
        model = engine(settings)
        model.declare_public(QUERIES[1000:1200])
        train(model)
        looks.clear()
        replies = [reply for group in groups for reply in model.predictor.compute(group)]
        assert len(looks) == len(groups)
        seen.append(([reply.labels.tolist() for reply in replies], model.spent().tolist()))
    assert seen[0] == seen[1]
