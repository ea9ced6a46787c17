"""The private records of one experiment, and what is near each query: computed once, swept many times.

A query's neighbours are found by the product's own index, at the lowest threshold asked for so far, and kept
in 8 bytes each. Every higher threshold is then a comparison.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from indknn.core.kernels import make_kernel, tau_on_grid
from indknn.core.quantise import quantise
from indknn.errors import InvalidInputError
from indknn.records.indexes import make_index
from indknn.types import GRID, FloatArray, IntArray, KernelName, Neighbours, Selection, Vectors
from indknn_lab.baselines.topk import nearest, similarities
from indknn_lab.datasets import load_features

TAU_GRID = tuple(round(0.05 * i, 2) for i in range(1, 20))
"""The paper's first sweep of the threshold: .05, .1, ..., .95."""

_MARGIN = 0.05  # scan a little lower than asked, since the search walks downwards
_LOWEST = 0.01
_BATCH = 256


@dataclass(frozen=True)
class Data:
    """Private records and public queries as the store sees them, with labels 0, 1, ..."""

    private: Vectors
    labels: IntArray
    queries: Vectors
    truth: IntArray
    n_classes: int
    X: npt.NDArray[np.float32]
    Q: npt.NDArray[np.float32]


@lru_cache(maxsize=2)
def load(path: Path, records: int | None) -> Data:
    """A feature file, cut to its first so many private records."""
    raw = load_features(path)
    X, y = raw.X_train[:records], raw.y_train[:records]
    classes, codes = np.unique(np.concatenate([raw.y_train, raw.y_test]), return_inverse=True)
    labels, truth = codes[: len(y)].astype(np.int64), codes[len(raw.y_train) :].astype(np.int64)
    return Data(quantise(X), labels, quantise(raw.X_test), truth, len(classes), X, raw.X_test)


class Field:
    """The records under one kernel and one index."""

    def __init__(self, data: Data, kernel: KernelName = "cosine", index: str = "exact", **options: Any):
        self.data = data
        self.kernel = kernel
        self._index = make_index(index, make_kernel(kernel), data.private.values.shape[1], **options)
        self._index.add(data.private)
        self._low = GRID + 1
        self._found: dict[int, tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]] = {}
        self._plain: dict[bytes, FloatArray] = {}

    def neighbours(self, rows: IntArray, tau: float) -> list[Neighbours]:
        """For each of these queries the records with κ >= tau: owner i is record i."""
        least, found = tau_on_grid(tau), []
        for row in self._ensure(rows, tau):
            slots, kappa = self._found[row]
            keep = kappa >= least
            owners = slots[keep].astype(np.int64)
            found.append(Neighbours(owners, kappa[keep].astype(np.int64), self.data.labels[owners]))
        return found

    def plain_accuracy(self, rows: IntArray) -> FloatArray:
        """How often the vote without noise or budgets is right, for every threshold of `TAU_GRID`."""
        key = rows.tobytes()
        if key not in self._plain:
            self._plain[key] = np.mean([self._plain_right(*pair) for pair in self._stream(rows)], axis=0)
        return self._plain[key]

    def plain_tau(self, rows: IntArray) -> float:
        """τ*: the threshold at which that is most often so."""
        return TAU_GRID[int(np.argmax(self.plain_accuracy(rows)))]

    def _plain_right(self, row: int, near: Selection) -> npt.NDArray[np.bool_]:
        """For every τ of the grid at once: sort the neighbours into steps of τ, sum from the top."""
        steps, c = len(TAU_GRID), self.data.n_classes
        edges = np.array([tau_on_grid(tau) for tau in TAU_GRID])
        step = np.searchsorted(edges, near.kappa, side="right") - 1
        votes = np.bincount(step * c + self.data.labels[near.slots], weights=near.kappa, minlength=steps * c)
        from_the_top = votes.reshape(steps, c)[::-1].cumsum(axis=0)[::-1]
        right: npt.NDArray[np.bool_] = from_the_top.argmax(axis=1) == self.data.truth[row]
        return right

    def _stream(self, rows: IntArray) -> Any:
        return zip(rows.tolist(), self._index.select(self.data.queries[rows], tau_on_grid(TAU_GRID[0])), strict=True)

    def _ensure(self, rows: IntArray, tau: float) -> list[int]:
        if tau_on_grid(tau) < self._low:
            self._low = tau_on_grid(max(tau - _MARGIN, min(tau, _LOWEST)))
            self._found.clear()
        wanted: list[int] = rows.tolist()
        new = np.array([row for row in wanted if row not in self._found], dtype=np.int64)
        for start in range(0, len(new), _BATCH):
            part = new[start : start + _BATCH]
            for row, near in zip(part.tolist(), self._index.select(self.data.queries[part], self._low), strict=True):
                self._found[row] = near.slots.astype(np.int32), near.kappa.astype(np.int32)
        return wanted


def released(data: Data, rows: IntArray, kernel: KernelName, tau: float) -> list[Selection]:
    """For each query the *earlier* ones of the same stream within τ: whom reuse lets vote, as the product would."""
    vectors = data.queries[rows]
    pool = make_index("exact", make_kernel(kernel), vectors.values.shape[1])
    pool.add(vectors)
    found = []
    for t, near in enumerate(pool.select(vectors, tau_on_grid(tau))):
        before = near.slots < t
        found.append(Selection(near.slots[before], near.kappa[before]))
    return found


class Orders:
    """The labels of the records nearest to each query, nearest first: all that Private-kNN needs of them."""

    def __init__(self, data: Data, length: int):
        self.data = data
        self.length = min(length, len(data.labels))
        self.votes: dict[tuple[object, ...], IntArray] = {}  # for whoever counts samples of them
        self._labels: dict[int, npt.NDArray[np.uint8]] = {}
        if data.n_classes > 256:
            raise InvalidInputError(f"at most 256 classes can be compared, got {data.n_classes}")

    def labels(self, rows: IntArray) -> Sequence[npt.NDArray[np.uint8]]:
        """For each of these queries."""
        new = np.array([row for row in rows.tolist() if row not in self._labels], dtype=np.int64)
        for row, similarity in zip(new.tolist(), similarities(self.data.queries[new], self.data.private), strict=True):
            self._labels[row] = self.data.labels[nearest(similarity, self.length)].astype(np.uint8)
        return [self._labels[row] for row in rows.tolist()]
