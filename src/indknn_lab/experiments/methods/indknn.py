"""Ind-KNN. σ1 follows from T and B. Then τ is searched without privacy, and (τ, σ2) with it, before the test sets.

`answer` is Algorithm 3 for queries whose neighbours are already known: the product without its search. With one record
per person and a seed, every answer is the same as that of `IndKNNClassifier`. The tests check this.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from indknn.core import accounting, mechanism
from indknn.core.accounting import from_units, to_units
from indknn.core.calibrate import sigma1_for
from indknn.core.kernels import DEFAULT_BANDWIDTH
from indknn.core.mechanism import Plan
from indknn.core.noise import Noise, SeededNoise
from indknn.types import GRID, Accountant, FloatArray, IntArray, KernelName, Selection
from indknn_lab.experiments.data import Data, KernelNeighbours, Near, earlier_queries
from indknn_lab.experiments.methods.base import Axis, Point, Tuned, share_right
from indknn_lab.experiments.units import Result, Unit

CHECKPOINTS = 20


@dataclass(frozen=True)
class Answered:
    """The answers, what each person has spent (ρ), and the median of that after every twentieth of the stream."""

    answers: IntArray
    spent: FloatArray
    asked: IntArray
    medians: FloatArray


def answer(
    near: Sequence[Near],
    n_people: int,
    budget: float,
    plan: Plan,
    noise: Noise,
    *,
    copies: int = 1,
    released: Sequence[Selection] | None = None,
    fixed: float | None = None,
) -> Answered:
    """Answer the queries in order.

    With `fixed`, nobody is counted, and the noise on the votes is that of so many neighbours for every query.

    `copies` means that the private set holds every record this many times, each with a different owner. All copies are
    always selected together, vote the same and are charged the same, so they need only one ledger entry.
    """
    full = to_units(budget)
    left = np.full(n_people, full, dtype=np.int64)
    answers = np.zeros(len(near), dtype=np.int64)
    asked, medians = [0], [0.0]
    for t, neighbours in enumerate(near):
        group = mechanism.group(*neighbours, plan)
        if fixed is None:
            counted = mechanism.count(group, left[group.owners], plan)
            group = counted.group
            left[group.owners] -= counted.charges
            K = mechanism.noisy_count(copies * counted.total, plan, noise)
        else:
            K = int(max(copies * fixed, mechanism.MIN_K) * GRID)
        settled = mechanism.settle(group, left[group.owners], K, plan)
        left[group.owners] -= settled.charges
        votes = copies * settled.votes
        if released is not None:
            earlier = released[t]
            public = np.bincount(answers[earlier.slots], weights=earlier.kappa, minlength=plan.n_classes)
            votes = votes + public.astype(np.int64)
        answers[t], _ = mechanism.noisy_answer(votes, K, plan, noise)
        if (t + 1) * CHECKPOINTS // len(near) > t * CHECKPOINTS // len(near):
            asked.append(t + 1)
            medians.append(float(from_units(int(np.median(full - left)))))
    return Answered(answers, from_units(full - left), np.array(asked), np.array(medians))


SIGMA2_GRID = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
TAU_OFFSETS = (-0.05, -0.025, 0.0, 0.025, 0.05)
_QUICK_SIGMA2, _QUICK_OFFSETS = (0.2, 0.5, 0.9), (-0.05, 0.0, 0.05)
_LEAST_TAU, _MOST_TAU = 0.02, 0.98


@lru_cache(maxsize=1)
def _neighbours(
    data: Data, kernel: KernelName, bandwidth: float | None, tables: int | None, bits: int
) -> KernelNeighbours:
    """The neighbours, which are kept for the next unit of the same kind."""
    options = {} if tables is None else {"n_tables": tables, "n_bits": bits, "seed": 1}
    index = "exact" if tables is None else "lsh"
    return KernelNeighbours(data, kernel, index, bandwidth=bandwidth, threads=1, **options)


class IndKNN(Tuned, kind="indknn"):
    """Algorithm 3, with both kernels, exact or hashed, with or without reuse of labels."""

    shared = ("data", "records", "T", "kernel", "bandwidth", "tables", "bits", "copies")
    max_growths = 12

    def __init__(self, unit: Unit, data: Data):
        super().__init__(unit, data)
        self.near = _neighbours(data, unit.kernel, unit.bandwidth, unit.tables, unit.bits)
        self._latest: tuple[bytes, float, list[Near], list[Selection] | None] | None = None

    def axes(self) -> list[Axis]:
        """τ near the best value without privacy, and σ2."""
        quick, star = self.unit.effort.quick, self.near.plain_tau(self.sets.validation)
        # With a wide RBF kernel all values are near 1. So steps of τ shrink with it, to be the same steps of the angle.
        narrower = 1.0 if self.unit.bandwidth is None else min(DEFAULT_BANDWIDTH / self.unit.bandwidth, 1.0) ** 2
        offsets, step = [d * narrower for d in (_QUICK_OFFSETS if quick else TAU_OFFSETS)], 0.025 * narrower
        taus = sorted({round(star + d, 4) for d in offsets if _LEAST_TAU <= star + d <= _MOST_TAU})
        sigmas = list(_QUICK_SIGMA2 if quick else SIGMA2_GRID)
        return [
            Axis("tau", taus, lambda t: round(t - step, 4), lambda t: round(t + step, 4), (_LEAST_TAU, _MOST_TAU)),
            Axis("sigma2", sigmas, lambda s: round(s * 0.7, 3), lambda s: round(s + 0.2, 1), (0.015, 3.1)),
        ]

    def run(self, rows: IntArray, point: Point, seed: int, accountant: Accountant = "rdp") -> Answered:
        """Answer one stream in order, starting with full budgets."""
        tau, sigma2 = point
        B = accounting.budget(*self.unit.promise, accountant)
        plan = Plan(tau, self.unit.sigma1 * sigma1_for(B, len(rows)), sigma2, self.data.n_classes)
        if self._latest is None or self._latest[:2] != (rows.tobytes(), tau):  # a search tries many σ2 at one τ
            earlier = earlier_queries(self.data, rows, self.near.kernel, tau) if self.unit.reuse else None
            self._latest = rows.tobytes(), tau, self._near(rows, tau), earlier
        near, released = self._latest[2:]
        # With fixed noise nobody is counted. Its scale is that of the mean number of neighbours, and nobody pays.
        fixed = float(np.mean([len(n.owners) for n in near])) if self.unit.noise == "fixed" else None
        people, copies = len(self.data.labels), self.unit.copies
        return answer(near, people, B, plan, SeededNoise(seed), copies=copies, released=released, fixed=fixed)

    def _near(self, rows: IntArray, tau: float) -> list[Near]:
        near = self.near.neighbours(rows, tau)
        return near if self.unit.weights == "kernel" else [n._replace(kappa=np.full_like(n.kappa, GRID)) for n in near]

    def answers(self, rows: IntArray, point: Point, seed: int) -> IntArray:
        return self.run(rows, point, seed).answers

    def confirm(self, point: Point, first: float) -> float:
        seeds = [self.seed("validation", 1 + i) for i in range(self.unit.effort.repeats)]
        return float(np.mean([first, *(self.accuracy(self.sets.validation, point, s) for s in seeds)]))

    def test(self, point: Point) -> Result:
        tests, truth = self.sets.tests, self.data.truth
        streams = [self.run(rows, point, self.seed("test", i)) for i, rows in enumerate(tests)]
        exact = [self.run(rows, point, self.seed("gdp", i), "gdp") for i, rows in enumerate(tests)]
        B = accounting.budget(*self.unit.promise, "rdp")
        sigma1 = self.unit.sigma1 * sigma1_for(B, self.unit.T)
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
