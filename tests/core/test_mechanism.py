"""The mechanism against a literal transcription of the paper's algorithm, under the same noise."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.literal import algorithm3, with_owners
from indknn.core import mechanism
from indknn.core.accounting import UNIT, to_units
from indknn.core.mechanism import MIN_K, Plan
from indknn.core.noise import SeededNoise
from indknn.errors import InvalidInputError
from indknn.types import GRID


def grouped(owners, kappa, labels, plan):
    return mechanism.group(owners, labels, kappa, plan)


class SharedNoise:
    """Integers for the product, the same numbers as reals for the oracle."""

    secure = False

    def __init__(self, seed):
        self.product, self.oracle = np.random.default_rng(seed), np.random.default_rng(seed)

    def draw(self, scale, size):
        return np.rint(self.product.standard_normal(size) * scale).astype(np.int64)

    def real(self, scale, size):
        return self.oracle.standard_normal(size) * scale


def one_query(kappa, labels, owners, z, plan, noise):
    """The five functions in order, as shard and predictor call them; z in units, changed in place."""
    near = kappa >= plan.tau * GRID
    group = grouped(owners[near], kappa[near], labels[near], plan)
    counted = mechanism.count(group, z[group.owners], plan)
    z[counted.group.owners] -= counted.charges
    K = mechanism.noisy_count(counted.total, plan, noise)
    settled = mechanism.settle(counted.group, z[counted.group.owners], K, plan)
    z[counted.group.owners] -= settled.charges
    return mechanism.noisy_answer(settled.votes, K, plan, noise)[0], K, settled.votes


def budget_error(B, sigma2, queries):
    """How far rounding can part the ledgers: a vote is off by at most two grid steps a query, and
    d(f²/2σ²K) = f·df/σ²K with f <= σ·sqrt(2KB) and K >= 30; the rest is far smaller.
    """
    return queries * 2 * np.sqrt(2 * B / MIN_K) / (sigma2 * GRID) + 1e-9


def vote_error(n, K, sigma2, ledger_error):
    """How far that moves the clip σ·sqrt(2Kz) of all n votes together."""
    return (n + 1) * (sigma2 * np.sqrt(2 * K * ledger_error) + 2 / GRID)


stores = st.tuples(st.integers(0, 2**32), st.integers(0, 60), st.integers(1, 5), st.floats(0.001, 0.3))


@given(stores, st.floats(0.05, 0.95), st.floats(0.05, 2.0))
def test_one_record_per_owner_is_the_papers_algorithm(store, tau, sigma2):
    seed, n, n_classes, B = store
    rng = np.random.default_rng(seed)
    kappa, y = rng.integers(0, GRID + 1, size=n), rng.integers(n_classes, size=n)
    plan = Plan(tau, sigma1=float(np.sqrt(20 / (6 * B))), sigma2=sigma2, n_classes=n_classes)
    z, z_real = np.full(n, to_units(B)), np.full(n, B)
    noise = SharedNoise(seed)
    for t in range(1, 13):  # until many are exhausted
        label, K, votes = one_query(kappa, y, np.arange(n), z, plan, noise)
        scores, K_real, z_real, votes_real = algorithm3(
            kappa / GRID, y, z_real, plan.tau, plan.sigma1, plan.sigma2, n_classes, noise.real
        )
        assert pytest.approx(K_real, rel=1e-5) == K / GRID
        error = budget_error(B, sigma2, t)
        off = vote_error(n, K_real, sigma2, error)
        assert votes / GRID == pytest.approx(votes_real, abs=off)
        assert z / UNIT == pytest.approx(z_real, abs=error)
        assert (z >= 0).all()
        assert scores[label] >= scores.max() - 2 * off - 1e-3  # rounding decides near ties only
        # Someone within that error of the price of admission may be let in by one and not by the other:
        # from there on they may part.
        if np.any(np.abs(z_real - 1 / (2 * plan.sigma1**2)) < 2 * error):
            return


@given(stores, st.one_of(st.none(), st.integers(1, 3)))
def test_several_records_per_owner(store, cap):
    seed, n, n_classes, B = store
    rng = np.random.default_rng(seed)
    kappa, y = rng.integers(0, GRID + 1, size=n), rng.integers(n_classes, size=n)
    owners = rng.integers(0, n // 3 + 1, size=n)
    plan = Plan(0.3, 6.0, 0.4, n_classes, cap)
    z = np.full(n // 3 + 1, to_units(B))
    noise = SharedNoise(seed)
    label, K, votes = one_query(kappa, y, owners, z, plan, noise)
    scores, K_real, z_real, votes_real = with_owners(
        kappa / GRID, y, owners, dict.fromkeys(range(len(z)), B), 0.3, 6.0, 0.4, n_classes, noise.real, cap
    )
    assert pytest.approx(K_real, rel=1e-5) == K / GRID
    # up to 60 records of one person, each rounded
    error = 60 * budget_error(B, 0.4, 1)
    off = vote_error(n, K_real, 0.4, error)
    assert votes / GRID == pytest.approx(votes_real, abs=off)
    assert z / UNIT == pytest.approx(np.array([z_real[o] for o in range(len(z))]), abs=error)
    assert scores[label] >= scores.max() - 2 * off - 1e-3


@given(stores)
def test_nobody_pays_more_than_they_have_and_those_not_near_pay_nothing(store):
    seed, n, n_classes, B = store
    rng = np.random.default_rng(seed)
    owners = rng.integers(0, n // 2 + 1, size=n)
    z = rng.integers(0, to_units(B) + 1, size=n // 2 + 1)
    plan = Plan(0.5, 3.0, 0.3, n_classes)
    noise = SeededNoise(seed)
    for _ in range(10):
        before = z.copy()
        kappa = rng.integers(0, GRID + 1, size=n)
        one_query(kappa, rng.integers(n_classes, size=n), owners, z, plan, noise)
        assert (z >= 0).all()
        assert (z <= before).all()
        away = np.setdiff1d(np.arange(len(z)), owners[kappa >= GRID // 2])
        assert (z[away] == before[away]).all()


def test_votes_are_clipped_to_what_can_be_paid_and_charged_as_voted():
    plan = Plan(0.1, sigma1=1e3, sigma2=0.2, n_classes=2)
    group = grouped(np.array([0]), np.array([GRID]), np.array([1]), plan)
    K = 100 * GRID
    poor = np.array([UNIT // 100])  # |f| <= 0.2·sqrt(2·100·0.01) = 0.283
    settled = mechanism.settle(group, poor, K, plan)
    assert settled.votes[1] / GRID == pytest.approx(0.2 * np.sqrt(2), rel=1e-4)
    assert 0.999 * poor[0] < settled.charges[0] <= poor[0]
    assert settled.votes[0] == 0
    broke = mechanism.settle(group, np.array([0]), K, plan)
    assert broke.votes.tolist() == [0, 0]
    assert broke.charges.tolist() == [0]


def test_admission_needs_the_whole_charge():
    """z > 0 is not enough: the authors' code lets people over-spend here."""
    plan = Plan(0.1, sigma1=2.0, sigma2=0.5, n_classes=2)
    group = grouped(np.array([0]), np.array([GRID]), np.array([0]), plan)
    price = int(mechanism.count(group, np.array([UNIT]), plan).charges[0])
    assert price / UNIT == pytest.approx(1 / 8, rel=1e-6)
    assert mechanism.count(group, np.array([price]), plan).total == 1
    assert mechanism.count(group, np.array([price - 1]), plan).total == 0


