"""Finds the k nearest records, of all or of a Poisson sample, and counts their votes.

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

**Sampling.** Every record enters a Poisson sample with probability p, independently of the others.
Amplification by sampling requires a secret sample. So the coins come from the operating system's entropy, as the noise
does. The probability must not be above the one that the accounting used. So coins are integers, and p is rounded *down*
to a multiple of 2^-48. They are drawn exactly. The first 16 bits decide almost always. In one of 65,536 cases they do
not, and 32 more bits are drawn.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from fractions import Fraction
from math import floor, sqrt

import numpy as np

from indknn.core.quantise import integer_dots
from indknn.errors import InvalidInputError
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


Entropy = Callable[[int], bytes]


class PoissonSampler:
    """Independent coins of probability p (rounded down to 48 bits).

    >>> coins = PoissonSampler(0.25, np.random.default_rng(0).bytes)
    >>> int(coins(100_000).sum())
    25046
    """

    def __init__(self, p: float, entropy: Entropy = os.urandom):
        if not 0.0 < p <= 1.0:
            raise InvalidInputError(f"the sampling probability must be in (0, 1], got {p!r}")
        self.p = p
        self._entropy = entropy
        self._first, self._rest = divmod(floor(Fraction(p) * (1 << 48)), 1 << 32)

    def __call__(self, n: int) -> BoolArray:
        """n coins."""
        word = np.frombuffer(self._entropy(2 * n), dtype=np.uint16)
        chosen: BoolArray = word < self._first
        undecided = np.flatnonzero(word == self._first)
        if len(undecided):
            more = np.frombuffer(self._entropy(4 * len(undecided)), dtype=np.uint32)
            chosen[undecided] = more < self._rest
        return chosen


def entropy_from(random_state: int | np.random.Generator | np.random.RandomState | None) -> Entropy:
    """The operating system's entropy for None. Otherwise reproducible bytes that differ from those of the noise."""
    if random_state is None:
        return os.urandom
    if isinstance(random_state, np.random.Generator):
        return random_state.bytes
    if isinstance(random_state, np.random.RandomState):
        random_state = int(random_state.randint(np.iinfo(np.int32).max))
    return np.random.default_rng([int(random_state), 0x706F6973]).bytes
