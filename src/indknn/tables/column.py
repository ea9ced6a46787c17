"""The kinds of columns, and how a value of each becomes a few numbers.

Everything here follows from public constants. A number is cut into pieces at public knots: one coordinate per piece
says how far the value has passed it, from 0 to 1, so that a linear model can bend at every knot. A category is one
coordinate per listed value. Either way the coordinates of a column are centred and scaled so that each column has about
the same weight, whatever its unit.

Rule 1: the bits of a row depend on that row alone. So values go through table lookups, and through single operations
that IEEE 754 rounds correctly (-, *, min, max). There is no logarithm here and no sum over coordinates: in vectorised
ones the last bit may depend on where a value stands.
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
"""What a gap may become besides a value: a place of its own, or an error."""
LEAST_VARIANCE = 0.05
"""A column that is almost constant is not scaled up beyond this."""


def weight_for(variances: Iterable[float]) -> float:
    """What the coordinates of a column are multiplied by, which have these variances.

    The fourth root, half-way between columns as they are and columns of equal variance: a column that hardly varies has
    less to say. Measured on held-out rows (`benchmarks/tables.py`).
    """
    return 1.0 / sqrt(sqrt(max(fsum(variances), LEAST_VARIANCE)))


def as_floats(values: Iterable[Any], what: str) -> tuple[float, ...]:
    """The finite numbers that a schema lists under the name `what`; text of numbers counts."""
    try:
        numbers = tuple(float(value) for value in values)
    except (TypeError, ValueError):
        numbers = (float("nan"),)
    if not all(map(isfinite, numbers)):
        raise InvalidInputError(f"{what} must be a list of finite numbers, got {values!r}")
    return numbers


@dataclass(frozen=True)
class Column(ABC):
    """What all kinds share. `missing` says what a gap becomes: a place of its own, an error, or a given value."""

    kind: ClassVar[str]
    missing: Any = PLACE

    @property
    @abstractmethod
    def places(self) -> list[str]:
        """A short name for every coordinate."""

    @abstractmethod
    def read(self, column: Any, name: str, blanks: Collection[str]) -> Any:
        """The values in a plain form, with gaps filled where the schema says how; or an error that names the row."""

    @abstractmethod
    def write(self, values: Any, out: FloatArray) -> None:
        """Write the coordinates of values that were read into the rows of `out`."""

    def outside(self, values: Any) -> float:
        """The share of values that were read and are beyond the bounds, or not listed."""
        return 0.0

    def _keep(self, **values: Any) -> None:
        """Replace fields by their checked values."""
        for name, value in values.items():
            object.__setattr__(self, name, value)

    def refuse_gaps(self, gaps: BoolArray, name: str) -> None:
        """Where the schema says that there are none."""
        if self.missing == REFUSE and gaps.any():
            raise InvalidInputError(f"row {int(np.argmax(gaps))}: column {name!r} must not be empty")


@dataclass(frozen=True)
class Ignored(Column):
    """A column that is in the table and plays no part."""

    kind = "ignored"

    @property
    def places(self) -> list[str]:
        """None."""
        return []

    def read(self, column: Any, name: str, blanks: Collection[str]) -> Any:
        """Nothing is read."""
        return column

    def write(self, values: Any, out: FloatArray) -> None:
        """Nothing is written."""
