"""Equal accuracy: what epsilon each method needs for it, and what retraining adds. For Table 1 and Figure 3b."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

from indknn_lab.baselines.pricing import epsilon_of, noise_multiplier
from indknn_lab.experiments.curves import first_reaching
from indknn_lab.experiments.results import Results
from indknn_lab.experiments.setting import Setting
from indknn_lab.experiments.units import Unit

T = 2000
DELTA = 1e-5
TARGET = 2.0
"""The epsilon of Ind-KNN in the paper's Table 1."""

_OURS = (0.25, 0.5, 1.0, 2.0)
_SGD = (0.02, 0.05, 0.1, 0.2, 0.35, 0.5, 1.0, 2.0, 4.0)
_QUICK_OURS, _QUICK_SGD = (1.0, 2.0), (0.1, 0.5, 2.0)
_MARGIN = 0.003
MOST = 10_000
"""Retrainings up to which a crossover is looked for."""

_POWER = 0.55


@dataclass(frozen=True)
class Aligned:
    """The accuracy, the epsilons that reach it, and the price of NoisySGD after r retrainings.

    `ours` and `sgd` are None where a method does not reach the accuracy at any epsilon that was tried. `at_most`
    says that NoisySGD reaches it already at the least epsilon that was tried, so needs that or less.
    """

    accuracy: float
    ours: float | None
    sgd: float | None
    best_ours: float
    best_sgd: float
    at_most: bool
    retrained: Callable[[int], float]

    def crossover(self) -> int | None:
        """The least number of retrainings after which NoisySGD costs more than Ind-KNN; None if there is none.

        The cost grows about like a power of the number of trainings, so every probe tells where to look next.
        """
        if self.ours is None:
            return None
        if self.sgd is None or self.retrained(0) > self.ours:
            return 0
        low, high, probe, cost = 0, MOST, 0, self.retrained(0)
        while high - low > 1:
            guess = round((1 + probe) * (self.ours / cost) ** (1.0 / _POWER)) - 1
            probe = min(max(guess, low + 1), high - 1)
            cost = self.retrained(probe)
            low, high = (probe, high) if cost <= self.ours else (low, probe)
        return high if high < MOST else None


def our_epsilons(setting: Setting) -> tuple[float, ...]:
    """At which Ind-KNN is measured."""
    return _QUICK_OURS if setting.quick else _OURS


def sgd_epsilons(setting: Setting) -> tuple[float, ...]:
    """At which NoisySGD is measured."""
    return _QUICK_SGD if setting.quick else _SGD


def our_units(setting: Setting, data: str) -> list[Unit]:
    """Ind-KNN at T = 2,000."""
    return [setting.unit("indknn", data, T, e) for e in our_epsilons(setting)]


def sgd_units(setting: Setting, data: str) -> list[Unit]:
    """NoisySGD, on the same test sets."""
    return [setting.unit("noisy_sgd", data, T, e) for e in sgd_epsilons(setting)]


def align(setting: Setting, results: Results, data: str) -> Aligned:
    """Align to what Ind-KNN reaches at epsilon = 2, or a little below NoisySGD's best where that is less."""
    ours = _medians(our_units(setting, data), results)
    level = min(ours[-1], max(_medians(sgd_units(setting, data), results)) - _MARGIN)
    reached = TARGET if level == ours[-1] else first_reaching(our_epsilons(setting), ours, level)
    return _aligned(setting, results, data, level, reached)


def ladder(setting: Setting, results: Results, data: str) -> list[Aligned]:
    """Align to what Ind-KNN reaches at each epsilon at which it was measured."""
    ours = _medians(our_units(setting, data), results)
    return [_aligned(setting, results, data, a, e) for a, e in zip(ours, our_epsilons(setting), strict=True)]


def _aligned(setting: Setting, results: Results, data: str, level: float, ours: float | None) -> Aligned:
    trained = [results[u] for u in sgd_units(setting, data)]
    sgd = [median(r["accuracies"]) for r in trained]
    needed = first_reaching(sgd_epsilons(setting), sgd, level)
    rate, steps = trained[0]["sampling_rate"], trained[0]["steps"]

    def retrained(r: int) -> float:
        if needed is None:
            return float("inf")
        z = noise_multiplier(needed, DELTA, rate=rate, steps=steps)
        return epsilon_of(z, DELTA, rate=rate, steps=steps * (1 + r))

    best = max(_medians(our_units(setting, data), results))
    return Aligned(level, ours, needed, best, max(sgd), sgd[0] >= level, retrained)


def _medians(units: list[Unit], results: Results) -> list[float]:
    return [median(results[u]["accuracies"]) for u in units]
