"""Naive private kNN and Private-kNN as estimators: promise, limit, seeds, accuracy."""

import copy
import pickle
import warnings
from threading import Thread

import dp_accounting as dp
import numpy as np
import pytest
from dp_accounting.pld import PLDAccountant
from sklearn.base import clone
from sklearn.utils.estimator_checks import check_estimator

from indknn.errors import PrivacyError, PrivacyWarning
from indknn_lab.baselines import NaivePrivateKNN, PrivateKNN

BOTH = [
    NaivePrivateKNN(max_queries=300, k=600),
    PrivateKNN(max_queries=300, k=60, sampling_ratio=0.1),
]
NO_DIRECTION = {"check_estimators_dtypes": "it holds a zero vector, which has no direction to compare"}
both = pytest.mark.parametrize("model", BOTH, ids=lambda m: type(m).__name__)


@both
def test_accuracy_on_blobs(model, blobs):
    X, y, Q, truth = blobs
    assert clone(model).set_params(random_state=0).fit(X, y).score(Q, truth) > 0.9
    assert clone(model).set_params(epsilon=1e-3, random_state=0).fit(X, y).score(Q, truth) < 0.5


@both
def test_secure_noise_by_default(model, blobs):
    X, y, Q, truth = blobs
    with warnings.catch_warnings():
        warnings.simplefilter("error", PrivacyWarning)
        fitted = clone(model).fit(X, y)
    assert fitted.score(Q, truth) > 0.9
    with pytest.raises(PrivacyError, match="copied"):
        pickle.dumps(fitted)
    with pytest.raises(PrivacyError, match="copied"):
        copy.deepcopy(fitted)


@both
def test_seed_reproduces_and_warns(model, blobs):
    X, y, Q, _ = blobs
    answers = []
    for seed in (4, 4, 5):
        with pytest.warns(PrivacyWarning, match="not private"):
            answers.append(clone(model).set_params(random_state=seed, epsilon=0.1).fit(X, y).predict(Q))
    assert np.array_equal(answers[0], answers[1])
    assert not np.array_equal(answers[0], answers[2])
    fitted = clone(model).set_params(random_state=4).fit(X, y)
    assert np.array_equal(pickle.loads(pickle.dumps(fitted)).predict(Q), fitted.predict(Q))


@both
@pytest.mark.parametrize("kind", [np.random.default_rng, np.random.RandomState])
def test_generators_serve_as_seeds(model, kind, blobs):
    X, y, Q, _ = blobs
    a, b = (clone(model).set_params(random_state=kind(3), epsilon=0.1).fit(X, y).predict(Q) for _ in "ab")
    assert np.array_equal(a, b)


@both
def test_not_one_answer_beyond_the_plan(model, blobs):
    X, y, Q, _ = blobs
    fitted = clone(model).set_params(max_queries=10).fit(X, y)
    fitted.predict(Q[:7])
    with pytest.raises(PrivacyError, match="covers 3 more queries, got 4: none of them"):
        fitted.predict(Q[:4])
    assert fitted.max_queries_left == 3
    fitted.predict(Q[:3])
    with pytest.raises(PrivacyError, match="covers 0 more"):
        fitted.predict(Q[:1])
    fitted.max_queries = 1000  # a parameter changed after the fact changes no promise
    with pytest.raises(PrivacyError):
        fitted.predict(Q[:1])
    with pytest.raises(PrivacyError, match="other terms"):
        fitted.fit(X, y)
    fitted.max_queries = 10
    with pytest.raises(PrivacyError):
        fitted.fit(X, y).predict(Q[:1])


@both
def test_a_bad_query_is_not_counted(model, blobs):
    X, y, Q, _ = blobs
    fitted = clone(model).fit(X, y)
    with pytest.raises(ValueError, match="zero vector"):
        fitted.predict(np.zeros((1, 16)))
    with pytest.raises(ValueError, match="features"):
        fitted.predict(Q[:, :5])
    assert fitted.queries_answered_ == 0


