"""A model that learns from released answers, each weighted by its known noise.

An answer's noisy centred votes u, as shares of all votes, are P(y | q) - 1/c with an error whose size is
known. Unweighted, the answers of an exhausted store, which are noise, would drown the good ones.
"""

from __future__ import annotations

import numpy as np

from indknn.types import FloatArray

_SIZES = np.geomspace(1e-5, 1e2, 40)


class RidgeStudent:
    """Ridge regression on what the prior did not know. The penalty comes from the answers (empirical Bayes)."""

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
