"""From the features of a record to the features that the shared model sees. The map is public, and applied row by row.

The map is made from public rows and public randomness, in three steps:

- If there are few features, random Fourier features are added, so that a linear model can bend.
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
from indknn.types import ROW, Float32Array, FloatArray, Int8Array

FEW_FEATURES, FOURIER, ENOUGH_SIGNAL = 128, 256, 30.0
"""Rows with up to this many features get this many Fourier features, if the signal is at least this strong."""
LEAST_ROWS = 50
"""How many public rows are needed to centre and to stretch."""
USUAL_DISTANCE = 1.5
"""The median squared distance of unit rows, used if there are no public rows."""
SHARPNESS = 3.5
_TURN = 1 << 12  # entries of the table of cosines
_FREQUENCY = 1 << 14
_STRETCH = float(1 << 11)
_BLOCK = 256


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


def feature_map(public: Int8Array, n_classes: int, signal: float, seed: int) -> FeatureMap:
    """The map for these public rows.

    `signal` says how strong the records are compared with the noise: N·sqrt(2·budget).
    """
    d, rng = public.shape[1], np.random.default_rng(seed)
    frequencies, phases = None, np.zeros(0)
    if d <= FEW_FEATURES and signal / n_classes >= ENOUGH_SIGNAL:
        spread = sqrt(4.0 / _median_distance(public)) / (2.0 * pi)
        frequencies = np.rint(rng.standard_normal((d, FOURIER)) * (spread * _FREQUENCY))
        phases = np.rint(rng.uniform(0.0, 1.0, FOURIER) * (_FREQUENCY * ROW))
    width = d + len(phases)
    if len(public) < LEAST_ROWS:
        return FeatureMap(frequencies, phases, np.zeros(width, dtype=np.float32), None)
    rows = _expanded(public, frequencies, phases)
    centre = np.rint(rows.mean(axis=0, dtype=np.float64))
    stretch = _stretch((rows - centre) / ROW, SHARPNESS * sqrt(n_classes) / signal)
    return FeatureMap(frequencies, phases, centre.astype(np.float32), np.rint(stretch * _STRETCH).astype(np.float32))


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


def _median_distance(public: Int8Array) -> float:
    """The median squared distance between public unit rows."""
    if len(public) < LEAST_ROWS:
        return USUAL_DISTANCE
    rows = _expanded(public[:400], None, np.zeros(0)).astype(np.float64) / ROW
    upper = np.triu_indices(len(rows), 1)
    return max(float(np.median(2.0 - 2.0 * (rows @ rows.T)[upper])), 1e-3)


_COSINES = np.rint(np.cos(np.arange(_TURN) * (2.0 * pi / _TURN)) * (ROW * sqrt(2.0 / FOURIER)))
