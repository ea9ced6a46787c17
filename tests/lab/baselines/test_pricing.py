"""Noise for Poisson samples, against dp-accounting called directly and against closed forms."""

import dp_accounting as dp
import numpy as np
import pytest
from dp_accounting.pld import PLDAccountant, privacy_loss_distribution
from dp_accounting.rdp import RdpAccountant
from scipy.integrate import trapezoid
from scipy.stats import norm

from indknn.core import accounting
from indknn.errors import InvalidInputError
from indknn_lab.baselines import pricing
from indknn_lab.baselines.pricing import epsilon_of, noise_multiplier

CASES = [(0.5, 0.02, 1000), (1.0, 0.1, 500), (2.0, 0.2, 2000), (2.0, 256 / 27_520, 1075)]


@pytest.mark.slow
@pytest.mark.parametrize(("eps", "rate", "steps"), CASES)
def test_suffices_by_an_independent_call_and_little_less_does_not(eps, rate, steps):
    z = noise_multiplier(eps, 1e-5, rate=rate, steps=steps)

    def spent(z):
        # Not the event language that the package uses, and a grid of its own.
        pld = privacy_loss_distribution.from_gaussian_mechanism(
            z, sampling_prob=rate, value_discretization_interval=min(1e-4, 0.02 * rate / z)
        )
        return pld.self_compose(steps).get_epsilon_for_delta(1e-5)

    assert spent(z) <= eps
    assert spent(z * 0.99) > eps


@pytest.mark.parametrize(("eps", "rate", "steps"), CASES)
def test_rdp_agrees_and_is_looser(eps, rate, steps):
    z = noise_multiplier(eps, 1e-5, rate=rate, steps=steps, accountant="rdp")
    ledger = RdpAccountant()
    ledger.compose(dp.PoissonSampledDpEvent(rate, dp.GaussianDpEvent(z)), steps)
    assert eps * 0.995 <= ledger.get_epsilon(1e-5) <= eps
    assert z > noise_multiplier(eps, 1e-5, rate=rate, steps=steps)


def test_without_sampling_it_is_exactly_gdp():
    z = noise_multiplier(1.0, 1e-5, rate=1.0, steps=400)
    exact = np.sqrt(400 / (2 * accounting.budget(1.0, 1e-5)))
    assert exact * (1 - 1e-9) <= z <= exact * 1.0005


def test_one_sampled_release_against_its_density():
    """δ(ε) of ((1-p)N(0,z²) + pN(1,z²), N(0,z²)) by integration, both orders; epsilon_of covers it."""
    z, p, delta = 0.8, 0.3, 1e-3
    eps = epsilon_of(z, delta, rate=p, steps=1)
    x = np.linspace(-12, 13, 2_000_001)
    null, mixed = norm.pdf(x, 0, z), (1 - p) * norm.pdf(x, 0, z) + p * norm.pdf(x, 1, z)
    for a, b in ((mixed, null), (null, mixed)):
        assert trapezoid(np.maximum(a - np.exp(eps) * b, 0), x) <= delta * (1 + 1e-6)
    worst = max(trapezoid(np.maximum(a - np.exp(0.99 * eps) * b, 0), x) for a, b in ((mixed, null), (null, mixed)))
    assert worst > delta


def test_epsilon_grows_with_the_number_of_releases():
    values = [epsilon_of(5.0, 1e-5, rate=0.05, steps=t) for t in (0, 1, 10, 1000)]
    assert values[0] == 0.0
    assert values == sorted(values)
    ledger = PLDAccountant()
    ledger.compose(dp.PoissonSampledDpEvent(0.05, dp.GaussianDpEvent(5.0)), 1000)
    assert values[-1] == pytest.approx(ledger.get_epsilon(1e-5), rel=2e-3)


@pytest.mark.parametrize(
    "bad",
    [{"epsilon": 0.0}, {"delta": 1.0}, {"rate": 0.0}, {"rate": 1.5}, {"steps": -1}, {"accountant": "zcdp"}],
)
def test_refuses_what_has_no_meaning(bad):
    given = {"epsilon": 1.0, "delta": 1e-5, "rate": 0.1, "steps": 10} | bad
    with pytest.raises(InvalidInputError):
        noise_multiplier(given.pop("epsilon"), given.pop("delta"), **given)


@pytest.mark.parametrize("epsilon", [0.05, 1.0, 8.0])
def test_a_line_finds_the_noise_in_few_steps(epsilon):
    """Halving the range would take twice as many."""
    pricing._epsilon.cache_clear()
    z = pricing._noise_multiplier.__wrapped__(epsilon, 1e-5, 0.07, 130, "pld")
    assert pricing._epsilon.cache_info().misses <= 12
    assert epsilon_of(z, 1e-5, rate=0.07, steps=130) <= epsilon
    assert epsilon_of(z / 1.00011, 1e-5, rate=0.07, steps=130) > epsilon
