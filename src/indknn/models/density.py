"""Estimates how many records are near a query, from earlier queries.

Queries are public. Where queries are dense, records are dense too. So K is estimated as the share of earlier queries
within τ of the new one, times a number of records that follows from released counts. This charges nobody. K only sets
the scale of the noise: a wrong estimate costs accuracy, never privacy.
"""

from __future__ import annotations

from copy import copy

import numpy as np

from indknn.core.calibrate import COUNT_EVERY, NEAR_SHARE
from indknn.core.kernels import Kernel
from indknn.core.mechanism import MIN_K
from indknn.core.quantise import integer_dots
from indknn.models.shift import LATEST, Earlier
from indknn.types import GRID, Int8Array, Vectors

_KEPT = 1024
_COMPARE_EVERY = 64  # queries
_FIRST_COUNTS = 16
_USUAL_EXCESS = 1.15


class Density:
    """How the queries so far are distributed."""

    def __init__(self, kernel: Kernel, n_features: int):
        self._kernel = kernel
        self._pool = Vectors(np.zeros((0, n_features), dtype=np.int8), np.zeros(0), np.zeros(0))
        self._seen = 0
        self._shares = 0.0
        self._counts = 0.0
        self._asked = 0
        self.usual_share = NEAR_SHARE  # the share that τ was chosen for
        self.known: float | None = None  # how many records there are, if a count was released
        self._marked: Int8Array | None = None
        self._earlier: Earlier | None = None
        self._compared = (0, False)

    def twin(self) -> Density:
        """A copy."""
        other, pool = copy(self), self._pool
        other._pool = Vectors(pool.values.copy(), pool.root_norm.copy(), pool.scale.copy())
        return other

    def add(self, query: Vectors) -> None:
        """Add a query that was asked. The latest thousand are kept."""
        at = self._seen % _KEPT
        if at == len(self._pool.values):
            self._pool = _longer(self._pool)
        self._pool.values[at], self._pool.root_norm[at] = query.values[0], query.root_norm[0]
        self._pool.scale[at] = query.scale[0]
        self._seen += 1

    def queries(self) -> Vectors:
        """The queries that are kept."""
        return self._pool[slice(0, min(self._seen, _KEPT))]

    def mark(self) -> None:
        """From now on, compare later queries with the queries so far."""
        self._marked = self._latest(_KEPT, self._seen) if self._seen >= _KEPT else None
        self._earlier, self._compared = None, (self._seen // _COMPARE_EVERY, False)

    def unlike_marked(self) -> bool:
        """Whether the latest queries are unlike those before the mark. Compared at fixed numbers of queries."""
        turn = self._seen // _COMPARE_EVERY
        if self._marked is not None and turn != self._compared[0]:
            self._earlier = self._earlier or Earlier.of(self._marked)
            self._compared = turn, self._earlier.unlike(self._latest(LATEST, turn * _COMPARE_EVERY))
        return self._compared[1]

    def _latest(self, n: int, end: int) -> Int8Array:
        """The n queries before this number, oldest first."""
        rows: Int8Array = self._pool.values[np.arange(end - n, end) % _KEPT]
        return rows

    def look(self, query: Vectors, tau: int) -> tuple[float, float]:
        """The share of earlier queries near this one (never quite zero), and their mean κ."""
        m, pool = min(self._seen, _KEPT), self._pool
        if not m:
            return self.usual_share, min(1.0, tau / GRID * _USUAL_EXCESS)
        dots = integer_dots(query.values, pool.values[:m])[0]
        root, scale = float(query.root_norm[0]), float(query.scale[0])
        every = self._kernel.values(dots, pool.root_norm[:m], pool.scale[:m], root, scale)
        near = every[every >= tau]
        kappa = (float(near.sum()) + min(GRID, tau * _USUAL_EXCESS)) / (len(near) + 1) / GRID
        return (len(near) + 1.0) / (m + 1.0 / self.usual_share), kappa

    @property
    def count_due(self) -> bool:
        """Whether the next answer should release its count. The first answers do, and later one in every few."""
        return self.known is None and (self._asked < _FIRST_COUNTS or self._asked % COUNT_EVERY == 0)

    def add_count(self, share: float, count: int) -> None:
        """Note that people were asked. `count` is their noisy count in grid units, 0 if none was released."""
        self._asked += 1
        if count:
            self._shares, self._counts = self._shares + share, self._counts + count / GRID

    @property
    def records(self) -> float:
        """An estimate of the number of records, at least a few."""
        told = self._counts / self._shares if self._shares else 0.0
        return max(told if self.known is None else self.known, MIN_K)

    def expected(self, share: float) -> int:
        """The estimate of K, in grid units."""
        return int(np.ceil(max(self.records * share, MIN_K) * GRID))


def _longer(pool: Vectors) -> Vectors:
    """The same rows, with room for as many again."""
    room = max(64, len(pool.values))
    values = np.concatenate([pool.values, np.zeros((room, pool.values.shape[1]), dtype=np.int8)])
    return Vectors(values, np.append(pool.root_norm, np.ones(room)), np.append(pool.scale, np.ones(room)))
