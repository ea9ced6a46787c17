"""Parameters chosen from what is public."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from math import sqrt

import numpy as np

from indknn.indexes.exact import integer_dots
from indknn.kernels import Kernel
from indknn.types import GRID, Plan, Vectors

SELECTED_SHARE = 0.05
"""The share of similar pairs that an automatic τ aims at."""
DEFAULT_TAU = 0.5
MIN_QUERIES = 20
_MAX_QUERIES = 256
_LOWEST_TAU = 0.05


def sigma1_for(budget: float, max_queries: int) -> float:
    """The paper's σ1 = sqrt(T/6B): one who is near in all T queries spends half of B on being counted.

    >>> sigma1_for(0.5, 12)
    2.0
    """
    return sqrt(max_queries / (6.0 * budget))


def tau_from_queries(queries: Vectors, kernel: Kernel) -> float | None:
    """A τ that about 5% of the pairs of these *queries* reach; None if there are too few to tell.

    Queries are public, so this costs nothing. If the private records are spread like the queries, about
    5% of them will be near a query.
    """
    queries = queries[slice(0, _MAX_QUERIES)]
    _, first = np.unique(queries.values, axis=0, return_index=True)
    if len(first) < MIN_QUERIES:
        return None
    distinct = queries[np.sort(first)]
    dots = integer_dots(distinct.values, distinct.values)
    kappa = [
        np.delete(kernel.values(dot, distinct.root_norm, distinct.scale, float(root), float(scale)), i)
        for i, (dot, root, scale) in enumerate(zip(dots, distinct.root_norm, distinct.scale, strict=True))
    ]
    quantile = float(np.quantile(np.concatenate(kappa), 1.0 - SELECTED_SHARE)) / GRID
    return min(max(quantile, _LOWEST_TAU), 1.0)


def plan_from_queries(kernel: Kernel, plan: Callable[[float], Plan], queries: Vectors) -> Plan:
    """The plan with τ chosen from the first queries, or with a fixed τ where they are too few."""
    tau = tau_from_queries(queries, kernel)
    if tau is None:
        warnings.warn(
            f"tau was not given and {len(queries)} queries are too few to choose it: using {DEFAULT_TAU}",
            stacklevel=4,
        )
        tau = DEFAULT_TAU
    return plan(tau)
