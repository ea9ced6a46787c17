"""Growing arrays with a list of free slots: the storage under every index.

A record keeps its slot while it exists. New records take freed slots first, so nothing is moved or rebuilt when records
come and go. Besides its features, a record takes 8 bytes here. |x|² is kept as an integer, from which |x| is computed
exactly for the few records that a query comes near. |x| is also kept in float32 for the scan, where NaN marks a free
slot. Kernels that use lengths also need the scale, and hashing indexes a code.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from indknn.core.quantise import ALIGNED, aligned_zeros
from indknn.errors import InvalidInputError
from indknn.records.indexes.scan import MAX_FEATURES, CodeArray, Int32Array, Rows
from indknn.types import BoolArray, Float32Array, FloatArray, Int8Array, IntArray, Vectors

_FIRST_CAPACITY = 64
_MANY_BYTES = 1 << 24
_ARRAYS = ("values", "squared", "roots", "scale", "codes")
NO_SCALES: FloatArray = np.ones(1)  # broadcasts to any length


class FreeSlots:
    """Assigns slots. Freed ones are taken first, the latest first."""

    def __init__(self) -> None:
        self.used = 0  # all slots below this have been used at least once
        self._free: list[int] = []

    def __len__(self) -> int:
        return self.used - len(self._free)

    def take(self, n: int) -> IntArray:
        """A slot for each of n records."""
        recycled = [self._free.pop() for _ in range(min(n, len(self._free)))]
        first, self.used = self.used, self.used + n - len(recycled)
        if not recycled:
            return np.arange(first, self.used)
        return np.array([*recycled, *range(first, self.used)], dtype=np.int64)

    def give_back(self, slots: IntArray) -> None:
        """Nothing is in these slots any more."""
        self._free.extend(slots.tolist())


class Slots(FreeSlots):
    """Quantised records by slot.

    >>> slots = Slots(2)
    >>> slots.add(Vectors(np.array([[3, 4]], dtype=np.int8), np.array([5.0]), np.array([1.0]))).tolist()
    [0]
    >>> slots.root_norm(np.array([0])).tolist()
    [5.0]
    """

    def __init__(self, n_features: int, *, with_scale: bool = False, code_bytes: int = 0):
        if not 1 <= n_features <= MAX_FEATURES:
            raise InvalidInputError(f"n_features must be in [1, {MAX_FEATURES}], got {n_features!r}")
        super().__init__()
        self.with_scale = with_scale
        self.values: Int8Array = np.zeros((0, n_features), dtype=np.int8)
        self.squared: Int32Array = np.zeros(0, dtype=np.int32)
        self.roots: Float32Array = np.zeros(0, dtype=np.float32)
        self.scale: FloatArray = np.zeros((0, int(with_scale)))
        self.codes: CodeArray = np.zeros((0, code_bytes), dtype=np.uint8)

    @property
    def alive(self) -> BoolArray:
        """Which slots hold a record."""
        result: BoolArray = ~np.isnan(self.roots[: self.used])
        return result

    @property
    def store(self) -> Rows:
        """The arrays that a scan reads."""
        return Rows(self.values, self.roots, self.used)

    @property
    def bytes_per_slot(self) -> int:
        """How many bytes a record takes, including its features."""
        return sum(getattr(self, name)[:0].itemsize * _width(getattr(self, name)) for name in _ARRAYS)

    def root_norm(self, slots: IntArray | slice) -> FloatArray:
        """|x| of these records, exactly as it was when they were added."""
        result: FloatArray = np.sqrt(self.squared[slots], dtype=np.float64)
        return result

    def scales(self, slots: IntArray | slice) -> FloatArray:
        """The scales of these records, if the kernel uses them."""
        return self.scale[slots, 0] if self.with_scale else NO_SCALES

    def add(self, vectors: Vectors, codes: CodeArray | None = None) -> IntArray:
        """Store the vectors and return the slot of each."""
        before, values = self.used, vectors.values
        if vectors.spare and not before and values.nbytes >= _MANY_BYTES and values.ctypes.data % ALIGNED == 0:
            self.values = values  # a copy would take as much memory again
        slots = self.take(len(vectors))
        self._reserve(self.used, before)
        fresh = self.used - before == len(slots)
        where: slice | IntArray = slice(before, self.used) if fresh else slots
        if self.values is not values:
            self.values[where] = values
        self.squared[where] = np.rint(vectors.root_norm * vectors.root_norm)  # exact: a root of an integer
        self.roots[where] = vectors.root_norm
        if self.with_scale:
            self.scale[where, 0] = vectors.scale
        if codes is not None:
            self.codes[where] = codes
        return slots

    def expect(self, records: int) -> None:
        """Reserve room for this many. Pages that are never written take no memory."""
        self._reserve(records, self.used)

    def remove(self, slots: IntArray) -> None:
        """Free the slots and overwrite their contents."""
        where = int(slots[0]) if len(slots) == 1 else slots  # one index is much quicker than a list of one
        self.values[where] = 0
        self.squared[where] = 0
        self.roots[where] = np.nan
        self.scale[where] = 0.0
        self.codes[where] = 0
        self.give_back(slots)

    def _reserve(self, capacity: int, held: int) -> None:
        have = len(self.squared)
        if capacity <= have:
            return
        capacity = max(capacity, have + have // 2, _FIRST_CAPACITY)
        for name in _ARRAYS:
            old = getattr(self, name)
            if len(old) == capacity:  # just taken over
                continue
            new = aligned_zeros((capacity, *old.shape[1:]), old.dtype)
            new[:held] = old[:held]
            old[:] = 0  # the old copy would otherwise keep forgotten features in freed memory
            setattr(self, name, new)

    def __getstate__(self) -> dict[str, Any]:
        state = self.__dict__.copy()
        state.update({name: state[name][: self.used] for name in _ARRAYS})
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        for name in _ARRAYS:  # these may be read-only maps, and not aligned
            new = aligned_zeros(state[name].shape, state[name].dtype)
            new[:] = state[name]
            setattr(self, name, new)


def _width(array: npt.NDArray[Any]) -> int:
    return int(np.prod(array.shape[1:]))
