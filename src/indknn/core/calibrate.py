"""Automatic parameters, chosen from public information."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from math import ceil, sqrt

import numpy as np

from indknn.core.kernels import Kernel
from indknn.core.mechanism import Plan
from indknn.core.quantise import integer_dots
from indknn.types import GRID, IntArray, Vectors

SELECTED_SHARE = 0.03
"""The share of pairs that an automatic τ aims at. 2% to 5% did best on AG News, CIFAR-10 and Fashion-MNIST, judged by
labels of their test queries. So no accuracy with this default on those sets is an independent result."""
NEAR_SHARE = 0.015
"""The same with a shared model, where few votes are enough. Chosen on held-out training records."""
MANY_RECORDS = 1 << 20
"""From this many records on, the number of neighbours stays the same and their share falls. See docs/tuning.md."""
NUMBER_SIZE = 0.4
"""The usual size of a vote with a number, which says how much noise it needs. The square of a vote costs 1/16, for the
record's own weight, and y², which is about 0.1 for numbers in [-1, 1]."""
COUNT_EVERY = 16
"""With a shared model, one in this many answers releases its count."""
FEW_RECORDS = 15_000
"""Below this many records the automatic σ2 grows. Chosen on held-out training records of five sets."""
MANY_CLASSES = 100
"""From this many classes on, more of the budget is for the shared model, and its Fourier features need more signal."""
DEFAULT_TAU = 0.5
PLANNED_QUERIES = 2000
"""How many queries the noise on the count is planned for, if no number was given."""
MIN_QUERIES = 20
_MAX_QUERIES, _MOST_QUERIES = 256, 1024
_PAIRS_WANTED, _LEAST_PAIRS = 32, 4
_LOWEST_TAU = 0.05


def sigma1_for(budget: float, max_queries: int) -> float:
    """The paper's σ1 = sqrt(T/6B). Being counted costs 3B/T per query. Somebody near in T/6 queries pays half of B.

    For T below 6 this would cost more than half of B at once. For T = 1 it would cost more than B, and nobody could
    take part. So σ1 is never below its value for T = 6.

    >>> sigma1_for(0.5, 12)
    2.0
    """
    return sqrt(max(max_queries, 6) / (6.0 * budget))


def sigma2_for(budget: float, max_queries: int) -> float:
    """An automatic σ2, in proportion to sqrt(T/B), as the best values were.

    A person who is near in a share s of the T queries pays about s·T·κ²/(2·σ2²·K) for voting. So the σ2 at which
    budgets last for T queries grows with sqrt(T/B). The factor fits stores of about 50,000 records; see `Crowd`.

    >>> 0.6 < sigma2_for(0.0359, 1000) < 0.8
    True
    """
    return min(max(0.0042 * sqrt(max_queries / budget), 0.1), 2.0)


class Crowd:
    """Estimates the number of records from released K, and raises an automatic σ2 if there are few.

    A share s of n records is near a query, so K is about s·n, and the cost of voting is proportional to 1/n. If τ was
    chosen here, s is known. Otherwise the usual s is assumed.

    >>> crowd = Crowd(sigma2=0.7)
    >>> crowd.sigma2(50_000 * SELECTED_SHARE), round(Crowd(0.7).sigma2(1_500 * SELECTED_SHARE), 2)
    (0.7, 2.21)
    """

    def __init__(self, sigma2: float):
        self._sigma2 = sigma2
        self._total, self._seen = 0.0, 0

    def sigma2(self, K: float) -> float:
        """The noise on the votes of a query whose noisy count is K records."""
        self._total, self._seen = self._total + K, self._seen + 1
        records = self._total / self._seen / SELECTED_SHARE
        return self._sigma2 * max(sqrt(FEW_RECORDS / records), 1.0)


def near_share(share: float, records: float | None) -> float:
    """The share of records that τ aims at in a store of about this many records. None: the number is not known.

    The number must be public: what an operator says, or a noisy count.

    >>> near_share(0.03, 50_000), near_share(0.03, 4 * MANY_RECORDS), near_share(0.03, None)
    (0.03, 0.0075, 0.03)
    """
    return share * min(MANY_RECORDS / records, 1.0) if records else share


def tau_from_queries(queries: Vectors, kernel: Kernel, share: float = SELECTED_SHARE) -> float | None:
    """The τ that about this share of the pairs of these *queries* reaches. None if there are too few queries.

    Queries are public, so this costs nothing. If the private records are distributed like the queries, about the same
    share of them will be near a query. A small share needs more queries. With too few, τ is set lower, because the
    nearest of a few pairs say little.
    """
    kappa = pairs_of(queries, kernel, max(_MAX_QUERIES, min(ceil(sqrt(2 * _PAIRS_WANTED / share)), _MOST_QUERIES)))
    if kappa is None:
        return None
    quantile = float(np.quantile(kappa, 1.0 - max(share, _LEAST_PAIRS / len(kappa)))) / GRID
    return min(max(quantile, _LOWEST_TAU), 1.0)


def pairs_of(queries: Vectors, kernel: Kernel, most: int = _MAX_QUERIES) -> IntArray | None:
    """κ on the grid for the pairs of the first few hundred distinct queries. None if there are too few."""
    queries = queries[slice(0, most)]
    first: dict[bytes, int] = {}
    for i, row in enumerate(queries.values):
        first.setdefault(row.tobytes(), i)
    if len(first) < MIN_QUERIES:
        return None
    distinct = queries[np.array(list(first.values()), dtype=np.int64)]
    dots = integer_dots(distinct.values, distinct.values)
    kappa = [
        np.delete(kernel.values(dot, distinct.root_norm, distinct.scale, float(root), float(scale)), i)
        for i, (dot, root, scale) in enumerate(zip(dots, distinct.root_norm, distinct.scale, strict=True))
    ]
    return np.concatenate(kappa)


def plan_from_queries(kernel: Kernel, plan: Callable[[float], Plan], share: float, queries: Vectors) -> Plan:
    """The plan with τ chosen from the first queries, or with a fixed τ if there are too few."""
    tau = tau_from_queries(queries, kernel, share)
    if tau is None:
        warnings.warn(
            f"tau was not given and {len(queries)} queries are too few to choose it: using {DEFAULT_TAU}",
            stacklevel=4,
        )
        tau = DEFAULT_TAU
    return plan(tau)
