"""What is kept about each record by its slot: numbers in few bytes, dates, and hashes of ids.

A date says until when a record takes part, in whole hours since 1970, so that it fits into 32 bits. Whether a record
takes part follows from its own date and from the clock, which is public (rule 1). It does not matter when the bytes of
an expired record are erased.
"""

from __future__ import annotations

from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from indknn.core.inputs import DUE, NEVER
from indknn.types import BoolArray, IntArray

KeyArray: TypeAlias = npt.NDArray[np.uint64]
"""Two numbers per record: the halves of a hash of 16 bytes."""
BLOCK = 64
"""Slots per row in a store file: 1 KiB."""
STEPS: Final = {"day": 1, "week": 7, "month": 31, "year": 366}
"""The steps in which a curator is told what expires when, in days."""
_HELD: Final = 0
"""In place of the date of a record under a hold. It takes no part, and it is not due."""


class BySlot:
    """Numbers of at most 32 bits. A slot that was never set has the number `blank`.

    >>> column = BySlot(-1)
    >>> column.expect(1000)
    >>> column[np.array([3, 999])].tolist(), column.nbytes
    ([-1, -1], 0)
    >>> column[np.array([3])] = 9
    >>> column[np.array([3, 999])].tolist(), column.nbytes
    ([9, -1], 1000)
    """

    def __init__(self, blank: int):
        self.blank = blank
        self._capacity = 0
        self._kept: npt.NDArray[Any] = np.zeros(0, dtype=np.int8)  # of no length while all are blank

    def __getitem__(self, slots: IntArray | int) -> npt.NDArray[np.int32]:
        if len(self._kept):
            return np.asarray(self._kept[slots])
        return np.full(np.shape(slots), self.blank, dtype=np.int32)

    def __setitem__(self, slots: Any, numbers: Any) -> None:
        least, most = np.min(numbers, initial=self.blank), np.max(numbers, initial=self.blank)
        if not len(self._kept):
            if least == most:
                return
            self._kept = np.full(self._capacity, self.blank, dtype=_fitting(least, most))
        elif not np.can_cast(kind := _fitting(least, most), self._kept.dtype):
            self._kept = self._kept.astype(kind)
        self._kept[slots] = numbers

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._kept = self._kept.copy()  # may be a read-only map

    @property
    def raw(self) -> tuple[npt.NDArray[Any], int]:
        """All numbers as C reads them, and how many bytes each has."""
        return self._kept, self._kept.itemsize

    @property
    def used(self) -> bool:
        """Whether any number was ever set that is not the blank."""
        return bool(len(self._kept))

    @property
    def nbytes(self) -> int:
        """How many bytes it takes."""
        return self._kept.nbytes

    def where(self, wanted: Any) -> npt.NDArray[np.int64]:
        """The slots whose numbers are wanted, which the blank is not."""
        return np.flatnonzero(wanted(self._kept)) if len(self._kept) else np.zeros(0, dtype=np.int64)

    def expect(self, capacity: int) -> None:
        """Have room for this many slots."""
        if capacity > self._capacity:
            self._capacity += max(capacity - self._capacity, self._capacity // 2)
            if len(self._kept):
                extra = np.full(self._capacity - len(self._kept), self.blank, dtype=self._kept.dtype)
                self._kept = np.concatenate([self._kept, extra])


def _fitting(least: Any, most: Any) -> type[np.signedinteger[Any]]:
    """The narrowest type for these numbers."""
    kinds = (np.int8, np.int16, np.int32)
    return next(kind for kind in kinds if np.iinfo(kind).min <= least and most <= np.iinfo(kind).max)


class Dates:
    """The dates of records, by record slot.

    >>> dates = Dates()
    >>> dates.set(np.arange(3), np.array([NEVER, 500, 700]))
    >>> dates.taking_part(np.arange(3), hour=500).tolist(), dates.due(500, most=9).tolist()
    ([True, False, True], [1])
    >>> dates.hold(np.array([1]))
    >>> dates.due(600, most=9).tolist(), dates.of(np.array([1])).tolist()
    ([], [500])
    """

    def __init__(self) -> None:
        self._until = BySlot(NEVER)
        self._kept: dict[int, int] = {}  # the dates of records under a hold
        self._looked = -1  # the hour at which `_todo` was made
        self._todo: IntArray = np.zeros(0, dtype=np.int64)

    def expect(self, records: int) -> None:
        """Reserve room for this many records."""
        self._until.expect(records)

    @property
    def raw(self) -> tuple[npt.NDArray[Any], int]:
        """All dates as C reads them: see `Column`."""
        return self._until.raw

    @property
    def used(self) -> bool:
        """Whether any record ever had a date."""
        return self._until.used

    def set(self, slots: IntArray, until: IntArray | int) -> None:
        """Set the dates of records that are not under a hold."""
        self.expect(int(slots.max(initial=-1)) + 1)
        self._until[slots] = until
        if np.min(until, initial=NEVER) <= self._looked:
            self._looked = -1

    def clear(self, slots: IntArray) -> None:
        """There are no records in these slots any more."""
        self._until[slots] = NEVER
        if self._kept:
            for slot in slots.tolist():
                self._kept.pop(slot, None)

    def taking_part(self, slots: IntArray, hour: int) -> BoolArray:
        """Whether each of these records takes part at this hour."""
        result: BoolArray = self._until[slots] > hour
        return result

    def until(self, slots: IntArray) -> IntArray:
        """Until when each takes part. A record under a hold takes no part."""
        return self._until[slots].astype(np.int64)

    def of(self, slots: IntArray) -> IntArray:
        """The dates of these records, whether or not they are under a hold."""
        dates = self.until(slots)
        for i in np.flatnonzero(dates == _HELD).tolist():
            dates[i] = self._kept[int(slots[i])]
        return dates

    def due(self, hour: int, most: int) -> IntArray:
        """At most so many records that have expired and are still here. All records are looked at once per hour."""
        if self._looked != hour:
            expired = self._until.where(lambda until: (until <= hour) & (until != _HELD))
            self._looked, self._todo = hour, expired
        while len(self._todo):
            slots, self._todo = self._todo[:most], self._todo[most:]
            until = self._until[slots]
            if len(still := slots[(until <= hour) & (until != _HELD)]):  # some may be gone, or under a hold by now
                return np.asarray(still)
        return self._todo

    def ahead(self, slots: IntArray, hour: int) -> dict[str, int]:
        """How many of these records have expired, will expire within which time from now, or never do."""
        until = self.of(slots)
        dated = until[until < NEVER] - hour
        counts = np.histogram(dated, [-(1 << 32), 1, *(24 * days + 1 for days in STEPS.values()), 1 << 32])[0].tolist()
        return dict(zip(("expired", *STEPS, "later"), counts, strict=True)) | {"never": len(until) - len(dated)}

    def hold(self, slots: IntArray) -> None:
        """Put records under a hold. Those that are under one stay so."""
        self._kept |= zip(slots.tolist(), self.of(slots).tolist(), strict=True)
        self._until[slots] = _HELD

    def end_hold(self, slots: IntArray) -> None:
        """Give records that were under a hold their dates again."""
        self.set(slots, np.array([self._kept.pop(slot) for slot in slots.tolist()], dtype=np.int64))

    def end_later(self, slots: IntArray) -> None:
        """Make records under a hold due as soon as it ends."""
        self._kept |= dict.fromkeys(slots.tolist(), DUE)


class RecordKeys:
    """Record ids that callers choose, as keyed hashes by record slot: 16 bytes each, zeros if there is none.

    It takes no memory until a record has one.

    >>> keys = RecordKeys()
    >>> keys.set(np.array([5]), np.array([[1, 2]], dtype=np.uint64))
    >>> keys.find(np.array([[1, 2], [1, 3], [0, 0]], dtype=np.uint64)).tolist()
    [5, -1, -1]
    """

    def __init__(self) -> None:
        self._rows: KeyArray = np.zeros((0, 2), dtype=np.uint64)

    def __setstate__(self, state: dict[str, KeyArray]) -> None:
        self._rows = state["_rows"].copy()  # may be a read-only map

    def set(self, slots: IntArray, keys: KeyArray) -> None:
        """Set the hashes of the records in these slots."""
        need, have = int(slots.max(initial=-1)) + 1, len(self._rows)
        if need > have:
            blocks = max(-(-need // BLOCK), have * 3 // 2 // BLOCK)
            self._rows = np.concatenate([self._rows, np.zeros((blocks * BLOCK - have, 2), dtype=np.uint64)])
        self._rows[slots] = keys

    def clear(self, slots: IntArray) -> None:
        """Remove the hashes of these records."""
        self._rows[slots[slots < len(self._rows)]] = 0

    def find(self, keys: KeyArray) -> IntArray:
        """The slot that has each of these hashes, or -1."""
        near = np.flatnonzero(np.isin(self._rows[:, 0], keys[:, 0]) & self._rows.any(axis=1))
        slots = {self._rows[slot].tobytes(): slot for slot in near.tolist()}
        return np.array([slots.get(key.tobytes(), -1) for key in keys], dtype=np.int64)

    def named(self) -> IntArray:
        """The slots of all records that have a hash."""
        return np.flatnonzero(self._rows.any(axis=1))

    def blocks_of(self, slots: IntArray) -> dict[int, bytes]:
        """The blocks that contain these slots, as they are written to a file."""
        numbers = np.unique(slots[slots < len(self._rows)] // BLOCK).tolist()
        return {i: self._rows[i * BLOCK : (i + 1) * BLOCK].astype("<u8").tobytes() for i in numbers}

    def restore(self, block: int, body: bytes) -> None:
        """Restore a block that was written to a file."""
        keys = np.frombuffer(body, "<u8").astype(np.uint64).reshape(-1, 2)
        self.set(np.arange(block * BLOCK, block * BLOCK + len(keys)), keys)
