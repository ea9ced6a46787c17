"""(ε, δ) <-> B, against the contract's table, a high-precision oracle and Google's dp-accounting."""

from itertools import pairwise

import mpmath
import numpy as np
import pytest
from dp_accounting import GaussianDpEvent
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar

from indknn.core.accounting import UNIT, budget, epsilon, from_units, to_units
from indknn.core.mechanism import charge_units, largest_squared_shift
from indknn.errors import InvalidInputError

TABLE = [  # ε, δ, B for rdp, B for gdp, as printed in the privacy contract
    (0.5, 1e-5, ".008506", ".010112"),
    (1, 1e-5, ".030557", ".035926"),
    (2, 1e-5, ".108256", ".125777"),
    (4, 1e-5, ".373144", ".427749"),
    (8, 1e-5, "1.22972", "1.38783"),
    (0.5, 1e-6, ".006642", ".007701"),
    (1, 1e-6, ".024356", ".028014"),
    (2, 1e-6, ".088153", ".100502"),
]
epsilons = st.floats(0.01, 50.0)
log_deltas = st.floats(np.log(1e-12), np.log(0.1))
accountants = st.sampled_from(["gdp", "rdp"])


@pytest.mark.parametrize(("eps", "delta", "rdp", "gdp"), TABLE)
def test_the_contracts_table(eps, delta, rdp, gdp):
    for accountant, printed in (("rdp", rdp), ("gdp", gdp)):
        half_a_digit = 0.5 * 10.0 ** -len(printed.split(".")[1])
        assert budget(eps, delta, accountant) == pytest.approx(float(printed), abs=half_a_digit * 1.2)


@given(epsilons, log_deltas, accountants)
def test_inverse_of_each_other(eps, log_delta, accountant):
    delta = float(np.exp(log_delta))
    B = budget(eps, delta, accountant)
    assert B > 0
    assert epsilon(B, delta, accountant) == pytest.approx(eps, rel=1e-6)
    assert budget(epsilon(B, delta, accountant), delta, accountant) == pytest.approx(B, rel=1e-6)


@given(st.lists(epsilons, min_size=2, max_size=2, unique=True), log_deltas, accountants)
def test_monotone(pair, log_delta, accountant):
    low, high = sorted(pair)
    delta = float(np.exp(log_delta))
    assert budget(low, delta, accountant) <= budget(high, delta, accountant)
    assert epsilon(low, delta, accountant) <= epsilon(high, delta, accountant)
    assert budget(low, delta, accountant) <= budget(low, min(delta * 2, 0.5), accountant)


@given(epsilons, log_deltas)
def test_gdp_is_never_optimistic_by_a_60_digit_oracle(eps, log_delta):
    delta = float(np.exp(log_delta))
    B = budget(eps, delta)
    with mpmath.workdps(60):
        mu = mpmath.sqrt(2 * mpmath.mpf(B))
        e = mpmath.mpf(eps)
        exact = mpmath.ncdf(mu / 2 - e / mu) - mpmath.exp(e) * mpmath.ncdf(-mu / 2 - e / mu)
        assert exact <= delta
        assert exact >= delta * (1 - 1e-5)  # and not needlessly pessimistic


@given(epsilons, log_deltas)
def test_rdp_is_never_optimistic_by_a_60_digit_oracle(eps, log_delta):
    """Some order α must prove (ε, δ) for the budget we hand out."""
    delta = float(np.exp(log_delta))
    B = budget(eps, delta, "rdp")

    def converted(log_a1, m=np):
        a1 = m.exp(log_a1)
        return (1 + a1) * B + m.log(a1 / (1 + a1)) - (m.log(delta) + m.log(1 + a1)) / a1

    grid = np.linspace(np.log(1e-6), np.log(1e9), 2000)
    start = grid[np.argmin(converted(grid))]
    best = minimize_scalar(converted, bounds=(start - 0.02, start + 0.02), method="bounded").x
    with mpmath.workdps(60):
        assert converted(mpmath.mpf(best), mpmath) <= eps


