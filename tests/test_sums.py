"""Sums over records: what is added, what is charged, and that nobody's charge depends on anybody else."""

from fractions import Fraction

import numpy as np
import pytest

from indknn import sums
from indknn.accounting import UNIT
from indknn.sums import MomentNoise


@pytest.mark.parametrize("m", [2, 300, 1100])
def test_an_owner_pays_the_same_in_whatever_order_their_records_stand(m):
    """Slots are given out by who came and went, so an owner's order depends on others; their charge must not."""
    rng = np.random.default_rng(m)
    noise = MomentNoise.for_price(0.01, 3)
    for _ in range(40 if m < 1000 else 2):
        values, labels = rng.integers(60, 128, size=(m, 16)).astype(np.int8), rng.integers(3, size=m)
        limits = np.full(m, 1 << int(rng.integers(40, 62)))
        order = rng.permutation(m)
        owner = np.zeros(m, dtype=np.int64)
        first = sums.moments(values, labels, owner, limits, 3, noise)
        other = sums.moments(values[order], labels[order], owner, limits, 3, noise)
        assert first.charges.tolist() == other.charges.tolist()
        assert all((a == b).all() for a, b in zip(first.sums, other.sums, strict=True))


@pytest.mark.parametrize("c", [1, 2, 5])
@pytest.mark.parametrize("m", [1, 2, 7, 1030])
def test_the_charge_covers_the_exact_shift_and_fits_the_limit(m, c):
    rng = np.random.default_rng(10 * m + c)
    noise = MomentNoise.for_price(0.01, c)
    for exponent in (20, 35, 44, 60):
        values, labels = rng.integers(-127, 128, size=(m, 3)).astype(np.int8), rng.integers(c, size=m)
        limits = np.full(m, 1 << exponent)
        given = sums.moments(values, labels, np.full(m, 4), limits, c, noise)
        exact = sum(
            (Fraction(int((part.astype(object) ** 2).sum()), 2 * scale * scale))
            for part, scale in zip(given.sums, (noise.scale_a, noise.scale_b), strict=True)
        )
        assert given.owners.tolist() == [4]
        assert exact <= Fraction(int(given.charges[0]), UNIT) <= Fraction(1 << exponent, UNIT)
