"""`settle_range` and `exponential_argmax`: against a literal transcription, against exact fractions, and the claim."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from indknn import IndKNNClassifier, mechanism
from indknn.accounting import UNIT, to_units
from indknn.errors import PrivacyError
from indknn.noise import SeededNoise
from indknn.types import GRID, MIN_K, Neighbours, Plan
from literal import exponential

ORDERS = (1.1, 2, 8, 32, 128)
stores = st.tuples(st.integers(0, 2**32), st.integers(1, 60), st.integers(1, 5), st.floats(0.001, 0.3))


def a_plan(n_classes, sigma2=0.4, sigma1=6.0, cap=None):
    return Plan(0.3, sigma1, sigma2, n_classes, cap, vote="exponential")


def grouped(owners, kappa, labels, plan):
    return mechanism.group(Neighbours(np.array(owners), np.array(kappa), np.array(labels)), plan)


def dense(group, n_classes):
    """F by owner, a row each, as Python integers."""
    F = [[0] * n_classes for _ in group.owners]
    for o, c, v in zip(group.entry_owner.tolist(), group.entry_label.tolist(), group.entry_vote.tolist(), strict=True):
        F[o][c] += v
    return F


def log_law(utilities, scale):
    logits = np.asarray(utilities, dtype=np.float64) / scale
    return logits - np.logaddexp.reduce(logits)


def renyi(log_p, log_q, alpha):
    return np.logaddexp.reduce(alpha * log_p + (1 - alpha) * log_q) / (alpha - 1)


@given(stores, st.one_of(st.none(), st.integers(1, 3)), st.floats(0.05, 2.0))
def test_it_is_the_literal_transcription(store, cap, sigma2):
    seed, n, n_classes, B = store
    rng = np.random.default_rng(seed)
    kappa, y = rng.integers(0, GRID + 1, size=n), rng.integers(n_classes, size=n)
    owners = rng.integers(0, n // 3 + 1, size=n)
    plan = a_plan(n_classes, sigma2, cap=cap)
    z = np.full(n // 3 + 1, to_units(B))
    near = kappa >= plan.tau * GRID
    group = grouped(owners[near], kappa[near], y[near], plan)
    counted = mechanism.count(group, z[group.owners], plan)
    z[counted.group.owners] -= counted.charges
    shift = rng.normal() * plan.sigma1
    K = max(counted.total * GRID + round(shift * GRID), MIN_K * GRID)
    settled = mechanism.settle_range(counted.group, z[counted.group.owners], K, plan)
    z[counted.group.owners] -= settled.charges

    law, K_real, z_real, votes_real = exponential(
        kappa / GRID, y, owners, dict.fromkeys(range(len(z)), B), plan.tau, plan.sigma1, plan.sigma2, n_classes,
        lambda scale, size: np.array([shift]), cap,
    )  # fmt: skip
    assert pytest.approx(K_real, rel=1e-5) == K / GRID
    # A clipped entry is off by a grid step for rounding down, and by the relative slack of charges, 2^-32.
    off = (n + 1) * 4 / GRID
    assert (settled.votes - settled.votes.min()) / GRID == pytest.approx(votes_real - votes_real.min(), abs=off)
    assert (z >= 0).all()
    # d(f²/8s²) = f·df/4s² with f <= s·sqrt(8B), s >= σ2·sqrt(30)
    error = 4 * np.sqrt(8 * B) / (4 * sigma2 * np.sqrt(MIN_K) * GRID) + 1e-9
    assert z / UNIT == pytest.approx(np.array([z_real[o] for o in range(len(z))]), abs=error)
    assert np.exp(log_law(settled.votes, plan.scale2(K))) == pytest.approx(law, abs=4 * off / sigma2 / np.sqrt(MIN_K))


@given(stores, st.floats(0.01, 2.0), st.integers(MIN_K * GRID, 1000 * GRID))
def test_charged_what_is_voted_and_never_more_than_is_left(store, sigma2, K):
    """Owner by owner, alone, in exact fractions: sums of one owner's clipped votes show the range that left."""
    seed, _, n_classes, B = store
    rng = np.random.default_rng(seed)
    plan = a_plan(n_classes, sigma2)
    scale = plan.scale2(K)
    for _ in range(5):
        rows = rng.integers(1, 9)
        group = grouped(np.zeros(rows, int), rng.integers(1, GRID + 1, rows), rng.integers(n_classes, size=rows), plan)
        left = int(rng.choice([0, 1, 2, rng.integers(0, to_units(B) + 1), 1 << 60]))
        settled = mechanism.settle_range(group, np.array([left]), K, plan)
        votes, charge = settled.votes.tolist(), int(settled.charges[0])
        f = max(votes) - min(votes)
        assert min(votes) == 0
        assert charge <= left
        assert charge >= Fraction(f * f * UNIT, 8 * scale * scale)
        F = dense(group, n_classes)[0]
        whole = max(F) - min(F)
        assert f <= whole
        if left == 1 << 60 and Fraction(whole**2 * UNIT, 8 * scale * scale) < left // 2:
            assert votes == [v - min(F) for v in F]  # nothing is clipped where all can be paid
        else:  # and no more than needed where not: the next vote up would cost what is not there
            room = Fraction((f + 2) ** 2 * UNIT, 8 * scale * scale) * (1 + Fraction(1, 2**30)) + 3
            assert f == whole or room > left