def test_an_owners_count_costs_the_square_of_its_records():
    plan = Plan(0.1, sigma1=2.0, sigma2=0.5, n_classes=2)
    group = grouped(np.zeros(3, int), np.full(3, GRID), np.array([0, 1, 0]), plan)
    counted = mechanism.count(group, np.array([10 * UNIT]), plan)
    assert counted.total == 3
    assert counted.charges[0] / UNIT == pytest.approx(9 / 8, rel=1e-6)


def test_a_cap_keeps_the_owners_own_nearest():
    plan = Plan(0.1, 2.0, 0.5, n_classes=3, max_records_per_query=2)
    kappa = np.array([3, 9, 5, 7]) * GRID // 10
    group = grouped(np.array([4, 4, 4, 2]), kappa, np.array([0, 1, 2, 0]), plan)
    assert group.owners.tolist() == [2, 4]
    assert group.m.tolist() == [1, 2]
    assert sorted(zip(group.entry_owner, group.entry_label, group.entry_vote, strict=True)) == [
        (0, 0, kappa[3]), (1, 1, kappa[1]), (1, 2, kappa[2]),
    ]  # fmt: skip


def test_an_empty_neighbourhood_draws_the_same_noise():
    plan = Plan(0.5, 5.0, 0.5, n_classes=4)
    nothing = np.zeros(0, dtype=np.int64)
    draws = []

    class Spy(SeededNoise):
        def draw(self, scale, size):
            draws.append((scale, size))
            return super().draw(scale, size)

    seen = set()
    noise = Spy(0)
    for _ in range(300):
        label, K, votes = one_query(nothing, nothing, nothing, nothing.copy(), plan, noise)
        assert votes.tolist() == [0, 0, 0, 0]
        assert MIN_K * GRID <= K
        seen.add(label)
    assert seen == {0, 1, 2, 3}
    assert draws[0] == (plan.scale1, 1)
    assert draws[1][1] == 4
    assert len(draws) == 600


