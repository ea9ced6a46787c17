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

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from math import pi, sqrt
from typing import Any, TypeAlias

import numpy as np

from indknn.core.calibrate import MANY_CLASSES
from indknn.core.quantise import LEVELS, whole_product
from indknn.types import ROW, Float32Array, FloatArray, Int8Array

Spans: TypeAlias = tuple[tuple[int, int], ...]
"""The first coordinate of each numeric column of a table, and the one after its last piece."""
Widths: TypeAlias = tuple[tuple[float, ...], ...]
"""For each of these columns, how wide its pieces are."""
FEW_FEATURES, FOURIER, ENOUGH_SIGNAL = 128, 256, 30.0
"""Rows with up to this many features get this many Fourier features, if the signal per class is at least so strong."""
MANY_ENOUGH = 100.0
"""With `MANY_CLASSES` it must be stronger. Below that, on made-up rows of 150 classes, Fourier features cost .018
where each class was one cluster, and gave .001 where it was three. With much signal they gave .150."""
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
SHARPNESS, TABLE_SHARPNESS = 3.5, 2.0
"""How much noise is feared where directions are stretched. Less in a table of numbers: there a large direction is one
in which columns agree, not one that tells more about labels."""
_TURN = 1 << 12  # entries of the table of cosines
_FREQUENCY = 1 << 14
_STRETCH = float(1 << 11)
_BLOCK = 256
_PIECES = 12  # of a number without knots
_LEAST_SPREAD = 1e-3  # of a column, so that frequencies stay small


@dataclass(frozen=True)
class FeatureMap:
    """Public matrices of whole numbers. `frequencies` and `stretch` may be None."""

    frequencies: FloatArray | None
    phases: FloatArray
    centre: Float32Array
    stretch: Float32Array | None
    radius: float | None = None
    """If given, one more feature makes all rows this long, up to longer ones. So their lengths are not lost."""

    @property
    def width(self) -> int:
        """How many features the result has."""
        return (len(self.centre) if self.stretch is None else self.stretch.shape[1]) + (self.radius is not None)

    def apply(self, values: Int8Array) -> Int8Array:
        """The rows as the model sees them."""
        found = np.empty((len(values), self.width), dtype=np.int8)
        for first in range(0, len(values), _BLOCK):
            here = slice(first, first + _BLOCK)
            rows = _expanded(values[here], self.frequencies, self.phases)
            rows -= self.centre
            if self.stretch is not None:
                rows = whole_product(rows, self.stretch)
            if self.radius is not None:
                rows = np.hstack([rows, self._rest(rows)])
            largest = np.maximum(rows.max(axis=1, initial=0.0), -rows.min(axis=1, initial=0.0))
            rows /= np.maximum(largest, 1.0)[:, None]
            rows *= np.float32(LEVELS)
            found[here] = np.rint(rows, out=rows)
        return found

    def _rest(self, rows: Float32Array) -> Float32Array:
        """How much each row is shorter than the radius, as a feature at right angles to it."""
        whole = rows.astype(np.int64)  # below 2^24 each, so sums of squares are exact in any order
        squared, longest = np.einsum("ij,ij->i", whole, whole), int(self.radius or 0)
        rest = np.rint(np.sqrt(np.maximum(longest * longest - squared, 0).astype(np.float64)))
        return np.asarray(rest[:, None], dtype=np.float32)

    def plain(self) -> dict[str, Any]:
        """The map as lists of whole numbers, with its constants."""
        fourier = None
        if self.frequencies is not None:
            fourier = {
                "frequencies": self.frequencies.astype(int).tolist(),
                "phases": self.phases.astype(int).tolist(),
                "period": _FREQUENCY * ROW,
                "cosines": _COSINES.astype(int).tolist(),
            }
        stretch = None if self.stretch is None else self.stretch.astype(int).tolist()
        centre = self.centre.astype(int).tolist()
        return {"unit": ROW, "fourier": fourier, "centre": centre, "stretch": stretch, "radius": self.radius}


