"""Private-kNN: (p, k) on the validation set, then the test sets.

The records nearest to a query are put in order once. A Poisson sample is then one row of coins, and the vote of
the k nearest in it the first k heads: the same walk as `indknn_lab.baselines.topk.nearest_in_sample`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from math import ceil, sqrt
from typing import Any

import numpy as np
import numpy.typing as npt

from indknn.core.noise import SeededNoise
from indknn.types import GRID, IntArray
from indknn_lab.baselines.pricing import noise_multiplier
from indknn_lab.baselines.sampling import PoissonSampler
from indknn_lab.baselines.topk import SENSITIVITY
from indknn_lab.experiments.fields import Data, Orders
from indknn_lab.experiments.queries import QuerySets
from indknn_lab.experiments.search import Axis, Point, search
from indknn_lab.experiments.seeds import seed
from indknn_lab.experiments.units import Result, Unit

RATIOS = (0.02, 0.05, 0.1, 0.2)
PAPER_K = {"cifar10": 400, "fmnist": 500, "agnews": 600, "dbpedia": 600}
"""The largest k of the paper's ranges {100, 200, ...}."""
_QUICK_K = (50.0, 200.0)
_QUICK_RATIOS = (0.05, 0.2)
_LENGTH = 40_000  # of the nearest records are kept in order: 600 of a sample of 2% reach so far


def sampled_votes(
    labels: Sequence[npt.NDArray[np.uint8]], p: float, k: int, n_classes: int, copies: int, noise_seed: int
) -> IntArray:
    """For each query, the vote of the k nearest in a Poisson sample. `copies` as in `algorithm3.answer`."""
    coins = PoissonSampler(p, np.random.default_rng(seed("coins", noise_seed)).bytes)
    reach = _reach(p, k)
    votes = np.zeros((len(labels), n_classes), dtype=np.int64)
    for i, ordered in enumerate(labels):
        nearest = np.repeat(ordered[: -(-reach // copies)], copies)[:reach]
        chosen = nearest[coins(len(nearest))][:k]
        votes[i] = np.bincount(chosen, minlength=n_classes)
    return votes


class Bench:
    """One store, ready to answer any set of queries."""

    def __init__(self, unit: Unit, data: Data, orders: Orders):
        self.unit, self.data, self.orders = unit, data, orders

    def accuracy(self, rows: IntArray, point: Point, noise_seed: int) -> float:
        """The share of right answers."""
        votes = self._votes(rows, point[0], int(point[1]), noise_seed)
        p = point[0]
        noise = SeededNoise(noise_seed).draw(self.scale(p, len(rows)), votes.size).reshape(votes.shape)
        return float((np.argmax(votes * GRID + noise, axis=1) == self.data.truth[rows]).mean())

    def feasible(self, point: Point) -> bool:
        """Whether enough of the nearest records were put in order."""
        held, copies = self.orders.length, self.unit.copies
        return held == len(self.data.labels) or _reach(point[0], int(point[1])) <= held * copies

    def _votes(self, rows: IntArray, p: float, k: int, noise_seed: int) -> IntArray:
        """Kept, since neither epsilon nor the noise has a part in them."""
        key = rows.tobytes(), p, k, self.unit.copies, noise_seed
        if key not in self.orders.votes:
            labels = self.orders.labels(rows)
            self.orders.votes[key] = sampled_votes(labels, p, k, self.data.n_classes, self.unit.copies, noise_seed)
        return self.orders.votes[key]

    def scale(self, p: float, T: int) -> int:
        """The noise on each class, in grid units."""
        assert self.unit.epsilon is not None
        z = noise_multiplier(self.unit.epsilon, self.unit.delta, rate=p, steps=T, accountant="pld")
        delta = SENSITIVITY if self.unit.sensitivity == "sqrt2" else 1.0
        return ceil(z * delta * (1.0 + 1e-12) * GRID)


def _reach(p: float, k: int) -> int:
    """How many of the nearest records contain k of a sample, but for one chance in a billion."""
    return int(k / p + 6.0 * sqrt(k) / p) + 1


@lru_cache(maxsize=1)
def _orders(key: tuple[str, int | None]) -> list[Orders]:
    """A place to keep the orders for the next unit on the same data; filled by `measure`."""
    return []


def measure(unit: Unit, data: Data, sets: QuerySets) -> Result:
    """Tune on the validation set, answer the test sets."""
    shelf = _orders((unit.digest, unit.records))
    if not shelf:
        shelf.append(Orders(data, _LENGTH))
    bench = Bench(unit, data, shelf[0])
    found = search(_axes(unit), _scorer(bench, sets.validation), max_growths=4)
    p, k = found.best
    return {
        "accuracies": [bench.accuracy(rows, found.best, _seed(unit, "test", i)) for i, rows in enumerate(sets.tests)],
        "p": p,
        "k": int(k),
        "sigma": bench.scale(p, unit.T) / GRID,
        "validation": found.score,
        "tried": found.tried,
        "extended": list(found.extended),
    }


def _axes(unit: Unit) -> list[Axis]:
    if unit.effort.quick:
        return [Axis("p", list(_QUICK_RATIOS)), Axis("k", list(_QUICK_K))]
    largest = PAPER_K.get(unit.data.split("-", maxsplit=1)[0], 600)
    return [
        Axis("p", list(RATIOS), below=lambda p: p / 2 if p > 0.01 else None, above=_larger_ratio),
        Axis("k", [float(k) for k in range(100, largest + 1, 100)], below=_smaller_k, above=_larger_k),
    ]


def _larger_ratio(p: float) -> float | None:
    return min(2 * p, 1.0) if p < 1.0 else None


def _smaller_k(k: float) -> float | None:
    return float(int(k) // 2) if k > 10 else None


def _larger_k(k: float) -> float | None:
    return k + 200.0 if k < 2000 else None


def _scorer(bench: Bench, rows: IntArray) -> Callable[[Point], float]:
    seeds = [_seed(bench.unit, "validation", i) for i in range(bench.unit.effort.repeats)]

    def score(point: Point) -> float:
        return float(np.mean([bench.accuracy(rows, point, s) for s in seeds])) if bench.feasible(point) else 0.0

    return score


def _seed(unit: Unit, role: str, i: int) -> int:
    """The same samples for every epsilon, since they do not depend on it."""
    shared: tuple[Any, ...] = (unit.digest, unit.T, unit.records, unit.copies)
    return seed("private_knn", *shared, role, i)
