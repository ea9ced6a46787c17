"""What labelled public rows say alone: a softmax regression, from which the shared model starts.

Public rows are free, so this costs nobody anything. How strongly the weights are held back is chosen on the last
quarter of the rows. A store that is opened again must find the same weights to the bit, so products are of whole
numbers, whose sums are exact in any order, and everything else is one operation per entry.
"""

from __future__ import annotations

from math import fsum, log, sqrt

import numpy as np

from indknn.core.training import Weights, probabilities, rows_of
from indknn.types import FloatArray, Int8Array, IntArray

STRENGTHS = (1e-2, 1e-3, 1e-4, 1e-5)
"""How strongly weights are held back, as the factor of |W|²/2 beside the mean loss."""
_STEPS = 100
_WHOLE = float(1 << 30)
_TURNS = 12  # of the search for the largest eigenvalue
_LEAST = 1e-12


def fitted(values: Int8Array, labels: IntArray, n_classes: int) -> FloatArray:
    """The weights of a softmax regression on these rows, one column per class."""
    rows, lengths = rows_of(values)
    kept = len(rows) - max(len(rows) // 4, 1)
    best, lowest = STRENGTHS[0], np.inf
    weights = np.zeros((rows.shape[1], n_classes))
    for strength in STRENGTHS:  # each starts where the one before ended
        weights = _minimised(rows[:kept], lengths[:kept], labels[:kept], weights, strength)
        found = probabilities(rows[kept:], lengths[kept:], Weights.of(weights))
        likely = found[np.arange(len(found)), labels[kept:]]
        loss = -fsum(log(max(p, _LEAST)) for p in likely.tolist())
        if loss < lowest:
            best, lowest = strength, loss
    return _minimised(rows, lengths, labels, np.zeros_like(weights), best)


def worth(n_public: int, width: int, clip: float) -> float:
    """The signal of private records that would tell as much as these labelled public rows.

    With it, the noise of training and the error of a mean over the public rows are equal in every weight: the entries
    of a gradient differ between rows by about 0.3/sqrt(width), and the noise on their mean is clip/signal.
    """
    return clip / 0.3 * sqrt(n_public * width)


def _minimised(
    rows: FloatArray, lengths: FloatArray, labels: IntArray, start: FloatArray, strength: float
) -> FloatArray:
    """Nesterov's method, with the step that the largest curvature of the loss allows."""
    step = 1.0 / (0.5 * _largest_eigenvalue(rows, lengths) + strength)
    at, before = np.arange(len(rows)), start
    weights = ahead = start
    for t in range(_STEPS):
        wrong = probabilities(rows, lengths, Weights.of(ahead))
        wrong[at, labels] -= 1.0
        slope = rows.T @ np.rint(wrong * (_WHOLE / lengths)[:, None]) / (_WHOLE * len(rows))
        before, weights = weights, ahead - step * (slope + strength * ahead)
        ahead = weights + t / (t + 3.0) * (weights - before)
    return weights


def _largest_eigenvalue(rows: FloatArray, lengths: FloatArray) -> float:
    """About the largest eigenvalue of the mean of x·xᵀ over unit rows x."""
    direction, size = np.ones(rows.shape[1]), 1.0
    for _ in range(_TURNS):
        along = np.rint((rows @ np.rint(direction * (1 << 20))) / (lengths * lengths))
        direction = rows.T @ along / (float(1 << 20) * len(rows))
        size = float(np.abs(direction).max(initial=_LEAST))
        direction = direction / size
    return max(size, _LEAST) * 1.1
