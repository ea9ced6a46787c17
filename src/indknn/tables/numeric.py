"""Numbers and dates. Their range is divided into pieces at public knots."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from math import expm1, isfinite, log1p
from typing import Any, Literal

import numpy as np

from indknn.errors import InvalidInputError
from indknn.tables.column import PLACE, REFUSE, Column, as_floats, weight_for
from indknn.tables.values import as_days, as_numbers, day_of, day_text
from indknn.types import FloatArray

PIECES = 12
"""How many pieces a column of numbers has by default."""
_TINY = 1000.0
"""The log scale is about linear for numbers below the largest divided by this."""


@dataclass(frozen=True)
class Number(Column):
    """A number. It is clipped to its bounds, and the range between them is divided into pieces at the knots.

    Without knots the pieces have equal length on a linear or a logarithmic scale. `means` are the mean coordinates of
    the public rows, one per piece.

    >>> Number(bounds=(0, 100), knots=(10,)).places
    ['0..10', '10..100', 'missing']
    """

    kind = "number"
    bounds: tuple[Any, Any] = (0.0, 1.0)
    scale: Literal["linear", "log"] = "linear"
    knots: tuple[Any, ...] | None = None
    means: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        """Check every value, and keep each as a number or a date."""
        if self.scale not in {"linear", "log"}:
            raise InvalidInputError(f"scale must be 'linear' or 'log', got {self.scale!r}")
        bounds, knots = self._days_or_numbers(self.bounds, "bounds"), self._days_or_numbers(self.knots or (), "knots")
        if len(bounds) != 2 or not bounds[0] < bounds[1]:
            raise InvalidInputError(f"bounds must be two values, the lower one first, got {list(self.bounds)}")
        edges = (bounds[0], *knots, bounds[1])
        if any(not low < high for low, high in pairwise(edges)):
            raise InvalidInputError(
                f"knots must rise within the bounds {list(self.bounds)}, got {list(self.knots or ())}"
            )
        if not all(isfinite(high - low) and isfinite(1.0 / (high - low)) for low, high in pairwise(edges)):
            raise InvalidInputError(f"bounds and knots must be neither too close nor too far apart, got {list(edges)}")
        self._keep(bounds=self._plain(bounds), knots=None if self.knots is None else self._plain(knots))
        if self.missing not in {PLACE, REFUSE}:
            self._keep(missing=self._plain(self._days_or_numbers((self.missing,), "missing"))[0])
        if self.means is not None:
            means, m = as_floats(self.means, "means"), len(self.edges) - 1
            if len(means) != m or not all(0 <= mean <= 1 for mean in means):
                raise InvalidInputError(f"means must be {m} numbers from 0 to 1, one per piece, got {list(means)}")
            self._keep(means=means)

    def _days_or_numbers(self, values: Iterable[Any], what: str) -> tuple[float, ...]:
        """Values of the schema as numbers to compute with. A date becomes a number of days."""
        return as_floats(values, what)

    def _plain(self, numbers: tuple[float, ...]) -> tuple[Any, ...]:
        """The opposite: numbers in the form in which the schema writes them."""
        return tuple(int(x) if x.is_integer() and abs(x) < 1e15 else x for x in numbers)

    def _values(self, column: Any, name: str, blanks: Collection[str]) -> FloatArray:
        return as_numbers(column, name, blanks)

    @cached_property
    def edges(self) -> tuple[float, ...]:
        """The lower bound, the knots and the upper bound."""
        low, high = self._days_or_numbers(self.bounds, "bounds")
        if self.knots is not None:
            return (low, *self._days_or_numbers(self.knots, "knots"), high)
        if self.scale == "linear":
            return (low, *(low + (high - low) * i / PIECES for i in range(1, PIECES)), high)
        return (low, *_log_knots(low, high), high)

    @cached_property
    def _pieces(self) -> tuple[FloatArray, FloatArray, FloatArray, float]:
        """The start, slope and mean of each piece, and the height of all pieces, which is the weight of the column."""
        edges, m = np.array(self.edges), len(self.edges) - 1
        means = np.array([(m - j - 0.5) / m for j in range(m)] if self.means is None else self.means)
        weight = weight_for(means * (1.0 - means))
        return edges[:-1], weight / np.diff(edges), means * weight, weight

    @property
    def places(self) -> list[str]:
        """One coordinate for each piece, and one for gaps if they have a place."""
        edges = [self._text(edge) for edge in self.edges]
        pieces = [f"{low}..{high}" for low, high in pairwise(edges)]
        return pieces + ["missing"] * (self.missing == PLACE)

    def _text(self, value: float) -> str:
        return f"{value:.6g}"

    def read(self, column: Any, name: str, blanks: Collection[str]) -> FloatArray:
        """The numbers. A gap that has a place is NaN."""
        x = self._values(column, name, blanks)
        gaps = np.isnan(x)
        self.refuse_gaps(gaps, name)
        if self.missing not in {PLACE, REFUSE}:
            x[gaps] = self._days_or_numbers((self.missing,), "missing")[0]
        return x

    def write(self, values: FloatArray, out: FloatArray) -> None:
        """Write the coordinates: 0 below a piece, its height above it, linear within it. Then they are centred."""
        starts, slopes, means, height = self._pieces
        block, gaps = out[:, : len(starts)], np.isnan(values)
        x = np.minimum(np.maximum(values, self.edges[0]), self.edges[-1])  # a difference of huge numbers could overflow
        np.subtract(x[:, None], starts, out=block)
        block *= slopes
        np.clip(block, 0.0, height, out=block)
        block -= means
        if self.missing == PLACE:
            out[:, -1] = gaps
            block[gaps] = 0.0

    def outside(self, values: FloatArray) -> float:
        """The share of values that are clipped."""
        return float(np.mean((values < self.edges[0]) | (values > self.edges[-1]))) if len(values) else 0.0


def _log_knots(low: float, high: float) -> list[float]:
    """Knots at equal steps of sign(x)·log(1 + |x|/s). They have six digits, so that all machines agree on them."""
    s = max(abs(low), abs(high)) / _TINY
    first, last = (log1p(abs(x) / s) * (1 if x > 0 else -1) for x in (low, high))
    steps = (first + (last - first) * i / PIECES for i in range(1, PIECES))
    return [float(f"{s * expm1(abs(u)) * (1 if u > 0 else -1):.6g}") for u in steps]


@dataclass(frozen=True)
class Date(Number):
    """A day. Bounds and knots are dates such as 2026-01-31.

    >>> Date(bounds=("2025-01-01", "2026-01-01"), knots=("2025-07-01",)).places
    ['2025-01-01..2025-07-01', '2025-07-01..2026-01-01', 'missing']
    """

    kind = "date"

    def _days_or_numbers(self, values: Iterable[Any], what: str) -> tuple[float, ...]:
        try:
            return tuple(day_of(value) for value in values)
        except ValueError:
            raise InvalidInputError(f"{what} must be dates such as 2026-01-31, got {values!r}") from None

    def _values(self, column: Any, name: str, blanks: Collection[str]) -> FloatArray:
        return as_days(column, name, blanks)

    def _plain(self, numbers: tuple[float, ...]) -> tuple[Any, ...]:
        return tuple(day_text(days) for days in numbers)

    def _text(self, value: float) -> str:
        return day_text(value)
