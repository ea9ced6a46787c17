"""The probability of each class, computed from releases. This is post-processing and costs nobody anything."""

from __future__ import annotations

from math import sqrt

import numpy as np

from indknn.core.releases import NoisyVotes, Votes
from indknn.types import FloatArray

LEAST = 1e-3
"""The smallest probability that a class can get, as a share of 1/c."""
_FLATTEST = 0.01
_USUAL_MISS = 0.05
"""By how much the mean of a model's largest probabilities usually misses its accuracy. A card with a larger error says
less than that."""
_BLURRED = 0.5
"""Votes smaller than this many standard deviations of their noise are treated almost as zero. Like the powers in
`from_votes`, it was chosen on held-out training records of seven sets (`benchmarks/calibration.py`)."""


def from_votes(votes: NoisyVotes | Votes | None, label: int, n_classes: int) -> FloatArray:
    """Probabilities from the noisy votes of Algorithm 3, in the same order.

    The shares of kernel votes are flatter than the true probabilities, because records of many other classes are a
    little near. So shares are raised to a power. It is 1 for two classes and grows with their number. It is smaller if
    noise could explain how the votes differ, so that noise alone makes no class look likely.

    >>> sure, unsure = (NoisyVotes(scale, np.array([900, 50, 50])) for scale in (10, 500))
    >>> from_votes(sure, 0, 3).round(2).tolist(), from_votes(unsure, 0, 3).round(2).tolist()
    ([0.94, 0.03, 0.03], [0.34, 0.33, 0.33])
    """
    if not isinstance(votes, NoisyVotes):  # answered by an earlier version, which kept only the label
        return proper(np.eye(n_classes)[label] * 0.5 + 0.5 / n_classes)
    v, noise = votes.votes.astype(np.float64), max(float(votes.scale), 1.0)
    differ = float(((v - v.mean()) ** 2).sum()) / max(n_classes - 1, 1)
    real = max(1.0 - noise * noise / max(differ, 1.0), 0.0)
    power = sqrt(n_classes / 2.0) * max(real**0.25, _FLATTEST)
    blur = _BLURRED * noise
    length = np.hypot(v, blur)
    positive = np.where(v > 0, v + length, blur * blur / (length + np.abs(v)))  # v + length, without cancellation
    return proper(_scaled((positive / positive.max()) ** power))


def proper(scores: FloatArray) -> FloatArray:
    """Scores, which may be negative, as probabilities in the same order."""
    return _scaled(np.maximum(scores, LEAST / scores.shape[-1]))


def sharpened(probabilities: FloatArray, power: float) -> FloatArray:
    """Probabilities raised to a power and scaled, in the same order. Above 1 they become surer, below 1 less sure."""
    return _scaled(proper(probabilities) ** power)


def fitting_power(probabilities: FloatArray, right: float, error: float) -> float:
    """The power at which the largest probability of a row is `right` on average, as far as its error allows.

    >>> unsure = np.array([[0.6, 0.4]])
    >>> [round(fitting_power(unsure, 0.9, error), 1) for error in (0.0, 0.05, 1.0)]
    [5.4, 2.7, 1.0]
    """
    own = float(proper(probabilities).max(axis=-1).mean())
    right = own + (right - own) * _USUAL_MISS**2 / (_USUAL_MISS**2 + error * error)
    low, high = 0.1, 10.0
    for _ in range(30):
        middle = float(np.sqrt(low * high))
        sure = float(sharpened(probabilities, middle).max(axis=-1).mean())
        low, high = (middle, high) if sure < right else (low, middle)
    return float(np.sqrt(low * high))


def _scaled(positive: FloatArray) -> FloatArray:
    """Scale each row so that it sums to 1."""
    return np.asarray(positive / positive.sum(axis=-1, keepdims=True), dtype=np.float64)
