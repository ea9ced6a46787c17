"""Values that follow from each record alone. They are computed once and kept while a round of training needs them.

For very many records they are not kept but computed again for each step, because rows as wide as the features would
take as much memory as the store itself.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt
from threadpoolctl import threadpool_limits

from indknn.records.indexes.scan import cores
from indknn.types import Cohort, Int8Array, IntArray

if TYPE_CHECKING:
    from indknn.records.shard import Shard
    from indknn.records.slices import GradientSlices

Rule: TypeAlias = Callable[[Int8Array, IntArray], npt.NDArray[Any]]
"""A function from the features and labels of records to a value or a row for each. Each record is computed separately.
"""
PORTION = 1024
"""How many records are processed at a time: some milliseconds of work."""
MOST_KEPT = 1 << 30
"""The most bytes that are kept. With more, everything is computed each time it is needed."""


class Derived:
    """The values that a rule gives to the records of a cohort, by slot. A slot that was used again is computed anew."""

    def __init__(self, shard: Shard, rule: Rule, cohort: Cohort):
        self._shard = shard
        self._rule = rule
        self.cohort = cohort
        self._known = np.zeros(0, dtype=np.int64)  # the generation of the record that the value belongs to, -1 for none
        self._values: npt.NDArray[Any] | None = None
        self._todo = np.zeros(0, dtype=np.int64)  # records that were missing when all were last compared
        self.slices: GradientSlices | None = None  # the slices of the step that is being made with these values

    def fill(self, most: int = PORTION) -> bool:
        """Process some more records. Returns whether there were any left."""
        if self._too_many():
            return False
        if not len(self._todo):
            self._todo = self._missing(self._shard.taking_part(self.cohort))
        slots, self._todo = self._todo[:most], self._todo[most:]
        missing = self._missing(slots[self._shard.owners_of(slots) >= 0])  # some may be gone, or known by now
        self._keep(missing, self._computed(missing))
        return bool(len(slots))

    def _too_many(self) -> bool:
        sample = self._computed(np.zeros(0, dtype=np.int64))
        return self._shard.used * sample.itemsize * int(np.prod(sample.shape[1:])) > MOST_KEPT

    def of(self, slots: IntArray) -> npt.NDArray[Any]:
        """The values of these records: a view if their slots follow each other. It is valid until records change."""
        if self._too_many():
            parts = [self._computed(slots[low : low + PORTION]) for low in range(0, max(len(slots), 1), PORTION)]
            return np.concatenate(parts)
        missing = self._missing(slots)
        if len(missing) <= PORTION:
            self._keep(missing, self._computed(missing))
        else:
            self._fill_on_all_cores([missing[low : low + PORTION] for low in range(0, len(missing), PORTION)])
        assert self._values is not None
        if len(slots) and (slots[1:] - slots[:-1] == 1).all():
            return self._values[slots[0] : slots[-1] + 1]
        return np.asarray(self._values[slots])

    def _fill_on_all_cores(self, portions: list[IntArray]) -> None:
        """Each core takes portions. Products within a portion use one core: several would wait for each other."""
        workers = self._shard.index.threads or cores()
        with threadpool_limits(1, "blas"), ThreadPoolExecutor(workers) as threads:
            for slots, found in zip(portions, threads.map(self._computed, portions), strict=True):
                self._keep(slots, found)

    def _computed(self, slots: IntArray) -> npt.NDArray[Any]:
        return self._rule(self._shard.values_of(slots), self._shard.labels_of(slots))

    def _missing(self, slots: IntArray) -> IntArray:
        room = self._shard.used - len(self._known)
        if room > 0:
            self._known = np.concatenate([self._known, np.full(room, -1)])
        stale = self._known[slots] != self._shard.generations(slots)
        return np.asarray(slots[stale], dtype=np.int64)

    def _keep(self, slots: IntArray, found: npt.NDArray[Any]) -> None:
        if self._values is None or len(self._values) < len(self._known):
            room = len(self._known)
            if self._values is not None:
                room = max(room, len(self._values) + len(self._values) // 8)  # or every newcomer would copy all of them
            wider = np.zeros((room, *found.shape[1:]), dtype=found.dtype)
            if self._values is not None:
                wider[: len(self._values)] = self._values
            self._values = wider
        self._values[slots] = found
        self._known[slots] = self._shard.generations(slots)
