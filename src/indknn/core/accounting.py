"""From (ε, δ) to a budget B and back, and the fixed-point units in which the ledgers count.

Every release of the mechanism is a Gaussian mechanism. Shifting its mean by Δ at noise scale σ costs
ρ = Δ²/2σ². The sum of a person's ρ never exceeds B. What that proves depends on the filter:

``gdp``
    Σ μ² <= μ_B² on every transcript gives exactly μ_B-GDP with μ_B = sqrt(2B) (Smith & Thakurta 2022;
    Koskela, Tobaben & Honkela 2023). It is (ε, δ)-DP for every ε with
    δ(ε) = Φ(μ/2 - ε/μ) - e^ε Φ(-μ/2 - ε/μ)  (Balle & Wang 2018).
``rdp``
    (α, αB)-RDP for all α > 1 (the paper; Feldman & Zrnic 2021), which is (ε, δ)-DP with
    ε = αB + log((α-1)/α) - (log δ + log α)/(α-1) for any α > 1 (Balle et al. 2020).

Both functions round to the safe side: `budget` down, `epsilon` up.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from math import exp, expm1, inf, isfinite, log, log1p, sqrt

import numpy as np

from indknn.errors import InvalidInputError
from indknn.types import Accountant, FloatArray, IntArray

UNIT_BITS = 50
UNIT = 1 << UNIT_BITS
"""Ledgers hold ρ as integers in units of 2^-50: 1e-15, with room for budgets of some thousands in 63 bits."""

MAX_UNITS = 1 << 62
"""No budget and no charge is represented above this; a charge that would be cannot be paid by anyone."""

# Where the formulas below are sure to be right to the margin in double precision. A smaller budget is
# reported as the smallest of these, which errs on the safe side.
MIN_EPSILON, MAX_EPSILON, MIN_DELTA = 1e-4, 1000.0, 1e-15
MIN_BUDGET, MAX_BUDGET = 1e-10, float(MAX_UNITS // UNIT)

# Relative slack for rounding errors of float64 in log_ndtr and in sums: far above what they can be
# (about 1e-11 in the worst corner of the supported range), far below what anybody could notice.
_MARGIN = 1e-9


def budget(epsilon: float, delta: float, accountant: Accountant = "gdp") -> float:
    """The largest budget B for which the filter proves (epsilon, delta)-DP.

    >>> round(budget(1.0, 1e-5), 6), round(budget(1.0, 1e-5, "rdp"), 6)
    (0.035926, 0.030557)
    """
    _check("epsilon", epsilon, MIN_EPSILON, MAX_EPSILON)
    _check("delta", delta, MIN_DELTA, 1.0)
    _check_accountant(accountant)
    B = _rdp_budget(epsilon, delta) if accountant == "rdp" else _gdp_mu(epsilon, log(delta)) ** 2 / 2.0
    return B * (1.0 - _MARGIN)


def epsilon(budget: float, delta: float, accountant: Accountant = "gdp") -> float:
    """The smallest ε that the filter proves, at this `delta`, for a person who spends `budget`.

    >>> round(epsilon(0.035926, 1e-5), 4), round(epsilon(0.030557, 1e-5, "rdp"), 4)
    (1.0, 1.0)
    """
    _check_accountant(accountant)
    _check("delta", delta, MIN_DELTA, 1.0)
    if budget == 0:
        return 0.0
    _check("budget", budget, 0.0, MAX_BUDGET)
    budget = max(budget, MIN_BUDGET)
    if accountant == "rdp":
        eps = _minimise(lambda a1: (1.0 + a1) * budget + _rdp_offset(a1, delta))
    else:
        eps = _gdp_epsilon(sqrt(2.0 * budget), log(delta))
    return max(0.0, eps * (1.0 + _MARGIN))


def budget_at_order(epsilon: float, delta: float, order: float) -> float:
    """The largest Rényi divergence of one order that proves (epsilon, delta)-DP.

    >>> round(budget_at_order(1.0, 1e-5, 16.0), 4)
    0.4818
    """
    _check("epsilon", epsilon, MIN_EPSILON, MAX_EPSILON)
    B = epsilon - _offset_at(order, delta)
    if B <= 0.0:
        raise InvalidInputError(f"order {order:g} proves nothing at epsilon = {epsilon:g}, delta = {delta:g}: raise it")
    return B * (1.0 - _MARGIN)


def epsilon_at_order(spent: float, delta: float, order: float) -> float:
    """The epsilon that a Rényi divergence of one order proves."""
    return max(0.0, (spent + _offset_at(order, delta)) * (1.0 + _MARGIN)) if spent else 0.0


def _offset_at(order: float, delta: float) -> float:
    _check("delta", delta, MIN_DELTA, 1.0)
    if not (isfinite(order) and order > 1.0):
        raise InvalidInputError(f"order must be a number above 1, got {order!r}")
    return _rdp_offset(order - 1.0, delta)


def to_units(budget: float) -> int:
    """A budget in ledger units, rounded down.

    >>> to_units(1.0) == UNIT
    True
    """
    if not 0.0 <= budget * UNIT < MAX_UNITS:
        raise InvalidInputError(f"budget must be in [0, {MAX_UNITS // UNIT}), got {budget!r}")
    num, den = float(budget).as_integer_ratio()
    return num * UNIT // den


def from_units(units: IntArray | int) -> FloatArray:
    """Ledger units as ρ. For people to read: the filter itself compares integers only."""
    return np.asarray(units, dtype=np.float64) / UNIT


def _gdp_log_delta(eps: float, mu: float) -> float:
    """log δ(ε) of μ-GDP, without cancellation in the tails."""
    from scipy.special import log_ndtr  # noqa: PLC0415 - SciPy is half of the start of a process, and many need none

    a = float(log_ndtr(mu / 2.0 - eps / mu))
    b = eps + float(log_ndtr(-mu / 2.0 - eps / mu))
    return a + log(-expm1(b - a)) if b < a else -inf


def _gdp_mu(eps: float, log_delta: float) -> float:
    """The largest μ with δ(ε) <= δ; δ grows with μ."""

    def gap(log_mu: float) -> float:
        return max(_gdp_log_delta(eps, exp(log_mu)), -1e6) - log_delta

    from scipy.optimize import brentq  # noqa: PLC0415

    low, high = log(eps) - 10.0, 5.0 + log1p(sqrt(2.0 * eps))
    root = float(brentq(gap, low, high, xtol=1e-14, rtol=1e-14))
    return exp(root)


def _gdp_epsilon(mu: float, log_delta: float) -> float:
    """The smallest ε with δ(ε) <= δ; δ falls with ε."""

    def gap(eps: float) -> float:
        return max(_gdp_log_delta(eps, mu), -1e6) - log_delta

    if gap(0.0) <= 0.0:
        return 0.0
    from scipy.optimize import brentq  # noqa: PLC0415

    high = mu * mu / 2.0 + mu * sqrt(-2.0 * log_delta) + 1e-300  # Chernoff: δ(high) <= δ
    return float(brentq(gap, 0.0, high, xtol=1e-300, rtol=1e-14, maxiter=500))


@lru_cache(maxsize=256)  # 400 points of a grid, for settings that are few
def _rdp_budget(epsilon: float, delta: float) -> float:
    """For each α the conversion can be solved for B; the best α gives the largest B."""
    return -_minimise(lambda a1: -(epsilon - _rdp_offset(a1, delta)) / (1.0 + a1))


def _rdp_offset(a1: float, delta: float) -> float:
    """What the conversion adds to αB, with α = 1 + a1."""
    return log(a1) - log1p(a1) - (log(delta) + log1p(a1)) / a1


def _minimise(f: Callable[[float], float]) -> float:
    """The minimum of f over α - 1 > 0. Any α is valid, so an inexact minimum is only pessimistic."""
    from scipy.optimize import minimize_scalar  # noqa: PLC0415

    grid = np.linspace(log(1e-6), log(1e9), 400)
    values = [f(exp(t)) for t in grid]
    i = int(np.argmin(values))
    bracket = (grid[max(i - 1, 0)], grid[min(i + 1, len(grid) - 1)])
    found = minimize_scalar(lambda t: f(exp(t)), bounds=bracket, method="bounded", options={"xatol": 1e-12})
    return float(min(found.fun, values[i]))


def _check(name: str, value: float, low: float, high: float) -> None:
    if not (isfinite(value) and value > 0.0 and low <= value < high):
        least = f"at least {low:g}" if low > 0.0 else "above 0"
        raise InvalidInputError(f"{name} must be {least} and below {high:g}, got {value!r}")


def _check_accountant(accountant: str) -> None:
    if accountant not in {"gdp", "rdp"}:
        raise InvalidInputError(f"accountant must be 'gdp' or 'rdp', got {accountant!r}")
