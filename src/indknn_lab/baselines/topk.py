"""Finds the k nearest records and counts their votes. Pure functions over arrays.

**Sensitivity.** Let the records be in one total order of nearness to the query. The relative order of two records must
not depend on any third record. Now add one record z. If z is not among the first k, nothing changes. If it is, and
there were at least k records, exactly the k-th record w drops out. The vote changes by e_{y_z} - e_{y_w}, of length
sqrt(2) or 0. If there were fewer than k records, it changes by e_{y_z}, of length 1. Removing a record is the same step
backwards. So the L2 sensitivity of a top-k vote is sqrt(2), **not 1**. The difference e_a - e_b has no part that is
common to all classes. So using only the argmax does not lower the sensitivity.

The proof needs the total order, so ties must be broken with care. The first key is the integer dot product divided by
the record's own norm. The second key is the order in which the records came. A partial sort that picks *any* k among
equals would not be safe. Nor would a floating-point product whose last bit depends on the record's position in the
matrix. With either, one record could exchange many others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import sqrt

import numpy as np

from indknn.core.quantise import integer_dots
from indknn.types import BoolArray, FloatArray, IntArray, Vectors

SENSITIVITY = sqrt(2.0)
"""The L2 sensitivity of a vote of the k nearest, if one record is added or removed."""

_QUERIES = 64  # per pass over the store: 64 rows of similarities stay small
_SLACK = 6.0  # standard deviations added to the expected length of a walk, so that one step is usually enough


def similarities(queries: Vectors, records: Vectors) -> Iterator[FloatArray]:
    """For each query, <x_i, q>/|x_i| for every record. This is the cosine times the length of the query."""
    for low in range(0, len(queries), _QUERIES):
        yield from integer_dots(queries.values[low : low + _QUERIES], records.values) / records.root_norm


def nearest(similarity: FloatArray, m: int) -> IntArray:
    """The m nearest records, nearest first, or all if there are fewer. Ties are in the order of the records.

    >>> nearest(np.array([0.5, 0.9, 0.5, 0.5]), 3).tolist()
    [1, 0, 2]
    """
    n = len(similarity)
    if m >= n:
        return np.argsort(-similarity, kind="stable")
    least = np.partition(similarity, n - m)[n - m]  # the similarity of the m-th nearest
    above = np.flatnonzero(similarity > least)
    level = np.flatnonzero(similarity == least)[: m - len(above)]
    above = above[np.argsort(-similarity[above], kind="stable")]
    return np.concatenate([above, level])


def nearest_in_sample(similarity: FloatArray, k: int, coins: Callable[[int], BoolArray], p: float) -> IntArray:
    """The k nearest within a Poisson sample of the records.

    The coins are independent of everything. So the order in which they are drawn makes no difference, and coins after
    the k-th success need not be drawn. The function walks outwards from the query and stops at the k-th success, after
    about k/p records, however many records there are.
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
