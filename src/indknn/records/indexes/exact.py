"""The exact scan: every record is compared with every query, by integer dot products.

Its speed is limited by reading memory, so it reads each record once for up to 64 queries. The scanner's bound lets a
few records too many pass. The selection is decided here, by the kernel's value on the grid.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np

from indknn.core.kernels import Kernel
from indknn.records.indexes.scan import MAX_QUERIES, Found, Rows, make_scanner
from indknn.records.slots import NO_SCALES, Slots
from indknn.types import Float32Array, FloatArray, IntArray, Selection, Vectors

Scan: TypeAlias = Callable[[Rows, Float32Array, Vectors, int], list[Found]]
_SLACK = 2.0**-20  # float32 rounds four times on the way to the bound, each by at most 2^-24


class ExactIndex:
    """Scan of all records, for up to 64 queries at a time.

    `scanner` is 'auto', 'native' or 'numpy'. `threads` limits the cores of one scan, None for all.
    """

    def __init__(self, kernel: Kernel, n_features: int, *, scanner: str = "auto", threads: int | None = None):
        self.kernel = kernel
        self.n_features = n_features
        self.scanner, self.threads = make_scanner(scanner, threads), threads
        self.slots = Slots(n_features, with_scale=kernel.uses_lengths)

    def __len__(self) -> int:
        return len(self.slots)

    def add(self, vectors: Vectors) -> IntArray:
        """Store the records; the slot of each."""
        return self.slots.add(vectors)

    def remove(self, slots: IntArray) -> None:
        """Forget the records in these slots."""
        self.slots.remove(slots)

    def search(self, queries: Vectors, tau: int) -> list[Selection]:
        """The records with κ >= tau, query by query."""
        return self._search(queries, tau, self._scan)

    def _search(self, queries: Vectors, tau: int, scan: Scan) -> list[Selection]:
        step, n = 1 if self.kernel.uses_lengths else MAX_QUERIES, len(queries.values)
        found: list[Selection] = []
        for start in range(0, n, step):
            block = queries if n <= step else queries[slice(start, start + step)]
            near = scan(*self._bounded(block, tau), block, tau)
            found += [self._decide(some, block, i, tau) for i, some in enumerate(near)]
        return found

    def _scan(self, rows: Rows, factors: Float32Array, block: Vectors, tau: int) -> list[Found]:
        """The records that may have κ >= tau, and perhaps a few more."""
        return self.scanner.scan(rows, block.values, factors)

    def _bounded(self, block: Vectors, tau: int) -> tuple[Rows, Float32Array]:
        """Row i may have κ >= tau with query j only if its dot product reaches roots[i] * factors[j]."""
        s = self.slots
        if self.kernel.uses_lengths:
            return Rows(s.values, self._bounds(block, tau), s.used), np.ones(1, dtype=np.float32)
        return Rows(s.values, s.roots, s.used), self._factors(block, tau)

    def _factors(self, block: Vectors, tau: int) -> Float32Array:
        """For each query the factor by which |x| bounds the dot products that can reach tau."""
        least = block.root_norm * self.kernel.least_cosine(tau)
        return (least - np.abs(least) * _SLACK).astype(np.float32)

    def _bounds(self, query: Vectors, tau: int) -> Float32Array:
        """For a kernel that uses lengths: the bound of each record. NaN if there is none."""
        s, every = self.slots, slice(0, self.slots.used)
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):  # free slots have scale 0
            root_q, scale_q = float(query.root_norm[0]), float(query.scale[0])
            least = self.kernel.least_dot(tau, s.root_norm(every), s.scales(every), root_q, scale_q)
            bounds = (least - np.abs(least) * _SLACK).astype(np.float32)
        bounds[np.isnan(s.roots[every])] = np.nan
        return bounds

    def _decide(self, found: Found, block: Vectors, i: int, tau: int) -> Selection:
        s, slots = self.slots, found.slots
        root_q, scale_q = float(block.root_norm[i]), float(block.scale[i])
        dots = found.dots.astype(np.float64)
        roots: FloatArray = np.sqrt(s.squared[slots], dtype=np.float64)
        scales = s.scale[slots, 0] if s.with_scale else NO_SCALES
        kappa = self.kernel.values(dots, roots, scales, root_q, scale_q)
        chosen = kappa >= tau
        return Selection(slots[chosen], kappa[chosen])
