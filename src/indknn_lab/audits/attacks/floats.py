"""The floating-point attack: the last bits of a noisy value can reveal the value without noise (Mironov 2012).

A person's count is 0 or 1, and noise is added. Textbook noise is a double. Doubles are dense near zero and less dense
near one. So a released value with very fine bits cannot have been 1 + noise. The attacker looks for such bits, and for
any other pattern in the last bits that separates the two cases. Correct noise allows every attacker a success rate of
at most Φ(1/2s). A higher rate is a leak. Our values are integers on a grid, and the rate must not be higher.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.special import ndtr

from indknn.core.noise import SecureNoise
from indknn.types import GRID, FloatArray, IntArray
from indknn_lab.audits.bounds import lower_rate

SIGMA = 2.0
Sampler = Callable[[int, int], FloatArray]
"""A function that releases doubles. Its arguments are the value without noise, and how many to release."""


@dataclass(frozen=True)
class FloatAttack:
    """A lower bound on how often the attacker was right, and the highest rate that the noise allows."""

    sampler: str
    released: int
    success: float
    success_at_least: float
    allowed: float

    @property
    def leaks(self) -> bool:
        """Whether the attacker is right more often than the noise allows."""
        return self.success_at_least > self.allowed


def both(released: int, seed: int, error: float) -> list[FloatAttack]:
    """The attack on textbook noise, where it must succeed, and on ours."""
    return [
        attack("textbook double", naive(seed), released, error),
        attack("indknn", ours(seed), released, error),
    ]


def attack(name: str, sampler: Sampler, released: int, error: float) -> FloatAttack:
    """Learn from half of the released values which bit patterns come from 0 and which from 1. Then guess the rest."""
    zero, one = (_pattern(sampler(v, released)) for v in (0, 1))
    half = released // 2
    size = 1 + max(int(zero.max()), int(one.max()))
    more_ones = np.bincount(one[:half], minlength=size) > np.bincount(zero[:half], minlength=size)
    right = int(more_ones[one[half:]].sum() + (~more_ones[zero[half:]]).sum())
    guessed = 2 * (released - half)
    at_least, allowed = lower_rate(right, guessed, error), float(ndtr(1.0 / (2.0 * SIGMA)))
    return FloatAttack(name, 2 * released, right / guessed, at_least, allowed)


def naive(seed: int) -> Sampler:
    """Textbook noise: a double plus a normal double."""
    rng = np.random.default_rng([seed, 4])
    return lambda value, size: value + SIGMA * rng.standard_normal(size)


def ours(seed: int) -> Sampler:
    """The noise of the mechanism: the exact sampler on the grid, here with seeded entropy, converted to a double."""
    noise = SecureNoise(entropy=np.random.default_rng([seed, 5]).bytes)
    return lambda value, size: (value * GRID + noise.draw(int(SIGMA * GRID), size)) / GRID


def _pattern(values: FloatArray) -> IntArray:
    """The pattern of a value: its lowest set bit, together with its size in eight steps."""
    mantissa, exponent = np.frexp(values)
    whole = np.abs(mantissa * 2.0**53).astype(np.int64)
    lowest = np.log2((whole & -whole).astype(np.float64), where=whole > 0, out=np.zeros(len(values)))
    fineness = np.clip(exponent - 53 + lowest + 80, 0, 127).astype(np.int64)
    place = np.clip(np.floor(values) + 4, 0, 7).astype(np.int64)
    return np.asarray(fineness * 8 + place)
