"""Sums over all records with noise, in the same ledger as the answers: what `prior="statistics"` is made of.

Two kinds of release, both Gaussian mechanisms with individual charges, so that both filters hold as they do
for answers. `moments` is the sums A = Σ x xᵀ and b = Σ x (e_y - 1/c)ᵀ over unit vectors x. `tally` counts
records by cell, where a public rule puts each record into one cell of every table: a report card of public
models, or simply a count.

As for votes: every person's contribution is scaled down to what they can still pay, and what is then really
added is charged, rounded up. Everything is an integer: coordinates on a grid of 2^-11, cells on `types.GRID`.
All products and sums stay below 2^53, where float64 is exact in whatever order BLAS adds (rules 1 and 7).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from typing import ClassVar, Protocol

import numpy as np
import numpy.typing as npt

from indknn.core.accounting import from_units
from indknn.core.mechanism import ceil_sqrt, charge_units, largest_squared_shift
from indknn.core.noise import Noise
from indknn.types import GRID, ROW, FloatArray, Int8Array, IntArray

MAX_FEATURES = 4096
MAX_RECORDS = 1 << 30
SHARE_OF_A = 0.4
"""What part of the price of `moments` is paid for A; b, which the labels are in, gets the rest."""

_EXACT = 1 << 53
"""Below this float64 holds every whole number."""
_BLOCK = 8192
_GRAM = 1024
_SHRINK = 0.98


@dataclass(frozen=True)
class MomentNoise:
    """The noise on A (in units of ROW⁻²) and on b (in units of 1/(c·ROW)): what one record pays in full."""

    scale_a: int
    scale_b: int

    @staticmethod
    def for_price(price: float, n_classes: int) -> MomentNoise:
        """Noise at which a record of length 1 pays at most `price` (ρ): |xxᵀ| = 1 and |x(e_y-1/c)ᵀ|² = 1-1/c."""
        a = sqrt(1.0 / (2.0 * price * SHARE_OF_A))
        b = sqrt((1.0 - 1.0 / n_classes) / (2.0 * price * (1.0 - SHARE_OF_A)))
        return MomentNoise(_up(a * ROW * ROW), max(_up(b * ROW * n_classes), 1))

    def sigma_a(self) -> float:
        """The standard deviation of the noise on the diagonal of A; off it, it is smaller by sqrt(2)."""
        return self.scale_a / (ROW * ROW)

    def sigma_b(self, n_classes: int) -> float:
        """The standard deviation of the noise on an entry of b."""
        return self.scale_b / (ROW * n_classes)


def most_records(n_classes: int) -> int:
    """How many records there may be, so that every sum over them is exact. An entry of b has up to c·ROW of each.

    >>> most_records(10) == MAX_RECORDS, most_records(1 << 16)
    (True, 67108864)
    """
    return min(MAX_RECORDS, _EXACT // (ROW * max(n_classes, ROW)))


class CellModel(Protocol):
    """A public model that puts every record into one of its cells, each record by itself."""

    n_cells: ClassVar[int]

    def cells(self, values: Int8Array, labels: IntArray) -> IntArray:
        """The cell of each record."""
        ...


@dataclass(frozen=True)
class Contribution:
    """What goes into a sum, who pays for it and how much: owners are distinct slots, ascending."""

    sums: tuple[IntArray, ...]
    owners: IntArray
    charges: IntArray


def unit_rows(values: Int8Array) -> npt.NDArray[np.int16]:
    """Each row as a unit vector on the grid of 1/ROW, cut towards zero. Every row by itself."""
    wide = values.astype(np.float64)
    root = np.sqrt(np.einsum("ij,ij->i", wide, wide))  # sums of integers: exact
    result: npt.NDArray[np.int16] = np.trunc(wide * (ROW / np.maximum(root, 1.0))[:, None]).astype(np.int16)
    return result


def moments(
    values: Int8Array, labels: IntArray, owners: IntArray, limits: IntArray, n_classes: int, noise: MomentNoise
) -> Contribution:
    """A and b over these records. `limits` is what the owner of each record may pay for all of theirs."""
    order = np.argsort(owners, kind="stable")
    rows, labels, owners, limits = unit_rows(values[order]), labels[order], owners[order], limits[order]
    names, start, m = np.unique(owners, return_index=True, return_counts=True)
    charges = np.zeros(len(names), dtype=np.int64)
    single = np.flatnonzero(m == 1)
    rows[start[single]], charges[single] = _clip_singles(rows[start[single]], limits[start[single]], n_classes, noise)
    for i in np.flatnonzero(m > 1).tolist():
        here = slice(int(start[i]), int(start[i] + m[i]))
        rows[here], charges[i] = _clip_owner(rows[here], labels[here], int(limits[start[i]]), n_classes, noise)
    A = np.zeros((values.shape[1], values.shape[1]))
    b = np.zeros((values.shape[1], n_classes))
    for first in range(0, len(rows), _BLOCK):
        block = rows[first : first + _BLOCK].astype(np.float64)
        A += block.T @ block
        b += block.T @ _contrasts(labels[first : first + _BLOCK], n_classes)
    return Contribution((A.astype(np.int64), b.astype(np.int64)), names, charges)


def noisy_moments(A: IntArray, b: IntArray, noise: MomentNoise, source: Noise) -> tuple[IntArray, IntArray]:
    """The release. A is symmetric: its upper half in isometric coordinates has noise of one size.

    |A|² counts every entry off the diagonal twice, so those get half the variance.
    """
    d = len(A)
    upper = np.triu_indices(d, 1)
    half = np.zeros_like(A)
    half[upper] = A[upper] + source.draw(ceil_sqrt(noise.scale_a**2, 2), len(upper[0]))
    diagonal = np.diag(A) + source.draw(noise.scale_a, d)
    return half + half.T + np.diag(diagonal), b + source.draw(noise.scale_b, b.size).reshape(b.shape)


def tally(cells: IntArray, owners: IntArray, limits: IntArray, n_cells: int, scale: int) -> Contribution:
    """How many records are in each cell, in units of 1/GRID. Row i of `cells` is where record i is, in each table."""
    if not len(owners):
        nothing = np.zeros(0, dtype=np.int64)
        return Contribution((np.zeros(n_cells, dtype=np.int64),), nothing, nothing)
    names, who = np.unique(owners, return_inverse=True)
    limit = np.zeros(len(names), dtype=np.int64)
    limit[who] = limits
    place, inverse = np.unique((who[:, None] * n_cells + cells).ravel(), return_inverse=True)
    count = np.bincount(inverse)
    owner, cell = place // n_cells, place % n_cells
    squared = np.bincount(owner, count.astype(np.float64) ** 2, minlength=len(names)) * float(GRID) ** 2
    shrink = np.sqrt(np.minimum(1.0, largest_squared_shift(limit, scale) / squared))
    weight = np.where(shrink < 1.0, np.floor(GRID * shrink), GRID)  # of every record of the owner
    charges = charge_units(np.asarray(squared / float(GRID) ** 2 * weight * weight, dtype=np.float64), scale)
    weight, charges = weight * (charges <= limit), charges * (charges <= limit)
    sums = np.bincount(cell, weights=count * weight[owner], minlength=n_cells)
    return Contribution((sums.astype(np.int64),), names, charges)


def cells_of(models: Sequence[CellModel], values: Int8Array, labels: IntArray) -> IntArray:
    """The cell of every record in the table of each model; one cell for all where there are no models."""
    if not models:
        return np.zeros((len(values), 1), dtype=np.int64)
    offsets = np.cumsum([0, *(model.n_cells for model in models[:-1])])
    return np.stack([o + model.cells(values, labels) for o, model in zip(offsets, models, strict=True)], axis=1)


def noisy_tally(counts: IntArray, scale: int, source: Noise) -> IntArray:
    """The release: every cell with noise of its own."""
    return counts + source.draw(scale, len(counts))


def tally_scale(price: float, n_tables: int) -> int:
    """The noise on a cell, in grid units, at which one record pays at most `price` for being in all tables."""
    return _up(sqrt(n_tables / (2.0 * price)) * GRID)


def _contrasts(labels: IntArray, n_classes: int) -> FloatArray:
    """c·(e_y - 1/c), which is whole."""
    targets = np.full((len(labels), n_classes), -1.0)
    targets[np.arange(len(labels)), labels] += n_classes
    return targets


def _clip_singles(
    rows: npt.NDArray[np.int16], limits: IntArray, c: int, noise: MomentNoise
) -> tuple[npt.NDArray[np.int16], IntArray]:
    squared = _lengths(rows)
    charges = _charge(squared * squared, squared * (c * (c - 1)), noise)
    short = charges > limits
    if short.any():
        r = _factor(squared[short] ** 2, squared[short] * (c * (c - 1)), limits[short], noise)
        rows[short] = np.trunc(rows[short] * r[:, None]).astype(np.int16)
        squared = _lengths(rows)
        charges = _charge(squared * squared, squared * (c * (c - 1)), noise)
        rows[charges > limits] = 0  # rounding; it concerns nobody but this owner
        charges[charges > limits] = 0
    return rows, charges


def _clip_owner(
    rows: npt.NDArray[np.int16], labels: IntArray, limit: int, c: int, noise: MomentNoise
) -> tuple[npt.NDArray[np.int16], int]:
    """The rows of an owner of several records, scaled down to what they may pay, and what that is."""
    limits = np.array([limit], dtype=np.int64)
    a, b = _owner_shifts(rows, labels, c)
    r = float(np.minimum(_factor(np.array([a]), np.array([b]), limits, noise), 1.0)[0])
    for _ in range(8):  # cutting coordinates can lengthen a sum by a little: then somewhat less
        scaled = np.trunc(rows * r).astype(np.int16)
        a, b = _owner_shifts(scaled, labels, c)
        charge = int(_charge(np.array([a]), np.array([b]), noise)[0])
        if charge <= limit:
            return scaled, charge
        r *= _SHRINK
    return np.zeros_like(rows), 0


def _owner_shifts(rows: npt.NDArray[np.int16], labels: IntArray, c: int) -> tuple[float, float]:
    """|Σ x xᵀ|² and |Σ x (c·e_y - 1)ᵀ|², by the inner products of the owner's own records."""
    wide = rows.astype(np.float64)
    if len(rows) > _GRAM:
        A, b = wide.T @ wide, wide.T @ _contrasts(labels, c)
        return float((A * A).sum()) * (1 + 2.0**-40), float((b * b).sum()) * (1 + 2.0**-40)
    gram = (wide @ wide.T).astype(np.int64)
    alike = int(gram[labels[:, None] == labels[None, :]].sum())
    # Sums of integers, exact in whatever order the records stand: who else was here decides about their slots.
    of_a, of_b = sum((gram * gram).sum(axis=1).tolist()), c * c * alike - c * int(gram.sum())
    return float(of_a) * (1 + 2.0**-40), float(of_b) * (1 + 2.0**-40)


def _factor(a: FloatArray, b: FloatArray, limits: IntArray, noise: MomentNoise) -> FloatArray:
    """The r at which rows scaled by r cost the limit: a·r⁴ + b·r² in units of ρ, solved for r."""
    a, b = a / (2.0 * float(noise.scale_a) ** 2), b / (2.0 * float(noise.scale_b) ** 2)
    limit = np.maximum(from_units(limits) * (1.0 - 2.0**-20) - 2.0**-45, 0.0)
    square = 2.0 * limit / (b + np.sqrt(b * b + 4.0 * a * limit) + 1e-300)
    result: FloatArray = np.sqrt(square) * (1.0 - 2.0**-20)
    return result


def _charge(a: FloatArray, b: FloatArray, noise: MomentNoise) -> IntArray:
    return charge_units(np.asarray(a), noise.scale_a) + charge_units(np.asarray(b), noise.scale_b)


def _lengths(rows: npt.NDArray[np.int16]) -> FloatArray:
    wide = rows.astype(np.float64)
    result: FloatArray = np.einsum("ij,ij->i", wide, wide)
    return result


def _up(value: float) -> int:
    return int(np.ceil(value))
