"""Values that follow from each record alone, computed once and kept while a round of training needs them.

Of very many records they are not kept, but computed again for each step: rows as wide as the features would take as
much memory as the store itself.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from indknn.types import Int8Array, IntArray, RowSource

if TYPE_CHECKING:
    from indknn.records.shard import Shard

Rule: TypeAlias = Callable[[Int8Array, IntArray], npt.NDArray[Any]]
"""From the features and labels of records to a value or a row for each, every record by itself."""
PORTION = 8192
MOST_KEPT = 1 << 30
"""Bytes that are kept at most."""


class _Computed:
    def __init__(self, shard: Shard, rule: Rule, slots: IntArray):
        self._shard, self._rule, self._slots = shard, rule, slots

    def __getitem__(self, rows: IntArray, /) -> npt.NDArray[Any]:
        slots = self._slots[rows]
        return self._rule(self._shard.values_of(slots), self._shard.labels_of(slots))


class Derived:
    """What a rule says of the records of a shard, by slot. A slot that was used again is looked at again."""

    def __init__(self, shard: Shard, rule: Rule):
        self._shard = shard
        self._rule = rule
        self._known = np.zeros(0, dtype=np.int64)  # the generation of the record that the value is of, -1 for none
        self._values: npt.NDArray[Any] | None = None
        self._next = 0  # slots below this were looked at, unless they were used again

    def fill(self, most: int = PORTION) -> bool:
        """Look at some more records; whether there were any left."""
        if self._too_many():
            return False
        while self._next < self._shard.used:
            slots = self._missing(self._shard.slots(self._next, self._next + most))
            self._next += most
            if len(slots):
                self._look_at(slots)
                return True
        slots = self._missing(self._shard.slots())[:most]
        self._look_at(slots)
        return bool(len(slots))

    def rows(self, slots: IntArray) -> RowSource:
        """The values of these records, to be asked for some at a time."""
        return _Computed(self._shard, self._rule, slots) if self._too_many() else self.of(slots)

    def _too_many(self) -> bool:
        none = np.zeros(0, dtype=np.int64)
        sample = self._rule(self._shard.values_of(none), self._shard.labels_of(none))
        return self._shard.used * sample.itemsize * int(np.prod(sample.shape[1:])) > MOST_KEPT

    def of(self, slots: IntArray) -> npt.NDArray[Any]:
        """The values of these records."""
        missing = self._missing(slots)
        for first in range(0, max(len(missing), 1), PORTION):
            self._look_at(missing[first : first + PORTION])
        assert self._values is not None
        return self._values if len(slots) == len(self._values) else self._values[slots]

    def _missing(self, slots: IntArray) -> IntArray:
        room = self._shard.used - len(self._known)
        if room > 0:
            self._known = np.concatenate([self._known, np.full(room, -1)])
        stale = self._known[slots] != self._shard.generations(slots)
        return np.asarray(slots[stale], dtype=np.int64)

    def _look_at(self, slots: IntArray) -> None:
        found = self._rule(self._shard.values_of(slots), self._shard.labels_of(slots))
        if self._values is None or len(self._values) < len(self._known):
            wider = np.zeros((len(self._known), *found.shape[1:]), dtype=found.dtype)
            if self._values is not None:
                wider[: len(self._values)] = self._values
            self._values = wider
        self._values[slots] = found
        self._known[slots] = self._shard.generations(slots)
