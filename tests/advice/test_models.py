"""The public side: models from noisy releases, and whom to believe. It must not be fooled by noise."""

import numpy as np
import pytest
from indknn.models.prior import Moments, weights
from indknn.models.student import RidgeStudent

from conftest import blobs
from indknn.core.quantise import quantise
from indknn.models.card import BINS, Card, Linear, Trust
from indknn.models.neighbours import Neighbours


def sums(n=4000, d=12, c=3, sigma_a=5.0, sigma_b=5.0, seed=0):
    X, y = blobs(n + 500, c, d, seed=seed)
    X /= np.linalg.norm(X, axis=1, keepdims=True)
    rng = np.random.default_rng(seed)
    A = X[:n].T @ X[:n] + sigma_a * np.triu(rng.normal(size=(d, d)), 1)
    A = np.triu(A) + np.triu(A, 1).T
    b = X[:n].T @ (np.eye(c)[y[:n]] - 1 / c) + sigma_b * rng.normal(size=(d, c))
    return Moments(A, b, sigma_a, sigma_b), X[n:], y[n:]


def test_statistics_alone_make_a_good_model():
    moments, Q, y = sums()
    W = weights(moments, np.zeros((12, 12)), 0)
    assert ((Q @ W).argmax(axis=1) == y).mean() > 0.9
    assert moments.n == pytest.approx(4000, rel=0.02)


def test_queries_help_where_the_matrix_is_noise():
    moments, Q, y = sums(sigma_a=3000.0)
    without = weights(moments, np.zeros((12, 12)), 0)
    with_queries = weights(moments, Q.T @ Q / len(Q), len(Q))
    score = lambda W: ((Q @ W).argmax(axis=1) == y).mean()  # noqa: E731
    assert score(with_queries) > 0.9
    assert score(with_queries) >= score(without)


def test_pure_noise_gives_almost_no_weights():
    rng = np.random.default_rng(1)
    moments = Moments(np.eye(12) * 300, 500.0 * rng.normal(size=(12, 3)), 50.0, 500.0)
    assert np.abs(weights(moments, np.eye(12) / 12, 500)).max() < 0.05


def lessons(noise, n=1500, seed=0):
    X, y = blobs(n + 500, 3, 12, seed=seed)
    X /= np.linalg.norm(X, axis=1, keepdims=True)
    rng = np.random.default_rng(seed + 1)
    votes = (np.eye(3)[y] - 1 / 3)[:n] + noise[:, None] * rng.normal(size=(n, 3))
    return X[:n], votes, X[n:], y[n:]


def test_a_student_learns_through_noise_and_ignores_answers_that_are_only_noise():
    noise = np.where(np.arange(1500) % 3 == 0, 1.0, 50.0)  # two thirds came from an exhausted store
    Q, votes, X, y = lessons(noise)
    student = RidgeStudent()
    student.learn(Q, votes, noise, np.zeros_like(votes))
    nothing = np.zeros((len(X), 3))
    assert ((nothing + student.correction(X, nothing)).argmax(axis=1) == y).mean() > 0.85


def test_a_student_with_nothing_to_learn_keeps_to_the_prior():
    noise = np.full(800, 20.0)
    Q, votes, X, y = lessons(noise, 800)
    student = RidgeStudent()
    prior = 0.5 * (np.eye(3)[y] - 1 / 3)
    student.learn(
        Q, 0.5 * votes * 0 + noise[:, None] * np.random.default_rng(5).normal(size=votes.shape), noise, votes * 0
    )
    assert ((prior + student.correction(X, prior)).argmax(axis=1) == y).mean() > 0.95


def test_a_card_reads_counts_and_does_not_see_crowds_in_noise():
    cells = np.array([[100, 900]] * BINS, dtype=float).ravel()
    card = Card.read(cells, 1.0)
    assert card.right == pytest.approx([0.9] * BINS)
    assert card.overall == pytest.approx(0.9)
    rng = np.random.default_rng(0)
    sure = 0
    for _ in range(400):
        trust = Trust(np.ones(2) / 2)
        trust.update([Card.read(1e4 * rng.normal(size=2 * BINS), 1e4) for _ in range(2)])
        sure += (trust.surely_right() >= 0.9).sum()
    assert sure == 0


def test_trust_goes_to_whoever_is_right_more_often():
    good, bad = (Card.read(np.array([[n, 1000 - n]] * BINS, dtype=float).ravel(), 1.0) for n in (100, 300))
    for cards, shares in (
        ([good, bad], [1.0, 0.0]),
        ([bad, good, bad], [0.0, 1.0, 0.0]),
        ([good, good], [0.5, 0.5]),
        ([bad], [1.0]),
    ):
        trust = Trust(np.ones(1))
        trust.update(cards)
        assert trust.shares == pytest.approx(shares, abs=0.01)


def test_neighbours_know_clumps_that_no_line_can_part():
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(40, 8))
    clump = rng.integers(40, size=3000)
    X = centres[clump] + 0.1 * rng.normal(size=(3000, 8))
    Q, y = X / np.linalg.norm(X, axis=1, keepdims=True), clump % 2
    noisy = np.eye(2)[y] - 0.5 + 0.8 * rng.normal(size=(3000, 2))
    near = Neighbours(Q[:2000], noisy[:2000])
    assert (near.of_queries(Q[2000:]).argmax(axis=1) == y[2000:]).mean() > 0.9
    vectors = quantise(X[2000:])
    records = near.of_records(vectors.values)
    assert (records.argmax(axis=1) == y[2000:]).mean() > 0.9
    one_by_one = np.concatenate([near.of_records(vectors.values[i : i + 1]) for i in range(1000)])
    assert (records == one_by_one).all()  # to the bit, wherever a record stands


def test_cells_of_a_record_do_not_depend_on_the_others():
    X, y = blobs(300, 3, 40, seed=3)
    vectors = quantise(X)
    rng = np.random.default_rng(0)
    W, Q = rng.normal(size=(40, 3)), X[:50] / np.linalg.norm(X[:50], axis=1, keepdims=True)
    linear = Linear.of(W, Q)
    together = linear.cells(vectors.values, y)
    assert together.tolist() == [int(linear.cells(vectors.values[i : i + 1], y[i : i + 1])[0]) for i in range(300)]
    assert set(np.unique(together // 2)) == set(range(BINS))