@given(stores)
def test_everybody_at_once_is_everybody_alone(store):
    seed, n, n_classes, B = store
    rng = np.random.default_rng(seed)
    plan, K = a_plan(n_classes), 50 * GRID
    owners, kappa = rng.integers(n // 3 + 1, size=n), rng.integers(1, GRID + 1, size=n)
    group = grouped(owners, kappa, rng.integers(n_classes, size=n), plan)
    left = rng.integers(0, to_units(B), size=len(group.owners))
    settled = mechanism.settle_range(group, left, K, plan)
    alone = [
        mechanism.settle_range(group.only(np.arange(len(left)) == i), left[i : i + 1], K, plan)
        for i in range(len(left))
    ]
    assert settled.charges.tolist() == [int(s.charges[0]) for s in alone]
    assert settled.votes.tolist() == np.sum([s.votes for s in alone], axis=0).tolist()


@pytest.mark.parametrize(
    ("n_classes", "labels", "kappa", "width"),
    [
        (2, [1], [7], 7),  # one record: its kernel value
        (1, [0], [7], 0),  # one class: nothing can be learned, nothing is charged
        (1, [0, 0], [7, 9], 0),
        (2, [0, 1], [7, 7], 0),  # equal votes for every class move no probability
        (3, [0, 1], [7, 7], 7),  # but not for every class but one
        (2, [0, 1], [7, 4], 3),
        (3, [0, 1, 2, 2], [5, 7, 4, 4], 3),
    ],
)
def test_the_range_is_over_all_classes(n_classes, labels, kappa, width):
    plan, K = a_plan(n_classes), 100 * GRID
    scale = plan.scale2(K)
    group = grouped(np.zeros(len(labels), int), np.array(kappa) * (GRID // 10), labels, plan)
    settled = mechanism.settle_range(group, np.array([UNIT]), K, plan)
    exact = Fraction((width * (GRID // 10)) ** 2 * UNIT, 8 * scale * scale)
    assert exact <= int(settled.charges[0]) <= exact * (1 + Fraction(1, 2**31)) + 1
    assert settled.votes.max() - settled.votes.min() == width * (GRID // 10)
    with np.errstate(all="raise"):
        broke = mechanism.settle_range(group, np.array([0]), K, plan)
    assert broke.charges.tolist() == [0]
    assert not broke.votes.any()


def test_half_the_scale_buys_what_the_gaussian_vote_does():
    """f²/8(s/2)² = f²/2s²: the same charge at half the scale."""
    group_plan, K = Plan(0.1, 5.0, 0.5, 3), 64 * GRID
    group = grouped([0, 1], [GRID, GRID // 2], [1, 2], group_plan)
    half = Plan(0.1, 5.0, 0.25, 3, vote="exponential")
    left = np.array([UNIT, UNIT])
    assert group_plan.scale2(K) == 2 * half.scale2(K)
    gaussian = mechanism.settle(group, left, K, group_plan)
    ranged = mechanism.settle_range(group, left, K, half)
    assert gaussian.charges.tolist() == ranged.charges.tolist()
    assert gaussian.votes.tolist() == ranged.votes.tolist()


@given(st.integers(0, 2**32), st.integers(1, 6), st.floats(0.01, 8.0))
def test_the_divergence_is_within_the_price(seed, n_classes, spread):
    """D_α of the label with and without F is at most α·f²/8s², both ways; F may have any sign."""
    rng = np.random.default_rng(seed)
    votes, F = rng.normal(size=n_classes) * spread, rng.normal(size=n_classes) * spread
    if seed % 3 == 0:  # the cases that come closest: one entry, two classes near each other
        F = np.zeros(n_classes)
        F[rng.integers(n_classes)] = spread
        votes[: n_classes // 2] -= 30.0
    s = float(rng.uniform(0.3, 5.0))
    p, q = log_law(votes + F, s), log_law(votes, s)
    for alpha in ORDERS:
        bound = alpha * (F.max() - F.min()) ** 2 / (8 * s * s)
        assert renyi(p, q, alpha) <= bound + 1e-12
        assert renyi(q, p, alpha) <= bound + 1e-12


@given(stores, st.floats(0.02, 1.0))
def test_the_divergence_is_within_what_the_owner_was_charged(store, sigma2):
    """The same of the product: everybody's settled votes with and without one owner."""
    seed, n, n_classes, B = store
    rng = np.random.default_rng(seed)
    plan, K = a_plan(n_classes, sigma2), int(rng.integers(MIN_K, 100)) * GRID
    group = grouped(
        rng.integers(n // 4 + 1, size=n), rng.integers(1, GRID + 1, size=n), rng.integers(n_classes, size=n), plan
    )
    left = rng.integers(0, to_units(B), size=len(group.owners))
    settled = mechanism.settle_range(group, left, K, plan)
    log_all = log_law(settled.votes, plan.scale2(K))
    for i in range(len(left)):
        others = np.arange(len(left)) != i
        without = mechanism.settle_range(group.only(others), left[others], K, plan)
        log_rest = log_law(without.votes, plan.scale2(K))
        for alpha in ORDERS:
            price = alpha * settled.charges[i] / UNIT
            assert renyi(log_all, log_rest, alpha) <= price + 1e-12
            assert renyi(log_rest, log_all, alpha) <= price + 1e-12


def test_the_price_cannot_be_lower_and_is_not_a_gaussians():
    """Two classes, F moving the odds from -η/2 to η/2: D_α comes to within 1% of αη²/8 for small η, so no smaller
    charge is right. And its total variation, tanh(η/4), is above that of (η/2)-GDP: only `rdp` may add this up.
    """
    eta = 0.01
    p, q = log_law([eta / 2, 0], 1.0), log_law([-eta / 2, 0], 1.0)
    for alpha in ORDERS[:3]:
        assert 0.99 < renyi(p, q, alpha) / (alpha * eta**2 / 8) <= 1
    variation = np.abs(np.exp(p) - np.exp(q)).sum() / 2
    assert variation == pytest.approx(np.tanh(eta / 4))
    assert variation > 1.2 * (2 * stats.norm.cdf(eta / 4) - 1)


def test_the_label_has_the_law_of_the_votes_and_the_empty_neighbourhood_takes_the_same_path():
    plan, K = a_plan(4, 0.5), 36 * GRID
    asked = []

    class Spy(SeededNoise):
        def choose(self, utilities, scale):
            asked.append((len(utilities), scale))
            return super().choose(utilities, scale)

    noise = Spy(3)
    group = mechanism.Group(*[np.zeros(0, dtype=np.int64)] * 5)
    nothing = mechanism.settle_range(group, np.zeros(0, dtype=np.int64), K, plan).votes
    assert nothing.tolist() == [0, 0, 0, 0]
    for votes in (nothing, np.array([5, 0, 3, 1]) * GRID):
        labels = [mechanism.exponential_argmax(votes, K, plan, noise) for _ in range(8000)]
        assert all(type(label) is int for label in labels)
        law = np.exp(log_law(votes, 3 * GRID))
        assert stats.chisquare(np.bincount(labels, minlength=4), law * 8000).pvalue > 1e-3
    assert set(asked) == {(4, 3 * GRID)}


def test_steps_of_the_two_votes_do_not_mix():
    """Settled by range and answered with Gaussian noise, a vote would cost four times its charge."""
    plans = {vote: Plan(0.5, 5.0, 0.5, 2, vote=vote) for vote in ("gaussian", "exponential")}
    group, left, K = grouped([0], [GRID], [0], plans["gaussian"]), np.array([UNIT]), 30 * GRID
    votes = np.array([GRID, 0])
    for steps, other in (
        ((mechanism.settle, mechanism.noisy_argmax), "exponential"),
        ((mechanism.settle_range, mechanism.exponential_argmax), "gaussian"),
    ):
        with pytest.raises(PrivacyError, match=other):
            steps[0](group, left, K, plans[other])
        with pytest.raises(PrivacyError, match=other):
            steps[1](votes, K, plans[other], SeededNoise(0))


def test_a_ledger_with_exponential_charges_never_goes_back_to_gdp():
    """Its charges are ρ of zCDP. The gdp filter would call their sum GDP, by whatever detour it came there."""
    X, y, owners = np.eye(3), [0, 1, 0], ["a", "b", "c"]
    model = IndKNNClassifier(vote="exponential", accountant="rdp", reuse="none", random_state=1).fit(
        X, y, owners=owners
    )
    model.predict(X)
    model.set_params(vote="gaussian").fit(X, y, owners=owners)
    spent = model.privacy_spent(owners).tolist()
    with pytest.raises(PrivacyError, match="rdp"):
        model.set_params(accountant="gdp").fit(X, y, owners=owners)
    assert model.privacy_spent(owners).tolist() == spent
