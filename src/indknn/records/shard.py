"""A shard owns records, their index, and the ledger of the people to whom they belong.

It answers a query in two calls, `admit` and `settle`. Between them, only a count goes out and the noisy K comes back.
After them, only the sums of votes per class go out. Code above this does not know how many shards there are. All
records of one owner are in one shard, because the owner's ledger is there.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from threading import RLock
from typing import Any

import numpy as np
import numpy.typing as npt

from indknn.core import mechanism, statistics
from indknn.core.mechanism import Plan
from indknn.core.statistics import Contribution
from indknn.errors import InvalidInputError, LedgerError
from indknn.ledger import MemoryLedger, Scope
from indknn.records.derived import Derived, Rule
from indknn.records.indexes import Index
from indknn.records.keys import KeyArray, Match, RecordKeys
from indknn.records.slices import Arguments, GradientSlices
from indknn.records.slots import NO_SCALES
from indknn.types import Cohort, FloatArray, Int8Array, IntArray, OwnerId, Selection, Vectors

_SLOT_BITS = 32
_RECORD_ARRAYS = {"_label": -1, "_owner": -1, "_generation": 0, "_next": -1, "_epoch": 0}
MAX_EPOCH = (1 << 15) - 1
_NO_KEY: KeyArray = np.zeros(2, dtype=np.uint64)
_COMPARED = 1 << 16
"""New records are compared with at most this many of the owner's latest records."""


@dataclass(frozen=True)
class Admitted:
    """A query between `admit` and `settle`: its participants, who have paid for being counted."""

    total: int
    group: mechanism.Group
    scope: Scope


