"""Poisson sampling: every record enters the sample with probability p, independently of the others.

Amplification by sampling requires a secret sample. So the coins come from the operating system's entropy, as the noise
does. The probability must not be above the one that the accounting used. So coins are integers, and p is rounded *down*
to a multiple of 2^-48. They are drawn exactly. The first 16 bits decide almost always. In one of 65,536 cases they do
not, and 32 more bits are drawn.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from fractions import Fraction
from math import floor

import numpy as np

from indknn.errors import InvalidInputError
from indknn.types import BoolArray

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
