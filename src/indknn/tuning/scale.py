"""From a store of one size to a store of another: which noise means the same.

One who is near in a share s of T queries is charged about s·T·κ²/(2·σ2²·K) for voting, and K = s·n. So

    what an average person pays     T·κ²/(2·σ2²·n)        the same if σ2 ∝ sqrt(T/n)
    noise over votes                σ2·sqrt(K)/(κ·K) = σ2/(κ·sqrt(s·n))

Put together, at equal budgets the noise over the votes goes with sqrt(T)/n. A small stand-in of m records therefore
behaves like n records under n queries per m² ... that is, T' = T·(m/n)² queries to the stand-in wear out its people and
blur its votes exactly as T queries do in the store. What does *not* carry over: with more records there are nearer
ones, so the best τ of a larger store is a little higher and its accuracy a little better.
"""

from __future__ import annotations

from math import sqrt

from indknn.calibrate import sigma2_for

USUAL_STORE = 50_000
"""The size of store that the factor of `calibrate.sigma2_for` was fitted for."""
_LEAST, _MOST = 0.02, 100.0


def sigma2_for_store(budget: float, max_queries: int, n: int, factor: float = 1.0) -> float:
    """σ2 at which the budgets of n people last for T queries as they do in a store of the usual size.

    >>> sigma2_for_store(0.0359, 1000, 50_000) == sigma2_for(0.0359, 1000)
    True
    >>> round(sigma2_for_store(0.0359, 1000, 12_500) / sigma2_for(0.0359, 1000), 6)
    2.0
    """
    usual = 0.0042 * sqrt(max_queries / budget)
    return min(max(factor * usual * sqrt(USUAL_STORE / n), _LEAST), _MOST)