class Shard:
    """Records of some people, searchable, with what each person has spent.

    The number of a record consists of its slot and of how often the slot was used before: `generation << 32 | slot`. So
    numbers never repeat and need no table. A new store numbers its records 0, 1, 2, ... A record may also have an id
    that its caller chose. `keys` has a hash of it.
    """

    block = 1
    """How many queries are asked before any of them is settled. A shard in another process takes many at once."""

    def __init__(self, index: Index, ledger: MemoryLedger):
        self.index = index
        self.ledger = ledger
        self.keys = RecordKeys()
        self.broken = False
        self.epoch = 0
        # By record slot. 32 bits are enough, because a store of a billion records has more than one shard.
        self._label = np.zeros(0, dtype=np.int32)
        self._owner = np.zeros(0, dtype=np.int32)  # owner slot, -1 if there is no record
        self._generation = np.zeros(0, dtype=np.int32)
        self._epoch = np.zeros(0, dtype=np.int32)  # how many rounds of training had begun when the record came
        self._next = np.zeros(0, dtype=np.int32)  # the owner's next record, -1 after the last
        self._head = np.zeros(0, dtype=np.int32)  # by owner slot: the first record, -1 without any
        self._spare: tuple[Cohort, IntArray] | None = None  # the numbers of records that are too many of one person

    def __len__(self) -> int:
        return len(self.index)

    @property
    def lock(self) -> RLock:
        """The lock that every change here holds, and the predictor during a whole query."""
        return self.ledger.lock

    def refuse_if_broken(self) -> None:
        """Refuse to continue after a change that was interrupted (by a signal, or because memory ran out)."""
        if self.broken:
            raise LedgerError("a change of the records was interrupted halfway; this store can no longer be trusted")

    @contextmanager
    def _changing(self) -> Iterator[None]:
        with self.lock:
            self.refuse_if_broken()
            try:
                yield
            except BaseException:
                self.broken = True
                raise

    def match(
        self,
        vectors: Vectors,
        labels: IntArray,
        owners: Sequence[OwnerId],
        record_ids: Sequence[str | None] | None = None,
    ) -> Match:
        """Which of these rows are here already: by their record id, or else byte for byte."""
        ids, nothing = np.full(len(vectors), -1, dtype=np.int64), np.zeros(0, dtype=np.int64)
        keys: KeyArray = np.broadcast_to(_NO_KEY, (len(vectors), 2))
        if record_ids is not None:
            keys = self.ledger.record_keys(record_ids)
        if not len(self):
            return Match(ids, nothing, 0, keys)
        people = self.ledger.find(owners)
        if record_ids is None:
            return Match(ids, nothing, self._copies(vectors, labels, people), keys)
        held = self.keys.find(keys)
        rows = np.flatnonzero(held >= 0)
        slots = held[rows]
        foreign = rows[self._owner[slots] != people[rows]]
        if len(foreign):
            name = record_ids[int(foreign[0])]
            raise InvalidInputError(f"record id {name!r} belongs to another owner than {owners[foreign[0]]!r}")
        pairs = zip(self._bodies(vectors[rows], labels[rows]), self._bodies_at(slots), strict=True)
        same = np.array([given == here for given, here in pairs], dtype=bool)
        ids[rows[same]] = self.ids_at(slots[same])
        nameless = np.flatnonzero(~keys.any(axis=1))
        copies = self._copies(vectors[nameless], labels[nameless], people[nameless])
        return Match(ids, slots[~same], copies, keys)

    def add(
        self, vectors: Vectors, labels: IntArray, owners: Sequence[OwnerId], keys: KeyArray | None = None
    ) -> IntArray:
        """Store the records and return their numbers. The caller has validated everything."""
        with self._changing():
            slots = self.place(vectors, labels, self.ledger.enrol(owners), self.epoch)
            if keys is not None and keys.any():
                named = keys.any(axis=1)
                self.keys.set(slots[named], keys[named])
            return self.ids_at(slots)

    def place(self, vectors: Vectors, labels: IntArray, owner_slots: IntArray, epochs: IntArray | int) -> IntArray:
        """Store records of people who have slots already. Returns the slot of each record."""
        slots = self.index.add(vectors)
        self._reserve(_RECORD_ARRAYS, int(slots.max(initial=-1)) + 1)
        self._reserve({"_head": -1}, int(owner_slots.max(initial=-1)) + 1)
        self._label[slots] = labels
        self._owner[slots] = owner_slots
        self._epoch[slots] = epochs
        self._link(slots, owner_slots)
        return slots

    def forget(self, slots: IntArray) -> dict[int, OwnerId]:
        """Remove the records in these slots. Owners with no record left are forgotten; returns their slots and names.

        What they spent stays in the ledger (rule 4).
        """
        with self._changing():
            gone = {owner: self.ledger.name_of(owner) for owner in self.drop(slots)}
            self.ledger.retire(np.array(list(gone), dtype=np.int64))
            return gone

    def drop(self, slots: IntArray) -> list[int]:
        """Remove the records in these slots. Returns the slots of the owners who have none left."""
        slots = np.unique(slots)
        doomed, gone = set(slots.tolist()), []
        for owner in np.unique(self._owner[slots]).tolist():
            kept = [slot for slot in self._records_of(owner) if slot not in doomed]
            self._head[owner] = kept[0] if kept else -1
            self._next[kept] = [*kept[1:], -1][: len(kept)]
            if not kept:
                gone.append(owner)
        self._drop(slots)
        return gone

    def slots_of_owners(self, owners: Sequence[OwnerId]) -> IntArray:
        """The slots of all records of these owners."""
        here = np.unique(self.ledger.slots_of(owners))
        slots = [slot for owner in here[here >= 0].tolist() for slot in self._records_of(owner)]
        return np.array(slots, dtype=np.int64)

    @property
    def used(self) -> int:
        """All slots below this have held a record."""
        return self.index.slots.used

    def slots(self, low: int = 0, high: int | None = None) -> IntArray:
        """The slots of all records, or of those in the slots from `low` up to `high`."""
        return np.flatnonzero(self._owner[low:high] >= 0) + low

    def slots_of_records(self, ids: Sequence[int]) -> IntArray:
        """The slots of these records."""
        return np.array(sorted({self._slot_of(i) for i in ids}), dtype=np.int64)

    def generations(self, slots: IntArray) -> IntArray:
        """How often each slot was used before."""
        return self._generation[slots].astype(np.int64)

    def owners_of(self, slots: IntArray) -> IntArray:
        """The owner slot of each record slot."""
        return self._owner[slots].astype(np.int64)

    def epochs_of(self, slots: IntArray) -> IntArray:
        """How many rounds of training had begun when each of these records came."""
        return self._epoch[slots].astype(np.int64)

    def restore(
        self, vectors: Vectors, labels: IntArray, owners: IntArray, generations: IntArray, epochs: IntArray | int = 0
    ) -> None:
        """Restore the next records of an earlier process, slot by slot. Owner -1 marks a slot that will be freed."""
        slots = self.index.add(vectors)
        self._reserve(_RECORD_ARRAYS, int(slots.max(initial=-1)) + 1)
        self._reserve({"_head": -1}, int(owners.max(initial=-1)) + 1)
        self._label[slots], self._owner[slots], self._generation[slots] = labels, owners, generations
        self._epoch[slots] = epochs
        used = slots[owners >= 0]
        # After a purge, no release has the epoch. The next epoch must be above those of all records.
        self.epoch = max(self.epoch, int(self._epoch[used].max(initial=0)))
        self._link(used, owners[owners >= 0])

    def expect(self, records: int) -> None:
        """Reserve room for this many records, so that nothing is moved while they are added."""
        self.index.slots.expect(records)
        self._reserve(_RECORD_ARRAYS, records)

    def free(self, slots: IntArray) -> None:
        """Mark these slots as free. They are the last ones that were restored, or earlier ones."""
        self.index.remove(slots)

    def record_ids(self) -> IntArray:
        """The ids of all records held, by slot."""
        return self.ids_at(self.slots())

    def scan(self, queries: Vectors, tau: int) -> list[Selection]:
        """Which records each query selects."""
        return self.index.search(queries, tau)

    def admit(self, selection: Selection, plan: Plan, scope: Scope, *, counted: bool = True) -> Admitted:
        """Lines 4 to 7: admit those who can pay for being counted, and charge them.

        If K is known without a count (`counted` False), everybody near is admitted and nobody pays here.
        """
        slots = selection.slots
        owners, labels = self._owner[slots].astype(np.int64), self._label[slots].astype(np.int64)
        group = mechanism.group(owners, labels, selection.kappa, plan)
        total = 0
        if counted:
            count = mechanism.count(group, self.ledger.remaining(group.owners, scope), plan)
            self.ledger.charge(count.group.owners, count.charges, scope, joining=False)
            group, total = count.group, count.total
        return Admitted(total, group, scope)

    def ask(
        self, near: Sequence[Selection], questions: Sequence[tuple[Plan, Scope]], *, counted: bool = True
    ) -> list[Admitted]:
        """Admit the people near each query, in order, before any of these queries is settled."""
        pairs = zip(near, questions, strict=True)
        return [self.admit(found, plan, scope, counted=counted) for found, (plan, scope) in pairs]

    def votes(self, admitted: Sequence[Admitted], Ks: Sequence[int], plans: Sequence[Plan]) -> Iterator[IntArray]:
        """The votes on each query. Everybody pays for a query when its votes are taken."""
        for waiting, K, plan in zip(admitted, Ks, plans, strict=True):
            yield self.settle(waiting, K, plan)

    def settle(self, admitted: Admitted, K: int, plan: Plan) -> IntArray:
        """Lines 8 and 9: charge the clipped votes, and return their sums per class."""
        group, scope = admitted.group, admitted.scope
        settled = mechanism.settle(group, self.ledger.remaining(group.owners, scope), K, plan)
        self.ledger.charge(group.owners, settled.charges, scope)
        return settled.votes

    def derived(self, rule: Rule, cohort: Cohort) -> Derived:
        """The values that a rule gives to each record of a cohort. They are computed once and kept."""
        return Derived(self, rule, cohort)

    def gradient(self, rows: Derived, step: Arguments, scope: Scope) -> IntArray:
        """The gradient of a model over all records of the cohort, charged."""
        slices = self._slices(rows, step, scope)
        rows.slices = None
        return self._pay(slices.contribution(), scope)

    def prepare_gradient(self, rows: Derived, step: Arguments, scope: Scope) -> bool:
        """Compute a part of what `gradient` will need. Nobody pays yet. Returns whether there was more to do."""
        return self._slices(rows, step, scope).more()

    def _slices(self, rows: Derived, step: Arguments, scope: Scope) -> GradientSlices:
        if rows.slices is None or not rows.slices.step.same(step):
            rows.slices = GradientSlices(self, rows, step, lambda owners: self.ledger.remaining(owners, scope))
        return rows.slices

    def tally(self, cells: Derived, n_cells: int, scale: int, price: int, scope: Scope) -> IntArray:
        """How many records of the cohort are in each cell. Everybody is charged at most `price`."""
        slots = self.taking_part(cells.cohort)
        owners = self.owners_of(slots)
        limits = np.minimum(self.ledger.remaining(owners, scope), price)
        return self._pay(statistics.tally(cells.of(slots), owners, limits, n_cells, scale), scope)

    def headcount(self, cohort: Cohort, n_cells: int, since: int, scale: int, price: int, scope: Scope) -> IntArray:
        """How many people there are, and how many records they have. Everybody is charged at most `price`.

        People are counted by records that came before `since` rounds of training had begun, then by the others. Both
        counts are by label, unless there are only two cells. One more cell is about the number of records.
        """
        slots = self.taking_part(cohort)
        owners = self.owners_of(slots)
        limits = np.minimum(self.ledger.remaining(owners, scope), price)
        labels = self.labels_of(slots) if n_cells > 2 else 0
        cells = labels + (self.epochs_of(slots) >= since) * (n_cells // 2)
        return self._pay(statistics.headcount(cells, owners, limits, n_cells, scale, cohort.most), scope)

    def taking_part(self, cohort: Cohort) -> IntArray:
        """The slots of the records that a shared release is about."""
        slots = self.slots()
        slots = slots[self._epoch[slots] < cohort.before]
        if self._spare is None or self._spare[0] != cohort:
            self._spare = cohort, self._too_many(slots, cohort.most)
        spare = self._spare[1]
        return slots[~np.isin(self.ids_at(slots), spare)] if len(spare) else slots

    def _too_many(self, slots: IntArray, most: int) -> IntArray:
        """The numbers of the records beyond the first `most` of each owner.

        The order is that of a hash of the records. So it depends on nobody else, as the order of slots would.
        """
        spare: list[IntArray] = []
        owners = self._owner[slots]
        for owner in np.flatnonzero(np.bincount(owners) > most).tolist():
            own = slots[owners == owner]
            seen = zip(self._bodies_at(own), self._epoch[own].tolist(), strict=True)
            hashes = [hashlib.blake2b(body + b"%d" % epoch, digest_size=16).digest() for body, epoch in seen]
            spare.append(self.ids_at(own[np.argsort(np.array(hashes), kind="stable")[most:]]))
        return np.concatenate([np.zeros(0, dtype=np.int64), *spare])

    def values_of(self, slots: IntArray) -> Int8Array:
        """The quantised features of these records."""
        return self.index.slots.values[slots]

    def labels_of(self, slots: IntArray) -> IntArray:
        """The class numbers of these records."""
        return self._label[slots].astype(np.int64)

    def _pay(self, given: Contribution, scope: Scope) -> IntArray:
        self.ledger.charge(given.owners, given.charges, scope)
        return given.sums

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        for name in (*_RECORD_ARRAYS, "_head"):
            setattr(self, name, getattr(self, name).copy())  # may be a read-only map

    def _link(self, slots: IntArray, owner_slots: IntArray) -> None:
        """Put the records at the front of their owners' chains."""
        if (owner_slots[1:] > owner_slots[:-1]).all():  # one record each and in order, so there is nothing to sort
            self._next[slots], self._head[owner_slots] = self._head[owner_slots], slots
            return
        order = np.argsort(owner_slots, kind="stable")
        slots, owners = slots[order], owner_slots[order]
        same = np.append(owners[1:] == owners[:-1], False)[: len(owners)]
        self._next[slots] = np.where(same, np.append(slots[1:], -1)[: len(slots)], self._head[owners])
        first = np.append(True, ~same[:-1])[: len(slots)]
        self._head[owners[first]] = slots[first]

    def _records_of(self, owner: int) -> Iterator[int]:
        slot = int(self._head[owner])
        while slot >= 0:
            yield slot
            slot = int(self._next[slot])

    def _drop(self, slots: IntArray) -> None:
        self.index.remove(slots)
        self._label[slots] = -1
        self._owner[slots] = -1
        self._next[slots] = -1
        self._generation[slots] += 1
        self.keys.clear(slots)

    def _copies(self, vectors: Vectors, labels: IntArray, people: IntArray) -> int:
        """How many of these rows their owners already have."""
        rows = np.flatnonzero(people >= 0)
        if not len(rows):
            return 0
        slots = [list(islice(self._records_of(person), _COMPARED)) for person in np.unique(people[rows]).tolist()]
        held = np.array([slot for some in slots for slot in some], dtype=np.int64)
        known = set(zip(self._owner[held].tolist(), self._bodies_at(held), strict=True))
        bodies = self._bodies(vectors[rows], labels[rows])
        return sum(one in known for one in zip(people[rows].tolist(), bodies, strict=True))

    def _bodies_at(self, slots: IntArray) -> list[bytes]:
        return bodies(self.values_of(slots), self._label[slots], self.index.slots.scales(slots))

    def _bodies(self, vectors: Vectors, labels: IntArray) -> list[bytes]:
        return bodies(vectors.values, labels, vectors.scale if self.index.slots.with_scale else NO_SCALES)

    def ids_at(self, slots: IntArray) -> IntArray:
        """The numbers of the records in these slots."""
        return self._generation[slots].astype(np.int64) << _SLOT_BITS | slots

    def _slot_of(self, record: int) -> int:
        slot, generation = record & ((1 << _SLOT_BITS) - 1), record >> _SLOT_BITS
        known = record >= 0 and slot < len(self._owner) and self._owner[slot] >= 0
        if not known or self._generation[slot] != generation:
            raise InvalidInputError(f"unknown record id {record!r}: no such record is held")
        return slot

    def _reserve(self, arrays: dict[str, int], capacity: int) -> None:
        """Make these arrays at least this long, filled with the given value."""
        for name, empty in arrays.items():
            old = getattr(self, name)
            if capacity > len(old):
                extra = max(capacity - len(old), len(old) // 2)
                setattr(self, name, np.concatenate([old, np.full(extra, empty, dtype=old.dtype)]))


def bodies(values: Int8Array, labels: npt.NDArray[Any], scales: FloatArray) -> list[bytes]:
    """The bytes of each record that anything can depend on."""
    body = np.zeros(len(values), dtype=[("label", "<i4"), ("scale", "<f8"), ("values", "i1", (values.shape[1],))])
    body["label"], body["scale"], body["values"] = labels, scales, values
    return [one.tobytes() for one in body]
