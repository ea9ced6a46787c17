"""Rivals that predict numbers: they learn what is there, and their noise is what the promise asks for."""

import numpy as np
import pytest

from indknn.core import accounting
from indknn_lab.baselines import regression

PROMISE = (1.0, 1e-5)


@pytest.fixture(scope="module")
def rows():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(20_000, 5))
    y = np.clip(0.2 * X[:, 0] - 0.1 * X[:, 1] + 0.05 * rng.normal(size=len(X)), -1, 1)
    return regression.within_unit(X, 3.0), y


def r2(predicted, truth):
    return 1 - ((predicted - truth) ** 2).sum() / ((truth - truth.mean()) ** 2).sum()


@pytest.mark.parametrize("rival", [regression.ada_ssp, regression.noisy_descent])
def test_a_rival_learns_a_linear_target_under_privacy(rival, rows):
    X, y = rows
    view, value = regression.best_choice(rival, [X[:15_000], X[:15_000, :1]], y[:15_000], PROMISE, 0)
    assert view == 0  # the other view lacks the second feature
    found = rival(X[:15_000], y[:15_000], X[15_000:], PROMISE, 1, value)
    assert 0.8 < r2(found, y[15_000:]) <= r2(regression.ridge(X[:15_000], y[:15_000], X[15_000:]), y[15_000:]) + 1e-3


def test_rows_are_never_longer_than_one(rows):
    assert np.linalg.norm(rows[0], axis=1).max() <= 1 + 1e-12


def test_the_private_mean_has_the_noise_of_its_promise():
    X, y = np.zeros((50, 1)), np.zeros(50)
    budget = accounting.budget(*PROMISE)
    draws = np.array([regression.private_mean(X, y, X[:1], PROMISE, seed)[0] for seed in range(400)])
    inside = np.abs(draws) < 1.0  # the others were cut
    assert inside.mean() > 0.9
    # A sum and a count, each with half of the budget: scale sqrt(2/2B) on the sum, over a count of about 50.
    assert np.median(np.abs(draws)) == pytest.approx(0.6745 * np.sqrt(1 / budget) / 50, rel=0.25)


def test_without_privacy_all_three_learn(rows):
    X, y = rows
    for rival in (regression.ridge, regression.neighbours, regression.trees):
        assert r2(rival(X[:4000], y[:4000], X[4000:5000]), y[4000:5000]) > 0.7
