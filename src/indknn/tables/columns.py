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
from functools import cached_property
from itertools import pairwise
from math import expm1, fsum, isfinite, log1p, sqrt
from typing import Any, ClassVar, Literal

import numpy as np

from indknn.core.inputs import lookup_of
from indknn.errors import InvalidInputError
from indknn.features import Extractor, find_extractor
from indknn.tables.values import as_buckets, as_codes, as_days, as_numbers, as_texts, day_of, day_text
from indknn.types import BoolArray, FloatArray, IntArray

PLACE, REFUSE = "place", "refuse"
"""What a gap may become besides a value: "place" gives gaps a coordinate of their own, "refuse" raises an error."""
LEAST_VARIANCE = 0.05
"""The least variance that is used for scaling, so that a column that is almost constant is not scaled up too far."""
PIECES = 12
"""How many pieces a column of numbers has by default."""
YES, NO = ("yes", "true", "y", "t", "1"), ("no", "false", "n", "f", "0")
MOST_BUCKETS = 1 << 16
_TINY = 1000.0
"""The log scale is about linear for numbers below the largest divided by this."""


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

    def plain_encoding(self) -> dict[str, Any]:
        """What `write` uses, as lists and numbers, for whoever encodes rows elsewhere."""
        return {"kind": self.kind}

    def outside(self, values: Any, slack: float = 0.0) -> float:
        """The share of the values from `read` that are beyond the bounds or not listed.

        With `slack`, bounds are wider by so many times the distance between them, on both sides.
        """
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

    def plain_encoding(self) -> dict[str, Any]:
        """Each piece: where it starts, its slope, and what is subtracted. Dates are days since 1970-01-01."""
        starts, slopes, means, height = self._pieces
        gap = self.missing if self.missing in {PLACE, REFUSE} else self._days_or_numbers((self.missing,), "missing")[0]
        pieces = {"starts": starts.tolist(), "slopes": slopes.tolist(), "means": means.tolist(), "height": height}
        return {"kind": self.kind, "bounds": [self.edges[0], self.edges[-1]], **pieces, "missing": gap}

    def outside(self, values: FloatArray, slack: float = 0.0) -> float:
        """The share of values that are clipped."""
        low, high = self.edges[0], self.edges[-1]
        room = slack * (high - low)
        return float(np.mean((values < low - room) | (values > high + room))) if len(values) else 0.0


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


@dataclass(frozen=True)
class Category(Column):
    """A category. Values that are not listed count as "other". `shares` are the shares of the values in public rows.

    >>> Category(values=("baker", "cook")).places
    ['baker', 'cook', 'other', 'missing']
    """

    kind = "category"
    values: tuple[str, ...] = ()
    shares: tuple[float, ...] | None = None
    buckets: int | None = None
    """For values that nobody knows: a public hash puts each value into one of this many buckets, and `values` lists
    buckets."""

    def __post_init__(self) -> None:
        if self.buckets is not None:
            (buckets,) = as_floats((self.buckets,), "buckets")
            if not (buckets.is_integer() and 2 <= buckets <= MOST_BUCKETS):
                raise InvalidInputError(f"buckets must be from 2 to {MOST_BUCKETS}, got {self.buckets!r}")
            self._keep(buckets=int(buckets))
        if isinstance(self.values, str) or not self.values or not all(isinstance(v, str) for v in self.values):
            raise InvalidInputError(f"values must be a list of one text or more, got {self.values!r}")
        codes = self._codes
        if self.shares is not None:
            shares = as_floats(self.shares, "shares")
            if len(shares) != len(self.values) or min(shares) < 0 or sum(shares) > 1 + 1e-4:
                wanted = f"{len(self.values)} numbers, one per value, that add up to at most 1"
                raise InvalidInputError(f"shares must be {wanted}, got {list(shares)}")
            self._keep(shares=shares)
        if self.missing not in {PLACE, REFUSE} and self.missing not in codes:
            raise InvalidInputError(f"missing must be 'place', 'refuse' or a listed value, got {self.missing!r}")

    @cached_property
    def _codes(self) -> dict[Any, int]:
        return lookup_of(self.values)

    @property
    def places(self) -> list[str]:
        """The listed values, then one coordinate for all other values, and one for gaps if gaps have a place."""
        return [*self.values, "other"] + ["missing"] * (self.missing == PLACE)

    def _known(self) -> FloatArray:
        """The share of each listed value. Without `shares`, all listed values are equally common."""
        n = len(self.values)
        return np.full(n, 1.0 / n) if self.shares is None else np.array(self.shares)

    @cached_property
    def _rows(self) -> FloatArray:
        """The table of coordinates: a row for each listed value, one for other values, and one for gaps."""
        known = self._known()
        rest = max(1.0 - float(known.sum()), 0.0) / (len(self.places) - len(known))
        shares = np.append(known, np.full(len(self.places) - len(known), rest))
        rows: FloatArray = (np.eye(len(shares)) - shares) * weight_for(shares * (1.0 - shares))
        return rows

    def read(self, column: Any, name: str, blanks: Collection[str]) -> IntArray:
        """The row of each value in the table of coordinates."""
        n = len(self.values)
        gap = self._codes.get(self.missing, n + 1)
        column = column if self.buckets is None else as_buckets(column, blanks, self.buckets)
        codes = as_codes(column, name, self._codes, blanks, n, gap)
        self.refuse_gaps(codes == n + 1, name)
        return codes

    def write(self, values: IntArray, out: FloatArray) -> None:
        """Copy the row of each value from the table of coordinates."""
        out[:] = self._rows[values]

    def plain_encoding(self) -> dict[str, Any]:
        """The coordinates of each listed value, of other values and of gaps."""
        n, rows = len(self.values), self._rows.tolist()
        gap = rows[self._codes.get(self.missing, n + 1)] if self.missing != REFUSE else None
        listed = dict(zip(self.values, rows, strict=False))
        buckets = {} if self.buckets is None else {"buckets": self.buckets}
        return {"kind": self.kind, "values": listed, "other": rows[n], "missing": gap, **buckets}

    def outside(self, values: IntArray, slack: float = 0.0) -> float:
        """The share of values that are not listed."""
        return float(np.mean(values == len(self.values))) if len(values) else 0.0


