"""From the features of a record to the features that the shared model sees. The map is public, and applied row by row.

The map is made from public rows and public randomness, in these steps:

- If there are few features, random Fourier features are added, so that a linear model can bend. In a table, they are
  Fourier features of one coordinate per numeric column: how many of its pieces the value has passed.
- If there are many numeric columns for the signal, the pieces of each column become one coordinate.
- The mean of the public rows is subtracted, and directions are stretched. If the noise of training will be low, small
  directions become as large as the others (whitening). If it will be high, large directions become even larger, because
  noise hides the small ones.
- Every row is cut to int8 by its own largest entry.

All matrices hold whole numbers that are so small that float32 adds their products exactly, in any order (rule 1). All
constants were chosen on held-out *training* records of AG News, CIFAR-10, DBpedia, Fashion-MNIST, Adult, Letters,
Shuttle, and scikit-learn's digits and breast cancer.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import pi, sqrt

import numpy as np

from indknn.core.quantise import LEVELS, whole_product
from indknn.models.table_columns import Spans
from indknn.types import ROW, Float32Array, FloatArray, Int8Array

FEW_FEATURES, FOURIER, ENOUGH_SIGNAL = 128, 256, 30.0
"""Rows with up to this many features get this many Fourier features, if the signal is at least this strong."""
FEW_COLUMNS, MOSTLY_NUMBERS, COLUMN_SIGNAL, TABLE_SIGNAL = 40, 0.75, 6.0, 2000.0
"""A wider row of a table gets Fourier features of its numeric columns, if there are at most so many of them, if they
are at least this share of the row, and if the signal is at least so strong: per class and column, and in all. Where
categories tell most, bends in the numbers cost more noise than they are worth."""
PIECES_SIGNAL = 1.5
"""With less signal per class and column than this, the pieces of a numeric column become one coordinate."""
LEAST_ROWS = 50
"""How many public rows are needed to centre and to stretch."""
USUAL_DISTANCE = 1.5
"""The median squared distance of unit rows, used if there are no public rows."""
SHARPNESS = 3.5
_TURN = 1 << 12  # entries of the table of cosines
_FREQUENCY = 1 << 14
_STRETCH = float(1 << 11)
_BLOCK = 256
_LEAST_SPREAD = 1e-3  # of a column, so that frequencies stay small


@dataclass(frozen=True)
class FeatureMap:
    """Public matrices of whole numbers. `frequencies` and `stretch` may be None."""

    frequencies: FloatArray | None
    phases: FloatArray
    centre: Float32Array
    stretch: Float32Array | None

    @property
    def width(self) -> int:
        """How many features the result has."""
        return len(self.centre)

    def apply(self, values: Int8Array) -> Int8Array:
        """The rows as the model sees them."""
        found = np.empty((len(values), self.width), dtype=np.int8)
        for first in range(0, len(values), _BLOCK):
            here = slice(first, first + _BLOCK)
            rows = _expanded(values[here], self.frequencies, self.phases)
            rows -= self.centre
            if self.stretch is not None:
                rows = whole_product(rows, self.stretch)
            largest = np.maximum(rows.max(axis=1, initial=0.0), -rows.min(axis=1, initial=0.0))
            rows /= np.maximum(largest, 1.0)[:, None]
            rows *= np.float32(LEVELS)
            found[here] = np.rint(rows, out=rows)
        return found


def feature_map(public: Int8Array, n_classes: int, signal: float, seed: int, numbers: Spans = ()) -> FeatureMap:
    """The map for these public rows.

    `signal` says how strong the records are compared with the noise: N·sqrt(2·budget). `numbers` are the coordinates of
    the pieces of each numeric column of a table.
    """
    d, rng = public.shape[1], np.random.default_rng(seed)
    frequencies, phases = None, np.zeros(0)
    bent = _bent(public, n_classes, signal, numbers)
    if bent is not None:
        frequencies = np.rint(bent @ rng.standard_normal((bent.shape[1], FOURIER)) * (_FREQUENCY / pi))
        phases = np.rint(rng.uniform(0.0, 1.0, FOURIER) * (_FREQUENCY * ROW))
    width = d + len(phases)
    if len(public) < LEAST_ROWS:
        return FeatureMap(frequencies, phases, np.zeros(width, dtype=np.float32), None)
    rows = _expanded(public, frequencies, phases)
    centre = np.rint(rows.mean(axis=0, dtype=np.float64))
    centred, noise = (rows - centre) / ROW, SHARPNESS * sqrt(n_classes) / signal
    if signal / n_classes < PIECES_SIGNAL * len(numbers):
        merged = _merged(width, numbers)
        stretch = merged @ _stretch(centred @ merged, noise)
    else:
        stretch = _stretch(centred, noise)
    return FeatureMap(frequencies, phases, centre.astype(np.float32), np.rint(stretch * _STRETCH).astype(np.float32))


def _bent(public: Int8Array, n_classes: int, signal: float, numbers: Spans) -> FloatArray | None:
    """The coordinates that Fourier features are made of, one per column. Their median squared distance is 1.

    All features of a row if they are few, or else the numeric columns of a table. None if noise would hide the gain.
    """
    d, chosen = public.shape[1], None
    if d <= FEW_FEATURES and signal / n_classes >= ENOUGH_SIGNAL:
        chosen = np.eye(d)
    elif d > FEW_FEATURES and 0 < len(numbers) <= FEW_COLUMNS and len(public) >= LEAST_ROWS:
        passed = _passed(d, numbers)
        enough = max(COLUMN_SIGNAL * n_classes * len(numbers), TABLE_SIGNAL)
        if passed.sum() >= MOSTLY_NUMBERS * d and signal >= enough:
            spread = (_expanded(public, None, np.zeros(0)) / ROW @ passed).std(axis=0)
            chosen = passed / np.maximum(spread, _LEAST_SPREAD)
    return None if chosen is None else chosen / sqrt(_median_distance(public, chosen))


def _passed(width: int, numbers: Spans) -> FloatArray:
    """One column per number: 1 for each of its pieces."""
    found = np.zeros((width, len(numbers)))
    for i, (first, end) in enumerate(numbers):
        found[first:end, i] = 1.0
    return found


def _merged(width: int, numbers: Spans) -> FloatArray:
    """The projection that replaces the pieces of each number by their mean."""
    ones = _passed(width, numbers)
    kept = np.diag(1.0 - ones.sum(axis=1))
    return np.asarray(kept + (ones / ones.sum(axis=0)) @ ones.T, dtype=np.float64)


def _expanded(values: Int8Array, frequencies: FloatArray | None, phases: FloatArray) -> Float32Array:
    """Unit vectors in units of 1/ROW, rounded towards zero, and their Fourier features."""
    unit = values.astype(np.float64)
    root = np.maximum(np.sqrt(np.einsum("ij,ij->i", unit, unit)), 1.0)  # sums of integers: exact
    unit *= (ROW / root)[:, None]
    np.trunc(unit, out=unit)
    if frequencies is None:
        return np.asarray(unit, dtype=np.float32)
    turns = ((unit @ frequencies + phases) * (_TURN / (_FREQUENCY * ROW))).astype(np.int64) & (_TURN - 1)
    return np.asarray(np.hstack([unit, _COSINES[turns]]), dtype=np.float32)


def _stretch(rows: FloatArray, noise: float) -> FloatArray:
    """The root of 1/(λ + noise²/λ) for the eigenvalues λ of the shrunken second moments, with the largest set to 1."""
    n, d = rows.shape
    moments = rows.T @ rows
    shrink = min(0.5 * d / n if n < 4 * d else 0.2 * d / n, 0.9)
    eigen, V = np.linalg.eigh(moments / max(float(np.trace(moments)), 1e-12))
    eigen = np.maximum((1.0 - shrink) * eigen, 0.0) + shrink / d
    gain = np.sqrt(1.0 / (eigen + noise * noise / eigen))
    return np.asarray((V * (gain / gain.max())) @ V.T, dtype=np.float64)


def _median_distance(public: Int8Array, chosen: FloatArray) -> float:
    """The median squared distance between public unit rows, in these coordinates."""
    if len(public) < LEAST_ROWS:
        return USUAL_DISTANCE
    rows = _expanded(public[:400], None, np.zeros(0)).astype(np.float64) / ROW @ chosen
    squares = (rows * rows).sum(axis=1)
    upper = np.triu_indices(len(rows), 1)
    return max(float(np.median((squares[:, None] + squares - 2.0 * (rows @ rows.T))[upper])), 1e-3)


_COSINES = np.rint(np.cos(np.arange(_TURN) * (2.0 * pi / _TURN)) * (ROW * sqrt(2.0 / FOURIER)))