def test_order_of_the_neighbours_does_not_matter():
    rng = np.random.default_rng(0)
    plan = Plan(0.1, 4.0, 0.3, n_classes=3, max_records_per_query=3)
    owners, kappa, labels = rng.integers(9, size=50), rng.integers(1, GRID, size=50), rng.integers(3, size=50)
    base = grouped(owners, kappa, labels, plan)
    for _ in range(5):
        p = rng.permutation(50)
        other = grouped(owners[p], kappa[p], labels[p], plan)
        for name in ("owners", "m", "entry_owner", "entry_label", "entry_vote"):
            assert (getattr(base, name) == getattr(other, name)).all()


def test_an_owner_with_thousands_of_records_does_not_overflow():
    n = 50_000
    plan = Plan(0.1, sigma1=1e6, sigma2=0.5, n_classes=2)
    group = grouped(np.zeros(n, int), np.full(n, GRID), np.zeros(n, int), plan)
    counted = mechanism.count(group, np.array([UNIT]), plan)
    assert counted.charges[0] / UNIT == pytest.approx(n**2 / 2e12, rel=1e-6)
    settled = mechanism.settle(counted.group, np.array([UNIT // 50]), 30 * GRID, plan)
    assert 0 < settled.charges[0] <= UNIT // 50
    tiny = Plan(0.1, sigma1=1e-6, sigma2=0.5, n_classes=2)
    assert mechanism.count(group, np.array([1000 * UNIT]), tiny).total == 0


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"tau": 0.0}, "tau must be a positive finite number, got 0.0"),
        ({"tau": 1.5}, r"tau must be in \(0, 1\], got 1.5"),
        ({"sigma1": -1.0}, "sigma1.*-1.0"),
        ({"sigma2": float("nan")}, "sigma2.*nan"),
        ({"n_classes": 0}, "n_classes.*0"),
        ({"max_records_per_query": 0}, "max_records_per_query.*0"),
    ],
)
def test_a_bad_plan_is_refused(values, words):
    with pytest.raises(InvalidInputError, match=words):
        Plan(**{"tau": 0.5, "sigma1": 1.0, "sigma2": 1.0, "n_classes": 2, **values})


def test_a_plan_with_other_noise_is_as_if_it_was_made_so():
    plan = Plan(0.5, 1.0, 1.0, 2)
    assert plan.scale1
    assert plan.with_sigma2(0.3) == Plan(0.5, 1.0, 0.3, 2)
    assert plan.sigma2 == 1.0
    for wrong in (0.0, -1.0, float("nan"), float("inf"), 2.0**21):
        with pytest.raises(InvalidInputError, match="sigma2"):
            plan.with_sigma2(wrong)


@given(st.floats(1e-3, 1e6), st.integers(MIN_K * GRID, 1 << 60))
def test_drawn_scales_are_rounded_up(sigma, K):
    plan = Plan(0.5, sigma, sigma, 2)
    num, den = sigma.as_integer_ratio()
    assert plan.scale1 * den >= num * GRID > (plan.scale1 - 1) * den
    assert (plan.scale2(K) * den) ** 2 >= (num**2) * K * GRID
    assert ((plan.scale2(K) - 1) * den) ** 2 < (num**2) * K * GRID


@given(st.integers(0, 2**32 - 1), st.integers(1, 6), st.sampled_from([0, 1, 7, 10**4, 10**9, 10**14]))
def test_the_contrast_charge_covers_what_a_rounded_release_can_show(seed, c, left):
    """P times the rounded noisy votes hides a common shift by whole units only: |F - t|² for the best integer t."""
    rng = np.random.default_rng(seed)
    plan = Plan(0.5, 3.0, 0.3, c, contrast=True)
    n = int(rng.integers(1, 2 * c + 1))
    near = np.zeros(n, dtype=np.int64), rng.integers(GRID // 2, GRID, size=n), rng.integers(c, size=n)
    K, remaining = 30 * GRID, np.array([left])
    settled = mechanism.settle(grouped(*near, plan), remaining, K, plan)
    votes = [int(v) for v in settled.votes]
    t = round(Fraction(sum(votes), c))
    exact = Fraction(sum((v - t) ** 2 for v in votes), 2 * plan.scale2(K) ** 2)
    assert exact <= Fraction(int(settled.charges[0]), UNIT) <= Fraction(left, UNIT)
