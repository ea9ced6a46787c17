"""The exact scan: every record is compared with every query, by integer dot products.

NumPy has no fast integer matrix product, but float32 holds every integer below 2^24. Over at most 1,040
features |dot| <= 1040·127² < 2^24, and so is every partial sum in whatever order it is taken: the float32
product of int8 values is the integer dot product, to the bit. Longer vectors are summed in pieces.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from indknn.indexes.slots import Slots
from indknn.kernels import Kernel
from indknn.types import FloatArray, Int8Array, IntArray, Selection, Vectors

EXACT_FEATURES = (1 << 24) // (127 * 127)
_ROWS = 8192  # records per tile: a float32 copy of it stays in cache
_QUERIES = 64  # queries per pass over the store


class ExactIndex:
    """Scan of all records, tile by tile, for up to 64 queries at a time."""

    def __init__(self, kernel: Kernel, n_features: int):
        self.kernel = kernel
        self.n_features = n_features
        self.slots = Slots(n_features)

    def __len__(self) -> int:
        return len(self.slots)

    def add(self, vectors: Vectors) -> IntArray:
        """Store the records; the slot of each."""
        return self.slots.add(vectors)

    def remove(self, slots: IntArray) -> None:
        """Forget the records in these slots."""
        self.slots.remove(slots)

    def select(self, queries: Vectors, tau: int) -> Iterator[Selection]:
        """The records with κ >= tau, query by query."""
        for start in range(0, len(queries), _QUERIES):
            yield from self._scan(queries[slice(start, start + _QUERIES)], tau)

    def _scan(self, queries: Vectors, tau: int) -> list[Selection]:
        found: list[list[Selection]] = [[] for _ in range(len(queries))]
        for low in range(0, self.slots.used, _ROWS):
            rows = slice(low, min(low + _ROWS, self.slots.used))
            dots = integer_dots(queries.values, self.slots.values[rows])
            for i, parts in enumerate(found):
                parts.append(self._keep(dots[i], rows, queries[slice(i, i + 1)], tau))
        return [_join(parts) for parts in found]

    def _keep(self, dot: FloatArray, rows: slice, query: Vectors, tau: int) -> Selection:
        s, root_q, scale_q = self.slots, float(query.root_norm[0]), float(query.scale[0])
        least = self.kernel.least_dot(tau, s.root_norm[rows], s.scale[rows], root_q, scale_q)
        near = np.flatnonzero((dot >= least) & s.alive[rows])
        slots = near + rows.start
        kappa = self.kernel.values(dot[near], s.root_norm[slots], s.scale[slots], root_q, scale_q)
        chosen = kappa >= tau
        return Selection(slots[chosen], kappa[chosen])


def integer_dots(queries: Int8Array, rows: Int8Array) -> FloatArray:
    """The matrix of integer dot products, as float64.

    >>> integer_dots(np.array([[1, 2]], dtype=np.int8), np.array([[3, 4]], dtype=np.int8)).tolist()
    [[11.0]]
    """
    total = np.zeros((len(queries), len(rows)))
    for low in range(0, rows.shape[1], EXACT_FEATURES):
        piece = slice(low, low + EXACT_FEATURES)
        total += queries[:, piece].astype(np.float32) @ rows[:, piece].astype(np.float32).T
    return total


def _join(parts: list[Selection]) -> Selection:
    nothing = np.zeros(0, dtype=np.int64)
    return Selection(
        np.concatenate([nothing, *(p.slots for p in parts)]),
        np.concatenate([nothing, *(p.kappa for p in parts)]),
    )
