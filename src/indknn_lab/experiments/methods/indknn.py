"""Ind-KNN: σ1 from T and B, then τ without privacy, then (σ2, τ) with it, then the test sets."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import numpy as np

from indknn.core import accounting
from indknn.core.calibrate import sigma1_for
from indknn.core.noise import SeededNoise
from indknn.types import Accountant, IntArray, KernelName, Neighbours, Plan, Selection
from indknn_lab.experiments.algorithm3 import Stream, answer
from indknn_lab.experiments.fields import Data, Field, released
from indknn_lab.experiments.queries import QuerySets
from indknn_lab.experiments.search import Axis, Point, search
from indknn_lab.experiments.seeds import seed
from indknn_lab.experiments.units import Result, Unit

SIGMA2_GRID = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
TAU_OFFSETS = (-0.05, -0.025, 0.0, 0.025, 0.05)
_QUICK_SIGMA2, _QUICK_OFFSETS = (0.2, 0.5, 0.9), (-0.05, 0.0, 0.05)
_TAU_STEP = 0.025
_LSH_SEED = 1


class Bench:
    """One store, ready to answer any stream under any plan."""

    def __init__(self, unit: Unit, data: Data, field: Field):
        self.unit, self.data, self.field = unit, data, field
        self._near: tuple[bytes, float, list[Neighbours], list[Selection] | None] | None = None

    def run(self, rows: IntArray, point: Point, noise_seed: int, accountant: Accountant = "rdp") -> Stream:
        """One stream, in order, from full budgets."""
        tau, sigma2 = point
        u = self.unit
        assert u.epsilon is not None
        B = accounting.budget(u.epsilon, u.delta, accountant)
        plan = Plan(tau, sigma1_for(B, len(rows)), sigma2, self.data.n_classes)
        near, earlier = self._neighbours(rows, tau)
        noise = SeededNoise(noise_seed)
        return answer(near, len(self.data.labels), B, plan, noise, copies=u.copies, released=earlier)

    def accuracy(self, rows: IntArray, point: Point, noise_seed: int, accountant: Accountant = "rdp") -> float:
        """The share of right answers."""
        return float((self.run(rows, point, noise_seed, accountant).answers == self.data.truth[rows]).mean())

    def _neighbours(self, rows: IntArray, tau: float) -> tuple[list[Neighbours], list[Selection] | None]:
        """Kept for the next call, since a search tries many σ2 at the same τ."""
        key = rows.tobytes()
        if self._near is None or self._near[:2] != (key, tau):
            earlier = released(self.data, rows, self.field.kernel, tau) if self.unit.reuse else None
            self._near = key, tau, self.field.neighbours(rows, tau), earlier
        return self._near[2], self._near[3]


@lru_cache(maxsize=1)
def _field(key: tuple[str, int | None], kernel: KernelName, tables: int | None, bits: int) -> list[Field]:
    """A place to keep the field for the next unit of the same kind; filled by `measure`."""
    return []


def measure(unit: Unit, data: Data, sets: QuerySets) -> Result:
    """Tune on the validation set, answer the test sets."""
    shelf = _field((unit.digest, unit.records), unit.kernel, unit.tables, unit.bits)
    if not shelf:
        options = {} if unit.tables is None else {"n_tables": unit.tables, "n_bits": unit.bits, "seed": _LSH_SEED}
        shelf.append(Field(data, unit.kernel, "exact" if unit.tables is None else "lsh", threads=1, **options))
    bench = Bench(unit, data, shelf[0])
    tau_star = bench.field.plain_tau(sets.validation)
    score, confirm = _scorers(bench, sets.validation)
    found = search(_axes(unit, tau_star), score, confirm=confirm)
    tau, sigma2 = found.best
    streams = [bench.run(rows, found.best, _seed(unit, "test", i)) for i, rows in enumerate(sets.tests)]
    right = [float((s.answers == data.truth[rows]).mean()) for s, rows in zip(streams, sets.tests, strict=True)]
    gdp = [bench.accuracy(rows, found.best, _seed(unit, "gdp", i), "gdp") for i, rows in enumerate(sets.tests)]
    assert unit.epsilon is not None
    B = accounting.budget(unit.epsilon, unit.delta, "rdp")
    sigma1 = sigma1_for(B, unit.T)
    medians = np.mean([s.medians for s in streams], axis=0)
    return {
        "accuracies": right,
        "accuracies_gdp": gdp,
        "B": B,
        "sigma1": sigma1,
        "sigma2": sigma2,
        "tau": tau,
        "tau_star": tau_star,
        "validation": found.score,
        "tried": found.tried,
        "extended": list(found.extended),
        "neighbours": unit.copies * float(np.mean([len(n.owners) for n in bench.field.neighbours(sets.tests[0], tau)])),
        "exhausted": float(np.mean([(B - s.spent < 0.5 / sigma1**2).mean() for s in streams])),
        "median_share": float(np.mean([np.median(s.spent) for s in streams])) / B,
        "asked": streams[0].asked.tolist(),
        "median_epsilon": [accounting.epsilon(float(m), unit.delta, "rdp") if m > 0 else 0.0 for m in medians],
    }


def _axes(unit: Unit, tau_star: float) -> list[Axis]:
    quick = unit.effort.quick
    offsets = _QUICK_OFFSETS if quick else TAU_OFFSETS
    taus = sorted({_tidy(tau_star + d) for d in offsets if 0.02 <= tau_star + d <= 0.98})
    sigma2 = Axis("sigma2", list(_QUICK_SIGMA2 if quick else SIGMA2_GRID), _less_noise, _more_noise)
    tau = Axis(
        "tau",
        taus,
        below=lambda t: _tidy(t - _TAU_STEP) if t - _TAU_STEP >= 0.02 else None,
        above=lambda t: _tidy(t + _TAU_STEP) if t + _TAU_STEP <= 0.98 else None,
    )
    return [tau, sigma2]


def _less_noise(sigma2: float) -> float | None:
    return round(sigma2 * 0.7, 3) if sigma2 > 0.02 else None


def _more_noise(sigma2: float) -> float | None:
    return round(sigma2 + 0.2, 1) if sigma2 < 3.0 else None


def _tidy(tau: float) -> float:
    return round(tau, 4)


def _scorers(bench: Bench, rows: IntArray) -> tuple[Callable[[Point], float], Callable[[Point, float], float]]:
    """One run, with the same seed for every point; and the mean of that and a few more."""
    repeats = bench.unit.effort.repeats

    def score(point: Point) -> float:
        return bench.accuracy(rows, point, _seed(bench.unit, "validation", 0))

    def confirm(point: Point, first: float) -> float:
        more = [bench.accuracy(rows, point, _seed(bench.unit, "validation", 1 + i)) for i in range(repeats)]
        return float(np.mean([first, *more]))

    return score, confirm


def _seed(unit: Unit, role: str, i: int) -> int:
    return seed(unit.name, role, i)
