"""Gaussian noise that leaves no floating-point trace, and seeded noise for experiments.

Votes and counts are integers on a grid. `SecureNoise` returns round(s·Z) for a *mathematically exact* standard normal Z
and any rational scale s. For an integer v, v + round(s·Z) = round(v + s·Z). So the rounding is post-processing of the
exact Gaussian mechanism, and its guarantee holds unchanged. Floating-point samplers have no such argument: the set of
doubles that they can return reveals the input (Mironov 2012).

The sampler is C. F. F. Karney's Algorithm N ("Sampling exactly from the normal distribution", 2016). It compares
uniform deviates, draws their digits when they are needed, and computes nothing in floats. `_sampler.c` does the same
about ten times faster, from the same entropy, if it could be built.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Protocol

import numpy as np

from indknn.core.quantise import load_native
from indknn.errors import InvalidInputError
from indknn.types import IntArray

_sampler = load_native("indknn.core._sampler")

_FAST_SCALES = 1 << 59
_DIGIT_BITS = 64
_BLOCK = 1024  # bytes of entropy per request: enough for about eleven draws

Word = Callable[[], int]  # a source of independent uniform 64-bit words
Deviate = list[int]  # a uniform number in (0, 1) as the base-2^64 digits that are known so far


class Noise(Protocol):
    """A source of noise for the mechanism."""

    @property
    def secure(self) -> bool:
        """Whether answers made with this noise are private. Everything that serves people's data checks it."""
        ...

    def draw(self, scale: int | float | Fraction, size: int) -> IntArray:
        """`size` independent values of round(scale·Z), Z standard normal."""
        ...


class SecureNoise:
    """The exact Gaussian rounded to integers, from the operating system's entropy.

    Every call reads its own entropy. So nothing is shared between threads, and a forked process never repeats its
    parent's noise.

    >>> values = SecureNoise().draw(1000, size=3)
    >>> values.shape, values.dtype.name
    ((3,), 'int64')
    """

    secure = True

    def __init__(self, entropy: Callable[[int], bytes] = os.urandom):
        self._entropy = entropy

    def draw(self, scale: int | float | Fraction, size: int) -> IntArray:
        """`size` independent values of round(scale·Z), exactly."""
        num, den = _ratio(scale)
        if _sampler is not None and den == 1 and num < _FAST_SCALES:
            return self._draw_fast(num, size)
        word = _Words(b"", self._entropy).next
        return np.array([_rounded_normal(word, num, den) for _ in range(size)], dtype=np.int64)

    def _draw_fast(self, scale: int, size: int) -> IntArray:
        words, values = b"", np.zeros(size, dtype=np.int64)
        done = 0
        while done < size:
            words += self._entropy(_BLOCK)  # an unfinished draw continues with the words it had
            hard = 1
            while hard and done < size:
                body, made, used, hard = _sampler.draws(words, scale, size - done)
                values[done : done + made] = np.frombuffer(body, dtype=np.int64, count=made)
                done, words = done + made, words[used:]
                if hard:  # the rounding cannot be decided with 128 bits
                    stream = _Words(words, self._entropy)
                    values[done] = _rounded_normal(stream.next, scale, 1)
                    done, words = done + 1, stream.rest()
        return values


class SeededNoise:
    """Reproducible noise: ordinary floating-point normals, rounded. Only for experiments.

    Anybody who knows the seed can subtract the noise, so nothing made with it is private.

    >>> bool((SeededNoise(7).draw(5.0, 4) == SeededNoise(7).draw(5.0, 4)).all())
    True
    """

    secure = False

    def __init__(self, seed: int | np.random.Generator | np.random.RandomState):
        if isinstance(seed, np.random.RandomState):
            seed = int(seed.randint(np.iinfo(np.int32).max))
        self._rng = np.random.default_rng(seed)

    def draw(self, scale: int | float | Fraction, size: int) -> IntArray:
        """`size` values of round(scale·Z)."""
        num, den = _ratio(scale)
        return np.rint(self._rng.standard_normal(size) * (num / den)).astype(np.int64)


def _ratio(scale: int | float | Fraction) -> tuple[int, int]:
    try:
        num, den = scale.as_integer_ratio()
    except (ValueError, OverflowError):  # NaN, infinity
        num, den = 0, 1
    if num <= 0:
        raise InvalidInputError(f"noise scale must be positive and finite, got {scale!r}")
    return num, den


