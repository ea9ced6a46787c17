"""What labelled public rows say alone: a softmax regression, from which the shared model starts.

Public rows are free, so this costs nobody anything. How strongly the weights are held back is chosen on the last
quarter of the rows.
"""

from __future__ import annotations

from math import sqrt

import numpy as np
from scipy.optimize import minimize

from indknn.core.training import rows_of
from indknn.types import FloatArray, Int8Array, IntArray

STRENGTHS = (1e-2, 1e-3, 1e-4, 1e-5)
"""How strongly weights are held back, as the factor of |W|²/2 beside the mean loss."""
_STEPS = 60


def fitted(values: Int8Array, labels: IntArray, n_classes: int) -> FloatArray:
    """The weights of a softmax regression on these rows, one column per class."""
    rows, lengths = rows_of(values)
    rows = rows / lengths[:, None]
    held = max(len(rows) // 4, 1)
    best, lowest = STRENGTHS[0], np.inf
    weights = np.zeros((rows.shape[1], n_classes))
    for strength in STRENGTHS:  # each starts where the one before ended
        weights = _minimised(rows[:-held], labels[:-held], weights, strength)
        loss = _loss(weights, rows[-held:], labels[-held:], 0.0)[0]
        if loss < lowest:
            best, lowest = strength, loss
    return _minimised(rows, labels, np.zeros_like(weights), best)


def worth(n_public: int, width: int, clip: float) -> float:
    """The signal of private records that would tell as much as these labelled public rows.

    With it, the noise of training and the error of a mean over the public rows are equal in every weight: the entries
    of a gradient differ between rows by about 0.3/sqrt(width), and the noise on their mean is clip/signal.
    """
    return clip / 0.3 * sqrt(n_public * width)


def _minimised(rows: FloatArray, labels: IntArray, start: FloatArray, strength: float) -> FloatArray:
    def loss(flat: FloatArray) -> tuple[float, FloatArray]:
        value, slope = _loss(flat.reshape(start.shape), rows, labels, strength)
        return value, slope.ravel()

    found = minimize(loss, start.ravel(), jac=True, method="L-BFGS-B", options={"maxiter": _STEPS})
    return np.asarray(found.x.reshape(start.shape), dtype=np.float64)


def _loss(weights: FloatArray, rows: FloatArray, labels: IntArray, strength: float) -> tuple[float, FloatArray]:
    """The mean loss of these rows, and its slope."""
    scores = rows @ weights
    scores -= scores.max(axis=1, keepdims=True)
    logs = scores - np.log(np.exp(scores).sum(axis=1, keepdims=True))
    wrong, n = np.exp(logs), max(len(rows), 1)
    at = np.arange(len(rows)), labels
    wrong[at] -= 1.0
    value = -float(logs[at].sum()) / n + 0.5 * strength * float((weights * weights).sum())
    return value, np.asarray(rows.T @ wrong / n + strength * weights, dtype=np.float64)
