"""Values that are passed between the packages. All of them are immutable."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from indknn.errors import InvalidInputError

Int8Array: TypeAlias = npt.NDArray[np.int8]
IntArray: TypeAlias = npt.NDArray[np.int64]
FloatArray: TypeAlias = npt.NDArray[np.float64]
Float32Array: TypeAlias = npt.NDArray[np.float32]
BoolArray: TypeAlias = npt.NDArray[np.bool_]
OwnerId: TypeAlias = str
OneOrEach: TypeAlias = IntArray | int
"""A number for each row, or one for all."""
Times: TypeAlias = tuple[OneOrEach, OneOrEach]
"""How many rounds of training had begun when records came, and until which hour they take part."""
Accountant: TypeAlias = Literal["gdp", "rdp"]
KernelName: TypeAlias = Literal["cosine", "rbf"]

Scope: TypeAlias = str | None
"""One column of a ledger. Each analyst is a scope. None is the analyst without a name."""
SHARED: Final = "\0shared"
"""The scope of releases that every analyst sees. No analyst can have this name."""

SLOT = (1 << 32) - 1
"""The part of the number of a record that is its slot (`records/any_shard.py`)."""
GRID_BITS = 20
GRID = 1 << GRID_BITS
"""Kernel values, votes, counts and noise are integers in units of 1/GRID (rule 7)."""


EVERYBODY = 0
"""In place of a τ in grid units, which is never zero: all records are selected, each person's with weight 1 in all."""


def tau_on_grid(tau: float) -> int:
    """τ in grid units, rounded up, so never zero (rule 6).

    >>> tau_on_grid(0.5) == GRID // 2
    True
    """
    if not 0.0 < tau <= 1.0:
        raise InvalidInputError(f"tau must be in (0, 1], got {tau!r}")
    num, den = float(tau).as_integer_ratio()
    return -(-num * GRID // den)


ROW = 1 << 11
"""Coordinates of unit vectors that the shared model sees are integers in units of 1/ROW."""


@dataclass(frozen=True)
class Vectors:
    """Quantised feature vectors. Row i is `scale[i] * values[i]`, and `root_norm[i]` is |values[i]|.

    `spare` means that nobody else uses `values`, so an index may keep that array without a copy.
    """

    values: Int8Array
    root_norm: FloatArray
    scale: FloatArray
    spare: bool = False

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, rows: slice | IntArray) -> Vectors:
        return Vectors(self.values[rows], self.root_norm[rows], self.scale[rows])


def joined(parts: Sequence[Vectors]) -> Vectors:
    """All rows of some vectors."""
    if len(parts) == 1:
        return parts[0]
    return Vectors(
        np.concatenate([part.values for part in parts]),
        np.concatenate([part.root_norm for part in parts]),
        np.concatenate([part.scale for part in parts]),
    )


class Given(NamedTuple):
    """Records as a caller gives them: rows, and what belongs to each row. None if a part is not given.

    Rows are vectors, or a table that a schema will encode. Prepared records are `Vectors` and class numbers.
    """

    X: Any
    y: Any = None
    owners: Any = None
    record_ids: Any = None
    expires: Any = None
    epsilons: Any = None


@dataclass(frozen=True)
class Cohort:
    """Whose records take part in a shared release (rule 17).

    `before`: those that came before this many rounds of training had begun. `most`: at most so many of one person.
    """

    before: int
    most: int


@dataclass(frozen=True)
class Selection:
    """The record slots that a query selected, in ascending order, and their kernel values on the grid."""

    slots: IntArray
    kappa: IntArray

    def within(self, tau: int) -> Selection:
        """Those that are also near at this larger τ."""
        chosen = self.kappa >= tau
        return Selection(self.slots[chosen], self.kappa[chosen])