class _Words:
    """A stream of 64-bit words: first those that are given, then blocks of entropy."""

    def __init__(self, body: bytes, entropy: Callable[[int], bytes]):
        self._entropy = entropy
        self._body = memoryview(body).cast("Q")
        self._at = 0

    def next(self) -> int:
        """The next word."""
        if self._at == len(self._body):
            self._body, self._at = memoryview(self._entropy(_BLOCK)).cast("Q"), 0
        self._at += 1
        return self._body[self._at - 1]

    def rest(self) -> bytes:
        """The words that were not taken yet."""
        return self._body[self._at :].tobytes()


def _rounded_normal(word: Word, num: int, den: int) -> int:
    """round(Z·num/den) for an exact standard normal Z (Karney's Algorithm N)."""
    while True:
        k = 0  # N1: k with probability proportional to exp(-k/2)
        while _bernoulli_exp_half(word):
            k += 1
        # N2: keep k with probability exp(-k(k-1)/2)
        if not all(_bernoulli_exp_half(word) for _ in range(k * (k - 1))):
            continue
        x: Deviate = [word()]  # N3
        # N4: keep x with probability exp(-x(2k+x)/2), as k+1 trials
        if all(_bernoulli_exp_x(word, k, x) for _ in range(k + 1)):
            break
    magnitude = _round_scaled(word, k, x, num, den)
    return -magnitude if word() & 1 else magnitude  # N5 to N7: a fair sign


def _bernoulli_exp_half(word: Word) -> bool:
    """True with probability exp(-1/2), by von Neumann's trick on the run 1/2 > u1 > u2 > ..."""
    last = word()
    if last >> (_DIGIT_BITS - 1):
        return True  # not even u1 is below 1/2: an even run, of length 0
    previous: Deviate = [last]
    even = False
    while True:
        u: Deviate = [word()]
        if not _less(word, u, previous):
            return even
        previous, even = u, not even


def _bernoulli_exp_x(word: Word, k: int, x: Deviate) -> bool:
    """True with probability exp(-x(2k+x)/(2k+2)).

    It uses a run x > u1 > u2 > ... in which every step also passes a trial of probability (2k+x)/(2k+2).
    """
    previous, even = x, True
    while True:
        u: Deviate = [word()]
        if not _less(word, u, previous):
            return even
        side = _below(word, 2 * k + 2)
        if side > 2 * k or (side == 2 * k and not _less(word, [word()], x)):
            return even
        previous, even = u, not even


def _below(word: Word, n: int) -> int:
    """A uniform integer in [0, n) for n <= 2^64, by rejection."""
    limit = (1 << _DIGIT_BITS) - (1 << _DIGIT_BITS) % n
    while (value := word()) >= limit:
        pass
    return value % n


def _less(word: Word, a: Deviate, b: Deviate) -> bool:
    """Whether a < b, drawing further digits of either while the known ones are equal."""
    i = 0
    while a[i] == b[i]:
        i += 1
        for deviate in (a, b):
            if len(deviate) == i:
                deviate.append(word())
    return a[i] < b[i]


def _round_scaled(word: Word, k: int, x: Deviate, num: int, den: int) -> int:
    """The integer nearest to (k + x)·num/den, drawing digits of x until there is no doubt which."""
    digits, shift, known = 0, 0, 0
    while True:
        if len(x) == known:
            x.append(word())
        digits = digits << _DIGIT_BITS | x[known]
        known, shift = known + 1, shift + _DIGIT_BITS
        # k + x lies in [low, low + 2^-shift): nearest integer of both ends, as floor(value + 1/2)
        low = (k << shift) + digits
        bottom = (2 * low * num + (den << shift)) // (den << (shift + 1))
        top = (2 * (low + 1) * num + (den << shift)) // (den << (shift + 1))
        if bottom == top:
            return bottom


def noise_from(random_state: int | np.random.Generator | np.random.RandomState | None) -> Noise:
    """Secure noise for None, otherwise seeded noise.

    >>> noise_from(None).secure, noise_from(3).secure
    (True, False)
    """
    try:
        return SecureNoise() if random_state is None else SeededNoise(random_state)
    except (TypeError, ValueError):
        allowed = "None, a seed of at least 0, a Generator or a RandomState"
        raise InvalidInputError(f"random_state must be {allowed}, got {random_state!r}") from None


__all__: Sequence[str] = ["Noise", "SecureNoise", "SeededNoise", "noise_from"]