def feature_map(
    public: Int8Array, n_classes: int, signal: float, seed: int, numbers: Spans = (), *, measured: bool = False
) -> FeatureMap:
    """The map for these public rows.

    `signal` says how strong the records are compared with the noise: N·sqrt(2·budget). `numbers` are the coordinates of
    the pieces of each numeric column of a table. If `measured`, how far moments of few rows are to be trusted is
    measured, see `shrinkage`. Otherwise it follows from the number of rows.
    """
    frequencies, phases = _waves(public, n_classes, signal, seed, numbers)
    width = public.shape[1] + len(phases)
    if len(public) < LEAST_ROWS:
        return FeatureMap(frequencies, phases, np.zeros(width, dtype=np.float32), None)
    rows = _expanded(public, frequencies, phases)
    centre = np.rint(rows.mean(axis=0, dtype=np.float64))
    sharpness = TABLE_SHARPNESS if _mostly_numbers(public.shape[1], numbers) and not measured else SHARPNESS
    centred, noise = (rows - centre) / ROW, sharpness * sqrt(n_classes) / signal
    if signal / n_classes < PIECES_SIGNAL * len(numbers):
        merged = _merged(width, numbers)
        stretch = merged @ _stretch(centred @ merged, noise, measured) @ merged.T
    else:
        stretch = _stretch(centred, noise, measured)
    return FeatureMap(frequencies, phases, centre.astype(np.float32), np.rint(stretch * _STRETCH).astype(np.float32))


LIKE_CLASSES, NUMBER_SHARPNESS = 4, 1.0
"""Regression decides about Fourier features as for this many classes, and its directions are stretched by the second
number instead of `SHARPNESS`."""
OF_PIECES, OF_WAVES, LONGEST = 0.5, 0.3, 0.9
"""How large pieces of columns and Fourier features are, beside the columns themselves, and the share of public rows
that are not cut. These were chosen on held-out training records of diabetes, Adult (hours), Friedman's functions, and
made-up linear, correlated, categorical and skewed tables."""
COLUMN_NEEDS, MAP_NEEDS = 3.0, 48.0
"""With less signal than this per numeric column, or than this in all, regression has the map of classes: its few large
directions let less noise in. How many people there are is known so badly then that the signal is mostly a guess."""
_LEAST_VARIANCE, _LEAST_GAIN = 1e-9, 1e-3


def number_map(public: Int8Array, signal: float, seed: int, numbers: Spans = (), widths: Widths = ()) -> FeatureMap:
    """The map for regression. See `feature_map`; `widths` are those of the pieces of each numeric column.

    Many targets are almost linear in the columns. So each column is there as a whole too, larger than its pieces and
    the Fourier features, and rows keep their length: a direction alone says little about a sum.
    """
    if signal < max(COLUMN_NEEDS * len(numbers), MAP_NEEDS):
        return feature_map(public, LIKE_CLASSES, signal, seed, numbers, measured=True)
    frequencies, phases = _waves(public, LIKE_CLASSES, signal, seed, numbers)
    d, width = public.shape[1], public.shape[1] + len(phases)
    if len(public) < LEAST_ROWS:
        return FeatureMap(frequencies, phases, np.zeros(width, dtype=np.float32), None)
    rows = _expanded(public, frequencies, phases).astype(np.float64)
    centre = np.rint(rows.mean(axis=0))
    centred = (rows - centre) / ROW
    variance, size, whole = centred.var(axis=0), np.ones(width), []
    for (first, end), pieces in zip(numbers, widths, strict=False):
        column = np.zeros(width)
        column[first:end] = pieces
        spread = float((centred @ column).std())
        whole.append(column * sqrt(variance[first:end].sum()) / max(spread, _LEAST_SPREAD * max(pieces)))
        size[first:end] = OF_PIECES
    if len(phases):
        size[d:] = OF_WAVES * sqrt(variance[:d].sum() / max(float(variance[d:].sum()), _LEAST_VARIANCE))
    coordinates = np.vstack([*whole, np.diag(size)]).T
    seen = centred @ coordinates
    moments = seen.T @ seen / len(seen)
    shrink, total = shrinkage(seen, moments), max(float(np.trace(moments)), _LEAST_VARIANCE)
    plain, V = np.linalg.eigh(moments / total)
    eigen = np.maximum((1.0 - shrink) * plain, 0.0) + shrink / len(plain)
    noise = NUMBER_SHARPNESS * sqrt(LIKE_CLASSES) / signal
    gain = np.sqrt(1.0 / (eigen + noise * noise / eigen))
    left = eigen * gain * gain
    useful = (plain > _LEAST_VARIANCE) & (left >= _LEAST_GAIN * left.max())
    useful[-1] = True  # the largest, so that there is always one
    stretch = coordinates @ (V * gain)[:, useful]
    stretch = np.rint(stretch * (_STRETCH / max(float(np.linalg.norm(stretch, axis=0).max()), _LEAST_VARIANCE)))
    radius = float(np.rint(np.quantile(np.linalg.norm((rows - centre) @ stretch, axis=1), LONGEST)))
    return FeatureMap(frequencies, phases, centre.astype(np.float32), stretch.astype(np.float32), max(radius, 1.0))


