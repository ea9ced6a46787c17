"""How many records are near a query, foretold from the queries before it.

Queries are public. Where they are dense, records are too, so the share of earlier queries within τ of a new one,
times what released counts say it stands for, foretells K without charging anybody. K only sets the scale of the
noise: a wrong one costs accuracy, never privacy.
"""

from __future__ import annotations

import numpy as np

from indknn.core.calibrate import COUNT_EVERY, NEAR_SHARE
from indknn.core.mechanism import MIN_K
from indknn.records.indexes import Index
from indknn.types import GRID, Vectors

_KEPT = 4096
_FIRST = 16
_USUAL_EXCESS = 1.15


class Density:
    """The spread of the queries so far."""

    def __init__(self, pool: Index):
        self._pool = pool
        self._shares = 0.0
        self._counts = 0.0
        self._asked = 0
        self.known: float | None = None  # how many records there are, where statistics tell

    def add(self, query: Vectors) -> None:
        """A query that was asked; the first few thousand are remembered."""
        if len(self._pool) < _KEPT:
            self._pool.add(query)

    def queries(self) -> Vectors:
        """Those that are remembered."""
        s = self._pool.slots
        scale = s.scales(slice(0, s.used))
        return Vectors(s.values[: s.used], s.root_norm(slice(0, s.used)), np.broadcast_to(scale, s.used))

    def look(self, query: Vectors, tau: int) -> tuple[float, float]:
        """The share of earlier queries near this one (at least a little above none), and their mean κ."""
        m = len(self._pool)
        if not m:
            return NEAR_SHARE, min(1.0, tau / GRID * _USUAL_EXCESS)
        (near,) = self._pool.select(query, tau)
        kappa = (float(near.kappa.sum()) + min(GRID, tau * _USUAL_EXCESS)) / (len(near.kappa) + 1) / GRID
        return (len(near.slots) + 1.0) / (m + 1.0 / NEAR_SHARE), kappa

    @property
    def count_due(self) -> bool:
        """Whether the next answer should release its count: the first ones, then one of every few."""
        return self.known is None and (self._asked < _FIRST or self._asked % COUNT_EVERY == 0)

    def counted(self, share: float, count: int) -> None:
        """An answer asked; its noisy count in grid units, 0 where none was released."""
        self._asked += 1
        if count:
            self._shares, self._counts = self._shares + share, self._counts + count / GRID

    @property
    def records(self) -> float:
        """About how many records there are. At least a few."""
        told = self._counts / self._shares if self._shares else 0.0
        return max(told if self.known is None else self.known, MIN_K)

    def expected(self, share: float) -> int:
        """K in grid units."""
        return int(np.ceil(max(self.records * share, MIN_K) * GRID))
