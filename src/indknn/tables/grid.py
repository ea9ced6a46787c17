"""A fixed public grid for the values of a column, for use when nothing public is known about the column.

Each value falls into cells of the grid: a gap into one, a number into two, a text into one. The cells depend only on
that value (rule 1), and the grid does not depend on the data. So the noisy counts of all cells are one Gaussian
release, which the ledger can charge exactly.

A list of the texts that occur could not be released in this way. If only one person has a text, the list would reveal
that person. So a public hash puts texts into buckets, and the texts are never named.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from indknn.tables.values import bucket_of, is_missing, number_or_none
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