def widths_in(schema: Mapping[str, Any] | None) -> Widths:
    """The widths of the pieces of each number or date, in the order of `numbers_in`. Equal ones if they are not known.

    >>> widths_in({"columns": {"age": {"kind": "number", "bounds": [0, 100], "knots": [20, 50]}}})
    ((20, 30, 50),)
    """
    found: list[tuple[float, ...]] = []
    for about in (schema or {}).get("columns", {}).values():
        values = {"kind": about} if isinstance(about, str) else about
        if values["kind"] in {"number", "date"}:
            edges = [*values.get("bounds", ()), *(values.get("knots") or ())]
            known = values.get("knots") is not None
            if known and len(edges) > 2 and all(isinstance(edge, int | float) for edge in edges):
                found.append(tuple(b - a for a, b in pairwise(sorted(edges))))
            else:
                found.append((1.0,) * (len(values["knots"]) + 1 if known else _PIECES))
    return tuple(found)


def numbers_in(schema: Mapping[str, Any] | None) -> Spans:
    """Where the pieces of each number or date stand in the vector of a row. Without a schema there are none.

    `indknn.tables` is above this package, so this reads the plain schema. A test compares it with `Schema.parts`.

    >>> numbers_in({"columns": {"job": {"kind": "category", "values": ["a", "b"]}, "age": {"kind": "number"}}})
    ((4, 16),)
    """
    found, at = [], 0
    for about in (schema or {}).get("columns", {}).values():
        kind = about if isinstance(about, str) else about["kind"]
        if kind == "ignored":
            continue
        values = {} if isinstance(about, str) else about
        if kind in {"number", "date"}:
            knots = values.get("knots")
            width = _PIECES if knots is None else len(knots) + 1
            found.append((at, at + width))
        elif kind == "text":
            if values.get("width") is None:
                return ()  # only the extractor knows it
            width = values["width"]
        else:
            width = {"category": 1, "ordered": 0, "yesno": 1}[kind] + len(values.get("values", ()))
        at += int(width) + (values.get("missing", "place") == "place")
    return tuple(found)


def _waves(
    public: Int8Array, n_classes: int, signal: float, seed: int, numbers: Spans
) -> tuple[FloatArray | None, FloatArray]:
    """The frequencies and phases of Fourier features, if there are any."""
    rng, bent = np.random.default_rng(seed), _bent(public, n_classes, signal, numbers)
    if bent is None:
        return None, np.zeros(0)
    frequencies = np.rint(bent @ rng.standard_normal((bent.shape[1], FOURIER)) * (_FREQUENCY / pi))
    return frequencies, np.rint(rng.uniform(0.0, 1.0, FOURIER) * (_FREQUENCY * ROW))


