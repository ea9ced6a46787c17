"""A model that learns from released answers, each weighted by its known noise.

An answer's noisy centred votes u, as shares of all votes, are P(y | q) - 1/c with an error whose size is
known. Unweighted, the answers of an exhausted store, which are noise, would drown the good ones.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from indknn.types import FloatArray, IntArray

_SIZES = np.geomspace(1e-5, 1e2, 40)
_STRONGEST = 100.0


class Student(Protocol):
    """What can be taught by answers. Scores are like P(y | q) - 1/c; a row of them depends on its own query only."""

    linear: bool

    def learn(self, Q: FloatArray, votes: FloatArray, noise: FloatArray, prior: FloatArray) -> None:
        """Learn from unit queries, their noisy vote shares, the noise of each, and what the prior says of them."""
        ...

    def correction(self, Q: FloatArray, prior: FloatArray) -> FloatArray:
        """What to add to the scores of the prior."""
        ...


class RidgeStudent:
    """Ridge regression on what the prior did not know. The penalty comes from the answers (empirical Bayes)."""

    linear = True

    def __init__(self) -> None:
        self.weights: FloatArray | None = None

    def learn(self, Q: FloatArray, votes: FloatArray, noise: FloatArray, prior: FloatArray) -> None:
        """Weighted least squares on votes - prior. Nothing to learn gives weights of zero."""
        rest = votes - prior
        misfit = max(float(((rest * rest).mean(axis=1) - noise * noise).mean()), 1e-4)
        weight = 1.0 / (noise * noise + 0.5 * misfit)
        S, b = (Q * weight[:, None]).T @ Q, (Q * weight[:, None]).T @ rest
        eigen, V = np.linalg.eigh(S)
        eigen = np.maximum(eigen, 0.0)
        z = V.T @ b
        total, best, size = (z * z).sum(axis=1), -np.inf, 0.0
        for candidate in (0.0, *_SIZES):
            variance = eigen * eigen * candidate + eigen + 1e-9
            likelihood = -0.5 * float((total / variance + z.shape[1] * np.log(variance)).sum())
            if likelihood > best:
                best, size = likelihood, float(candidate)
        self.weights = V @ ((size / (eigen * size + 1.0))[:, None] * z)

    def correction(self, Q: FloatArray, prior: FloatArray) -> FloatArray:
        """What ridge regression found."""
        return np.zeros_like(prior) if self.weights is None else np.asarray(Q @ self.weights)


class SklearnStudent:
    """Any scikit-learn classifier that takes sample weights, made anew for every lesson."""

    linear = False

    def __init__(self, make: Callable[[], Any]):
        self._make = make
        self._model: Any = None

    def learn(self, Q: FloatArray, votes: FloatArray, noise: FloatArray, prior: FloatArray) -> None:
        """Fit the answers, each weighted by its margin in units of its noise, squared."""
        labels: IntArray = votes.argmax(axis=1)
        ordered = np.sort(votes, axis=1)
        margin = (ordered[:, -1] - ordered[:, -2]) / noise if votes.shape[1] > 1 else np.ones(len(votes))
        self._model = None
        if len(np.unique(labels)) > 1:
            weight = np.minimum(margin * margin, _STRONGEST)
            self._model = self._make().fit(Q, labels, sample_weight=weight)

    def correction(self, Q: FloatArray, prior: FloatArray) -> FloatArray:
        """From what the prior says to what the classifier says. Row by row, so that a row is a function of its own."""
        if self._model is None:
            return np.zeros_like(prior)
        found = np.zeros_like(prior)
        for i in range(len(Q)):
            found[i, self._model.classes_] = self._model.predict_proba(Q[i : i + 1])[0]
        return np.asarray(found - 1.0 / prior.shape[1] - prior, dtype=np.float64)
