"""Lower bounds on privacy loss from counted events. All hold with the stated confidence, for any distinguisher.

A distinguisher says for each transcript whether the target is "in" or "out". Its true and false positive rates are
bounded by Clopper and Pearson (1934). Then:

``epsilon``
    (ε, δ)-DP requires TPR <= e^ε·FPR + δ, and the same for the complement. So ε >= log((TPR - δ)/FPR).
``mu``
    μ-GDP requires TPR <= Φ(Φ⁻¹(FPR) + μ). So μ >= Φ⁻¹(TPR) - Φ⁻¹(FPR)  (Dong, Roth & Su 2022; Nasr et al. 2023).

The second bound needs far fewer trials to refute a claim of GDP, because it needs no rare events.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import log

import numpy as np
from scipy.optimize import brentq
from scipy.special import ndtri
from scipy.stats import beta as beta_distribution
from scipy.stats import binom

from indknn.types import FloatArray

# The thresholds that are tried. μ is measured best in the middle, and ε in the tails. With few thresholds, the best one
# on the first trials is less often best by luck.
_QUANTILES = {"epsilon": np.linspace(0.002, 0.998, 60), "mu": np.linspace(0.1, 0.9, 9)}


@dataclass(frozen=True)
class Bounds:
    """The bounds that a set of trials proves. `trials` counts both worlds, and also trials that chose the threshold."""

    epsilon: float
    mu: float
    trials: int


def lower_rate(hits: float, trials: float, error: float) -> float:
    """A lower bound on the true rate. It is wrong with probability at most `error`.

    >>> 0.95 < lower_rate(100, 100, 0.01) < 1.0, lower_rate(0, 100, 0.01)
    (True, 0.0)
    """
    return float(beta_distribution.ppf(error, hits, trials - hits + 1)) if hits > 0 else 0.0


def upper_rate(hits: float, trials: float, error: float) -> float:
    """An upper bound on the true rate. It is wrong with probability at most `error`."""
    return 1.0 - lower_rate(trials - hits, trials, error)


def epsilon_from_rates(tpr: float, fpr: float, delta: float) -> float:
    """These rates refute (ε, δ)-DP for every ε below the result.

    >>> round(epsilon_from_rates(0.5, 0.1, 0.0), 3)
    1.609
    """
    return log((tpr - delta) / fpr) if tpr - delta > fpr > 0.0 else 0.0


def mu_from_rates(tpr: float, fpr: float) -> float:
    """These rates refute μ-GDP for every μ below the result.

    >>> round(mu_from_rates(0.8413, 0.5), 2)
    1.0
    """
    return max(0.0, float(ndtri(tpr) - ndtri(fpr))) if tpr > 0.0 and fpr < 1.0 else 0.0


def lower_bounds(present: FloatArray, absent: FloatArray, delta: float, error: float) -> Bounds:
    """The bounds from the scores of transcripts in the two worlds. Each bound fails with probability <= `error`.

    A quarter of the trials is used to choose the threshold and its side. Only the rest is counted. A threshold that was
    chosen on the counted trials would need a correction.
    """
    n = min(len(present), len(absent))
    choose, test = slice(0, n // 4), slice(n // 4, n)
    weight = (n - n // 4) / max(n // 4, 1)  # as if as many trials chose the threshold as are counted
    pooled = np.concatenate([present[choose], absent[choose]])
    best = dict.fromkeys(_QUANTILES, (-1.0, 0.0, 1))
    for name, quantiles in _QUANTILES.items():
        for cut in np.unique(np.quantile(pooled, quantiles)).tolist():
            for side in (1, -1):
                found = _at(present[choose], absent[choose], cut, side, delta, error, weight)[name]
                best[name] = max(best[name], (found, cut, side))
    final = {
        name: _at(present[test], absent[test], cut, side, delta, error)[name] for name, (_, cut, side) in best.items()
    }
    return Bounds(final["epsilon"], final["mu"], 2 * n)


def _at(
    present: FloatArray, absent: FloatArray, cut: float, side: int, delta: float, error: float, weight: float = 1.0
) -> dict[str, float]:
    """The bounds of the distinguisher that says "in" above the threshold. For side -1 it says "out" below it."""
    hits, others = (present >= cut, absent >= cut) if side > 0 else (absent < cut, present < cut)
    tpr = lower_rate(weight * hits.sum(), weight * len(hits), error / 2)
    fpr = upper_rate(weight * others.sum(), weight * len(others), error / 2)
    return {"epsilon": epsilon_from_rates(tpr, fpr, delta), "mu": mu_from_rates(tpr, fpr)}


def one_run_p_value(canaries: int, guesses: int, correct: int, epsilon: float, delta: float) -> float:
    """The probability of this many correct guesses or more, if the run was (ε, δ)-DP.

    This is theorem 5.2 of Steinke, Nasr & Jagielski (2023).

    >>> one_run_p_value(1000, 100, 50, 0.0, 0.0) > 0.4, one_run_p_value(1000, 100, 90, 1.0, 1e-5) < 0.01
    (True, True)
    """
    q = 1.0 / (1.0 + np.exp(-epsilon))
    tail = float(binom.sf(correct - 1, guesses, q))
    i = np.arange(1, correct + 1)
    window = np.cumsum(binom.pmf(correct - i, guesses, q))  # P(correct - i <= W < correct)
    alpha = float((window / i).max()) if correct else 0.0
    return min(1.0, tail + 2.0 * canaries * delta * alpha)


def one_run_epsilon(canaries: int, guesses: int, correct: int, delta: float, error: float) -> float:
    """The largest ε that this many correct guesses refute."""

    def excess(epsilon: float) -> float:
        return one_run_p_value(canaries, guesses, correct, epsilon, delta) - error

    return 0.0 if excess(0.0) > 0.0 else max(0.0, float(brentq(excess, 0.0, 20.0)) - 1e-9)  # on the safe side
