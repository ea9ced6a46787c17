"""The gradient of a model over all records, computed for some people at a time, so that answers can come between.

What a person adds follows from their own records, from what they may pay, and from the model. So a slice that was
computed earlier is valid as long as these are the same. `contribution` compares all of them and computes again what has
changed. The result is, to the bit, what computing everything at that moment would give.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import ceil
from typing import TYPE_CHECKING

import numpy as np

from indknn.core import training
from indknn.core.mechanism import charge_units
from indknn.core.statistics import Contribution
from indknn.core.training import STEP_GRID, Weights
from indknn.records.indexes.scan import cores
from indknn.types import Cohort, IntArray

if TYPE_CHECKING:
    from indknn.records.derived import Derived
    from indknn.records.shard import Shard

RECORDS = 1024
"""How many records a slice has, unless one person has more: a few milliseconds of work."""
AT_ONCE = 1 << 16
"""How many records a slice has if nobody waits."""
_SLOT = (1 << 32) - 1  # of the number of a record
_KEPT = 128 << 20  # the most bytes of sums that are kept; large models have larger slices


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
        here, there = ((one.clip, one.scale, one.reserve, one.cohort) for one in (self, other))
        return self.weights is other.weights and here == there


class GradientSlices:
    """One step of training over the records of a shard. The caller holds its lock during each call.

    `remaining` returns what the people in some slots have left.
    """

    def __init__(self, shard: Shard, rows: Derived, step: Arguments, remaining: Callable[[IntArray], IntArray]):
        self.step = step
        self._shard, self._rows, self._remaining = shard, rows, remaining
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
        if not np.array_equal(self._shard.ids_at(inputs.ids & _SLOT), inputs.ids):
            self._now = self._look()  # some of these records are gone
            inputs = self._now.between(first, end)
        slots, step = inputs.ids & _SLOT, self.step
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
        limits = np.clip(self._remaining(owners) - self.step.reserve, 0, self._most)
        return _Inputs(self._shard.ids_at(slots), owners, limits)
