"""The product passes every check, every mutant fails one, and nothing stays broken afterwards."""

import numpy as np
import pytest

from indknn import mechanism
from indknn.audits.attacks import floats
from indknn.audits.attacks.membership import membership
from indknn.audits.measure import measure, measure_simulated, simulations
from indknn.audits.mutants import MUTANTS
from indknn.audits.one_run import one_run
from indknn.audits.probes import failed_checks, failed_probes
from indknn.audits.scenarios import scenarios
from indknn.ledgers import MemoryLedger
from indknn.noise import SeededNoise
from indknn.shard import Shard


def test_the_product_passes():
    assert failed_checks() == {}
    assert failed_probes(seed=1, trials=20) == {}


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda m: m.name)
def test_every_mutant_is_caught_and_leaves_no_trace(mutant):
    before = [vars(where).copy() for where in (mechanism, MemoryLedger, SeededNoise, Shard)]
    with mutant():
        assert failed_checks()
    assert [vars(where) for where in (mechanism, MemoryLedger, SeededNoise, Shard)] == before


@pytest.mark.parametrize("scenario", scenarios(), ids=lambda s: s.name)
def test_every_scenario_runs_and_holds(scenario):
    found = measure(scenario, 12, seed=1, error=1e-3)
    assert found.holds
    assert found.trials == 24


def test_a_half_sized_noise_is_measured_above_the_claim():
    (scenario, shots) = simulations()[0]
    honest = measure_simulated(scenario, shots, 20_000, 1, 1e-4)
    assert 0.5 * honest.claimed_epsilon < honest.epsilon_gdp <= honest.claimed_epsilon
    assert honest.holds
    (half,) = [m for m in MUTANTS if m.name == "half noise"]
    (votes,) = [s for s in scenarios() if s.name == "one query"]
    with half():
        assert not measure(votes.__class__(**{**vars(votes), "exact_noise": False}), 500, 1, 1e-3).holds


def test_many_canaries_in_one_run():
    found = one_run(600, seed=1, error=1e-3)
    assert 0.5 < found.epsilon < found.claimed_epsilon


def test_textbook_floats_leak_and_ours_do_not():
    assert floats.attack("naive", floats.naive(1), 4000, 1, 1e-3).leaks
    assert not floats.attack("ours", floats.ours(1), 4000, 1, 1e-3).leaks


def test_membership_inference_stays_below_its_bound():
    found = membership(600, 1, 1e-3)
    assert found.holds
    assert found.auc < found.bound_auc < found.control_auc
    assert np.all(np.diff(found.bound) >= 0)
