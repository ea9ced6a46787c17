"""`IndKNNRegressor`: numbers between public bounds, with the shared model and by votes alone."""

import json
import warnings

import numpy as np
import pandas as pd
import pytest
from sklearn.base import is_regressor
from sklearn.utils.estimator_checks import parametrize_with_checks

from indknn import IndKNNRegressor, InvalidInputError, PrivacyWarning, tables
from indknn.core.targets import label_of

EXPECTED_FAILURES = {
    "check_estimators_dtypes": "feeds a zero vector, which has no direction and is refused",
}


def linear(n: int, seed: int = 0, noise: float = 1.0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 6))
    return X, 50 + 8 * X[:, 0] - 5 * X[:, 1] + noise * rng.normal(size=n)


def fitted(n: int = 4000, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return IndKNNRegressor(bounds=(0, 100), random_state=0, **options).fit(*linear(n))


@pytest.mark.parametrize(("mode", "least"), [("model", 0.8), ("votes", 0.3)])
def test_answers_follow_the_numbers_and_stay_within_the_bounds(mode, least):
    X, y = linear(300, seed=1)
    model = fitted(20_000, mode=mode, max_queries=300)
    answers = model.predict(X)
    assert model.score(X, y) > least
    assert answers.min() >= 0
    assert answers.max() <= 100
    spent = model.privacy_spent()
    assert 0 < spent.max() <= model.budget_


def test_a_question_that_was_asked_before_has_the_same_answer_and_is_free():
    model, (X, _) = fitted(mode="votes"), linear(20, seed=1)
    first, before = model.predict(X), model.privacy_spent()
    assert (model.predict(X) == first).all()
    assert (model.privacy_spent() == before).all()


def test_the_mean_is_of_all_records_also_where_few_of_a_person_may_vote():
    X, rng = linear(2000)[0], np.random.default_rng(0)
    names = np.arange(len(X)) % 500
    model = IndKNNRegressor(8.0, bounds=(0, 100), random_state=rng, mode="votes", tau=0.999, max_records_per_query=1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.fit(X, np.repeat([5.0, 15.0, 85.0, 95.0], 500), owners=names)
    assert model.predict(linear(9, seed=1)[0]).mean() == pytest.approx(50.0, abs=10.0)


def test_numbers_outside_the_bounds_are_cut_and_counted():
    X, y = linear(100)
    y[:3] = (-5.0, 500.0, 101.0)
    with pytest.warns(PrivacyWarning, match="3 of 100 numbers were outside the bounds 0 to 100"):
        model = IndKNNRegressor(bounds=(0, 100), random_state=0).fit(X, y)
    labels = model._memory.shard.labels_of(np.arange(3))
    assert model._memory.settings.target_.decode(labels).tolist() == [0.0, 100.0, 100.0]


@pytest.mark.parametrize(
    ("options", "words"),
    [({}, "needs bounds"), ({"bounds": (3, 3)}, "bounds must be two finite"), ({"bounds": 7}, "bounds must be two")],
)
def test_bounds_are_needed(options, words):
    with pytest.raises(InvalidInputError, match=words):
        IndKNNRegressor(**options).fit(*linear(50))


def test_intervals_hold_the_number_about_as_often_as_said():
    X, y = linear(1000, seed=1, noise=4.0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = IndKNNRegressor(bounds=(0, 100), random_state=0).fit(*linear(10_000, noise=4.0))
    wide, narrow = model.predict_interval(X), model.predict_interval(X, coverage=0.5)
    assert 0.85 < ((wide[:, 0] <= y) & (y <= wide[:, 1])).mean() < 0.97
    assert 0.4 < ((narrow[:, 0] <= y) & (y <= narrow[:, 1])).mean() < 0.62
    before = model.privacy_spent()
    model.predict_interval(X, coverage=0.8)
    assert (model.privacy_spent() == before).all()
    with pytest.raises(InvalidInputError, match="coverage must be"):
        model.predict_interval(X, coverage=1.0)


def test_intervals_need_the_shared_model():
    with pytest.raises(InvalidInputError, match="needs the shared model"):
        fitted(mode="votes").predict_interval(linear(5)[0])


def test_with_few_people_answers_are_no_worse_than_a_constant():
    """Numbers that no feature explains: the model must stay at the mean."""
    rng = np.random.default_rng(3)
    X, y = rng.normal(size=(600, 10)), rng.normal(20.0, 3.0, 600)
    losses = []
    for seed in range(5):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model = IndKNNRegressor(bounds=(0, 40), random_state=seed).fit(X[:300], y[:300])
        losses.append(np.mean((model.predict(X[300:]) - y[300:]) ** 2))
    assert np.median(losses) < 1.1 * y.var()


def test_released_answers_vote_if_they_are_reused():
    model, (X, _) = fitted(400, reuse="labels", tau=0.3), linear(30, seed=1)
    model.predict(X)
    transcript = model._memory.predictor._transcript(None)
    plan = model._memory.settings.plan(0.3)
    query = model._memory.settings.quantise(X[:1], "q")
    W, S = transcript.votes(query, plan)
    assert W > 0
    assert abs(S) <= 4 * W + 8 * len(X)


def test_people_come_and_go():
    model, (X, y) = fitted(300), linear(50, seed=2)
    model.partial_fit(X, y, owners=[f"new {i}" for i in range(50)])
    assert len(model.owners_) == 350
    assert model.forget(["new 7"]) == 1
    assert is_regressor(model)


def test_two_shards_answer_as_one_does():
    (X, _), rows = linear(40, seed=1), {}
    for shards in (None, 2):
        for mode in ("model", "votes"):
            rows[mode, shards] = fitted(300, shards=shards, mode=mode, tau=0.4, sigma2=0.05).predict(X).tolist()
    assert rows["model", None] == rows["model", 2]
    assert len(rows["votes", 2]) == 40


@parametrize_with_checks(
    [IndKNNRegressor(bounds=(-1000, 1000), random_state=0)], expected_failed_checks=lambda _: EXPECTED_FAILURES
)
@pytest.mark.filterwarnings("ignore")
def test_scikit_learns_own_checks(estimator, check):
    check(estimator)


@pytest.fixture(scope="module")
def published(tmp_path_factory):
    """A model of numbers with secure noise, and the files of its shared model."""
    folder, (X, y) = tmp_path_factory.mktemp("numbers"), linear(1500)
    model = IndKNNRegressor(bounds=(0, 100), public=linear(100, seed=9)[0]).fit(X, y).warm_up()
    for name in ("model.json", "model.onnx"):
        model.export(folder / name)
    return model, folder


def test_columns_add_up_to_the_number(published):
    model, _ = published
    rows, before = linear(3, seed=4)[0], model.privacy_spent()
    for row, found in zip(rows, model.explain(rows), strict=True):
        shown = model._memory.shown_to()
        said = shown.scores(model._memory.settings.quantise(row[None, :], "row").values)[0][0, 0]
        assert found.lead == pytest.approx(50 + 50 * said)
        assert found.average + sum(found.columns.values()) == pytest.approx(found.lead)
        assert found.against is None
    assert (model.privacy_spent() == before).all()


def test_the_published_model_says_the_same_numbers(published):
    onnxruntime = pytest.importorskip("onnxruntime")
    model, folder = published
    rows = linear(40, seed=5)[0]
    values = model._memory.settings.quantise(rows, "rows").values
    said = model._memory.shown_to().scores(values)[0][:, 0]
    wanted = model._memory.settings.target_.decode(np.array([label_of(y) for y in said.tolist()]))
    (found,) = onnxruntime.InferenceSession(folder / "model.onnx").run(None, {"features": rows})
    assert found.tolist() == wanted.tolist()
    written = json.loads((folder / "model.json").read_text())
    assert written["bounds"] == [0.0, 100.0]
    assert written["classes"] == []


def test_labelled_public_rows_help_and_cannot_mislead():
    (Q, u), (P, v) = linear(400, seed=2), linear(300, seed=3)
    scores = {}
    for name, n, said in (("none", 250, None), ("right", 250, v), ("wrong", 20_000, 100 - v)):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model = IndKNNRegressor(0.25, bounds=(0, 100), random_state=1, public=P if said is None else (P, said)).fit(
                *linear(n)
            )
        scores[name] = model.score(Q, u)
    assert scores["right"] > max(scores["none"], 0.7)
    assert scores["wrong"] > 0.7


def test_a_table_whose_columns_add_up_is_learned_almost_as_without_privacy():
    """Pieces of columns alone, and rows without their length, gave .76 here. Without privacy it is .86."""
    rng = np.random.default_rng(99)
    X = rng.normal(size=(2000, 8))
    y = np.clip(X @ [2, -1, 0.5, 1, 0, 0, 0, 0] + rng.normal(size=2000), -10, 10)
    table = pd.DataFrame(X, columns=list("abcdefgh"))
    schema = tables.infer(table[:333].assign(y=y[:333]), label="y").schema
    model = IndKNNRegressor(bounds=(-10, 10), random_state=0, schema=schema, public=table[:333])
    model.fit(table[733:].assign(y=y[733:]))
    answers, truth = model.predict(table[333:733]), y[333:733]
    assert 1 - ((answers - truth) ** 2).sum() / ((truth - truth.mean()) ** 2).sum() > 0.8
