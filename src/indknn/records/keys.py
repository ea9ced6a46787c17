"""Record ids that callers choose. Their keyed hashes are kept by record slot: 16 bytes each, zeros if there is none."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from indknn.core.inputs import picked
from indknn.types import IntArray, OwnerId, Vectors

KeyArray: TypeAlias = npt.NDArray[np.uint64]
"""Two numbers per record: the halves of a hash of 16 bytes."""
RecordIds: TypeAlias = Sequence[str | None] | None
"""The ids that a caller chose for some rows, if any."""
BLOCK = 64
"""Slots per row in a store file: 1 KiB."""


@dataclass(frozen=True)
class Match:
    """Which of some rows are already in the store, and what is to be done with each."""

    ids: IntArray
    """The number of the equal record that stays, for each row. -1 for rows that must be added."""
    stale: IntArray
    """The slots of records that are replaced by rows."""
    copies: int
    """How many rows without a record id their owner already has, byte for byte."""
    keys: KeyArray

    @property
    def fresh(self) -> IntArray:
        """The rows that must be added."""
        return np.flatnonzero(self.ids < 0)

    def pick(
        self, vectors: Vectors, labels: IntArray, owners: Sequence[OwnerId]
    ) -> tuple[Vectors, IntArray, Sequence[OwnerId], KeyArray]:
        """From all rows, those that must be added."""
        rows = self.fresh
        if len(rows) == len(owners):
            return vectors, labels, owners, self.keys
        return vectors[rows], labels[rows], picked(owners, rows), self.keys[rows]


class RecordKeys:
    """Which record has which hash. It takes no memory until a record has one.

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

    def blocks_of(self, slots: IntArray) -> dict[int, bytes]:
        """The blocks that contain these slots, as they are written to a file."""
        numbers = np.unique(slots[slots < len(self._rows)] // BLOCK).tolist()
        return {i: self._rows[i * BLOCK : (i + 1) * BLOCK].astype("<u8").tobytes() for i in numbers}

    def restore(self, block: int, body: bytes) -> None:
        """Restore a block that was written to a file."""
        keys = np.frombuffer(body, "<u8").astype(np.uint64).reshape(-1, 2)
        self.set(np.arange(block * BLOCK, block * BLOCK + len(keys)), keys)
