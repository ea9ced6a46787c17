"""What every shard has: who owns the record in each slot, its label, its numbers and its id.

There are no features here. Those are in an index of this process (`shard.py`), or with the hosts of a cluster.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from threading import RLock
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from indknn.core.clock import HOUR
from indknn.core.inputs import NEVER, picked
from indknn.core.mechanism import Plan
from indknn.errors import InvalidInputError, LedgerError
from indknn.ledger import MemoryLedger, Scope
from indknn.ledger.promises import Wanted
from indknn.records.by_slot import BySlot, Dates, KeyArray, RecordKeys
from indknn.records.derived import Arguments, Rule
from indknn.types import SLOT, Cohort, FloatArray, Int8Array, IntArray, OneOrEach, OwnerId, Times, Vectors

RecordIds: TypeAlias = Sequence[str | None] | None
"""The ids that a caller chose for some rows, if any."""
_SLOT_BITS = 32
_COLUMNS = ("_label", "_generation", "_next", "_epoch")
MAX_EPOCH = (1 << 31) - 1
_NO_KEY: KeyArray = np.zeros(2, dtype=np.uint64)
_COMPARED = 1 << 16
"""New records are compared with at most this many of the owner's latest records."""
Near: TypeAlias = Any
"""Who is near one query. Only the shard that made it knows them. `within` gives those who are also near at a larger τ.
"""
Asked: TypeAlias = Any
"""A query between `ask` and `votes`. `total` is how many records were counted."""
Filled: TypeAlias = Any
"""Values that follow from each record alone, kept while a round of training needs them. `fill` computes some more."""


