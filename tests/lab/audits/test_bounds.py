"""Bounds hold as often as they say, and reach what is there to reach."""

import numpy as np
import pytest
from scipy.stats import binom

from indknn_lab.audits.measure import lower_bounds, lower_rate, one_run_epsilon, one_run_p_value, upper_rate


def test_clopper_and_pearson_cover():
    n, p, error = 50, 0.3, 0.05
    hits = np.arange(n + 1)
    below = np.array([lower_rate(h, n, error) <= p for h in hits])
    above = np.array([upper_rate(h, n, error) >= p for h in hits])
    assert binom.pmf(hits, n, p)[below].sum() >= 1 - error
    assert binom.pmf(hits, n, p)[above].sum() >= 1 - error
    assert upper_rate(0, 10, 0.05) == pytest.approx(1 - 0.05 ** (1 / 10))


def test_gaussians_are_measured_tightly_and_never_above():
    rng, mu = np.random.default_rng(1), 1.0
    found = lower_bounds(mu * (rng.normal(size=200_000) + mu), mu * rng.normal(size=200_000), 1e-5, 1e-3)
    assert 0.95 < found.mu < 1.0
    assert 2.0 < found.epsilon < 4.4


def test_no_difference_is_no_loss():
    rng = np.random.default_rng(2)
    exceeded = [lower_bounds(rng.normal(size=200), rng.normal(size=200), 1e-5, 0.05).mu > 0 for _ in range(60)]
    assert np.mean(exceeded) <= 0.1


def test_a_rare_certain_event_is_found():
    out = np.zeros(4000)
    present = np.where(np.arange(4000) % 10 == 0, 1.0, 0.0)
    assert lower_bounds(present, out, 1e-5, 1e-3).epsilon > 3.0


def test_one_run_is_an_exact_binomial_test_without_delta():
    eps = np.log(3.0)
    assert one_run_p_value(1000, 100, 80, eps, 0.0) == pytest.approx(binom.sf(79, 100, 0.75))
    found = one_run_epsilon(1000, 100, 95, 1e-5, 0.01)
    assert one_run_p_value(1000, 100, 95, found, 1e-5) <= 0.01
    assert one_run_p_value(1000, 100, 95, found + 0.01, 1e-5) > 0.01
    assert one_run_epsilon(1000, 100, 50, 1e-5, 0.01) == 0.0
