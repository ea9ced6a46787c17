"""Counts over all records: what is charged is what was added, never less, for whoever has however many records."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from indknn.core.accounting import UNIT, to_units
from indknn.core.noise import SeededNoise
from indknn.core.statistics import headcount, noisy_tally, tally, tally_scale
from indknn.types import GRID


@given(
    seed=st.integers(0, 10**6),
    n=st.integers(0, 15),
    n_cells=st.integers(1, 8),
    room=st.floats(0.0, 2.0),
    price=st.floats(1e-6, 1.0),
)
def test_a_tally_charges_the_cells_that_each_owner_fills(seed, n, n_cells, room, price):
    rng = np.random.default_rng(seed)
    cells, owners = rng.integers(n_cells, size=n), rng.integers(5, size=n)
    limits = np.full(n, to_units(price * room), dtype=np.int64)
    scale = tally_scale(price)
    given = tally(cells, owners, limits, n_cells, scale)
    total = np.zeros(n_cells, dtype=np.int64)
    for owner, charge in zip(given.owners.tolist(), given.charges.tolist(), strict=True):
        theirs = owners == owner
        alone = tally(cells[theirs], owners[theirs], limits[theirs], n_cells, scale)
        exact = Fraction(int((alone.sums.astype(object) ** 2).sum()), 2 * scale**2)
        assert alone.charges.tolist() == [charge]  # whatever others add
        assert exact * UNIT <= charge <= int(limits[0])
        if theirs.sum() == 1 and room >= 1.01:
            assert alone.sums.sum() == GRID
        total += alone.sums
    assert (given.sums == total).all()


@given(
    seed=st.integers(0, 10**6),
    n=st.integers(1, 15),
    n_cells=st.integers(1, 8),
    room=st.floats(0.0, 2.0),
    price=st.floats(1e-6, 1.0),
    most=st.sampled_from([15, 16, 256]),
)
def test_a_headcount_charges_what_each_owner_adds(seed, n, n_cells, room, price, most):
    rng = np.random.default_rng(seed)
    cells, owners = rng.integers(n_cells, size=n), rng.integers(5, size=n)
    limits = np.full(n, to_units(price * room), dtype=np.int64)
    scale = tally_scale(price)
    given = headcount(cells, owners, limits, n_cells, scale, most)
    total = np.zeros(n_cells + 1, dtype=np.int64)
    for owner, charge in zip(given.owners.tolist(), given.charges.tolist(), strict=True):
        theirs = owners == owner
        alone = headcount(cells[theirs], owners[theirs], limits[theirs], n_cells, scale, most)
        exact = Fraction(int((alone.sums.astype(object) ** 2).sum()), 2 * scale**2)
        assert alone.charges.tolist() == [charge]  # whatever others add
        assert exact * UNIT <= charge <= int(limits[0])
        assert 0 <= alone.sums[:-1].sum() <= GRID
        if room >= 2.0:
            assert alone.sums[:-1].sum() == pytest.approx(GRID, rel=1e-4)
            assert alone.sums[-1] == pytest.approx(GRID * theirs.sum() / most, rel=1e-4)
        total += alone.sums
    assert (given.sums == total).all()


def test_one_record_pays_the_price_of_a_tally():
    (charge,) = tally(np.array([5]), np.array([0]), np.array([UNIT]), 8, tally_scale(0.003)).charges
    assert charge == pytest.approx(0.003 * UNIT, rel=1e-6)
    assert charge <= to_units(0.003) + 1e6


@pytest.mark.parametrize("units", [0, 1, 2, 1 << 20, 1 << 40])
def test_a_crowd_of_records_of_one_owner_is_scaled_down_to_what_they_can_pay(units):
    cells = np.arange(1000) % 3
    given = tally(cells, np.full(1000, 4), np.full(1000, units), 3, tally_scale(0.01))
    assert given.owners.tolist() == [4]
    exact = Fraction(int((given.sums.astype(object) ** 2).sum()) * UNIT, 2 * tally_scale(0.01) ** 2)
    assert exact <= int(given.charges[0]) <= units
    if units < 2:
        assert not given.sums.any()


def test_the_sums_do_not_depend_on_the_order_of_records():
    rng = np.random.default_rng(3)
    cells, owners, order = rng.integers(20, size=5000), rng.integers(900, size=5000), rng.permutation(5000)
    limits = rng.integers(0, to_units(0.02), size=900)[owners]
    one, other = (tally(cells[o], owners[o], limits[o], 20, tally_scale(0.01)) for o in (np.arange(5000), order))
    assert (one.sums == other.sums).all()
    assert (one.charges == other.charges).all()


def test_every_cell_has_noise_of_its_own_and_of_the_size_that_is_charged_for():
    scale = tally_scale(0.01)
    noisy = noisy_tally(np.zeros(4000, dtype=np.int64), scale, SeededNoise(0))
    assert noisy.std() / scale == pytest.approx(1.0, abs=0.05)
    assert len(np.unique(noisy)) == 4000
