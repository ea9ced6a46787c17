"""The streams of the endless items: private records, queries, and who leaves or arrives. Independent of all answers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from indknn.types import IntArray
from indknn_lab.experiments.data import Data
from indknn_lab.experiments.units import Part, seed_for

EVERY = 100
"""The number of queries between two changes."""
KEPT = 0.4
"""The share of private records that stay private in a long stream. The others become queries."""
JITTER = 0.1
"""If there are too few distinct queries, more are made by adding a random vector of this length to a unit query."""
_RESERVE, _HELD_OUT, _MOST_HELD_OUT = 0.02, 0.1, 1500

Rows = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Change:
    """Before query `at`, some records leave and others arrive. They are row numbers of the stream's X."""

    at: int
    leave: IntArray
    arrive: IntArray


@dataclass(frozen=True)
class Stream:
    """The records, of which `first` are present from the beginning, the queries in order, and the changes in order."""

    X: Rows
    y: IntArray
    first: IntArray
    Q: Rows
    truth: IntArray
    n_classes: int
    changes: list[Change] = field(default_factory=list)

    def present(self, at: int) -> IntArray:
        """The rows that are present when query `at` is asked."""
        there = set(self.first.tolist())
        for change in self.changes:
            if change.at <= at:
                there.difference_update(change.leave.tolist())
                there.update(change.arrive.tolist())
        return np.array(sorted(there), dtype=np.int64)

    def as_data(self, rows: IntArray, Q: Rows, truth: IntArray) -> Data:
        """These records and queries in the form that the other experiments use."""
        return Data.of(self.X[rows], self.y[rows], Q, truth, self.n_classes)

    def held_out(self, most: int = _MOST_HELD_OUT) -> Data:
        """The data for tuning: a tenth of the private records, at most `most`, become queries to the others."""
        order = _rng("validation").permutation(self.first)
        n = min(int(_HELD_OUT * len(order)), most)
        return self.as_data(order[n:], self.X[order[:n]], self.y[order[:n]])


def plain_stream(data: Data, T: int, seed: int) -> Stream:
    """All private records, and the first T test queries in an order that depends on the seed."""
    order = _rng("figures", seed).permutation(min(T, len(data.truth)))
    return Stream(data.X, data.labels, np.arange(len(data.X)), data.Q[order], data.truth[order], data.n_classes)


def distinct(records: int, queries: int) -> int:
    """How many distinct queries a long stream has."""
    return records - int(KEPT * records) + queries


def long_stream(data: Data, T: int, seed: int) -> Stream:
    """A long stream. A part of the records stays private. The others and the test queries become queries.

    When these are used up, they are asked again with small random changes.
    """
    split = _rng("stream").permutation(len(data.X))  # the same for every seed, so that tuning is shared
    private, asking = np.split(split, [int(KEPT * len(data.X))])
    Q = np.concatenate([data.X[asking], data.Q])
    truth = np.concatenate([data.labels[asking], data.truth])
    rng = _rng("stream", seed)
    order = np.concatenate([rng.permutation(len(Q)) for _ in range(-(-T // len(Q)))])[:T]
    asked = Q[order]
    again = np.arange(T) >= len(Q)
    length = np.linalg.norm(asked[again], axis=1, keepdims=True) * (JITTER / np.sqrt(Q.shape[1]))
    asked[again] += (length * rng.standard_normal(asked[again].shape)).astype(np.float32)
    return Stream(data.X[private], data.labels[private], np.arange(len(private)), asked, truth[order], data.n_classes)


def changing_stream(data: Data, T: int, seed: int) -> Stream:
    """Every `EVERY` queries, one record leaves or one arrives, alternately."""
    rng = _rng("change", seed)
    first, reserve = _with_reserve(rng.permutation(len(data.X)).astype(np.int64), T)
    asked = rng.permutation(min(T, len(data.truth)))
    changes = _changes(rng, len(asked), first, reserve)
    return Stream(data.X, data.labels, first, data.Q[asked], data.truth[asked], data.n_classes, changes)


def drifting_stream(data: Data, T: int, seed: int) -> Stream:
    """The same, but records and queries of some classes come only at half time. These records come in one batch."""
    rng = _rng("drift", seed)
    late = np.arange(data.n_classes - max(data.n_classes // 4, 1), data.n_classes)
    order = rng.permutation(len(data.X)).astype(np.int64)
    is_late = np.isin(data.labels[order], late)
    batch = order[is_late]
    first, reserve = _with_reserve(order[~is_late], T)
    asked = rng.permutation(min(T, len(data.truth)))
    half = len(asked) // 2 - len(asked) // 2 % EVERY
    early = asked[~np.isin(data.truth[asked], late)][:half]
    asked = np.concatenate([early, rng.permutation(np.setdiff1d(asked, early))])
    changes = _changes(rng, len(asked), first, reserve)
    changes = [Change(c.at, c.leave, np.append(c.arrive, batch)) if c.at == len(early) else c for c in changes]
    return Stream(data.X, data.labels, first, data.Q[asked], data.truth[asked], data.n_classes, changes)


STREAMS: dict[Part, Callable[[Data, int, int], Stream]] = {
    "figures": plain_stream,
    "streams": long_stream,
    "change": changing_stream,
    "drift": drifting_stream,
}


def _with_reserve(order: IntArray, T: int) -> tuple[IntArray, IntArray]:
    """The rows that are present from the beginning, and those that arrive later."""
    n = max(int(_RESERVE * len(order)), T // EVERY)
    return order[n:], order[:n]


def _changes(rng: np.random.Generator, T: int, first: IntArray, reserve: IntArray) -> list[Change]:
    leaving, none = rng.permutation(first), np.zeros(0, dtype=np.int64)
    found = []
    for i, at in enumerate(range(EVERY, T, EVERY)):
        one = slice(i // 2, i // 2 + 1)
        found.append(Change(at, leaving[one], none) if i % 2 == 0 else Change(at, none, reserve[one]))
    return found


def _rng(*words: object) -> np.random.Generator:
    return np.random.default_rng(seed_for("endless", *words))
