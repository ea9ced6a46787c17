"""Equal accuracy: what epsilon each method needs for it, and what retraining adds. For Table 1 and Figure 3b."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

from indknn.baselines.pricing import epsilon_of, noise_multiplier
from indknn.experiments.curves import first_reaching
from indknn.experiments.results import Results
from indknn.experiments.setting import Setting
from indknn.experiments.units import Unit

T = 2000
DELTA = 1e-5
TARGET = 2.0
"""The epsilon of Ind-KNN in the paper's Table 1."""

_OURS = (0.25, 0.5, 1.0, 2.0)
_SGD = (0.02, 0.05, 0.1, 0.2, 0.35, 0.5, 1.0, 2.0, 4.0)
_QUICK_OURS, _QUICK_SGD = (1.0, 2.0), (0.1, 0.5, 2.0)
_MARGIN = 0.003
_MOST = 1 << 17  # retrainings after which a crossover is no longer looked for


@dataclass(frozen=True)
class Aligned:
    """The accuracy, the epsilons that reach it, and the price of NoisySGD after r retrainings.

    `ours` and `sgd` are None where a method does not reach the accuracy at any epsilon that was tried.
    """

    accuracy: float
    ours: float | None
    sgd: float | None
    best_ours: float
    best_sgd: float
    retrained: Callable[[int], float]

    def crossover(self) -> int | None:
        """The least number of retrainings after which NoisySGD costs more than Ind-KNN; None if there is none."""
        if self.ours is None:
            return None
        if self.sgd is None or self.retrained(0) > self.ours:
            return 0
        low, high = 0, 1
        while self.retrained(high) <= self.ours:
            low, high = high, 2 * high
            if high > _MOST:
                return None
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self.retrained(middle) <= self.ours else (low, middle)
        return high


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
    ours = [median(results[u]["accuracies"]) for u in our_units(setting, data)]
    trained = [results[u] for u in sgd_units(setting, data)]
    sgd = [median(r["accuracies"]) for r in trained]
    level = min(ours[-1], max(sgd) - _MARGIN)
    needed = first_reaching(sgd_epsilons(setting), sgd, level)
    rate, steps = trained[0]["sampling_rate"], trained[0]["steps"]

    def retrained(r: int) -> float:
        if needed is None:
            return float("inf")
        z = noise_multiplier(needed, DELTA, rate=rate, steps=steps)
        return epsilon_of(z, DELTA, rate=rate, steps=steps * (1 + r))

    reached = TARGET if level == ours[-1] else first_reaching(our_epsilons(setting), ours, level)
    return Aligned(level, reached, needed, max(ours), max(sgd), retrained)
