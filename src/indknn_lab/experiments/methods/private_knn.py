"""Private-kNN. (p, k) is chosen on the validation set. Then it answers the test sets.

The records nearest to each query are sorted once. A Poisson sample is then one row of coins, and the k nearest in the
sample are the first k heads. `indknn_lab.baselines.topk.nearest_in_sample` works in the same way.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import ceil, sqrt

import numpy as np
import numpy.typing as npt

from indknn.core.noise import SeededNoise
from indknn.types import GRID, IntArray
from indknn_lab.baselines.pricing import noise_multiplier
from indknn_lab.baselines.sampling import PoissonSampler
from indknn_lab.baselines.topk import SENSITIVITY
from indknn_lab.experiments.data import Data, NearestLabels
from indknn_lab.experiments.methods.base import Tuned
from indknn_lab.experiments.search import Axis, Point
from indknn_lab.experiments.units import Unit, seed_for

RATIOS, _QUICK_RATIOS = (0.02, 0.05, 0.1, 0.2), (0.05, 0.2)
PAPER_K, _QUICK_K = {"cifar10": 400, "fmnist": 500, "agnews": 600, "dbpedia": 600}, (50.0, 200.0)
"""The largest k of the paper's ranges {100, 200, ...}."""
_LENGTH = 40_000  # how many of the nearest records are kept; 600 neighbours in a sample of 2% need this many


def sampled_votes(
    labels: Sequence[npt.NDArray[np.uint8]], p: float, k: int, n_classes: int, copies: int, seed: int
) -> IntArray:
    """For each query, the vote of the k nearest in a Poisson sample. `copies` as in `algorithm3.answer`."""
    coins = PoissonSampler(p, np.random.default_rng(seed_for("coins", seed)).bytes)
    walked = reach(p, k)
    votes = np.zeros((len(labels), n_classes), dtype=np.int64)
    for i, ordered in enumerate(labels):
        nearest = np.repeat(ordered[: -(-walked // copies)], copies)[:walked]
        chosen = nearest[coins(len(nearest))][:k]
        votes[i] = np.bincount(chosen, minlength=n_classes)
    return votes


def reach(p: float, k: int) -> int:
    """How many of the nearest records are needed to find k in a sample. It fails with probability one in a billion."""
    return int(k / p + 6.0 * sqrt(k) / p) + 1


@lru_cache(maxsize=1)
def _nearest_labels(data: Data) -> NearestLabels:
    """The nearest labels, which are kept for the next unit on the same data."""
    return NearestLabels(data, _LENGTH)


class PrivateKNN(Tuned, kind="private_knn"):
    """The same as `indknn_lab.baselines.PrivateKNN`, but fast for many settings on the same data."""

    shared = ("data", "records")

    def __init__(self, unit: Unit, data: Data):
        super().__init__(unit, data)
        self.nearest = _nearest_labels(data)

    def axes(self) -> list[Axis]:
        """p and k. The search starts with the paper's ranges."""
        if self.unit.effort.quick:
            return [Axis("p", list(_QUICK_RATIOS)), Axis("k", list(_QUICK_K))]
        largest = PAPER_K.get(self.unit.data.split("-", maxsplit=1)[0], 600)
        ks = [float(k) for k in range(100, largest + 1, 100)]
        return [
            Axis("p", list(RATIOS), lambda p: p / 2, lambda p: min(2 * p, 1.0), (0.01, 1.0)),
            Axis("k", ks, lambda k: float(int(k) // 2), lambda k: k + 200.0, (6.0, 2100.0)),
        ]

    def answers(self, rows: IntArray, point: Point, seed: int) -> IntArray:
        """The argmax of noisy votes. Votes are kept, because they depend neither on epsilon nor on the noise."""
        p, k, kept, copies = point[0], int(point[1]), self.nearest.votes, self.unit.copies
        key = rows.tobytes(), p, k, copies, seed
        if key not in kept:
            kept[key] = sampled_votes(self.nearest.labels(rows), p, k, self.data.n_classes, copies, seed)
        z = noise_multiplier(*self.unit.promise, rate=p, steps=len(rows), accountant="pld")
        sensitivity = SENSITIVITY if self.unit.sensitivity == "sqrt2" else 1.0
        noise = SeededNoise(seed).draw(ceil(z * sensitivity * (1.0 + 1e-12) * GRID), kept[key].size)
        return np.asarray(np.argmax(kept[key] * GRID + noise.reshape(kept[key].shape), axis=1))

    def score(self, point: Point) -> float:
        """The mean accuracy of a few runs. The lowest score if too few of the nearest records were sorted."""
        held, walked = self.nearest.length, reach(point[0], int(point[1]))
        if held < len(self.data.labels) and walked > held * self.unit.copies:
            return 0.0
        seeds = [self.seed("validation", i) for i in range(self.unit.effort.repeats)]
        return float(np.mean([self.accuracy(self.sets.validation, point, s) for s in seeds]))

    def seed(self, role: str, i: int) -> int:
        """The seed. It is the same for every epsilon, because samples do not depend on epsilon."""
        u = self.unit
        return seed_for("private_knn", u.digest, u.T, u.records, u.copies, role, i)
