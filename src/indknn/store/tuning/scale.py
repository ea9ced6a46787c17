"""From a store of one size to a stand-in of another: which noise and which budget mean the same.

A person who is near in a share s of T queries is charged about s·T·κ²/(2·σ2²·K) for voting, and K = s·n. Over all
n people that is

    spent of B        T·κ²/(2·σ2²·n·B)
    noise over votes  σ2·sqrt(K)/(κ·K) = σ2/(κ·sqrt(s·n))

so at equal wear the noise over the votes goes with sqrt(T/B)/n; that on the count, σ1/K with σ1 = sqrt(T/6B), and on
sums over all records, in proportion to 1/(sqrt(B)·n), go the same way. Hence m people under the budget
B' = B·(n/m)², with σ2' = σ2·sqrt(m/n), see the T queries as n people under B do: same wear, same noise, in votes,
counts, gradients and report cards alike. T' instead of T queries under B'·T'/T mean the same to Algorithm 3.

What does not scale is the floor of 30 under K: in a small stand-in it shields those who are left when most are
exhausted, and a σ2 that is too small looks better than it is (by .05 to .1 with 4,000 for 10,000 records).
So a stand-in is first filled up with copies of its records, and scaled only where it would be too large to try.
"""

from __future__ import annotations

from math import sqrt

from indknn.core.calibrate import sigma2_for

USUAL_STORE = 50_000
"""The size of store that the factor of `calibrate.sigma2_for` was fitted for."""
_MANY = 10_000  # queries over which `sigma2_for` is asked: there its bounds do not bind
_LEAST, _MOST = 0.02, 100.0


def sigma2_for_store(budget: float, max_queries: int, n: int, factor: float = 1.0) -> float:
    """σ2 at which the budgets of n people last for T queries as they do in a store of the usual size.

    >>> round(sigma2_for_store(0.0359, 1000, 50_000) / sigma2_for(0.0359, 1000), 6)
    1.0
    >>> round(sigma2_for_store(0.0359, 1000, 12_500) / sigma2_for(0.0359, 1000), 6)
    2.0
    """
    per_root = sigma2_for(1.0, _MANY) / sqrt(_MANY)
    return min(max(factor * per_root * sqrt(max_queries / budget * USUAL_STORE / n), _LEAST), _MOST)
