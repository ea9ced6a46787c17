"""One step of training under the filter: the gradient of a model over all records, exact to the bit.

A record is a row v of whole numbers, which stands for the unit vector v/|v|. The model gives it class probabilities p
by a table, and its gradient is v/|v| ⊗ (p - e_y). If records say numbers, the model gives it a number f, and its
gradient is v/|v|·ψ(f - y), where ψ cuts at a bound (Huber's loss). Each person's gradient, over all of their records,
is scaled down to the clip and to what they can still pay. What is then actually added is charged, rounded up.

Every number here is whole, or the result of one correctly rounded operation per entry. Sums are of whole numbers below
2^53, which float64 adds exactly in any order. So what a person adds does not depend on anybody else (rules 1 and 7).
`_training.c` does the same in one pass over the rows, on several cores if it may, and gives the same bits.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from math import ceil, sqrt
from typing import Any

import numpy as np
import numpy.typing as npt

from indknn.core.accounting import MAX_UNITS
from indknn.core.mechanism import charge_rate, charge_units, largest_squared_shift
from indknn.core.noise import Noise
from indknn.core.quantise import as_int64, load_native
from indknn.core.statistics import Contribution
from indknn.core.targets import MIDDLE
from indknn.types import FloatArray, Int8Array, IntArray

STEP_GRID = 1 << 26
"""Gradients are whole numbers in units of 1/STEP_GRID."""
INTERCEPT = 0.2
"""The last entry of every unit vector. It is the same for all, so that a class can be likely everywhere."""
MAX_WEIGHT = float((1 << 15) - 1)
"""The largest weight. Weights are whole numbers of 16 bits. Noise moves them by much more than one unit."""
MOST_RECORDS = 1 << 20
"""A person with more records than this adds nothing, because sums over them might not be exact."""

_training: Any = load_native("indknn.core._training")
_WIDEST = (1 << 17) - 1  # features, for `_training.c`
_PADDING = 32  # features
_SHARE = 4096  # records that a thread takes at a time
_RESIDUAL = float(1 << 22)
_TABLE_STEP, _TABLE_END, _TABLE_ONE = 256.0, 24.0, float(1 << 36)
_TABLE = np.rint(_TABLE_ONE * np.exp(-np.arange(_TABLE_STEP * _TABLE_END + 1.0) / _TABLE_STEP)).astype(np.float32)
_INTERCEPT_RATIO = INTERCEPT / sqrt(1.0 - INTERCEPT**2)
_SHRINK = 0.98
_HALF = float(1 << 18)
_BLOCK = 2048  # rows at a time, which stay in the cache
_DENSE = 1 << 22  # entries of the gradients of several people at a time


@dataclass(frozen=True)
class Weights:
    """A model over rows: whole numbers, one column per class, and the value of one unit."""

    whole: FloatArray
    unit: float
    bound: float | None = None
    """If the model says a number, in one column: where residuals are cut (Huber's loss). At most 1."""

    @staticmethod
    def of(weights: FloatArray, bound: float | None = None) -> Weights:
        """The nearest weights on the grid."""
        top = float(np.abs(weights).max(initial=0.0)) or 1.0
        return Weights(np.rint(weights * (MAX_WEIGHT / top)), top / MAX_WEIGHT, bound)

    def same(self, other: Weights) -> bool:
        """Whether these are the same numbers."""
        equal = (self.unit, self.bound) == (other.unit, other.bound)
        return self is other or (equal and np.array_equal(self.whole, other.whole))

    @cached_property
    def packed(self) -> tuple[npt.NDArray[np.int16], FloatArray]:
        """As `_training.c` reads them: a padded line for each class, and the weights of the intercept."""
        d, classes = len(self.whole) - 1, self.whole.shape[1]
        lines = np.zeros((classes, -(-d // _PADDING) * _PADDING), dtype=np.int16)
        lines[:, :d] = self.whole[:-1].T
        return lines, np.ascontiguousarray(self.whole[-1])


@dataclass(frozen=True)
class _People:
    """The labels of records by owner, and for each owner the first record, what they may pay, and |gradient|²."""

    labels: IntArray
    starts: IntArray
    """The end of the last one too."""
    limits: IntArray
    most: FloatArray


def table_of_softmax() -> dict[str, Any]:
    """The constants of `probabilities`, for whoever computes it elsewhere."""
    return {"intercept": _INTERCEPT_RATIO, "step": _TABLE_STEP, "table": _TABLE.astype(int).tolist()}


def rows_of(values: Int8Array) -> tuple[FloatArray, FloatArray]:
    """Rows with their intercept as whole numbers, and their lengths. Each row is computed separately.

    >>> rows, lengths = rows_of(np.array([[3, 4]], dtype=np.int8))
    >>> rows.tolist(), lengths.round(2).tolist()
    ([[3.0, 4.0, 1.0]], [5.1])
    """
    rows = np.empty((len(values), values.shape[1] + 1))
    rows[:, :-1] = values
    squared = np.einsum("ij,ij->i", rows[:, :-1], rows[:, :-1])  # exact: a sum of integers
    rows[:, -1] = np.maximum(np.rint(np.sqrt(squared) * _INTERCEPT_RATIO), 1.0)
    return rows, np.sqrt(squared + rows[:, -1] * rows[:, -1])


def probabilities(rows: FloatArray, lengths: FloatArray, weights: Weights) -> FloatArray:
    """The softmax of each row by a table."""
    scores = (rows @ weights.whole) * (weights.unit / lengths)[:, None]
    behind = np.floor((scores.max(axis=1, keepdims=True) - scores) * _TABLE_STEP)
    parts = _TABLE[np.minimum(behind, len(_TABLE) - 1.0).astype(np.int64)].astype(np.float64)
    result: FloatArray = parts / parts.sum(axis=1, keepdims=True)  # a sum of whole numbers, so exact
    return result


def numbers(rows: FloatArray, lengths: FloatArray, weights: Weights) -> FloatArray:
    """What a model of numbers says about each row. A sum of whole numbers and one rounding."""
    return np.asarray((rows @ weights.whole[:, 0]) * (weights.unit / lengths), dtype=np.float64)


def _residuals(rows: FloatArray, lengths: FloatArray, labels: IntArray, weights: Weights) -> FloatArray:
    """By how much the model is wrong about each row and class, as a whole number of 1/RESIDUAL."""
    if weights.bound is None:
        wrong = probabilities(rows, lengths, weights)
        wrong[np.arange(len(rows)), labels] -= 1.0
    else:
        y = (labels - float(MIDDLE)) / MIDDLE
        wrong = np.clip(numbers(rows, lengths, weights) - y, -weights.bound, weights.bound)[:, None]
    return np.asarray(np.rint(wrong * _RESIDUAL), dtype=np.float64)


def predicted(values: Int8Array, weights: Weights) -> FloatArray:
    """The probability of each class for each row of features, or its number."""
    if not _in_c(values):
        if weights.bound is not None:
            return numbers(*rows_of(values), weights)[:, None]
        return probabilities(*rows_of(values), weights)
    found = np.empty((len(values), weights.whole.shape[1]))
    _training.probabilities(*_model(values, weights), found, levels()[-1])
    return found


def levels() -> range:
    """The instruction sets that `_training.c` can use here, best last."""
    return range(len(_training.levels()))


def gradient(
    values: Int8Array,
    labels: IntArray,
    owners: IntArray,
    limits: IntArray,
    weights: Weights,
    clip: float,
    scale: int,
    threads: int = 1,
) -> Contribution:
    """The sum of the gradients of these records, who pays for it, and how much.

    `limits` is what the owner of each record may pay for all of their records. `scale` is the noise in grid units. The
    result does not depend on how many threads compute it.
    """
    if (owners[1:] < owners[:-1]).any():
        order = np.argsort(owners, kind="stable")
        values, labels, owners, limits = values[order], labels[order], owners[order], limits[order]
    values = values[:, : len(weights.whole) - 1]  # a model without features has only an intercept
    new = np.append(owners[1:] != owners[:-1], True)[: len(owners)]
    starts = np.append(0, np.flatnonzero(new) + 1)
    names, limits = owners[starts[:-1]], limits[starts[:-1]]
    most = np.minimum(largest_squared_shift(limits, scale), (clip * STEP_GRID) ** 2)
    people = _People(as_int64(labels), starts, as_int64(limits), most)
    if _in_c(values):
        total, charges = _gradient_in_c(values, people, weights, scale, threads)
    else:
        total, charges = _gradient_in_numpy(values, people, weights, scale)
    return Contribution(total, names, charges)


def noisy_gradient(total: IntArray, scale: int, noise: Noise) -> IntArray:
    """The release: every entry with its own noise."""
    return total + noise.draw(scale, total.size).reshape(total.shape)


def step_scale(clip: float, steps: int, budget: float) -> int:
    """The noise, in grid units, at which a person with the largest gradient pays `budget` in this many steps."""
    return ceil(clip * sqrt(steps / (2.0 * budget)) * STEP_GRID)


# In C


def _in_c(values: Int8Array) -> bool:
    return _training is not None and 0 < values.shape[1] <= _WIDEST


def _model(values: Int8Array, weights: Weights) -> tuple[object, ...]:
    """The first arguments of both functions."""
    rows = np.ascontiguousarray(values)
    return values.shape[1], rows, *weights.packed, _TABLE, weights.unit, _INTERCEPT_RATIO, weights.bound or 0.0


def _gradient_in_c(
    values: Int8Array, people: _People, weights: Weights, scale: int, threads: int
) -> tuple[IntArray, IntArray]:
    """The sum, and what each owner pays. Each thread takes the next owners and has its own sum, of whole numbers."""
    starts, charges = people.starts, np.zeros(len(people.limits), dtype=np.int64)
    edges = np.append(np.searchsorted(starts, np.arange(0, len(values), _SHARE)), len(charges))
    shares, threads = pairwise(np.unique(edges)), min(threads, len(edges) - 1)  # no more threads than there is work for
    common = *_model(values, weights), people.labels, starts, people.most, people.limits
    rest, level = (charge_rate(scale), float(MAX_UNITS)), levels()[-1]

    def work(total: IntArray) -> None:
        for first, end in shares:
            _training.gradient(*common, *rest, total, charges, first, end, level)

    totals = np.zeros((max(threads, 1), *weights.whole.T.shape), dtype=np.int64)
    with ThreadPoolExecutor(max(threads - 1, 1)) as others:
        waiting = others.map(work, totals[1:])
        work(totals[0])
    list(waiting)  # raises what went wrong in another thread
    return np.ascontiguousarray(totals.sum(axis=0).T), charges


# In NumPy


def _gradient_in_numpy(values: Int8Array, people: _People, weights: Weights, scale: int) -> tuple[IntArray, IntArray]:
    starts, limits, most = people.starts[:-1], people.limits, people.most
    m = np.diff(people.starts)
    total = np.zeros(weights.whole.shape, dtype=np.int64)
    charges = np.zeros(len(limits), dtype=np.int64)
    for who, records in _portions(starts, m, weights.whole.size):
        rows, lengths = rows_of(values[records])
        wrong = _residuals(rows, lengths, people.labels[records], weights)
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
    return total, charges


def _portions(starts: IntArray, m: IntArray, size: int) -> Iterator[tuple[IntArray, IntArray]]:
    """Positions of owners with equally many records, some at a time, and the records of these owners in order."""
    for count in np.unique(m[m <= MOST_RECORDS]).tolist():
        alike = np.flatnonzero(m == count)
        step = _BLOCK if count == 1 else max(min(_BLOCK // count, _DENSE // size), 1)
        for first in range(0, len(alike), step):
            who = alike[first : first + step]
            yield who, (starts[who][:, None] + np.arange(count)).ravel()


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
    sums = np.matmul(per_owner, whole).reshape(len(most), -1)
    shrink = np.minimum(np.sqrt(most) / (np.sqrt(_long_squares(sums)) + sqrt(sums.shape[1])), 1.0)
    for _ in range(8):
        added = np.trunc(whole * shrink[:, None, None])
        squared = _long_squares(np.matmul(per_owner, added).reshape(len(most), -1))
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


def _long_squares(rows: FloatArray) -> FloatArray:
    """|row|² of whole numbers whose squares may be above 2^53: from three sums of integers, added in this order.

    The digits of a number are cut into two halves of the same sign, so nothing cancels.
    """
    whole = rows.astype(np.int64)
    high = np.trunc(rows / _HALF).astype(np.int64)
    low = whole - high * int(_HALF)
    pairs = ((high, high), (high, low), (low, low))
    first, mixed, last = (np.einsum("ij,ij->i", a, b).astype(np.float64) for a, b in pairs)
    result: FloatArray = (first * _HALF**2 + mixed * (2.0 * _HALF)) + last
    return result
