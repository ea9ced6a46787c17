"""How likely each class is, from what was released: post-processing, which costs nobody anything."""

from __future__ import annotations

import numpy as np

from indknn.core.releases import NoisyVotes, Votes
from indknn.types import FloatArray

LEAST = 1e-3
"""No class is said to be less likely than this, in shares of one of c equal ones."""
_FLATTEST = 0.01


def from_votes(votes: NoisyVotes | Votes | None, label: int, n_classes: int) -> FloatArray:
    """From the noisy votes of Algorithm 3: their shares, moved towards 1/c as far as noise explains them.

    >>> sure, unsure = (NoisyVotes(scale, np.array([900, 50, 50])) for scale in (10, 500))
    >>> from_votes(sure, 0, 3).round(2).tolist(), from_votes(unsure, 0, 3).round(2).tolist()
    ([0.9, 0.05, 0.05], [0.34, 0.33, 0.33])
    """
    if not isinstance(votes, NoisyVotes):  # answered by an earlier version, which kept the label alone
        return proper(np.eye(n_classes)[label] * 0.5 + 0.5 / n_classes)
    total = max(float(votes.votes.sum()), float(votes.scale))
    shares, noise = votes.votes / total - 1.0 / n_classes, votes.scale / total
    spread = float((shares * shares).mean())
    return proper(1.0 / n_classes + max(1.0 - noise * noise / max(spread, 1e-300), _FLATTEST) * shares)


def proper(scores: FloatArray) -> FloatArray:
    """Scores that may be below zero as probabilities, in the same order."""
    kept = np.maximum(scores, LEAST / scores.shape[-1])
    return np.asarray(kept / kept.sum(axis=-1, keepdims=True), dtype=np.float64)


def sharpened(probabilities: FloatArray, power: float) -> FloatArray:
    """Raised to a power and scaled: above 1 they become surer, below 1 less sure, in the same order."""
    raised = proper(probabilities) ** power
    return np.asarray(raised / raised.sum(axis=-1, keepdims=True), dtype=np.float64)


def fitting_power(probabilities: FloatArray, right: float) -> float:
    """The power at which the largest probability of a row is `right` on average."""
    low, high = 0.1, 10.0
    for _ in range(30):
        middle = float(np.sqrt(low * high))
        sure = float(sharpened(probabilities, middle).max(axis=-1).mean())
        low, high = (middle, high) if sure < right else (low, middle)
    return float(np.sqrt(low * high))
