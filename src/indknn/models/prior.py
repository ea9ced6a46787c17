"""A linear model from noisy sums over the records: ridge regression whose penalty knows the noise.

The sums A ≈ Σ x xᵀ and b ≈ Σ x (e_y - 1/c)ᵀ have Gaussian noise of known size. Two things make the most of
them. Queries are public and spread like the records, so their own second moments, scaled up, are a second
estimate of A, soon a better one. And the size of the weights is estimated from b itself (empirical Bayes), so
that there is nothing to tune: where b is all noise, the weights come out as zero.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from indknn.types import FloatArray

SCATTER_DOUBT, SCATTER_SHY = 2.0, 8.0
"""How much worse the queries' moments are taken to be than their count says, always and while there are fewer
queries than features: their spread is uneven, and not quite the records'. From held-out *training* records of
AG News, CIFAR-10 and Fashion-MNIST, like every constant in here."""
NOISE_FLOOR = 0.5
"""Eigenvalues of A are taken to be this many standard deviations of its noise at least."""
_RESIDUAL = 0.5
_SIZES = np.geomspace(1e-4, 1e4, 60)


@dataclass
class Moments:
    """Released sums over some records, with the standard deviations of their noise. n is the trace of A."""

    A: FloatArray
    b: FloatArray
    sigma_a: float
    sigma_b: float

    @property
    def n(self) -> float:
        """About how many records are in the sums: every one adds 1 to the trace."""
        return max(float(np.trace(self.A)), 1.0)

    def plus(self, other: Moments) -> Moments:
        """Both together, the noise of both."""
        a, b = np.hypot(self.sigma_a, other.sigma_a), np.hypot(self.sigma_b, other.sigma_b)
        return Moments(self.A + other.A, self.b + other.b, float(a), float(b))


def weights(moments: Moments, scatter: FloatArray, m: int) -> FloatArray:
    """W with x W ≈ P(y | x) - 1/c, from the sums and from the mean of q qᵀ over m queries."""
    d, c = moments.b.shape
    n = moments.n
    A, variance = moments.A, moments.sigma_a**2 / 2.0
    if m >= 2:
        spread = max(1.0 - float((scatter * scatter).sum()), 1e-3)
        doubt = SCATTER_DOUBT * (1.0 + SCATTER_SHY * d / m)
        theirs = doubt * n * n / m * spread / (d * d)
        A = (A / variance + n * scatter / theirs) / (1.0 / variance + 1.0 / theirs)
        variance = 1.0 / (1.0 / variance + 1.0 / theirs)
    b = moments.b - moments.b.mean(axis=1, keepdims=True)  # the exact sums are orthogonal to 1, the noise is not
    eigen, V = np.linalg.eigh(A)
    eigen = np.maximum(eigen, 0.0) + NOISE_FLOOR * np.sqrt(d * variance)
    z = V.T @ b
    residual = eigen * (_RESIDUAL * (1.0 - 1.0 / c) / c)
    size = _likeliest(z, eigen, residual + moments.sigma_b**2)
    gain = eigen * size / (eigen * eigen * size + residual + moments.sigma_b**2)
    return np.asarray(V @ (gain[:, None] * z), dtype=np.float64)


def _likeliest(z: FloatArray, eigen: FloatArray, noise: FloatArray) -> float:
    """The variance of weights under which z = eigen·w + noise is most likely."""
    best, found = -np.inf, 0.0
    total = (z * z).sum(axis=1)
    for size in (0.0, *_SIZES):
        variance = eigen * eigen * size + noise
        likelihood = -0.5 * float((total / variance + z.shape[1] * np.log(variance)).sum())
        if likelihood > best:
            best, found = likelihood, float(size)
    return found
