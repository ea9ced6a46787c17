"""The Gaussian sampler of `indknn.core.noise`, a hundred thousand draws at a time.

A training by noisy gradients takes millions of draws, which one by one would take a minute. This is the same
algorithm (Karney's N) on arrays: all draws walk through it side by side, and those that are decided drop out.
It consumes 64-bit words from the operating system, compares them as integers, and rounds to the grid with a
float only where the float leaves no doubt.

The one difference: of deviates whose first 64 bits are equal, the further digits that decide are not
remembered. That matters only where two such accidents fall on the same draw, so the distribution of a draw is
within 2^-100 of the exact one.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from indknn.core.noise import Noise, SecureNoise, SeededNoise, _ratio, _round_scaled
from indknn.errors import InvalidInputError
from indknn.types import BoolArray, IntArray
from indknn_lab.baselines.sampling import Entropy

Words = npt.NDArray[np.uint64]
Word = Callable[[int], Words]

_CHUNK = 1 << 17  # draws side by side: the arrays of one round stay in cache
_TOP = np.uint64(63)


class BulkNoise:
    """Exact rounded Gaussians from the operating system's entropy, fast for many at once.

    >>> values = BulkNoise().draw(1000, size=100_000)
    >>> bool(990 < values.std() < 1010)
    True
    """

    secure = True

    def __init__(self, entropy: Entropy = os.urandom):
        self._entropy = entropy

    def draw(self, scale: int | float | Fraction, size: int) -> IntArray:
        """`size` independent values of round(scale·Z)."""
        num, den = _ratio(scale)
        if num > den << 50:
            raise InvalidInputError(f"noise scale must be at most 2^50, got {scale!r}")
        chunks = [self._chunk(num, den, min(_CHUNK, size - low)) for low in range(0, size, _CHUNK)]
        return np.concatenate([np.zeros(0, dtype=np.int64), *chunks])

    def choose(self, utilities: IntArray, scale: int) -> int:
        """One at a time, as `SecureNoise`."""
        return SecureNoise(self._entropy).choose(utilities, scale)

    def _chunk(self, num: int, den: int, n: int) -> IntArray:
        k, x = _half_normals(self._words, n)
        magnitude = self._rounded(k, x, num, den)
        sign = np.frombuffer(self._entropy(n), dtype=np.uint8) & 1
        return np.where(sign == 1, -magnitude, magnitude)

    def _rounded(self, k: IntArray, x: Words, num: int, den: int) -> IntArray:
        """round((k + x)·num/den): by floats, and by integers where the floats might be on the wrong side."""
        value = (k + x * 2.0**-64) * (num / den)
        lifted = value + 0.5
        result = np.floor(lifted)
        doubt = (value + 1.0) * 2.0**-49  # each of the five roundings above is off by 2^-53 at most
        unsure = np.flatnonzero((lifted - result <= doubt) | (result + 1.0 - lifted <= doubt))
        rounded = result.astype(np.int64)
        for i in unsure:
            rounded[i] = _round_scaled(lambda: int(self._words(1)[0]), int(k[i]), [int(x[i])], num, den)
        return rounded

    def _words(self, n: int) -> Words:
        return np.frombuffer(self._entropy(8 * n), dtype=np.uint64)


def bulk_noise_from(random_state: int | np.random.Generator | np.random.RandomState | None) -> Noise:
    """Like `indknn.core.noise.noise_from`, for those who draw by the million."""
    return BulkNoise() if random_state is None else SeededNoise(random_state)


def _half_normals(word: Word, n: int) -> tuple[IntArray, Words]:
    """n pairs (k, x) of an integer and a fraction, |Z| = k + x·2^-64. Steps N1 to N4."""
    ks, xs, have = [], [], 0
    while have < n:
        k = _geometric(word, (n - have) * 2 + 16)  # about two thirds are kept
        k = k[_all_half(word, k * (k - 1))]  # N2: keep k with probability exp(-k(k-1)/2)
        x = word(len(k))  # N3
        keep = np.arange(len(k))
        for trial in range(int(k.max(initial=0)) + 1):  # N4: k + 1 trials each
            due = k[keep] >= trial
            passed = ~due
            passed[due] = _bernoulli_exp_x(word, k[keep[due]], x[keep[due]])
            keep = keep[passed]
        ks.append(k[keep])
        xs.append(x[keep])
        have += len(keep)
    return np.concatenate(ks)[:n], np.concatenate(xs)[:n]


def _geometric(word: Word, n: int) -> IntArray:
    """N1: how many trials of probability exp(-1/2) succeed before one fails."""
    k = np.zeros(n, dtype=np.int64)
    going = np.arange(n)
    while len(going):
        going = going[_bernoulli_exp_half(word, len(going))]
        k[going] += 1
    return k


def _all_half(word: Word, trials: IntArray) -> IntArray:
    """Which entries pass as many trials of probability exp(-1/2) as `trials` says."""
    going, done = np.arange(len(trials)), 0
    passed = []
    while len(going):
        finished = trials[going] <= done
        passed.append(going[finished])
        going = going[~finished]
        going = going[_bernoulli_exp_half(word, len(going))]
        done += 1
    # In the order they came: the order of success would tie the size of k to its place.
    return np.sort(np.concatenate([np.zeros(0, dtype=np.int64), *passed]))


def _bernoulli_exp_half(word: Word, n: int) -> BoolArray:
    """True with probability exp(-1/2): von Neumann's trick on the run 1/2 > u1 > u2 > ..."""
    previous = word(n)
    result: BoolArray = (previous >> _TOP) == 1  # not even u1 is below 1/2: an even run, of length 0
    going = np.flatnonzero(~result)
    previous, even = previous[going], False
    while len(going):
        u = word(len(going))
        less = _less(word, u, previous)
        result[going[~less]] = even
        going, previous, even = going[less], u[less], not even
    return result


def _bernoulli_exp_x(word: Word, k: IntArray, x: Words) -> BoolArray:
    """True with probability exp(-x(2k+x)/(2k+2)), as in `indknn.core.noise`."""
    result = np.zeros(len(k), dtype=np.bool_)
    going, previous, even = np.arange(len(k)), x, True
    while len(going):
        u = word(len(going))
        less = _less(word, u, previous)
        side = _below(word, 2 * k[going] + 2)
        top = side == 2 * k[going]
        top[top] = ~_less(word, word(int(top.sum())), x[going[top]])
        on = less & (side <= 2 * k[going]) & ~top
        result[going[~on]] = even
        going, previous, even = going[on], u[on], not even
    return result


def _less(word: Word, a: Words, b: Words) -> BoolArray:
    """Whether a < b, entry by entry; equals are decided by further digits."""
    result: BoolArray = a < b
    level = np.flatnonzero(a == b)
    if len(level):
        result[level] = _less(word, word(len(level)), word(len(level)))
    return result


def _below(word: Word, n: IntArray) -> IntArray:
    """Uniform integers in [0, n), entry by entry, by rejection."""
    bound = n.astype(np.uint64)
    value = word(len(n))
    rest = (np.uint64(2**64 - 1) % bound + np.uint64(1)) % bound  # 2^64 mod n
    again = np.flatnonzero(value > np.uint64(2**64 - 1) - rest)
    result = (value % bound).astype(np.int64)
    if len(again):
        result[again] = _below(word, n[again])
    return result