@pytest.mark.parametrize("eps", [0.05, 0.5, 1, 2, 8])
@pytest.mark.parametrize("delta", [1e-3, 1e-5, 1e-8])
def test_agrees_with_dp_accounting(eps, delta):
    sigma = 1 / np.sqrt(2 * budget(eps, delta))
    pld = PLDAccountant(value_discretization_interval=1e-4).compose(GaussianDpEvent(sigma))
    assert pld.get_epsilon(delta) == pytest.approx(eps, rel=2e-3, abs=2e-4)

    sigma = 1 / np.sqrt(2 * budget(eps, delta, "rdp"))
    orders = 1 + np.geomspace(1e-2, 1e5, 4000)
    rdp = RdpAccountant(orders=orders).compose(GaussianDpEvent(sigma))
    assert rdp.get_epsilon(delta) == pytest.approx(eps, rel=1e-3)


def test_gdp_allows_more_than_rdp_for_the_same_promise():
    for eps, delta, _, _ in TABLE:
        assert budget(eps, delta, "gdp") > budget(eps, delta, "rdp")


def test_nothing_spent_is_epsilon_zero():
    assert epsilon(0.0, 1e-5) == 0.0
    assert epsilon(1e-30, 0.1) <= epsilon(1e-9, 0.1)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: budget(0.0, 1e-5), "epsilon must be at least 0.0001 and below 1000, got 0.0"),
        (lambda: budget(-1.0, 1e-5), "epsilon.*-1.0"),
        (lambda: budget(float("nan"), 1e-5), "epsilon.*nan"),
        (lambda: budget(1.0, 0.0), "delta must be at least 1e-15 and below 1, got 0.0"),
        (lambda: budget(1.0, 1.0), "delta.*got 1.0"),
        (lambda: epsilon(-1.0, 1e-5), "budget.*-1.0"),
        (lambda: budget(1.0, 1e-5, "zcdp"), "accountant must be 'gdp' or 'rdp', got 'zcdp'"),
        (lambda: to_units(-0.1), "budget"),
        (lambda: to_units(1e9), "budget"),
    ],
)
def test_bad_values_are_named(call, words):
    with pytest.raises(InvalidInputError, match=words):
        call()


@given(st.floats(0, 4000))
def test_budgets_round_down(B):
    units = to_units(B)
    assert units <= B * UNIT < units + 1 or units == int(B * UNIT)
    assert from_units(units) <= B


@given(st.lists(st.integers(0, 1 << 45), min_size=1, max_size=20), st.integers(1, 1 << 50))
def test_charges_are_never_below_the_exact_value(shifts, scale):
    squares = np.array([float(s) * float(s) for s in shifts])
    for shift, units in zip(shifts, charge_units(squares, scale).tolist(), strict=True):
        exact_twice = shift * shift * UNIT  # of 2·s²·units
        assert units * 2 * scale * scale >= min(exact_twice, (1 << 62) * 2 * scale * scale)
        assert units == 0 if shift == 0 else units >= 1


@given(st.lists(st.integers(0, 1 << 60), min_size=1, max_size=20), st.integers(1, 1 << 50))
def test_what_is_clipped_to_the_limit_can_be_paid(units, scale):
    units = np.array(units)
    limit = largest_squared_shift(units, scale)
    assert (charge_units(limit, scale) <= units).all()
    assert (charge_units(limit * (1 + 1e-12), scale) <= units).all()  # room for the rounding of a sum


def test_small_charges_add_up_exactly():
    """A float32 ledger would swallow these; integers cannot."""
    one = int(charge_units(np.array([1.0]), 1 << 20)[0])
    total = sum([one] * 100_000)
    assert total == 100_000 * one > 0
    assert all(a < b for a, b in pairwise([one, 2 * one, 3 * one]))
