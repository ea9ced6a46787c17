"""Rivals that predict a number, for comparisons: a private mean, AdaSSP, noisy gradient descent, and no privacy.

All of them take rows of length 1 at most and targets in [-1, 1], and keep (epsilon, delta) by Gaussian noise whose cost
is that of the `gdp` filter. Their noise is floating-point and seeded: it is good enough to compare with, and not to
protect anybody. Each returns the numbers that it predicts for the queries.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from itertools import product
from math import log, sqrt
from typing import Any, TypeAlias

import numpy as np
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.linear_model import Ridge
from sklearn.neighbors import KNeighborsRegressor

from indknn.core import accounting
from indknn.errors import needs
from indknn.types import FloatArray

Promise: TypeAlias = tuple[float, float]
Rival: TypeAlias = Callable[[FloatArray, FloatArray, FloatArray, Promise, int, float], FloatArray]
STEPS, RATES, CLIP = 60, (0.25, 1.0, 4.0, 16.0), 0.25
_FAILURE, _HELD_OUT, _STRENGTHS = 0.05, 0.1, (0.1, 1.0, 10.0)


def within_unit(X: FloatArray, radius: float) -> FloatArray:
    """Rows divided by a public radius, longer ones cut to it, with an intercept: of length 1 at most.

    >>> within_unit(np.array([[3.0, 4.0]]), 1.0).round(3).tolist()
    [[0.424, 0.566, 0.707]]
    """
    rows = X / np.maximum(np.linalg.norm(X, axis=1, keepdims=True), radius)
    return np.asarray(np.hstack([rows, np.ones((len(X), 1))]) / sqrt(2.0), dtype=np.float64)


def private_mean(X: FloatArray, y: FloatArray, queries: FloatArray, promise: Promise, seed: int) -> FloatArray:
    """The mean target, from a noisy sum and a noisy count."""
    rng, scale = np.random.default_rng(seed), _scale(promise, 2)
    total, count = y.sum() + scale * rng.normal(), len(y) + scale * rng.normal()
    return np.full(len(queries), np.clip(total / max(count, 1.0), -1.0, 1.0))


def ada_ssp(
    X: FloatArray, y: FloatArray, queries: FloatArray, promise: Promise, seed: int, strength: float = 1.0
) -> FloatArray:
    """Ridge regression from noisy sums, with a penalty that follows from a noisy eigenvalue (Wang, UAI 2018).

    `strength` scales the penalty of the paper.
    """
    rng, d, scale = np.random.default_rng(seed), X.shape[1], _scale(promise, 3)
    gram = X.T @ X
    least = max(float(np.linalg.eigvalsh(gram)[0]) + scale * rng.normal() - scale * sqrt(2 * log(6 / _FAILURE)), 0.0)
    noise = np.triu(scale * rng.normal(size=(d, d)))
    noise = noise + np.triu(noise, 1).T
    penalty = strength * max(0.0, scale * sqrt(d * log(2 * d * d / _FAILURE)) - least)
    weights = np.linalg.solve(gram + noise + penalty * np.eye(d), X.T @ y + scale * rng.normal(size=d))
    return np.clip(queries @ weights, -1.0, 1.0)


def noisy_descent(
    X: FloatArray, y: FloatArray, queries: FloatArray, promise: Promise, seed: int, rate: float = 1.0
) -> FloatArray:
    """A linear model of the squared loss, by full-batch descent with clipped gradients and noise (NoisySGD)."""
    rng, weights, velocity = np.random.default_rng(seed), np.zeros(X.shape[1]), np.zeros(X.shape[1])
    scale, lengths = CLIP * _scale(promise, STEPS), np.linalg.norm(X, axis=1)
    for _ in range(STEPS):
        residual = X @ weights - y
        clipped = residual * np.minimum(CLIP / np.maximum(np.abs(residual) * lengths, 1e-12), 1.0)
        velocity = 0.9 * velocity + (X.T @ clipped + scale * rng.normal(size=len(weights))) / len(y)
        weights = weights - rate * velocity
    return np.clip(queries @ weights, -1.0, 1.0)


def dp_ebm(table: Any, y: FloatArray, queries: Any, promise: Promise, seed: int) -> FloatArray:
    """InterpretML's private boosting machine with its defaults, on the raw table. Needs the extra `peers`."""
    privacy = needs("interpret.privacy", "peers")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = privacy.DPExplainableBoostingRegressor(
            epsilon=promise[0], delta=promise[1], random_state=seed, privacy_target_min=-1.0, privacy_target_max=1.0
        )
        return np.asarray(np.clip(model.fit(table, y).predict(queries), -1.0, 1.0), dtype=np.float64)


def ridge(X: FloatArray, y: FloatArray, queries: FloatArray) -> FloatArray:
    """Ridge regression without privacy."""
    return np.asarray(Ridge(1e-3).fit(X, y).predict(queries), dtype=np.float64)


def neighbours(X: FloatArray, y: FloatArray, queries: FloatArray) -> FloatArray:
    """The mean of the 20 nearest without privacy."""
    near = KNeighborsRegressor(min(20, len(y))).fit(X, y)
    return np.asarray(near.predict(queries), dtype=np.float64)


def trees(X: FloatArray, y: FloatArray, queries: FloatArray) -> FloatArray:
    """Boosted trees without privacy."""
    return np.asarray(HistGradientBoostingRegressor(random_state=0).fit(X, y).predict(queries), dtype=np.float64)


def best_choice(
    rival: Rival, views: Sequence[FloatArray], y: FloatArray, promise: Promise, seed: int
) -> tuple[int, float]:
    """The view of the rows and the strength or rate that are best on held-out rows. Nobody pays for this choice."""
    held, kept = np.split(np.random.default_rng(seed).permutation(len(y)), [max(int(len(y) * _HELD_OUT), 1)])
    values = _STRENGTHS if rival is ada_ssp else RATES

    def error(choice: tuple[int, float]) -> float:
        view = views[choice[0]]
        return float(((rival(view[kept], y[kept], view[held], promise, seed, choice[1]) - y[held]) ** 2).mean())

    return min(product(range(len(views)), values), key=error)


def _scale(promise: Promise, releases: int) -> float:
    """The noise on sums of vectors of length 1, so that this many releases keep the promise."""
    return sqrt(releases / (2.0 * accounting.budget(*promise, "gdp")))