@dataclass(frozen=True)
class Ordered(Category):
    """A category whose listed values have an order. Neighbours in the list are similar.

    >>> Ordered(values=("low", "middle", "high")).places
    ['above low', 'above middle', 'other', 'missing']
    """

    kind = "ordered"

    @property
    def places(self) -> list[str]:
        """One coordinate for each step between listed values, one for other values, and one for gaps if they have a
        place."""
        steps = [f"above {value}" for value in self.values[:-1]]
        return [*steps, "other"] + ["missing"] * (self.missing == PLACE)

    @cached_property
    def _rows(self) -> FloatArray:
        known, width = self._known(), len(self.places)
        steps = len(self.values) - 1
        means = np.array([known[j + 1 :].sum() / max(known.sum(), 1e-9) for j in range(steps)])
        rows = np.zeros((len(self.values) + 2, width))
        weight = weight_for(means * (1.0 - means))
        rows[: steps + 1, :steps] = (np.tri(steps + 1, steps, -1) - means) * weight
        rows[steps + 1, steps] = 1.0
        rows[steps + 2, -1] = 1.0
        return rows


@dataclass(frozen=True)
class YesNo(Column):
    """Yes or no, in these words, or as true and false, or 1 and 0. `share` is the share of public rows that say yes.

    >>> YesNo().places
    ['yes', 'missing']
    """

    kind = "yesno"
    yes: tuple[str, ...] = YES
    no: tuple[str, ...] = NO
    share: float = 0.5

    def __post_init__(self) -> None:
        both = set(map(str.lower, self.yes)) & set(map(str.lower, self.no))
        if both or not (self.yes and self.no):
            raise InvalidInputError(f"yes and no must be different words, got {list(self.yes)} and {list(self.no)}")
        (share,) = as_floats((self.share,), "share")
        if not 0 <= share <= 1:
            raise InvalidInputError(f"share must be from 0 to 1, got {self.share!r}")
        self._keep(share=share)
        if self.missing not in {PLACE, REFUSE} and self.missing not in self._codes:
            raise InvalidInputError(f"missing must be 'place', 'refuse', yes or no, got {self.missing!r}")

    @cached_property
    def _codes(self) -> dict[Any, int]:
        codes: dict[Any, int] = {}
        for answer, words in enumerate((self.no, self.yes)):
            spelled = {form for word in words for form in (word, word.lower(), word.upper(), word.title())}
            codes |= dict.fromkeys(lookup_of(sorted(spelled)), answer)
        return {True: 1, False: 0, **codes}

    @property
    def places(self) -> list[str]:
        """One coordinate for the answer, and one for gaps if they have a place."""
        return ["yes"] + ["missing"] * (self.missing == PLACE)

    @cached_property
    def _rows(self) -> FloatArray:
        """The table of coordinates: a row for no, one for yes, and one for gaps."""
        share, width = self.share, len(self.places)
        weight = weight_for([share * (1.0 - share)])
        return np.array([[-share * weight, 0.0], [(1.0 - share) * weight, 0.0], [0.0, 1.0]])[:, :width]

    def read(self, column: Any, name: str, blanks: Collection[str]) -> IntArray:
        """0 for no, 1 for yes, 2 for a gap."""
        codes = as_codes(column, name, self._codes, blanks, 3, self._codes.get(self.missing, 2))
        if (codes == 3).any():
            row = int(np.argmax(codes == 3))
            allowed = ", ".join((*self.yes, *self.no))
            raise InvalidInputError(f"row {row}: column {name!r} must be one of {allowed}")
        self.refuse_gaps(codes == 2, name)
        return codes

    def write(self, values: IntArray, out: FloatArray) -> None:
        """Copy the row of each answer from the table of coordinates. The number for no is lower than that for yes."""
        out[:] = self._rows[values]

    def plain_encoding(self) -> dict[str, Any]:
        """The coordinates of each word, and of gaps."""
        rows = self._rows.tolist()
        gap = rows[self._codes.get(self.missing, 2)] if self.missing != REFUSE else None
        words = {word: rows[answer] for answer, said in enumerate((self.no, self.yes)) for word in said}
        return {"kind": self.kind, "values": words, "other": None, "missing": gap}


