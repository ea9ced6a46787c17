"""One of several, drawn with probability exactly proportional to exp(utility/scale): the exponential mechanism.

It has the law of the argmax of utilities + Gumbel noise, but no Gumbel number is ever made. An index is proposed
uniformly and kept with probability exp(-(best - utility)/scale), a trial that integers can decide to the last bit
(Canonne, Kamath & Steinke 2020, Algorithm 1). Nothing is rounded and nothing here is a float, so the law is the one
that the proof speaks of and no floating-point trace remains (Mironov 2012; Ilvento 2020 for this mechanism).
"""

from __future__ import annotations

from collections.abc import Callable

from indknn.errors import InvalidInputError
from indknn.types import IntArray

WORD_BITS = 64
Word = Callable[[], int]
"""A source of independent uniform 64-bit words."""


def choose(word: Word, utilities: IntArray, scale: int) -> int:
    """An index c with probability exp(u_c/scale) / Σ exp(u/scale), for integers of any size.

    Between 1 and len(utilities) proposals on average: the fewer, the closer the utilities lie together. So the *time*
    this takes depends on private votes. It is a timing channel, which `pacing` closes with its fixed tick.

    >>> import numpy as np, os
    >>> choose(lambda: int.from_bytes(os.urandom(8)), np.array([0, 1 << 60, 5]), 7)
    1
    """
    if not (isinstance(scale, int) and scale > 0):
        raise InvalidInputError(f"the scale of a choice must be a positive integer, got {scale!r}")
    if utilities.ndim != 1 or not len(utilities) or utilities.dtype.kind != "i":
        raise InvalidInputError(f"utilities must be a row of integers, got {utilities.dtype} of {utilities.shape}")
    values = utilities.tolist()  # Python's integers: differences cannot overflow
    best = max(values)
    while True:
        index = below(word, len(values))
        whole, rest = divmod(best - values[index], scale)
        if all(bernoulli_exp(word, 1, 1) for _ in range(whole)) and bernoulli_exp(word, rest, scale):
            return index


def bernoulli_exp(word: Word, num: int, den: int) -> bool:
    """True with probability exp(-num/den), for 0 <= num <= den: von Neumann's alternating series.

    The run of successes of trials num/den, num/2den, num/3den, ... has even length with that probability.
    """
    k = 1
    while bernoulli(word, num, k * den):
        k += 1
    return k % 2 == 1


def bernoulli(word: Word, num: int, den: int) -> bool:
    """True with probability num/den, for 0 <= num <= den of any size: whether a uniform number lies below it.

    Both are compared digit by digit, base 2^64, until one differs: nearly always the first.
    """
    while True:
        digit, num = divmod(num << WORD_BITS, den)
        drawn = word()
        if drawn != digit:
            return drawn < digit


def below(word: Word, n: int) -> int:
    """A uniform integer in [0, n) for n <= 2^64, by rejection."""
    limit = (1 << WORD_BITS) - (1 << WORD_BITS) % n
    while (value := word()) >= limit:
        pass
    return value % n
