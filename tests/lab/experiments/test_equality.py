"""The experiments measure the product: the same answers, the same debts, under the same seed."""

import numpy as np
import pytest

from indknn import IndKNNClassifier
from indknn.core import accounting
from indknn.core.mechanism import Plan
from indknn.core.noise import SeededNoise
from indknn.types import GRID
from indknn_lab.baselines import PrivateKNN
from indknn_lab.experiments.data import TAU_GRID, KernelNeighbours, NearestLabels, earlier_queries, load, seed_for
from indknn_lab.experiments.methods.queries import answer, sampled_votes

T, EPSILON, SIGMA2 = 80, 0.7, 0.3


@pytest.fixture(scope="module")
def data(tmp_path_factory, make_features):
    return load(make_features(tmp_path_factory.mktemp("toy"), "fmnist-toy"), None)


def ours(data, rows, tau, *, kernel="cosine", reuse=False, copies=1, index="exact", **options):
    B = accounting.budget(EPSILON, 1e-5, "rdp")
    plan = Plan(tau, (T / (6 * B)) ** 0.5, SIGMA2, data.n_classes)
    near = KernelNeighbours(data, kernel, index, **options)
    earlier = earlier_queries(data, rows, near.kernel, tau) if reuse else None
    return answer(
        near.neighbours(rows, tau), len(data.labels), B, plan, SeededNoise(11), copies=copies, released=earlier
    )


def product(data, rows, tau, copies=1, reuse=False, **options):
    options |= {"tau": tau, "sigma2": SIGMA2, "accountant": "rdp", "random_state": 11}
    model = IndKNNClassifier(EPSILON, 1e-5, max_queries=T, reuse="labels" if reuse else "none", **options)
    model.fit(np.tile(data.X, (copies, 1)), np.tile(data.labels, copies))
    return model, model.predict(data.Q[rows])


@pytest.mark.parametrize("reuse", [False, True])
@pytest.mark.parametrize(("kernel", "tau"), [("cosine", 0.6), ("rbf", 0.8)])
def test_answers_and_debts_are_those_of_the_estimator(data, kernel, tau, reuse):
    rows = np.random.default_rng(3).permutation(len(data.truth))[:T]
    stream = ours(data, rows, tau, kernel=kernel, reuse=reuse)
    model, answers = product(data, rows, tau, kernel=kernel, reuse=reuse)
    assert stream.answers.tolist() == answers.tolist()
    assert stream.spent.tolist() == model.privacy_spent().tolist()
    assert stream.spent.max() > 0.9 * model.budget_  # budgets did bind
    assert stream.medians[-1] == pytest.approx(np.median(stream.spent), rel=1e-9)


def test_hashing_is_that_of_the_estimator(data):
    rows = np.arange(T)
    stream = ours(data, rows, 0.6, index="lsh", n_tables=4, n_bits=6, seed=0)
    full = ours(data, rows, 0.6)
    assert stream.spent.sum() < full.spent.sum()  # fewer were found
    near = KernelNeighbours(data, "cosine", "lsh", n_tables=4, n_bits=6, seed=0).neighbours(rows, 0.6)
    exact = KernelNeighbours(data).neighbours(rows, 0.6)
    assert all(set(a[0]) <= set(b[0]) for a, b in zip(near, exact, strict=True))


def test_copies_behave_as_a_store_that_holds_every_record_so_often(data):
    rows = np.arange(T)
    stream = ours(data, rows, 0.6, copies=3)
    model, answers = product(data, rows, 0.6, copies=3)
    assert stream.answers.tolist() == answers.tolist()
    assert np.tile(stream.spent, 3).tolist() == model.privacy_spent().tolist()


def test_a_lower_threshold_later_gives_the_same_as_at_once(data):
    rows, swept = np.arange(20), KernelNeighbours(data)
    for tau in (0.8, 0.5, 0.3, 0.7):
        fresh = KernelNeighbours(data).neighbours(rows, tau)
        for a, b in zip(swept.neighbours(rows, tau), fresh, strict=True):
            assert a[0].tolist() == b[0].tolist()
            assert a[2].tolist() == b[2].tolist()


def test_the_sweep_without_privacy_is_a_plain_vote(data):
    rows = np.arange(50)
    swept = KernelNeighbours(data).plain_accuracy(rows)
    for i in (0, 9, 15):
        near = KernelNeighbours(data).neighbours(rows, TAU_GRID[i])
        votes = [np.bincount(n[1], weights=n[2], minlength=data.n_classes).argmax() for n in near]
        assert swept[i] == np.mean(np.array(votes) == data.truth[rows])


@pytest.mark.parametrize("p", [0.05, 0.3])
def test_private_knn_is_the_baseline_to_the_vote(data, p):
    """Given the same coins the votes are the same, and given the same noise the answers are."""
    rows, k = np.arange(60), 20
    model = PrivateKNN(
        2.0, max_queries=60, k=k, sampling_ratio=p, random_state=0, classes=np.arange(data.n_classes), accountant="rdp"
    ).fit(data.X, data.labels)
    model._entropy, model._noise = np.random.default_rng(seed_for("coins", 5)).bytes, SeededNoise(9)
    votes = sampled_votes(NearestLabels(data, 5000).labels(rows), p, k, data.n_classes, 1, 5)
    noise = SeededNoise(9).draw(model._scale, votes.size).reshape(votes.shape)
    assert (votes * GRID + noise).argmax(axis=1).tolist() == model.predict(data.Q[rows]).tolist()


def test_private_knn_on_copies_is_the_baseline_on_a_store_with_copies(data):
    rows, k, p = np.arange(30), 20, 0.1
    model = PrivateKNN(
        2.0, max_queries=30, k=k, sampling_ratio=p, random_state=0, classes=np.arange(data.n_classes), accountant="rdp"
    ).fit(np.tile(data.X, (3, 1)), np.tile(data.labels, 3))
    model._entropy = np.random.default_rng(seed_for("coins", 5)).bytes
    theirs = list(model._votes(data.queries[rows]))
    assert (
        sampled_votes(NearestLabels(data, 5000).labels(rows), p, k, data.n_classes, 3, 5).tolist()
        == np.array(theirs).tolist()
    )
