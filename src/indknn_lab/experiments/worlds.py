"""Who is private and who asks, in the endless items. Nothing here looks at an answer."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from indknn.core.quantise import quantise
from indknn.types import IntArray
from indknn_lab.experiments.fields import Data
from indknn_lab.experiments.seeds import seed as seed_of

EVERY = 100
"""Queries between two changes."""
KEPT = 0.4
"""The share of private records that stay private where the others become queries."""
JITTER = 0.1
"""The length of what is added to a unit query to make another one of it, where distinct ones have run out."""
_RESERVE = 0.02
_HELD_OUT, _MOST_HELD_OUT = 0.1, 1500

Rows = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Change:
    """Before query `at`: these records leave, those arrive. Numbers of rows of the world's X."""

    at: int
    leave: IntArray
    arrive: IntArray


@dataclass(frozen=True)
class World:
    """Records, of which `first` are there from the beginning; queries in order; changes in order."""

    X: Rows
    y: IntArray
    first: IntArray
    Q: Rows
    truth: IntArray
    n_classes: int
    changes: list[Change] = field(default_factory=list)

    def present(self, at: int) -> IntArray:
        """The rows that are there when query `at` is asked."""
        there = set(self.first.tolist())
        for change in self.changes:
            if change.at <= at:
                there.difference_update(change.leave.tolist())
                there.update(change.arrive.tolist())
        return np.array(sorted(there), dtype=np.int64)


def figures(data: Data, T: int, seed: int) -> World:
    """All private records, and the first T test queries in an order of the seed's own."""
    order = _rng("figures", seed).permutation(min(T, len(data.truth)))
    return World(data.X, data.labels, np.arange(len(data.X)), data.Q[order], data.truth[order], data.n_classes)


def kept(records: int) -> int:
    """How many records stay private in a long stream."""
    return int(KEPT * records)


def distinct(records: int, queries: int) -> int:
    """How many distinct queries a long stream has."""
    return records - kept(records) + queries


def stream(data: Data, T: int, seed: int) -> World:
    """A part of the records stays private; the others and the test queries ask, then ask again, slightly moved."""
    split = _rng("stream").permutation(len(data.X))  # the same for every seed: so is what was tuned on it
    private, asking = split[: kept(len(data.X))], split[kept(len(data.X)) :]
    Q = np.concatenate([data.X[asking], data.Q])
    truth = np.concatenate([data.labels[asking], data.truth])
    rng = _rng("stream", seed)
    rounds = [rng.permutation(len(Q)) for _ in range(-(-T // len(Q)))]
    order = np.concatenate(rounds)[:T]
    asked = Q[order]
    again = np.arange(T) >= len(Q)
    length = np.linalg.norm(asked[again], axis=1, keepdims=True) * (JITTER / np.sqrt(Q.shape[1]))
    asked[again] += (length * rng.standard_normal(asked[again].shape)).astype(np.float32)
    return World(data.X[private], data.labels[private], np.arange(len(private)), asked, truth[order], data.n_classes)


def changing(data: Data, T: int, seed: int) -> World:
    """Every `EVERY` queries one record leaves or one arrives, in turn."""
    rng = _rng("change", seed)
    order = rng.permutation(len(data.X)).astype(np.int64)
    reserve = max(int(_RESERVE * len(order)), T // EVERY)
    first, rest = order[reserve:], order[:reserve]
    asked = rng.permutation(min(T, len(data.truth)))
    changes = _changes(rng, len(asked), first, rest)
    return World(data.X, data.labels, first, data.Q[asked], data.truth[asked], data.n_classes, changes)


def drifting(data: Data, T: int, seed: int) -> World:
    """The same; and some classes, records and queries, come only at half time, the records in one batch."""
    rng = _rng("drift", seed)
    new = fresh_classes(data.n_classes)
    order = rng.permutation(len(data.X)).astype(np.int64)
    is_new = np.isin(data.labels[order], new)
    batch, old = order[is_new], order[~is_new]
    reserve = max(int(_RESERVE * len(old)), T // EVERY)
    first, rest = old[reserve:], old[:reserve]
    asked = rng.permutation(min(T, len(data.truth)))
    half = len(asked) // 2 - len(asked) // 2 % EVERY
    early = asked[~np.isin(data.truth[asked], new)][:half]
    asked = np.concatenate([early, rng.permutation(np.setdiff1d(asked, early))])
    changes = _changes(rng, len(asked), first, rest)
    changes = [Change(c.at, c.leave, np.append(c.arrive, batch)) if c.at == len(early) else c for c in changes]
    return World(data.X, data.labels, first, data.Q[asked], data.truth[asked], data.n_classes, changes)


def fresh_classes(n_classes: int) -> IntArray:
    """The classes that come late: the last quarter, one at least."""
    return np.arange(n_classes - max(n_classes // 4, 1), n_classes)


def _changes(rng: np.random.Generator, T: int, first: IntArray, reserve: IntArray) -> list[Change]:
    leaving, none = rng.permutation(first), np.zeros(0, dtype=np.int64)
    found = []
    for i, at in enumerate(range(EVERY, T, EVERY)):
        one = slice(i // 2, i // 2 + 1)
        found.append(Change(at, leaving[one], none) if i % 2 == 0 else Change(at, none, reserve[one]))
    return found


def validation(world: World) -> Data:
    """Some of the private records as queries to the others: what everything is tuned on."""
    order = _rng("validation").permutation(world.first)
    n = min(int(_HELD_OUT * len(order)), _MOST_HELD_OUT)
    held, rest = order[:n], order[n:]
    return as_data(world, rest, world.X[held], world.y[held])


def as_data(world: World, rows: IntArray, Q: Rows, truth: IntArray) -> Data:
    """These records and queries as the other experiments have them."""
    X = world.X[rows]
    return Data(quantise(X), world.y[rows], quantise(Q), truth, world.n_classes, X, Q)


def _rng(*words: object) -> np.random.Generator:
    return np.random.default_rng(seed_of("endless", *words))