def _bent(public: Int8Array, n_classes: int, signal: float, numbers: Spans) -> FloatArray | None:
    """The coordinates that Fourier features are made of, one per column. Their median squared distance is 1.

    All features of a row if they are few, or else the numeric columns of a table. None if noise would hide the gain.
    """
    d, chosen = public.shape[1], None
    if d <= FEW_FEATURES and signal / n_classes >= (ENOUGH_SIGNAL if n_classes < MANY_CLASSES else MANY_ENOUGH):
        chosen = np.eye(d)
    elif d > FEW_FEATURES and 0 < len(numbers) <= FEW_COLUMNS and len(public) >= LEAST_ROWS:
        passed = _passed(d, numbers)
        enough = max(COLUMN_SIGNAL * n_classes * len(numbers), TABLE_SIGNAL)
        if _mostly_numbers(d, numbers) and signal >= enough:
            spread = (_expanded(public, None, np.zeros(0)) / ROW @ passed).std(axis=0)
            chosen = passed / np.maximum(spread, _LEAST_SPREAD)
    return None if chosen is None else chosen / sqrt(_median_distance(public, chosen))


def _mostly_numbers(width: int, numbers: Spans) -> bool:
    return sum(end - first for first, end in numbers) >= MOSTLY_NUMBERS * width


def _passed(width: int, numbers: Spans) -> FloatArray:
    """One column per number: 1 for each of its pieces."""
    found = np.zeros((width, len(numbers)))
    for i, (first, end) in enumerate(numbers):
        found[first:end, i] = 1.0
    return found


def _merged(width: int, numbers: Spans) -> FloatArray:
    """One column for each number, which adds up its pieces, and one for each other coordinate. Their lengths are 1."""
    passed = _passed(width, numbers)
    others = np.eye(width)[:, passed.sum(axis=1) == 0.0]
    return np.hstack([others, passed / np.sqrt(passed.sum(axis=0))])


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


def _stretch(rows: FloatArray, noise: float, measured: bool) -> FloatArray:
    """The root of 1/(λ + noise²/λ) for the eigenvalues λ of the shrunken second moments, with the largest set to 1."""
    n, d = rows.shape
    moments = rows.T @ rows
    shrink = min(0.5 * d / n if n < 4 * d else 0.2 * d / n, 0.9)
    shrink = shrinkage(rows, moments / n) if measured else shrink
    eigen, V = np.linalg.eigh(moments / max(float(np.trace(moments)), 1e-12))
    eigen = np.maximum((1.0 - shrink) * eigen, 0.0) + shrink / d
    gain = np.sqrt(1.0 / (eigen + noise * noise / eigen))
    return np.asarray((V * (gain / gain.max())) @ V.T, dtype=np.float64)


def shrinkage(rows: FloatArray, moments: FloatArray) -> float:
    """How far second moments are best moved towards equal directions, by how much rows vary (Ledoit and Wolf, 2004).

    It follows from the rows, and not from their number alone: a few directions may say almost everything.
    """
    n, width = rows.shape
    squared = float((moments * moments).sum())
    apart = squared - float(np.trace(moments)) ** 2 / width
    chance = (float((np.einsum("ij,ij->i", rows, rows) ** 2).sum()) / n - squared) / n
    return float(min(max(chance / max(apart, 1e-300), 1e-6), 1.0))


def _median_distance(public: Int8Array, chosen: FloatArray) -> float:
    """The median squared distance between public unit rows, in these coordinates."""
    if len(public) < LEAST_ROWS:
        return USUAL_DISTANCE
    rows = _expanded(public[:400], None, np.zeros(0)).astype(np.float64) / ROW @ chosen
    squares = (rows * rows).sum(axis=1)
    upper = np.triu_indices(len(rows), 1)
    return max(float(np.median((squares[:, None] + squares - 2.0 * (rows @ rows.T))[upper])), 1e-3)


_COSINES = np.rint(np.cos(np.arange(_TURN) * (2.0 * pi / _TURN)) * (ROW * sqrt(2.0 / FOURIER)))
