"""Who the k nearest are, and what they vote. Pure functions over arrays.

**Sensitivity.** Let the records be in one total order of nearness to the query, in which the place of two
records relative to each other does not depend on any third. Put one record z into the store. If z is not
among the first k, nothing changes. If it is, and there were at least k records, it pushes exactly the k-th
one, w, out: the vote changes by e_{y_z} - e_{y_w}, of length sqrt(2) or 0. If there were fewer than k, it
changes by e_{y_z}, of length 1. Taking a record out is the same step backwards. So the L2 sensitivity of a
top-k vote is sqrt(2), **not 1**, and since e_a - e_b has no common part, looking at the argmax only does not
lower it.

That proof stands on the total order, which is why ties are broken with care: by the integer dot product over
the record's own norm first, by the order in which the records came second. A partial sort that picks *any* k
among equals, or a floating-point product whose last bit depends on where in the matrix a record stands, would
let one record exchange many others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import sqrt

import numpy as np

from indknn.core.quantise import integer_dots
from indknn.types import BoolArray, FloatArray, IntArray, Vectors

SENSITIVITY = sqrt(2.0)
"""L2 sensitivity of a vote of the k nearest under adding or removing one record."""

_QUERIES = 64  # per pass over the store: 64 rows of similarities stay small
_SLACK = 6.0  # standard deviations added to the expected length of a walk, so that most need one step


def similarities(queries: Vectors, records: Vectors) -> Iterator[FloatArray]:
    """For each query, <x_i, q>/|x_i| for every record: cosine up to the query's own length."""
    for low in range(0, len(queries), _QUERIES):
        yield from integer_dots(queries.values[low : low + _QUERIES], records.values) / records.root_norm


def nearest(similarity: FloatArray, m: int) -> IntArray:
    """The m nearest records (all, if there are fewer), nearest first, ties in the order of the records.

    >>> nearest(np.array([0.5, 0.9, 0.5, 0.5]), 3).tolist()
    [1, 0, 2]
    """
    n = len(similarity)
    if m >= n:
        return np.argsort(-similarity, kind="stable")
    least = np.partition(similarity, n - m)[n - m]  # what the m-th nearest has
    above = np.flatnonzero(similarity > least)
    level = np.flatnonzero(similarity == least)[: m - len(above)]
    above = above[np.argsort(-similarity[above], kind="stable")]
    return np.concatenate([above, level])


def nearest_in_sample(similarity: FloatArray, k: int, coins: Callable[[int], BoolArray], p: float) -> IntArray:
    """The k nearest within a Poisson sample of the records.

    The coins are independent of everything, so it makes no difference in which order they are thrown, nor
    whether those after the k-th success are thrown at all. So walk outwards from the query and stop at the
    k-th: about k/p records, however many there are.
    """
    n = len(similarity)
    length = min(n, int(k / p + _SLACK * sqrt(k) / p) + 1)
    thrown = coins(length)
    while thrown.sum() < k and length < n:
        length = min(n, 2 * length)
        thrown = np.concatenate([thrown, coins(length - len(thrown))])
    return nearest(similarity, length)[thrown][:k]


def vote(labels: IntArray, n_classes: int) -> IntArray:
    """How many of these labels each class has."""
    return np.bincount(labels, minlength=n_classes)
