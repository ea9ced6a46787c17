"""The kinds of columns, and how a value of each kind becomes a few numbers.

Everything here uses only public constants. The range of a number is divided into pieces at public knots. Each piece has
one coordinate, from 0 to 1: how far the value has passed through that piece. So a linear model can bend at every knot.
A category has one coordinate per listed value. The coordinates of a column are centred and scaled. So each column has
about the same weight, whatever its unit.

Rule 1: the bits of a row depend only on that row. So values only go through table lookups, and through single
operations that IEEE 754 rounds correctly (-, *, min, max). Logarithms and sums over coordinates are not used. In a
vectorised logarithm or sum, the last bit may depend on the position of a value in the array.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from math import fsum, isfinite, sqrt
from typing import Any, ClassVar

import numpy as np

from indknn.errors import InvalidInputError
from indknn.types import BoolArray, FloatArray

PLACE, REFUSE = "place", "refuse"
"""What a gap may become besides a value: "place" gives gaps a coordinate of their own, "refuse" raises an error."""
LEAST_VARIANCE = 0.05
"""The least variance that is used for scaling, so that a column that is almost constant is not scaled up too far."""


def weight_for(variances: Iterable[float]) -> float:
    """The factor for the coordinates of a column, from their variances.

    It is 1 over the fourth root of the summed variance. This is half-way between no scaling and equal variance, so a
    column that hardly varies keeps less weight. The choice was measured on held-out rows (`benchmarks/tables.py`).
    """
    return 1.0 / sqrt(sqrt(max(fsum(variances), LEAST_VARIANCE)))


def as_floats(values: Iterable[Any], what: str) -> tuple[float, ...]:
    """The finite numbers that a schema lists under the name `what`. Numbers may be written as text."""
    try:
        numbers = tuple(float(value) for value in values)
    except (TypeError, ValueError):
        numbers = (float("nan"),)
    if not all(map(isfinite, numbers)):
        raise InvalidInputError(f"{what} must be a list of finite numbers, got {values!r}")
    return numbers


@dataclass(frozen=True)
class Column(ABC):
    """The base of all kinds of columns.

    `missing` says what a gap becomes: "place" (a coordinate of its own), "refuse" (an error), or a given value.
    """

    kind: ClassVar[str]
    missing: Any = PLACE

    @property
    @abstractmethod
    def places(self) -> list[str]:
        """A short name for every coordinate."""

    @abstractmethod
    def read(self, column: Any, name: str, blanks: Collection[str]) -> Any:
        """The values in a plain form. Gaps are filled if the schema says how. An error names the row."""

    @abstractmethod
    def write(self, values: Any, out: FloatArray) -> None:
        """Write the coordinates of values from `read` into the rows of `out`."""

    def outside(self, values: Any) -> float:
        """The share of the values from `read` that are beyond the bounds or not listed."""
        return 0.0

    def _keep(self, **values: Any) -> None:
        """Replace fields by their checked values. The class is frozen, so plain assignment is not possible."""
        for name, value in values.items():
            object.__setattr__(self, name, value)

    def refuse_gaps(self, gaps: BoolArray, name: str) -> None:
        """Raise an error if there are gaps and `missing` is "refuse"."""
        if self.missing == REFUSE and gaps.any():
            raise InvalidInputError(f"row {int(np.argmax(gaps))}: column {name!r} must not be empty")


@dataclass(frozen=True)
class Ignored(Column):
    """A column of the table that is not used."""

    kind = "ignored"

    @property
    def places(self) -> list[str]:
        """No coordinates."""
        return []

    def read(self, column: Any, name: str, blanks: Collection[str]) -> Any:
        """The column itself, which is not used."""
        return column

    def write(self, values: Any, out: FloatArray) -> None:
        """Write nothing."""
