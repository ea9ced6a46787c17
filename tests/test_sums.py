"""Sums over all records: what is charged is what was added, never less, for whoever has however many records."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from indknn.core.accounting import UNIT, to_units
from indknn.core.noise import SeededNoise
from indknn.core.statistics import ROW, MomentNoise, moments, noisy_moments, tally, tally_scale, unit_rows
from indknn.types import GRID


def records(rng, n, d, c):
    values = rng.integers(-127, 128, size=(n, d)).astype(np.int8)
    values[(values == 0).all(axis=1), 0] = 1
    return values, rng.integers(c, size=n)


def exact_charge(rows, labels, c, noise):
    """ρ of an owner's rows in exact rationals: |Σ xxᵀ|²/2a² + |Σ x(c·e_y-1)ᵀ|²/2b²."""
    rows = [[int(v) for v in row] for row in rows]
    d = len(rows[0])
    A = [[sum(r[i] * r[j] for r in rows) for j in range(d)] for i in range(d)]
    b = [
        [sum(r[i] * (c * (y == k) - 1) for r, y in zip(rows, labels, strict=True)) for k in range(c)] for i in range(d)
    ]
    square = lambda M: sum(v * v for line in M for v in line)  # noqa: E731
    return Fraction(square(A), 2 * noise.scale_a**2) + Fraction(square(b), 2 * noise.scale_b**2)


@given(
    seed=st.integers(0, 10**6),
    n=st.integers(1, 12),
    people=st.integers(1, 6),
    c=st.integers(1, 4),
    price=st.floats(1e-4, 1.0),
    room=st.floats(0.0, 2.0),
)
def test_every_owner_is_charged_what_they_add_and_never_above_their_limit(seed, n, people, c, price, room):
    rng = np.random.default_rng(seed)
    values, labels = records(rng, n, 5, c)
    owners = rng.integers(people, size=n)
    noise = MomentNoise.for_price(price, c)
    limits = np.full(n, to_units(price * room), dtype=np.int64)
    given = moments(values, labels, owners, limits, c, noise)
    assert (given.charges <= limits[0]).all()
    total_a, total_b = np.zeros((5, 5), dtype=np.int64), np.zeros((5, c), dtype=np.int64)
    for owner, charge in zip(given.owners.tolist(), given.charges.tolist(), strict=True):
        theirs = owners == owner
        alone = moments(values[theirs], labels[theirs], owners[theirs], limits[theirs], c, noise)
        A, b = alone.sums
        exact = Fraction(int((A.astype(object) ** 2).sum()), 2 * noise.scale_a**2) + Fraction(
            int((b.astype(object) ** 2).sum()), 2 * noise.scale_b**2
        )
        assert alone.charges.tolist() == [charge]  # whatever others add
        assert Fraction(charge, UNIT) >= exact
        total_a, total_b = total_a + A, total_b + b
    assert (given.sums[0] == total_a).all()
    assert (given.sums[1] == total_b).all()


def test_one_record_in_full_pays_at_most_the_price_and_nearly_that():
    rng = np.random.default_rng(0)
    values, labels = records(rng, 200, 64, 10)
    price = 0.01
    noise = MomentNoise.for_price(price, 10)
    given = moments(values, labels, np.arange(200), np.full(200, to_units(1.0)), 10, noise)
    assert given.charges.max() <= to_units(price) * (1 + 1e-9)
    assert given.charges.min() > 0.97 * to_units(price)
    rows = unit_rows(values)
    assert (rows.astype(np.int64) ** 2).sum(axis=1).max() <= ROW**2
    exact = exact_charge(rows[:1], labels[:1].tolist(), 10, noise)
    assert exact * UNIT <= int(given.charges[0]) <= exact * UNIT * (1 + Fraction(1, 10**6))


def test_a_crowd_of_records_of_one_owner_is_scaled_down_to_the_price_of_one():
    rng = np.random.default_rng(1)
    values, labels = records(rng, 50, 8, 3)
    price = 0.01
    noise = MomentNoise.for_price(price, 3)
    given = moments(values, labels, np.zeros(50, dtype=np.int64), np.full(50, to_units(price)), 3, noise)
    assert 0.5 * to_units(price) < given.charges[0] <= to_units(price)
    assert given.sums[0].trace() < 5 * ROW * ROW  # not fifty times a unit vector