@both
def test_threads_cannot_share_the_last_answers(model, blobs):
    X, y, Q, _ = blobs
    fitted = clone(model).set_params(max_queries=20).fit(X, y)
    given = []

    def ask():
        for _ in range(10):
            try:
                given.append(len(fitted.predict(Q[:1])))
            except PrivacyError:
                given.append(0)

    threads = [Thread(target=ask) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert sum(given) == 20 == fitted.queries_answered_


def test_naive_noise_against_dp_accounting(blobs):
    X, y, _, _ = blobs
    model = NaivePrivateKNN(1.0, 1e-5, max_queries=1000, k=5).fit(X, y)
    ledger = PLDAccountant(value_discretization_interval=1e-5)
    ledger.compose(dp.GaussianDpEvent(model.sigma_ / np.sqrt(2)), 1000)
    assert ledger.get_epsilon(1e-5) == pytest.approx(1.0, rel=2e-3)
    assert model.epsilon_after(1000) == pytest.approx(1.0, rel=1e-6)
    assert model.epsilon_after(0) == 0.0 < model.epsilon_after(10) < model.epsilon_after(100)


@pytest.mark.parametrize("accountant", ["pld", "rdp"])
def test_private_knn_noise_against_dp_accounting(accountant, blobs):
    X, y, _, _ = blobs
    model = PrivateKNN(0.7, 1e-5, max_queries=500, k=5, sampling_ratio=0.05, accountant=accountant).fit(X, y)
    ledger = PLDAccountant()
    ledger.compose(dp.PoissonSampledDpEvent(0.05, dp.GaussianDpEvent(model.sigma_ / np.sqrt(2))), 500)
    assert ledger.get_epsilon(1e-5) <= 0.7 * 1.0005
    assert model.epsilon_after(500) <= 0.7
    assert model.epsilon_after(100) < 0.5


def test_the_noise_is_what_was_priced(blobs, monkeypatch):
    X, y, Q, _ = blobs
    model = PrivateKNN(max_queries=50, k=5, random_state=0).fit(X, y)
    drawn = []
    real = model._noise.draw
    monkeypatch.setattr(model._noise, "draw", lambda scale, size: drawn.append((scale, size)) or real(scale, size))
    model.predict(Q[:50])
    ((scale, size),) = drawn
    assert size == 200
    assert scale / 2**20 == model.sigma_ >= model.noise_multiplier_ * np.sqrt(2)


@both
def test_an_empty_sample_takes_the_same_path(model, blobs):
    X, y, Q, _ = blobs
    few = clone(model).set_params(classes=["ash", "beech", "elm", "oak"], random_state=0).fit(X[:1], y[:1])
    assert len(np.unique(few.predict(Q))) == 4  # noise decides


@both
def test_center_is_applied_to_both_sides(model, blobs):
    X, y, Q, _ = blobs
    plain = clone(model).set_params(random_state=0).fit(X, y).predict(Q)
    moved = clone(model).set_params(random_state=0, center=np.full(16, 100.0)).fit(X + 100.0, y).predict(Q + 100.0)
    assert np.mean(plain == moved) > 0.99


@both
def test_scikit_learn_accepts_it(model):
    check_estimator(clone(model).set_params(max_queries=5000), expected_failed_checks=NO_DIRECTION)


@pytest.mark.slow
@pytest.mark.shared_data
@pytest.mark.parametrize(
    ("model", "least"),
    [
        (PrivateKNN(1.0, max_queries=500, k=100, sampling_ratio=0.05), 0.66),
        (NaivePrivateKNN(1.0, max_queries=500, k=2000), 0.68),
    ],
    ids=["PrivateKNN", "NaivePrivateKNN"],
)
def test_accuracy_on_cifar10(model, least, real):
    data = real("cifar10-r50.npz")
    fitted = clone(model).set_params(random_state=0).fit(data.X_train, data.y_train)
    assert fitted.score(data.X_test[:500], data.y_test[:500]) > least