class AnyShard(ABC):
    """Records of some people by slot, and the ledger of what each person has spent.

    A query is answered by `scan`, `ask` and `votes`. Between the last two, only counts go out and the noisy K come
    back. After them, only sums of votes per class go out. Whoever calls holds the lock.

    The number of a record consists of its slot and of how often the slot was used before: `generation << 32 | slot`. So
    numbers never repeat and need no table. A new store numbers its records 0, 1, 2, ... A record may also have an id
    that its caller chose. `keys` has a hash of it.
    """

    block: int
    """How many queries are asked before any of them is settled."""

    def __init__(self, ledger: MemoryLedger, *, with_scale: bool):
        self.ledger = ledger
        self.keys = RecordKeys()
        self.dates = Dates()
        self.holds: set[int] = set()  # the slots of owners under a hold: their records take no part and are not erased
        self.epoch = 0  # how many rounds of training have begun
        self.broken = False  # whether a change was interrupted
        self._with_scale = with_scale  # whether the scale of a record is part of it
        self._held = 0  # how many records there are
        # By record slot. 32 bits are enough, because a store of a billion records has more than one shard.
        self._owner = np.zeros(0, dtype=np.int32)  # owner slot, -1 if there is no record
        self._label = BySlot(-1)
        self._generation = BySlot(0)
        self._epoch = BySlot(0)  # how many rounds of training had begun when the record came
        self._next = BySlot(-1)  # the owner's next record, -1 after the last
        self._head = np.zeros(0, dtype=np.int32)  # by owner slot: the first record, -1 without any

    @abstractmethod
    def bodies_at(self, slots: IntArray) -> tuple[Int8Array, FloatArray]:
        """The quantised features of these records, and their scales if the kernel uses them."""

    @abstractmethod
    def expect(self, records: int) -> None:
        """Reserve room for this many records."""

    @abstractmethod
    def place(self, vectors: Vectors, labels: IntArray, owner_slots: IntArray, times: Times) -> IntArray:
        """Store records of people who have slots already. Returns the slot of each record."""

    @abstractmethod
    def drop(self, slots: IntArray) -> list[int]:
        """Remove the records in these slots, ascending. Returns the slots of the owners who have none left."""

    @abstractmethod
    def restore(
        self, vectors: Vectors, labels: IntArray, owners: IntArray, generations: IntArray, times: Times
    ) -> None:
        """Restore the next records of an earlier process, slot by slot. Owner -1 marks a slot that will be freed."""

    @abstractmethod
    def free(self, slots: IntArray) -> None:
        """Mark these slots as free. They are the last ones that were restored, or earlier ones."""

    @abstractmethod
    def scan(self, queries: Vectors, tau: int) -> Sequence[Near]:
        """Who is near each query."""

    @abstractmethod
    def ask(
        self, near: Sequence[Near], questions: Sequence[tuple[Plan, Scope]], *, counted: bool = True
    ) -> list[Asked]:
        """Admit the people near each query. Those who are counted pay for it."""

    @abstractmethod
    def votes(self, admitted: Sequence[Asked], Ks: Sequence[int], plans: Sequence[Plan]) -> Iterator[IntArray]:
        """The votes on each query, per class. Everybody pays for a query when its votes are taken."""

    @abstractmethod
    def show(self, rule: Rule) -> None:
        """From now on, ballots about residuals are about the values of this rule."""

    @abstractmethod
    def derived(self, rule: Rule, cohort: Cohort) -> Filled:
        """The values that a rule gives to each record of a cohort."""

    @abstractmethod
    def prepare_gradient(self, rows: Filled, step: Arguments, scope: Scope) -> bool:
        """Compute a part of what `gradient` will need. Nobody pays yet. Returns whether there was more to do."""

    @abstractmethod
    def gradient(self, rows: Filled, step: Arguments, scope: Scope) -> IntArray:
        """The gradient of a model over all records of the cohort, charged."""

    @abstractmethod
    def tally(self, cells: Filled, n_cells: int, scale: int, price: int, scope: Scope) -> IntArray:
        """How many records of the cohort are in each cell. Everybody is charged at most `price`."""

    @abstractmethod
    def headcount(
        self, cohort: Cohort, n_cells: int, span: int, since: int, scale: int, price: int, scope: Scope
    ) -> IntArray:
        """How many people there are, and how many records they have. Everybody is charged at most `price`."""

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

    # What is here

    def __len__(self) -> int:
        return self._held

    def slots(self) -> IntArray:
        """The slots of all records."""
        return np.flatnonzero(self._owner >= 0)

    def slots_of_records(self, ids: Sequence[int]) -> IntArray:
        """The slots of these records."""
        return np.array(sorted({self._slot_of(i) for i in ids}), dtype=np.int64)

    def slots_of_ids(self, record_ids: Sequence[str]) -> IntArray:
        """The slots of the records that have these ids, which their callers chose."""
        if not record_ids:
            return np.zeros(0, dtype=np.int64)
        slots = self.keys.find(self.ledger.record_keys(record_ids))
        slots[slots >= 0] = np.where(self.unexpired(slots[slots >= 0]), slots[slots >= 0], -1)
        if (slots < 0).any():
            raise InvalidInputError(f"unknown record id {record_ids[int(slots.argmin())]!r}: no such record is held")
        return np.unique(slots)

    def unexpired(self, slots: IntArray) -> npt.NDArray[np.bool_]:
        """Which of these records have not expired. Nobody is told of the others, whether or not they are erased."""
        return self.hour < self.dates.of(slots)

    def facts_at(self, slots: IntArray) -> dict[str, npt.NDArray[Any]]:
        """Everything but the features of these records, as a store keeps it (`database.record_type`)."""
        columns = {"generation": self._generation, "label": self._label, "epoch": self._epoch}
        facts: dict[str, npt.NDArray[Any]] = {name: column[slots] for name, column in columns.items()}
        return {**facts, "owner": self._owner[slots], "until": self.dates.of(slots)}

    def generations(self, slots: IntArray) -> IntArray:
        """How often each slot was used before."""
        return self._generation[slots].astype(np.int64)

    def owners_of(self, slots: IntArray) -> IntArray:
        """The owner slot of each record slot."""
        return self._owner[slots].astype(np.int64)

    def epochs_of(self, slots: IntArray) -> IntArray:
        """How many rounds of training had begun when each of these records came."""
        return self._epoch[slots].astype(np.int64)

    @property
    def hour(self) -> int:
        """The time, in hours since 1970."""
        return self.ledger.minute // HOUR

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
        slot, generation = record & SLOT, record >> _SLOT_BITS
        known = record >= 0 and slot < len(self._owner) and self._owner[slot] >= 0
        if not known or self._generation[slot] != generation or not self.unexpired(np.array([slot]))[0]:
            raise InvalidInputError(f"unknown record id {record!r}: no such record is held")
        return slot

    def match(self, new: NewRecords, *, earliest: bool = False) -> Match:
        """Which of these rows are here already: by their record id, or else byte for byte.

        With `earliest`, an equal record with an earlier date keeps it.
        """
        vectors, labels, owners, record_ids, until = new
        n, nothing, people = len(labels), np.zeros(0, dtype=np.int64), self.ledger.find(owners)
        ids, dates, empty = np.full(n, -1, dtype=np.int64), np.broadcast_to(until, n), not len(self)
        if record_ids is None or empty:
            no_keys: KeyArray = np.broadcast_to(_NO_KEY, (n, 2))
            keys = no_keys if record_ids is None else self.ledger.record_keys(record_ids)
            copies = 0 if empty else self._copies(vectors, labels, people)
            return Match(ids, nothing, nothing, copies, keys, dates)
        keys = self.ledger.record_keys(record_ids)
        same_key = self.keys.find(keys)
        rows = np.flatnonzero(same_key >= 0)
        slots = same_key[rows]
        gone = ~self.unexpired(slots)  # it does not matter whose they were
        self._refuse_foreign(rows[(self._owner[slots] != people[rows]) & ~gone], record_ids, owners)
        pairs = zip(self._bodies_of(vectors[rows], labels[rows]), self._bodies_at(slots), strict=True)
        same = np.array([new == old for new, old in pairs], dtype=bool) & ~gone
        same &= (np.greater_equal if earliest else np.equal)(dates[rows], self.dates.of(slots))
        ids[rows[same]] = self.ids_at(slots[same])
        nameless = np.flatnonzero(~keys.any(axis=1))
        copies = self._copies(vectors[nameless], labels[nameless], people[nameless])
        return Match(ids, slots[~same], rows[~same & ~gone], copies, keys, dates)

    def _refuse_foreign(self, rows: IntArray, record_ids: Sequence[str | None], owners: Sequence[OwnerId]) -> None:
        if len(rows):
            wrong = f"record id {record_ids[int(rows[0])]!r} belongs to another owner than {owners[rows[0]]!r}"
            raise InvalidInputError(f"{wrong}: a record never changes its owner; forget the record first")

    def _copies(self, vectors: Vectors, labels: IntArray, people: IntArray) -> int:
        """How many of these rows their owners already have."""
        rows = np.flatnonzero(people >= 0)
        if not len(rows):
            return 0
        persons = np.unique(people[rows]).tolist()
        slots = np.array([s for p in persons for s in islice(self._records_of(p), _COMPARED)], dtype=np.int64)
        slots = slots[self.unexpired(slots)]
        known = set(zip(self._owner[slots].tolist(), self._bodies_at(slots), strict=True))
        here = self._bodies_of(vectors[rows], labels[rows])
        return sum(record in known for record in zip(people[rows].tolist(), here, strict=True))

    def _bodies_at(self, slots: IntArray) -> list[bytes]:
        values, scales = self.bodies_at(slots)
        return bodies(values, self._label[slots], scales)

    def _bodies_of(self, vectors: Vectors, labels: IntArray) -> list[bytes]:
        return bodies(vectors.values, labels, vectors.scale if self._with_scale else 1.0)

    # Changes

    def add(
        self,
        vectors: Vectors,
        labels: IntArray,
        owners: Sequence[OwnerId],
        keys: KeyArray | None = None,
        until: IntArray | int = NEVER,
    ) -> IntArray:
        """Store the records and return their numbers. The caller has validated everything."""
        with self._changing():
            people = self.ledger.enrol(owners)
            slots = self.place(vectors, labels, people, (self.epoch, until))
            if self.holds:
                self._hold(slots[np.isin(people, list(self.holds))])
            if keys is not None and keys.any():
                named = keys.any(axis=1)
                self.keys.set(slots[named], keys[named])
            return self.ids_at(slots)

    def renew(self) -> None:
        """Everybody's budget starts anew, because periods have ended."""
        with self._changing():
            self.ledger.close_period(self.ledger.periods_due)

    def lower(self, wanted: Wanted) -> IntArray:
        """Give these people, who are here, smaller promises. Returns their owner slots."""
        with self._changing():
            return self.ledger.lower(wanted)

    def forget(self, slots: IntArray) -> dict[int, OwnerId]:
        """Remove the records in these slots. Owners with no record left are forgotten; returns their slots and names.

        What they spent stays in the ledger (rule 4).
        """
        with self._changing():
            return self.ledger.retire(np.array(self.drop(np.unique(slots)), dtype=np.int64))

    # Holds

    def hold(self, owner: int) -> None:
        """The records of the owner in this slot take no part and are not erased, until the hold ends."""
        with self._changing():
            self.holds.add(owner)
            self._hold(np.array(list(self._records_of(owner)), dtype=np.int64))

    def end_hold(self, owner: int) -> None:
        """Records take part again, unless they have expired or were to be forgotten meanwhile.

        They are as newcomers: a round that is running is not about them (rule 17).
        """
        with self._changing():
            self.holds.discard(owner)
            slots = np.array(list(self._records_of(owner)), dtype=np.int64)
            self._epoch[slots] = self.epoch
            self.dates.end_hold(slots)
            self._dated(slots)

    def redate(self, slots: IntArray, until: IntArray, epochs: IntArray) -> None:
        """Set the dates and epochs of these records, as the coordinator of a cluster has them."""
        self.dates.set(slots, until)
        self._epoch[slots] = epochs

    def forget_later(self, slots: IntArray) -> None:
        """Records under a hold are due as soon as it ends. Their ids may be given to others now."""
        with self._changing():
            self.dates.end_later(slots)
            self.keys.clear(slots)

    def under_hold(self, slots: IntArray) -> npt.NDArray[np.bool_]:
        """Which of these records are under a hold."""
        return np.isin(self._owner[slots], list(self.holds))

    def _hold(self, slots: IntArray) -> None:
        self.dates.hold(slots)
        self._dated(slots)

    def _dated(self, slots: IntArray) -> None:  # noqa: B027 - in one process, nobody else must know
        """The dates of these records have changed, or their epochs."""

    # For those that hold the features and say which slots

    def _enter(
        self, slots: IntArray, labels: IntArray, owners: IntArray, times: Times, generations: Any = None
    ) -> None:
        """Records are in these slots now. Owner -1 marks a slot of an earlier process that will be freed."""
        epochs, until = times
        self._reserve({"_head": -1}, int(owners.max(initial=-1)) + 1)
        self._expect(int(slots.max(initial=-1)) + 1)
        self._held += int((owners >= 0).sum())
        self.dates.set(slots, until if generations is None else np.where(owners >= 0, until, NEVER))
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
        self._reserve({"_owner": -1}, records)
        self.dates.expect(records)
        for name in _COLUMNS:
            getattr(self, name).expect(records)

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
        self._generation[slots] = self._generation[slots].astype(np.int64) + 1
        self._held -= len(slots)
        self.keys.clear(slots)
        self.dates.clear(slots)
        self.holds.difference_update(gone)
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
        for name in ("_owner", "_head"):
            setattr(self, name, getattr(self, name).copy())  # may be a read-only map


