"""A schema for a table about which nothing public is known, from noisy counts that people pay for.

The values of a column are counted on a fixed public grid. Each value falls into cells of the grid: a gap into one, a
number into two, a text into one. The cells depend only on that value (rule 1), and the grid does not depend on the
data. So the noisy counts of all cells are one Gaussian release, which the ledger can charge exactly.

A list of the texts that occur could not be released in this way. If only one person has a text, the list would reveal
that person. So a public hash puts texts into buckets, and the texts are never named.

The schema is post-processing of the noisy counts, so it costs nothing more. A count that is not well above the noise is
treated as zero.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from indknn.tables.columns import PIECES, Category, Column, Ignored
from indknn.tables.infer import BLANKS, LISTED, WIDEST, Inferred, number_from
from indknn.tables.schema import Schema
from indknn.tables.values import bucket_name, bucket_of, is_missing, number_or_none
from indknn.types import FloatArray, IntArray

BUCKETS = 256
_LOW, _HIGH = -4, 10  # powers of ten; smaller numbers count as zero, larger ones as the largest
_STEPS = (10, 12, 15, 19, 24, 30, 38, 48, 60, 76)
"""The first two digits with which the ten coarse cells of each power of ten begin."""
_DIGITS = 90  # fine cells of each power of ten, one for each pair of first digits from 10 to 99
_SIDE, _COARSE_SIDE = _DIGITS * (_HIGH - _LOW), len(_STEPS) * (_HIGH - _LOW)
FINE, COARSE = 2 * _SIDE + 1, 2 * _COARSE_SIDE + 1
"""How many fine and coarse cells there are for numbers. They are in rising order, with zero in the middle."""
GAPS, FIRST_COARSE = 0, 1
FIRST_FINE = FIRST_COARSE + COARSE
FIRST_BUCKET = FIRST_FINE + FINE
CELLS = FIRST_BUCKET + BUCKETS
"""How many cells a column has."""
CELLS_OF_A_VALUE = 2
"""The most cells that one value falls into."""
CLEAR = 5.0
"""A count above this many standard deviations of the noise is treated as real. Noise alone produces such a count in
about one of two hundred tables with fourteen columns."""
_COMMON = 0.3  # the listed values together must have at least this share of all texts
_STRETCHES = (1, 2, 4, 8)
_VISIBLE = 1.5  # fine cells above this many deviations share the count of their coarse cell, if that one is real


def fine_values() -> FloatArray:
    """The number that each fine cell stands for: zero, and all numbers with two digits in the range of the grid."""
    positive = [float(f"{digits}e{power - 1}") for power in range(_LOW, _HIGH) for digits in range(10, 100)]
    return np.array([*(-value for value in reversed(positive)), 0.0, *positive])


def coarse_of_fine() -> IntArray:
    """The coarse cell that contains each fine cell."""
    step = np.searchsorted(_STEPS, np.arange(10, 100), side="right") - 1
    side = (np.arange(_HIGH - _LOW)[:, None] * len(_STEPS) + step).ravel()
    return np.concatenate([_COARSE_SIDE - 1 - side[::-1], [_COARSE_SIDE], _COARSE_SIDE + 1 + side])


def fine_cell(number: float) -> int:
    """The fine cell of a number, by its first two digits.

    >>> fine_values()[[fine_cell(x) for x in (39.2, -0.0451, 0, 1e-9, float("inf"))]].tolist()
    [39.0, -0.045, 0.0, 0.0, 9900000000.0]
    """
    digits, _, power = f"{abs(number):.1e}".partition("e")  # correctly rounded
    place = _HIGH if digits == "inf" else int(power)
    if number == 0 or place < _LOW:
        return _SIDE
    side = _SIDE - 1 if place >= _HIGH else (place - _LOW) * _DIGITS + int(digits.replace(".", "")) - 10
    return _SIDE + 1 + side if number > 0 else _SIDE - 1 - side


def cells_of(columns: Mapping[str, list[Any]], blanks: Collection[str]) -> tuple[IntArray, IntArray]:
    """The cells of all values. Returns two arrays of equal length: row numbers and cells. A number has two entries."""
    coarse, rows, cells = coarse_of_fine().tolist(), [], []
    for place, values in enumerate(columns.values()):
        first = place * CELLS
        for row, value in enumerate(values):
            number = number_or_none(value)
            if is_missing(value, blanks):
                found = [GAPS]
            elif number is None:
                found = [FIRST_BUCKET + bucket_of(value, BUCKETS)]
            else:
                fine = fine_cell(number)
                found = [FIRST_COARSE + coarse[fine], FIRST_FINE + fine]
            cells += [first + cell for cell in found]
            rows += [row] * len(found)
    return np.array(rows, dtype=np.int64), np.array(cells, dtype=np.int64)


def schema_from(names: Sequence[str], counts: FloatArray, noise: float, **others: Any) -> Inferred:
    """A schema for these columns, from the noisy counts of their cells and the standard deviation of the noise.

    `others` are its label, classes and other columns, as `Schema` takes them.
    """
    pieces, columns = max(1, min(PIECES, WIDEST // max(len(names), 1) - 1)), {}
    notes = ["made from noisy counts; where you know the bounds or the values of a column, write them here"]
    for name, cells in zip(names, counts.reshape(len(names), CELLS), strict=True):
        columns[name], note = _column(cells, noise, pieces)
        notes += [f"{name}: {note}"] * bool(note)
    return Inferred(Schema(columns, blanks=BLANKS, **others), tuple(notes))


def _column(cells: FloatArray, noise: float, pieces: int) -> tuple[Column, str]:
    coarse = cells[FIRST_COARSE:FIRST_FINE]
    fine, buckets = cells[FIRST_FINE:FIRST_BUCKET], cells[FIRST_BUCKET:]
    numbers, texts = _real(coarse, noise), np.where(buckets > CLEAR * noise, buckets, 0.0)
    gaps = max(float(cells[GAPS]), 0.0)
    if not numbers.any() and not texts.any():
        return Ignored(), "ignored, because no value of it stands above the noise"
    if numbers.sum() < texts.sum():
        return _category(texts, max(float(buckets.sum()), texts.sum()), gaps)
    shares = _refined(numbers, fine, noise)
    if np.count_nonzero(shares) < 2:
        return Ignored(), "ignored, because it looks constant to two digits; if it is not, write its bounds by hand"
    return number_from(fine_values(), shares, pieces), ""


def _real(coarse: FloatArray, noise: float) -> FloatArray:
    """The counts that are too large to be noise.

    Single cells are tested first, then wider and wider stretches of the remaining cells. A stretch is tested by its
    sum. So values are also found that are spread over many cells, none of which is above the noise.
    """
    real, rest = np.zeros(len(coarse)), coarse.copy()
    for width in _STRETCHES:
        least = CLEAR * noise * np.sqrt(width)
        while (sums := np.convolve(rest, np.ones(width), "valid")).max() > least:
            here = slice(int(sums.argmax()), int(sums.argmax()) + width)
            positive = np.maximum(rest[here], 0.0)
            real[here] += sums.max() * positive / positive.sum()
            rest[here] = 0.0
    return real


def _refined(coarse: FloatArray, fine: FloatArray, noise: float) -> FloatArray:
    """The counts of real coarse cells, divided among their fine cells."""
    inside, shares = coarse_of_fine(), np.zeros(len(fine))
    for cell in np.flatnonzero(coarse).tolist():
        here = np.flatnonzero(inside == cell)
        seen = np.where(fine[here] > _VISIBLE * noise, fine[here], 0.0)
        seen = seen if seen.any() else np.eye(len(here))[int(fine[here].argmax())]
        shares[here] = coarse[cell] * seen / seen.sum()
    return shares


def _category(texts: FloatArray, rows: float, gaps: float) -> tuple[Column, str]:
    common = np.argsort(-texts, kind="stable")[: np.count_nonzero(texts)]
    if len(common) > LISTED or texts.sum() < _COMMON * rows:
        return Ignored(), "ignored, because it has too many different values"
    values = tuple(bucket_name(bucket) for bucket in common.tolist())
    shares = tuple(round(float(count / (rows + gaps)), 6) for count in texts[common])
    unnamed = f"{len(values)} common values, unnamed: each stands for a bucket of a public hash"
    return Category(values=values, shares=shares, buckets=BUCKETS), unnamed
