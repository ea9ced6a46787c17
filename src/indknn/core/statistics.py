"""Noisy counts of records by cell, charged to the same ledger as everything else.

A public rule puts each record into one cell. This gives a report card of a public model, or simply a count. As with
votes, each person's contribution is scaled down to what they can still pay. What is then actually added is charged,
rounded up. All numbers are integers on `types.GRID`. All products and sums stay below 2^53, so float64 adds them
exactly in any order (rules 1 and 7).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, sqrt

import numpy as np

from indknn.core.mechanism import charge_units, largest_squared_shift
from indknn.core.noise import Noise
from indknn.types import GRID, FloatArray, IntArray

MAX_RECORDS = 1 << 30
"""The largest number of records for which every sum over them is exact."""


@dataclass(frozen=True)
class Contribution:
    """A sum, who pays for it, and how much. Owners are distinct slots, in ascending order."""

    sums: IntArray
    owners: IntArray
    charges: IntArray


def tally(cells: IntArray, owners: IntArray, limits: IntArray, n_cells: int, scale: int) -> Contribution:
    """How many records are in each cell, in units of 1/GRID.

    >>> three = np.array([0, 1, 1]), np.array([7, 7, 7]), np.full(3, 1 << 60)
    >>> (tally(*three, 2, GRID).sums / GRID).tolist()
    [1.0, 2.0]
    """
    names, limit, owner, cell, count = _grouped(cells, owners, limits, n_cells)
    squared = np.bincount(owner, count * count, minlength=len(names))
    shrink = np.sqrt(np.minimum(1.0, largest_squared_shift(limit, scale) / np.maximum(squared * float(GRID) ** 2, 1.0)))
    weight = np.where(shrink < 1.0, np.floor(GRID * shrink), GRID)  # the weight of every record of the owner
    charges = charge_units(np.asarray(squared * weight * weight, dtype=np.float64), scale)
    weight, charges = weight * (charges <= limit), charges * (charges <= limit)
    sums = np.bincount(cell, weights=count * weight[owner], minlength=n_cells)
    return Contribution(sums.astype(np.int64), names, charges)


def headcount(cells: IntArray, owners: IntArray, limits: IntArray, n_cells: int, scale: int, most: int) -> Contribution:
    """How many people are in each cell, and in one more cell how many records they have in units of `most`.

    A person with records in several cells is divided among them. Nobody may have more than `most` records here.

    >>> three = np.array([0, 1, 1]), np.array([7, 7, 7]), np.full(3, 1 << 60)
    >>> (headcount(*three, 2, GRID, most=4).sums / GRID).round(2).tolist()
    [0.33, 0.67, 0.75]
    """
    names, limit, owner, cell, count = _grouped(cells, owners, limits, n_cells)
    records = np.bincount(owner, count, minlength=len(names))
    squared = np.bincount(owner, (count / records[owner]) ** 2, minlength=len(names)) + (records / most) ** 2
    # The bound leaves room for the rounding of these lines. What is charged is computed from the whole numbers below.
    shrink = np.sqrt(np.minimum(1.0, largest_squared_shift(limit, scale) / np.maximum(squared * float(GRID) ** 2, 1.0)))
    weight, length = np.floor(GRID * shrink / records), np.floor(GRID * shrink * records / most)
    added = np.bincount(owner, count * count, minlength=len(names)) * weight * weight + length * length
    charges = charge_units(np.asarray(added, dtype=np.float64), scale)
    able = charges <= limit
    sums = np.bincount(cell, weights=count * (weight * able)[owner], minlength=n_cells)
    return Contribution(np.append(sums, (length * able).sum()).astype(np.int64), names, charges * able)


def _grouped(
    cells: IntArray, owners: IntArray, limits: IntArray, n_cells: int
) -> tuple[IntArray, IntArray, IntArray, IntArray, FloatArray]:
    """The distinct owners and what each may pay. Then for each owner and cell: the owner, the cell, and its records."""
    names, who = np.unique(owners, return_inverse=True)
    limit = np.zeros(len(names), dtype=np.int64)
    limit[who] = limits
    place, count = np.unique(who * n_cells + cells, return_counts=True)
    return names, limit, place // n_cells, place % n_cells, count.astype(np.float64)


def noisy_tally(counts: IntArray, scale: int, source: Noise) -> IntArray:
    """The release: every cell with its own noise."""
    return counts + source.draw(scale, len(counts))


def tally_scale(price: float) -> int:
    """The noise on a cell, in grid units, at which one record pays at most `price`."""
    return ceil(sqrt(1.0 / (2.0 * price)) * GRID)