def bodies(values: Int8Array, labels: npt.NDArray[Any], scales: FloatArray | float) -> list[bytes]:
    """The bytes of each record that anything can depend on."""
    body = np.zeros(len(values), dtype=[("label", "<i4"), ("scale", "<f8"), ("values", "i1", (values.shape[1],))])
    body["label"], body["scale"], body["values"] = labels, scales, values
    return [record.tobytes() for record in body]


class NewRecords(NamedTuple):
    """Records in the form in which they are kept. They take part until the given hours."""

    vectors: Vectors
    labels: IntArray
    owners: Sequence[OwnerId]
    record_ids: RecordIds = None
    until: OneOrEach = NEVER


@dataclass(frozen=True)
class Match:
    """Which of some rows are already in the store, and what is to be done with each."""

    ids: IntArray
    """The number of the equal record that stays, for each row. -1 for rows that must be added."""
    stale: IntArray
    """The slots of records that are replaced by rows."""
    replacing: IntArray
    """The rows that replace them."""
    copies: int
    """How many rows without a record id their owner already has, byte for byte."""
    keys: KeyArray
    until: IntArray
    """The date of each row, if it must be added."""

    @property
    def fresh(self) -> IntArray:
        """The rows that must be added."""
        return np.flatnonzero(self.ids < 0)

    def pick(self, rows: IntArray, new: NewRecords) -> tuple[Vectors, IntArray, Sequence[OwnerId], KeyArray, IntArray]:
        """From all rows, those that must be added."""
        vectors, labels, owners, *_ = new
        if len(rows) == len(owners):
            return vectors, labels, owners, self.keys, self.until
        return vectors[rows], labels[rows], picked(owners, rows), self.keys[rows], self.until[rows]
