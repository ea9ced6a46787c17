"""Values that follow from each record alone. They are computed once and kept while a round of training needs them.

For very many records they are not kept but computed again for each step, because rows as wide as the features would
take as much memory as the store itself.

The gradient of a model over all records is computed for some people at a time, so that answers can come between.

What a person adds follows from their own records, from what they may pay, and from the model. So a slice that was
computed earlier is valid as long as these are the same. `contribution` compares all of them and computes again what has
changed. The result is, to the bit, what computing everything at that moment would give.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from math import ceil
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt
from threadpoolctl import ThreadpoolController

from indknn.core import training
from indknn.core.mechanism import charge_units
from indknn.core.statistics import Contribution
from indknn.core.training import STEP_GRID, Weights
from indknn.ledger import MemoryLedger, Scope
from indknn.records.indexes.scan import cores
from indknn.types import SLOT, Cohort, Int8Array, IntArray

if TYPE_CHECKING:
    from indknn.records.shard import Shard

Rule: TypeAlias = Callable[[Int8Array, IntArray], npt.NDArray[Any]]
"""A function from the features and labels of records to a value or a row for each. Each record is computed separately.
"""
PORTION = 1024
"""How many records are processed at a time: some milliseconds of work."""
MOST_KEPT = 1 << 30
"""The most bytes that are kept. With more, everything is computed each time it is needed."""
RECORDS = 1024
"""How many records a slice has, unless one person has more: a few milliseconds of work."""
AT_ONCE = 1 << 16
"""How many records a slice has if nobody waits."""
_libraries = cache(ThreadpoolController)  # looking for libraries of linear algebra takes a millisecond
_KEPT = 128 << 20  # the most bytes of sums that are kept; large models have larger slices


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
        with _libraries().limit(limits=1, user_api="blas"), ThreadPoolExecutor(workers) as threads:
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


@dataclass(frozen=True)
class _Inputs:
    """Records by the slots of their owners: which records, whose, and what their owner may pay."""

    ids: IntArray
    owners: IntArray
    limits: IntArray

    def between(self, first: int, end: int) -> _Inputs:
        """The part for the people in these slots."""
        here = slice(*np.searchsorted(self.owners, (first, end)).tolist())
        return _Inputs(self.ids[here], self.owners[here], self.limits[here])

    def equal(self, other: _Inputs) -> bool:
        """Whether these are the same records of the same people, who may pay the same."""
        pairs = ((self.ids, other.ids), (self.owners, other.owners), (self.limits, other.limits))
        return all(np.array_equal(here, there) for here, there in pairs)


@dataclass(frozen=True)
class Arguments:
    """The inputs of one step: the model, the clip, the noise, what each person keeps, and whose records take part."""

    weights: Weights
    clip: float
    scale: int
    reserve: int
    cohort: Cohort

    def same(self, other: Arguments) -> bool:
        """Whether this is the same step."""
        here, there = ((step.clip, step.scale, step.reserve, step.cohort) for step in (self, other))
        return here == there and self.weights.same(other.weights)


class GradientSlices:
    """One step of training over the records of a shard. The caller holds its lock during each call.

    People pay from this scope of the ledger.
    """

    def __init__(self, shard: Shard, rows: Derived, step: Arguments, ledger: MemoryLedger, scope: Scope):
        self.step = step
        self._shard, self._rows, self._ledger, self._scope = shard, rows, ledger, scope
        # Nobody pays more than this for a step, so it does not matter how much more they have.
        self._most = 2 * int(charge_units(np.array([(step.clip * STEP_GRID) ** 2]), step.scale)[0]) + 2
        self._now = self._look()
        self._records = max(RECORDS, ceil(step.weights.whole.size * 8 * len(self._now.ids) / _KEPT))
        self._ends = [0]  # the owner slots at which slices end
        self._done: list[tuple[_Inputs, Contribution]] = []
        self._stale: list[int] | None = None  # slices that must be computed again, after the check for changes

    def more(self) -> bool:
        """Compute one more slice. Returns whether there was one left. Changes are looked for once."""
        if self._stale:
            self._renew(self._stale.pop())
            return True
        if self._extend(self._records):
            return True
        if self._stale is not None:
            return False
        self._stale = self._changed()
        return bool(self._stale) or self._extend(self._records)

    def contribution(self) -> Contribution:
        """The sum over all records as they are now, who pays for it, and how much. All cores compute what is left."""
        for i in self._changed():
            self._renew(i)
        while self._extend(max(self._records, AT_ONCE), self._shard.index.threads or cores()):
            pass
        total = np.zeros(self.step.weights.whole.shape, dtype=np.int64)
        for _, part in self._done:
            total += part.sums
        nobody = np.zeros(0, dtype=np.int64)
        owners, charges = (
            np.concatenate([nobody, *(getattr(part, name) for _, part in self._done)]) for name in ("owners", "charges")
        )
        return Contribution(total, owners, charges)

    def _changed(self) -> list[int]:
        """The slices whose records are no longer the same, or whose people may no longer pay the same."""
        self._now = self._look()
        ranges = zip(self._ends[:-1], self._ends[1:], self._done, strict=True)
        return [
            i for i, (first, end, (known, _)) in enumerate(ranges) if not self._now.between(first, end).equal(known)
        ]

    def _renew(self, i: int) -> None:
        self._done[i] = self._slice(self._ends[i], self._ends[i + 1])

    def _extend(self, records: int, threads: int = 1) -> bool:
        """Compute the next slice, of about so many records. Returns whether there was one."""
        owners, first = self._now.owners, self._ends[-1]
        start = int(np.searchsorted(owners, first))
        if start == len(owners):
            return False
        stop = start + records
        end = int(owners[stop]) if stop < len(owners) else int(owners[-1]) + 1
        end = max(end, int(owners[start]) + 1)  # one person may have more records than that
        self._done.append(self._slice(first, end, threads))
        self._ends.append(end)
        return True

    def _slice(self, first: int, end: int, threads: int = 1) -> tuple[_Inputs, Contribution]:
        inputs = self._now.between(first, end)
        if not np.array_equal(self._shard.ids_at(inputs.ids & SLOT), inputs.ids):
            self._now = self._look()  # some of these records are gone
            inputs = self._now.between(first, end)
        slots, step = inputs.ids & SLOT, self.step
        values, labels = self._rows.of(slots), self._shard.labels_of(slots)
        people = labels, inputs.owners, inputs.limits
        return inputs, training.gradient(values, *people, step.weights, step.clip, step.scale, threads)

    def _look(self) -> _Inputs:
        """All records that take part, as they are now, by owner."""
        slots = self._shard.taking_part(self.step.cohort)
        owners = self._shard.owners_of(slots)
        if (owners[1:] < owners[:-1]).any():
            order = np.argsort(owners, kind="stable")
            slots, owners = slots[order], owners[order]
        limits = np.clip(self._allowed(owners), 0, self._most)
        return _Inputs(self._shard.ids_at(slots), owners, limits)

    def _allowed(self, owners: IntArray) -> IntArray:
        """What each may pay for this step. Whoever has a smaller promise pays in all steps, and less in each."""
        ledger, step = self._ledger, self.step
        left = ledger.remaining(owners, self._scope) - ledger.scaled(owners, step.reserve)
        allowed: IntArray = np.minimum(left, ledger.scaled(owners, self._most // 2, self._most))
        return allowed
