"""Ind-KNN. σ1 follows from T and B. Then τ is searched without privacy, and (τ, σ2) with it, before the test sets."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from indknn.core import accounting
from indknn.core.calibrate import sigma1_for
from indknn.core.mechanism import Plan
from indknn.core.noise import SeededNoise
from indknn.types import Accountant, IntArray, KernelName, Selection
from indknn_lab.experiments.algorithm3 import Answered, Near, answer
from indknn_lab.experiments.data import Data, KernelNeighbours, earlier_queries
from indknn_lab.experiments.methods.base import Tuned, share_right
from indknn_lab.experiments.search import Axis, Point
from indknn_lab.experiments.units import Result, Unit

SIGMA2_GRID = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
TAU_OFFSETS = (-0.05, -0.025, 0.0, 0.025, 0.05)
_QUICK_SIGMA2, _QUICK_OFFSETS = (0.2, 0.5, 0.9), (-0.05, 0.0, 0.05)
_LEAST_TAU, _MOST_TAU = 0.02, 0.98


@lru_cache(maxsize=1)
def _neighbours(data: Data, kernel: KernelName, tables: int | None, bits: int) -> KernelNeighbours:
    """The neighbours, which are kept for the next unit of the same kind."""
    options = {} if tables is None else {"n_tables": tables, "n_bits": bits, "seed": 1}
    return KernelNeighbours(data, kernel, "exact" if tables is None else "lsh", threads=1, **options)


class IndKNN(Tuned, kind="indknn"):
    """Algorithm 3, with both kernels, exact or hashed, with or without reuse of labels."""

    shared = ("data", "records", "T", "kernel", "tables", "bits", "copies")
    max_growths = 12

    def __init__(self, unit: Unit, data: Data):
        super().__init__(unit, data)
        self.near = _neighbours(data, unit.kernel, unit.tables, unit.bits)
        self._latest: tuple[bytes, float, list[Near], list[Selection] | None] | None = None

    def axes(self) -> list[Axis]:
        """τ near the best value without privacy, and σ2."""
        quick, star = self.unit.effort.quick, self.near.plain_tau(self.sets.validation)
        offsets = _QUICK_OFFSETS if quick else TAU_OFFSETS
        taus = sorted({round(star + d, 4) for d in offsets if _LEAST_TAU <= star + d <= _MOST_TAU})
        sigmas = list(_QUICK_SIGMA2 if quick else SIGMA2_GRID)
        return [
            Axis("tau", taus, lambda t: round(t - 0.025, 4), lambda t: round(t + 0.025, 4), (_LEAST_TAU, _MOST_TAU)),
            Axis("sigma2", sigmas, lambda s: round(s * 0.7, 3), lambda s: round(s + 0.2, 1), (0.015, 3.1)),
        ]

    def run(self, rows: IntArray, point: Point, seed: int, accountant: Accountant = "rdp") -> Answered:
        """Answer one stream in order, starting with full budgets."""
        tau, sigma2 = point
        B = accounting.budget(*self.unit.promise, accountant)
        plan = Plan(tau, sigma1_for(B, len(rows)), sigma2, self.data.n_classes)
        if self._latest is None or self._latest[:2] != (rows.tobytes(), tau):  # a search tries many σ2 at one τ
            earlier = earlier_queries(self.data, rows, self.near.kernel, tau) if self.unit.reuse else None
            self._latest = rows.tobytes(), tau, self.near.neighbours(rows, tau), earlier
        near, released = self._latest[2:]
        noise, people = SeededNoise(seed), len(self.data.labels)
        return answer(near, people, B, plan, noise, copies=self.unit.copies, released=released)

    def answers(self, rows: IntArray, point: Point, seed: int) -> IntArray:
        """The answers under the paper's filter."""
        return self.run(rows, point, seed).answers

    def confirm(self, point: Point, first: float) -> float:
        """The mean of the first run and a few more."""
        seeds = [self.seed("validation", 1 + i) for i in range(self.unit.effort.repeats)]
        return float(np.mean([first, *(self.accuracy(self.sets.validation, point, s) for s in seeds)]))

    def test(self, point: Point) -> Result:
        """Accuracies under both filters, and what people have spent."""
        tests, truth = self.sets.tests, self.data.truth
        streams = [self.run(rows, point, self.seed("test", i)) for i, rows in enumerate(tests)]
        exact = [self.run(rows, point, self.seed("gdp", i), "gdp") for i, rows in enumerate(tests)]
        B = accounting.budget(*self.unit.promise, "rdp")
        sigma1 = sigma1_for(B, self.unit.T)
        medians = np.mean([s.medians for s in streams], axis=0)
        near = [len(n.owners) for n in self.near.neighbours(tests[0], point[0])]
        return {
            "accuracies": [share_right(s.answers, truth[rows]) for s, rows in zip(streams, tests, strict=True)],
            "accuracies_gdp": [share_right(s.answers, truth[rows]) for s, rows in zip(exact, tests, strict=True)],
            "B": B,
            "sigma1": sigma1,
            "tau_star": self.near.plain_tau(self.sets.validation),
            "neighbours": self.unit.copies * float(np.mean(near)),
            "exhausted": float(np.mean([(B - s.spent < 0.5 / sigma1**2).mean() for s in streams])),
            "median_share": float(np.mean([np.median(s.spent) for s in streams])) / B,
            "asked": streams[0].asked.tolist(),
            "median_epsilon": [accounting.epsilon(float(m), self.unit.delta, "rdp") if m > 0 else 0.0 for m in medians],
        }
