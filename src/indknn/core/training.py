"""One step of training under the filter: the gradient of a softmax model over all records, exact to the bit.

A record is a row v of whole numbers, which stands for the unit vector v/|v|. The model gives it class probabilities p
by a table, and its gradient is v/|v| ⊗ (p - e_y). Each person's gradient, over all of their records, is scaled down to
the clip and to what they can still pay. What is then actually added is charged, rounded up.

Every number here is whole, or the result of one correctly rounded operation per entry. Sums are of whole numbers below
2^53, which float64 adds exactly in any order. So what a person adds does not depend on anybody else (rules 1 and 7).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil, sqrt

import numpy as np

from indknn.core.mechanism import charge_units, largest_squared_shift
from indknn.core.noise import Noise
from indknn.core.statistics import Contribution
from indknn.types import FloatArray, Int8Array, IntArray

STEP_GRID = 1 << 26
"""Gradients are whole numbers in units of 1/STEP_GRID."""
INTERCEPT = 0.2
"""The last entry of every unit vector. It is the same for all, so that a class can be likely everywhere."""
MAX_WEIGHT = float(1 << 26)
"""The largest weight. Weights are whole numbers."""

_RESIDUAL = float(1 << 22)
_TABLE_STEP, _TABLE_END, _TABLE_ONE = 256.0, 24.0, float(1 << 36)
_TABLE = np.rint(_TABLE_ONE * np.exp(-np.arange(_TABLE_STEP * _TABLE_END + 1.0) / _TABLE_STEP))
_SHRINK = 0.98
_BLOCK = 2048  # rows at a time, which stay in the cache
_DENSE = 1 << 22  # entries of the gradients of several people at a time


@dataclass(frozen=True)
class Weights:
    """A softmax model over rows: whole numbers, one column per class, and the value of one unit."""

    whole: FloatArray
    unit: float

    @staticmethod
    def of(weights: FloatArray) -> Weights:
        """The nearest weights on the grid."""
        top = float(np.abs(weights).max(initial=0.0)) or 1.0
        return Weights(np.rint(weights * (MAX_WEIGHT / top)), top / MAX_WEIGHT)


def rows_of(values: Int8Array) -> tuple[FloatArray, FloatArray]:
    """Rows with their intercept as whole numbers, and their lengths. Each row is computed separately.

    >>> rows, lengths = rows_of(np.array([[3, 4]], dtype=np.int8))
    >>> rows.tolist(), lengths.round(2).tolist()
    ([[3.0, 4.0, 1.0]], [5.1])
    """
    rows = np.empty((len(values), values.shape[1] + 1))
    rows[:, :-1] = values
    squared = np.einsum("ij,ij->i", rows[:, :-1], rows[:, :-1])  # exact: a sum of integers
    rows[:, -1] = np.maximum(np.rint(np.sqrt(squared) * (INTERCEPT / sqrt(1.0 - INTERCEPT**2))), 1.0)
    return rows, np.sqrt(squared + rows[:, -1] * rows[:, -1])


def probabilities(rows: FloatArray, lengths: FloatArray, weights: Weights) -> FloatArray:
    """The softmax of each row by a table."""
    scores = (rows @ weights.whole) * (weights.unit / lengths)[:, None]
    behind = np.floor((scores.max(axis=1, keepdims=True) - scores) * _TABLE_STEP)
    parts = _TABLE[np.minimum(behind, len(_TABLE) - 1.0).astype(np.int64)]
    result: FloatArray = parts / parts.sum(axis=1, keepdims=True)  # a sum of whole numbers, so exact
    return result


def gradient(
    values: Int8Array, labels: IntArray, owners: IntArray, limits: IntArray, weights: Weights, clip: float, scale: int
) -> Contribution:
    """The sum of the gradients of these records, who pays for it, and how much.

    `limits` is what the owner of each record may pay for all of their records. `scale` is the noise in grid units.
    """
    order = np.argsort(owners, kind="stable")
    names, start, m = np.unique(owners[order], return_index=True, return_counts=True)
    limits = limits[order][start]
    most = np.minimum(largest_squared_shift(limits, scale), (clip * STEP_GRID) ** 2)
    total = np.zeros(weights.whole.shape, dtype=np.int64)
    charges = np.zeros(len(names), dtype=np.int64)
    for who, records in _portions(start, m, order, weights.whole.size):
        rows, lengths = rows_of(values[records])
        wrong = probabilities(rows, lengths, weights)
        wrong[np.arange(len(rows)), labels[records]] -= 1.0
        wrong = np.rint(wrong * _RESIDUAL)
        if int(m[who[0]]) == 1:
            added, squared = _of_single_records(rows, lengths, wrong, most[who])
        else:
            added, squared = _of_many_records(rows, lengths, wrong, int(m[who[0]]), most[who])
        charged = charge_units(squared, scale)
        # The limit leaves room for every rounding. If that were ever wrong, the gradient would be dropped and the limit
        # kept.
        able = charged <= limits[who]
        added *= np.repeat(able, m[who])[:, None]
        charges[who] = charged * able
        total += (rows.T @ added).astype(np.int64)
    return Contribution(total, names, charges)


def noisy_gradient(total: IntArray, scale: int, noise: Noise) -> IntArray:
    """The release: every entry with its own noise."""
    return total + noise.draw(scale, total.size).reshape(total.shape)


def step_scale(clip: float, steps: int, budget: float) -> int:
    """The noise, in grid units, at which a person with the largest gradient pays `budget` in this many steps."""
    return ceil(clip * sqrt(steps / (2.0 * budget)) * STEP_GRID)


def _portions(start: IntArray, m: IntArray, order: IntArray, size: int) -> Iterator[tuple[IntArray, IntArray]]:
    """Positions of owners with equally many records, some at a time, and the records of these owners in order."""
    for count in np.unique(m).tolist():
        alike = np.flatnonzero(m == count)
        some = _BLOCK if count == 1 else max(min(_BLOCK // count, _DENSE // size), 1)
        for first in range(0, len(alike), some):
            who = alike[first : first + some]
            yield who, order[(start[who][:, None] + np.arange(count)).ravel()]


def _of_single_records(
    rows: FloatArray, lengths: FloatArray, wrong: FloatArray, most: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """The whole numbers by which rows are multiplied, and the squared lengths of the results."""
    size = np.sqrt(_squares(wrong)) * (STEP_GRID / _RESIDUAL)
    shrink = np.minimum(np.sqrt(most) / np.maximum(size, 1e-300), 1.0) * (STEP_GRID / _RESIDUAL)
    added = np.trunc(wrong * (shrink / lengths)[:, None])
    return added, _squares(rows) * _squares(added)


def _of_many_records(
    rows: FloatArray, lengths: FloatArray, wrong: FloatArray, m: int, most: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """The same for owners of m records each. Rounding can lengthen a sum a little. Then a little less is added."""
    per_owner = rows.reshape(-1, m, rows.shape[1]).transpose(0, 2, 1)
    whole = np.trunc(wrong * ((STEP_GRID / _RESIDUAL) / lengths)[:, None]).reshape(-1, m, wrong.shape[1])
    # The sums are exact, but their squares may not be. So the sums are cut to fewer digits before they are squared.
    sums = np.matmul(per_owner, whole).reshape(len(most), -1)
    digits = float(1 << 25) / sqrt(sums.shape[1])
    coarse = np.maximum(np.abs(sums).max(axis=1, initial=0.0) / digits, 1.0)
    size = (np.sqrt(_squares(np.trunc(sums / coarse[:, None]))) + sqrt(sums.shape[1])) * coarse
    shrink = np.minimum(np.sqrt(most) / size, 1.0)
    for _ in range(8):
        added = np.trunc(whole * shrink[:, None, None])
        squared = _squares(np.matmul(per_owner, added).reshape(len(most), -1))
        short = squared > most
        if not short.any():
            break
        shrink = np.where(short, shrink * _SHRINK, shrink)
    else:
        added[short], squared[short] = 0.0, 0.0
    return added.reshape(len(rows), -1), squared


def _squares(rows: FloatArray) -> FloatArray:
    """|row|² of whole numbers."""
    result: FloatArray = np.einsum("ij,ij->i", rows, rows)
    return result
