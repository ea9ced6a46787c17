"""Categories, ordered categories, and yes or no. Each value has a row in a public table of coordinates."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from indknn.errors import InvalidInputError
from indknn.tables.column import PLACE, REFUSE, Column, as_floats, weight_for
from indknn.tables.values import as_buckets, as_codes, lookup_of
from indknn.types import FloatArray, IntArray

YES, NO = ("yes", "true", "y", "t", "1"), ("no", "false", "n", "f", "0")
MOST_BUCKETS = 1 << 16


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
        """Check every value."""
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

    def outside(self, values: IntArray) -> float:
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
        """Check every value."""
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