def test_who_can_pay_nothing_adds_nothing():
    rng = np.random.default_rng(2)
    values, labels = records(rng, 6, 4, 2)
    noise = MomentNoise.for_price(0.01, 2)
    given = moments(values, labels, np.array([0, 0, 1, 2, 3, 3]), np.zeros(6, dtype=np.int64), 2, noise)
    assert not given.charges.any()
    assert not any(part.any() for part in given.sums)


def test_the_sums_do_not_depend_on_the_order_of_records():
    rng = np.random.default_rng(3)
    values, labels = records(rng, 20000, 16, 4)
    owners, limits = rng.integers(9000, size=20000), np.full(20000, to_units(0.002))
    noise = MomentNoise.for_price(0.01, 4)
    order = rng.permutation(20000)
    one, other = (moments(values[o], labels[o], owners[o], limits[o], 4, noise) for o in (np.arange(20000), order))
    assert (one.sums[0] == other.sums[0]).all()
    assert (one.sums[1] == other.sums[1]).all()
    assert (one.charges == other.charges).all()


def test_noise_is_symmetric_and_of_the_right_size():
    noise = MomentNoise.for_price(0.01, 3)
    A, b = noisy_moments(np.zeros((60, 60), dtype=np.int64), np.zeros((60, 3), dtype=np.int64), noise, SeededNoise(0))
    assert (A == A.T).all()
    upper = A[np.triu_indices(60, 1)] / noise.scale_a
    assert upper.std() == pytest.approx(0.5**0.5, rel=0.06)
    assert (np.diag(A) / noise.scale_a).std() == pytest.approx(1.0, rel=0.3)
    assert (b / noise.scale_b).std() == pytest.approx(1.0, rel=0.2)


@given(
    seed=st.integers(0, 10**6),
    n=st.integers(0, 15),
    tables=st.integers(1, 3),
    room=st.floats(0.0, 2.0),
    price=st.floats(1e-4, 1.0),
)
def test_a_tally_charges_the_cells_that_each_owner_fills(seed, n, tables, room, price):
    rng = np.random.default_rng(seed)
    cells = rng.integers(4, size=(n, tables)) + 4 * np.arange(tables)
    owners, limits = rng.integers(5, size=n), np.full(n, to_units(price * room), dtype=np.int64)
    scale = tally_scale(price, tables)
    given = tally(cells, owners, limits, 4 * tables, scale)
    total = np.zeros(4 * tables, dtype=np.int64)
    for owner, charge in zip(given.owners.tolist(), given.charges.tolist(), strict=True):
        theirs = owners == owner
        alone = tally(cells[theirs], owners[theirs], limits[theirs], 4 * tables, scale)
        (sums,) = alone.sums
        exact = Fraction(int((sums.astype(object) ** 2).sum()), 2 * scale**2)
        assert alone.charges.tolist() == [charge]
        assert exact * UNIT <= charge <= limits[0]
        if theirs.sum() == 1 and room >= 1.01:
            assert sums.sum() == tables * GRID
        total += sums
    assert (given.sums[0] == total).all()


def test_one_record_pays_the_price_of_a_tally():
    (charge,) = tally(np.array([[0, 5]]), np.array([0]), np.array([UNIT]), 8, tally_scale(0.003, 2)).charges
    assert charge == pytest.approx(0.003 * UNIT, rel=1e-6)
    assert charge <= to_units(0.003) + 1e6


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
        first = moments(values, labels, owner, limits, 3, noise)
        other = moments(values[order], labels[order], owner, limits, 3, noise)
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
        given = moments(values, labels, np.full(m, 4), limits, c, noise)
        exact = sum(
            (Fraction(int((part.astype(object) ** 2).sum()), 2 * scale * scale))
            for part, scale in zip(given.sums, (noise.scale_a, noise.scale_b), strict=True)
        )
        assert given.owners.tolist() == [4]
        assert exact <= Fraction(int(given.charges[0]), UNIT) <= Fraction(1 << exponent, UNIT)
