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
from indknn.types import GRID, IntArray

MAX_RECORDS = 1 << 30
"""The largest number of records for which every sum over them is exact."""


@dataclass(frozen=True)
class Contribution:
    """A sum, who pays for it, and how much. Owners are distinct slots, in ascending order."""

    sums: IntArray
    owners: IntArray
    charges: IntArray


def tally(
    cells: IntArray, owners: IntArray, limits: IntArray, n_cells: int, scale: int, *, of_people: bool = False
) -> Contribution:
    """How many records are in each cell, in units of 1/GRID.

    With `of_people`, people are counted instead. A person with records in several cells is divided among them.

    >>> three = np.array([0, 1, 1]), np.array([7, 7, 7]), np.full(3, 1 << 60)
    >>> [(tally(*three, 2, GRID, of_people=one).sums / GRID).round(2).tolist() for one in (False, True)]
    [[1.0, 2.0], [0.33, 0.67]]
    """
    names, who = np.unique(owners, return_inverse=True)
    limit = np.zeros(len(names), dtype=np.int64)
    limit[who] = limits
    place, count = np.unique(who * n_cells + cells, return_counts=True)
    owner, cell = place // n_cells, place % n_cells
    squared = np.bincount(owner, count.astype(np.float64) ** 2, minlength=len(names)) * float(GRID) ** 2
    shrink = np.sqrt(np.minimum(1.0, largest_squared_shift(limit, scale) / np.maximum(squared, 1.0)))
    if of_people:
        shrink = np.minimum(shrink, 1.0 / np.bincount(owner, count, minlength=len(names)))
    weight = np.where(shrink < 1.0, np.floor(GRID * shrink), GRID)  # the weight of every record of the owner
    charges = charge_units(np.asarray(squared / float(GRID) ** 2 * weight * weight, dtype=np.float64), scale)
    weight, charges = weight * (charges <= limit), charges * (charges <= limit)
    sums = np.bincount(cell, weights=count * weight[owner], minlength=n_cells)
    return Contribution(sums.astype(np.int64), names, charges)


def noisy_tally(counts: IntArray, scale: int, source: Noise) -> IntArray:
    """The release: every cell with its own noise."""
    return counts + source.draw(scale, len(counts))


def tally_scale(price: float) -> int:
    """The noise on a cell, in grid units, at which one record pays at most `price`."""
    return ceil(sqrt(1.0 / (2.0 * price)) * GRID)
