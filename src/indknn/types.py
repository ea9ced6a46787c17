"""Values that cross a boundary between two rooms of the house. All of them are immutable."""

from __future__ import annotations

from dataclasses import dataclass
from math import isqrt
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from indknn.errors import InvalidInputError

Int8Array: TypeAlias = npt.NDArray[np.int8]
IntArray: TypeAlias = npt.NDArray[np.int64]
FloatArray: TypeAlias = npt.NDArray[np.float64]
Float32Array: TypeAlias = npt.NDArray[np.float32]
BoolArray: TypeAlias = npt.NDArray[np.bool_]
OwnerId: TypeAlias = int | str | bytes
Accountant: TypeAlias = Literal["gdp", "rdp"]
KernelName: TypeAlias = Literal["cosine", "rbf"]

GRID_BITS = 20
GRID = 1 << GRID_BITS
"""Kernel values, votes, counts and noise are integers in units of 1/GRID (rule 7)."""

MIN_K = 30
"""The paper's floor under the noisy count K (its appendix); applied after the release, so free."""


MAX_SIGMA1, MAX_SIGMA2 = 2.0**30, 2.0**20
"""Far beyond use, and small enough that no draw of noise on the grid leaves 63 bits."""


@dataclass(frozen=True)
class Plan:
    """The public parameters of Algorithm 3, fixed before the first query.

    The noise scales actually drawn are integers on the grid, rounded *up* from the real numbers here,
    and charges are computed from what is drawn; so rounding can cost accuracy but never privacy.

    >>> plan = Plan(tau=0.5, sigma1=2.0, sigma2=0.5, n_classes=3)
    >>> plan.scale1 == 2 * GRID
    True
    """

    tau: float
    sigma1: float
    sigma2: float
    n_classes: int
    max_records_per_query: int | None = None
    contrast: bool = False
    """Charge votes by |P F|, P = I - 11ᵀ/c: exact while only the argmax or P times the noisy votes leaves."""

    def __post_init__(self) -> None:
        """Refuse what would make the mechanism meaningless."""
        for name in ("tau", "sigma1", "sigma2"):
            value = getattr(self, name)
            if not (np.isfinite(value) and value > 0):
                raise InvalidInputError(f"{name} must be a positive finite number, got {value!r}")
        for name, most in (("sigma1", MAX_SIGMA1), ("sigma2", MAX_SIGMA2)):
            if getattr(self, name) > most:
                raise InvalidInputError(f"{name} must be at most {most:g}, got {getattr(self, name)!r}")
        if self.tau > 1:
            raise InvalidInputError(f"tau must be in (0, 1], got {self.tau!r}")
        if self.n_classes < 1:
            raise InvalidInputError(f"n_classes must be at least 1, got {self.n_classes!r}")
        cap = self.max_records_per_query
        if cap is not None and cap < 1:
            raise InvalidInputError(f"max_records_per_query must be None or at least 1, got {cap!r}")

    @property
    def scale1(self) -> int:
        """σ1 on the grid, rounded up."""
        return ceil_sqrt(*_squared(self.sigma1))

    def scale2(self, K: int) -> int:
        """σ2·sqrt(K) on the grid, rounded up, the noise on the votes, for a released K in grid units."""
        num, den = _squared(self.sigma2)
        return ceil_sqrt(num * K, den * GRID)


@dataclass(frozen=True)
class Vectors:
    """Quantised feature vectors: row i stands for `scale[i] * values[i]`; `root_norm[i]` is |values[i]|."""

    values: Int8Array
    root_norm: FloatArray
    scale: FloatArray

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, rows: slice | IntArray) -> Vectors:
        return Vectors(self.values[rows], self.root_norm[rows], self.scale[rows])


@dataclass(frozen=True)
class Selection:
    """The record slots that a query selected, ascending, and their kernel values on the grid."""

    slots: IntArray
    kappa: IntArray


@dataclass(frozen=True)
class Neighbours:
    """The records that a query selected: whose they are, how near (on the grid), and their labels."""

    owners: IntArray
    kappa: IntArray
    labels: IntArray


def _squared(sigma: float) -> tuple[int, int]:
    """(σ·GRID)² as an exact fraction: a float is a fraction already."""
    num, den = float(sigma).as_integer_ratio()
    return (num * GRID) ** 2, den**2


def ceil_sqrt(num: int, den: int) -> int:
    """The smallest integer s with s² >= num/den.

    >>> ceil_sqrt(16, 1), ceil_sqrt(17, 1), ceil_sqrt(1, 2)
    (4, 5, 1)
    """
    ceiling = -(-num // den)
    return isqrt(ceiling - 1) + 1 if ceiling > 0 else 0
