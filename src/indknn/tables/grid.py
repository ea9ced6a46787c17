"""A fixed public grid for the values of a column that nobody knows anything about.

A value falls into cells by itself alone (rule 1): a gap into one, a number into two, a text into one. Nothing about the
grid comes from the data. So noisy counts of its cells are one Gaussian release, which the ledger can charge exactly.

A list of the texts that occur could not be released so: that a text is on it at all would tell of whoever alone has
it. So texts fall into buckets by a public hash, and stay unnamed.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from indknn.tables.values import bucket_of, is_missing, number_or_none
from indknn.types import FloatArray, IntArray

BUCKETS = 256
_LOW, _HIGH = -4, 10  # powers of ten: what is smaller counts as zero, what is larger as the largest
_STEPS = (10, 12, 15, 19, 24, 30, 38, 48, 60, 76)
"""Where the ten coarse cells of a power of ten begin, by the first two digits."""
_DIGITS = 90  # fine cells of a power of ten: one for each pair of first digits, 10 to 99
_SIDE, _COARSE_SIDE = _DIGITS * (_HIGH - _LOW), len(_STEPS) * (_HIGH - _LOW)
FINE, COARSE = 2 * _SIDE + 1, 2 * _COARSE_SIDE + 1
"""Cells of numbers, from the least to the largest, with zero in the middle."""
GAPS, FIRST_COARSE = 0, 1
FIRST_FINE = FIRST_COARSE + COARSE
FIRST_BUCKET = FIRST_FINE + FINE
CELLS = FIRST_BUCKET + BUCKETS
"""Cells of a column."""
CELLS_OF_A_VALUE = 2
"""At most so many cells hold one value."""


def fine_values() -> FloatArray:
    """The number that each fine cell stands for: all that have two digits."""
    positive = [float(f"{digits}e{power - 1}") for power in range(_LOW, _HIGH) for digits in range(10, 100)]
    return np.array([*(-value for value in reversed(positive)), 0.0, *positive])


def coarse_of_fine() -> IntArray:
    """In which coarse cell each fine cell is."""
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
    """Which row is in which cell, for all columns: the row numbers, and the cells beside them."""
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