@dataclass(frozen=True)
class Text(Column):
    """A text. `extractor` is the name or folder of a public extractor. `width` is the length of its features.

    >>> len(Text(extractor="all-MiniLM-L6-v2", width=384).places)
    385
    """

    kind = "text"
    extractor: str = ""
    width: int | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.extractor, str) or not self.extractor:
            raise InvalidInputError(f"extractor must be the name of a model or its folder, got {self.extractor!r}")
        if self.missing not in {PLACE, REFUSE} and not isinstance(self.missing, str):
            raise InvalidInputError(f"missing must be 'place', 'refuse' or a text, got {self.missing!r}")
        if self.width is not None:
            if not str(self.width).isdigit() or not 1 <= int(self.width) <= 1 << 16:
                raise InvalidInputError(f"width must be from 1 to {1 << 16}, got {self.width!r}")
            self._keep(width=int(self.width))

    def plain_encoding(self) -> dict[str, Any]:
        """The extractor, which is not part of a published model."""
        gap = self.missing if self.missing in {PLACE, REFUSE} else {"text": self.missing}
        return {"kind": self.kind, "extractor": self.extractor, "width": len(self.places), "missing": gap}

    @property
    def _extractor(self) -> Extractor:
        return find_extractor(self.extractor)

    @property
    def places(self) -> list[str]:
        """One coordinate for each feature of the extractor, and one for gaps if they have a place."""
        width = self._extractor.n_features if self.width is None else self.width
        return [str(i) for i in range(width)] + ["missing"] * (self.missing == PLACE)

    def read(self, column: Any, name: str, blanks: Collection[str]) -> list[str | None]:
        """The texts. A gap that has a place is None."""
        texts = as_texts(column, name, blanks)
        if self.missing == REFUSE and None in texts:
            raise InvalidInputError(f"row {texts.index(None)}: column {name!r} must not be empty")
        return texts if self.missing in {PLACE, REFUSE} else [self.missing if t is None else t for t in texts]

    def write(self, values: list[str | None], out: FloatArray) -> None:
        """Extract each text separately. In a batch, the last bits of a row could depend on other texts (rule 1)."""
        out[:] = 0.0
        width = out.shape[1] - (self.missing == PLACE)
        for row, text in zip(out, values, strict=True):
            if text is None:
                row[-1] = 1.0
                continue
            (made,) = self._extractor([text])
            if len(made) != width:
                raise InvalidInputError(
                    f"{self.extractor} must give {width} features, as the schema says, got {len(made)}"
                )
            row[:width] = made
