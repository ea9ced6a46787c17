"""Growing arrays with a free list: the storage under every index.

A record keeps its slot while it lives. Adding takes freed slots first, so nothing is ever moved or rebuilt
when records come and go.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from indknn.types import BoolArray, FloatArray, Int8Array, IntArray, Vectors

_FIRST_CAPACITY = 64
_ARRAYS = ("values", "root_norm", "scale", "alive")


class Slots:
    """Quantised records by slot."""

    def __init__(self, n_features: int):
        self.values: Int8Array = np.zeros((0, n_features), dtype=np.int8)
        self.root_norm: FloatArray = np.zeros(0)
        self.scale: FloatArray = np.zeros(0)
        self.alive: BoolArray = np.zeros(0, dtype=np.bool_)
        self.used = 0  # slots below this have been handed out at least once
        self._free: list[int] = []

    def __len__(self) -> int:
        return self.used - len(self._free)

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        for name in _ARRAYS:
            setattr(self, name, getattr(self, name).copy())  # may be a read-only map

    def add(self, vectors: Vectors) -> IntArray:
        """Store the vectors; the slot of each."""
        n = len(vectors)
        recycled = [self._free.pop() for _ in range(min(n, len(self._free)))]
        fresh = n - len(recycled)
        self._reserve(self.used + fresh)
        slots = np.array([*recycled, *range(self.used, self.used + fresh)], dtype=np.int64)
        self.used += fresh
        self.values[slots] = vectors.values
        self.root_norm[slots] = vectors.root_norm
        self.scale[slots] = vectors.scale
        self.alive[slots] = True
        return slots

    def remove(self, slots: IntArray) -> None:
        """Free the slots and overwrite what was in them."""
        self.alive[slots] = False
        self.values[slots] = 0
        self.root_norm[slots] = 0.0
        self.scale[slots] = 0.0
        self._free.extend(slots.tolist())

    def _reserve(self, capacity: int) -> None:
        have = len(self.alive)
        if capacity <= have:
            return
        capacity = max(capacity, have + have // 2, _FIRST_CAPACITY)
        for name in _ARRAYS:
            old = getattr(self, name)
            new = np.zeros((capacity, *old.shape[1:]), dtype=old.dtype)
            new[: self.used] = old[: self.used]
            old[:] = 0  # the outgrown copy would otherwise keep forgotten features in freed memory
            setattr(self, name, new)
