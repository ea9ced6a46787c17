"""The books of a set of records: who owns the record in each slot, its label, its numbers and its id.

They have no features. Those are in an index beside them, or with the hosts of a cluster.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from threading import RLock
from typing import Any

import numpy as np
import numpy.typing as npt

from indknn.errors import InvalidInputError, LedgerError
from indknn.ledger import MemoryLedger
from indknn.records.keys import KeyArray, Match, RecordIds, RecordKeys
from indknn.types import FloatArray, Int8Array, IntArray, OwnerId, Vectors

_SLOT_BITS = 32
_RECORD_ARRAYS = {"_label": -1, "_owner": -1, "_generation": 0, "_next": -1, "_epoch": 0}
MAX_EPOCH = (1 << 15) - 1
_NO_KEY: KeyArray = np.zeros(2, dtype=np.uint64)
_COMPARED = 1 << 16
"""New records are compared with at most this many of the owner's latest records."""


class RecordBook(ABC):
    """Records by slot, and the ledger of their owners. What holds the features says which slots are used.

    The number of a record consists of its slot and of how often the slot was used before: `generation << 32 | slot`. So
    numbers never repeat and need no table. A new store numbers its records 0, 1, 2, ... A record may also have an id
    that its caller chose. `keys` has a hash of it.
    """

    def __init__(self, ledger: MemoryLedger, *, with_scale: bool):
        self.ledger = ledger
        self.keys = RecordKeys()
        self.epoch = 0
        self.broken = False
        self._why = "a change of the records was interrupted halfway; this store can no longer be trusted"
        self._cause: Exception | None = None
        self._with_scale = with_scale  # whether the scale of a record is part of it
        # By record slot. 32 bits are enough, because a store of a billion records has more than one shard.
        self._label = np.zeros(0, dtype=np.int32)
        self._owner = np.zeros(0, dtype=np.int32)  # owner slot, -1 if there is no record
        self._generation = np.zeros(0, dtype=np.int32)
        self._epoch = np.zeros(0, dtype=np.int32)  # how many rounds of training had begun when the record came
        self._next = np.zeros(0, dtype=np.int32)  # the owner's next record, -1 after the last
        self._head = np.zeros(0, dtype=np.int32)  # by owner slot: the first record, -1 without any

    @abstractmethod
    def __len__(self) -> int:
        """How many records there are."""

    @abstractmethod
    def bodies_at(self, slots: IntArray) -> tuple[Int8Array, FloatArray]:
        """The quantised features of these records, and their scales if the kernel uses them."""

    @property
    def lock(self) -> RLock:
        """The lock that every change here holds, and the predictor during a whole query."""
        return self.ledger.lock

    def refuse_if_broken(self) -> None:
        """Refuse to continue after a change that was interrupted (by a signal, or because memory ran out)."""
        if self.broken:
            raise LedgerError(self._why) from self._cause

    @contextmanager
    def _changing(self) -> Iterator[None]:
        with self.lock:
            self.refuse_if_broken()
            try:
                yield
            except BaseException:
                self.broken = True
                raise

    # What is here

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

    def slots_of_owners(self, owners: Sequence[OwnerId]) -> IntArray:
        """The slots of all records of these owners."""
        here = np.unique(self.ledger.slots_of(owners))
        slots = [slot for owner in here[here >= 0].tolist() for slot in self._records_of(owner)]
        return np.array(slots, dtype=np.int64)

    def labels_of(self, slots: IntArray) -> IntArray:
        """The class numbers of these records."""
        return self._label[slots].astype(np.int64)

    def record_ids(self) -> IntArray:
        """The ids of all records held, by slot."""
        return self.ids_at(self.slots())

    def ids_at(self, slots: IntArray) -> IntArray:
        """The numbers of the records in these slots."""
        return self._generation[slots].astype(np.int64) << _SLOT_BITS | slots

    def _slot_of(self, record: int) -> int:
        slot, generation = record & ((1 << _SLOT_BITS) - 1), record >> _SLOT_BITS
        known = record >= 0 and slot < len(self._owner) and self._owner[slot] >= 0
        if not known or self._generation[slot] != generation:
            raise InvalidInputError(f"unknown record id {record!r}: no such record is held")
        return slot

    def match(
        self, vectors: Vectors, labels: IntArray, owners: Sequence[OwnerId], record_ids: RecordIds = None
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
        pairs = zip(self._bodies_of(vectors[rows], labels[rows]), self._bodies_at(slots), strict=True)
        same = np.array([given == here for given, here in pairs], dtype=bool)
        ids[rows[same]] = self.ids_at(slots[same])
        nameless = np.flatnonzero(~keys.any(axis=1))
        copies = self._copies(vectors[nameless], labels[nameless], people[nameless])
        return Match(ids, slots[~same], copies, keys)

    def _copies(self, vectors: Vectors, labels: IntArray, people: IntArray) -> int:
        """How many of these rows their owners already have."""
        rows = np.flatnonzero(people >= 0)
        if not len(rows):
            return 0
        slots = [list(islice(self._records_of(person), _COMPARED)) for person in np.unique(people[rows]).tolist()]
        held = np.array([slot for some in slots for slot in some], dtype=np.int64)
        known = set(zip(self._owner[held].tolist(), self._bodies_at(held), strict=True))
        here = self._bodies_of(vectors[rows], labels[rows])
        return sum(one in known for one in zip(people[rows].tolist(), here, strict=True))

    def _bodies_at(self, slots: IntArray) -> list[bytes]:
        values, scales = self.bodies_at(slots)
        return bodies(values, self._label[slots], scales)

    def _bodies_of(self, vectors: Vectors, labels: IntArray) -> list[bytes]:
        return bodies(vectors.values, labels, vectors.scale if self._with_scale else 1.0)

    # Changes. The caller says which slots, and takes care of the features.

    def _enter(
        self, slots: IntArray, labels: IntArray, owners: IntArray, epochs: IntArray | int, generations: Any = None
    ) -> None:
        """Records are in these slots now. Owner -1 marks a slot of an earlier process that will be freed."""
        self._reserve(_RECORD_ARRAYS, int(slots.max(initial=-1)) + 1)
        self._reserve({"_head": -1}, int(owners.max(initial=-1)) + 1)
        self._label[slots], self._owner[slots], self._epoch[slots] = labels, owners, epochs
        if generations is None:
            self._link(slots, owners)
            return
        self._generation[slots] = generations
        used = slots[owners >= 0]
        # After a purge, no release has the epoch. The next epoch must be above those of all records.
        self.epoch = max(self.epoch, int(self._epoch[used].max(initial=0)))
        self._link(used, owners[owners >= 0])

    def _expect(self, records: int) -> None:
        self._reserve(_RECORD_ARRAYS, records)

    def _set_keys(self, slots: IntArray, keys: KeyArray | None) -> None:
        if keys is not None and keys.any():
            named = keys.any(axis=1)
            self.keys.set(slots[named], keys[named])

    def _leave(self, slots: IntArray) -> list[int]:
        """No records are in these slots any more. Returns the slots of the owners who have none left."""
        doomed, gone = set(slots.tolist()), []
        for owner in np.unique(self._owner[slots]).tolist():
            kept = [slot for slot in self._records_of(owner) if slot not in doomed]
            self._head[owner] = kept[0] if kept else -1
            self._next[kept] = [*kept[1:], -1][: len(kept)]
            if not kept:
                gone.append(owner)
        self._label[slots] = -1
        self._owner[slots] = -1
        self._next[slots] = -1
        self._generation[slots] += 1
        self.keys.clear(slots)
        return gone

    def _retire(self, owners: list[int]) -> dict[int, OwnerId]:
        """Forget owners who have no record left. What they spent stays in the ledger (rule 4)."""
        gone = {owner: self.ledger.name_of(owner) for owner in owners}
        self.ledger.retire(np.array(owners, dtype=np.int64))
        return gone

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

    def _reserve(self, arrays: dict[str, int], capacity: int) -> None:
        """Make these arrays at least this long, filled with the given value."""
        for name, empty in arrays.items():
            old = getattr(self, name)
            if capacity > len(old):
                extra = max(capacity - len(old), len(old) // 2)
                setattr(self, name, np.concatenate([old, np.full(extra, empty, dtype=old.dtype)]))

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        for name in (*_RECORD_ARRAYS, "_head"):
            setattr(self, name, getattr(self, name).copy())  # may be a read-only map


def bodies(values: Int8Array, labels: npt.NDArray[Any], scales: FloatArray | float) -> list[bytes]:
    """The bytes of each record that anything can depend on."""
    body = np.zeros(len(values), dtype=[("label", "<i4"), ("scale", "<f8"), ("values", "i1", (values.shape[1],))])
    body["label"], body["scale"], body["values"] = labels, scales, values
    return [one.tobytes() for one in body]
