"""The product passes every check, every mutant fails one, and nothing stays broken afterwards."""

import numpy as np
import pytest

from indknn.answering import roads
from indknn.answering.predictor import Predictor
from indknn.core import mechanism
from indknn.core.noise import SeededNoise
from indknn.engine import Engine
from indknn.ledger import MemoryLedger
from indknn.models import adviser
from indknn.records.shard import Shard
from indknn_lab.audits.attacks import floats
from indknn_lab.audits.attacks.membership import membership
from indknn_lab.audits.checks import CHECKS
from indknn_lab.audits.measure import (
    claimed_mu,
    measure,
    measure_simulated,
    measure_statistics,
    scores_of,
    simulations,
)
from indknn_lab.audits.mutants import MUTANTS
from indknn_lab.audits.one_run import one_run
from indknn_lab.audits.probes import failed_checks, failed_probes
from indknn_lab.audits.scenarios import scenarios


def test_the_product_passes():
    assert failed_checks() == {}
    assert failed_probes(seed=1, trials=20) == {}


PATCHED = (mechanism, statistics, roads, adviser, MemoryLedger, SeededNoise, Shard, Engine, Predictor)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda m: m.name)
def test_every_mutant_is_caught_and_leaves_no_trace(mutant):
    before = [vars(where).copy() for where in PATCHED]
    with mutant():
        assert any(failed_checks({name: check}) for name, check in CHECKS.items())
    assert [vars(where) for where in PATCHED] == before


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


def test_all_of_b_in_statistics_is_measured_near_the_claim_and_not_above():
    honest = measure_statistics(4000, 1, 1e-3)
    assert honest.holds
    assert honest.epsilon_gdp > 0.7 * honest.claimed_epsilon
    (thin,) = [m for m in MUTANTS if m.name == "thin off the diagonal"]
    with thin():
        assert not measure_statistics(12_000, 1, 1e-2).holds


@pytest.mark.parametrize("name", ["statistics, five records", "statistics and student", "fresh records", "exponential"])
def test_the_score_of_the_adversary_is_a_likelihood_ratio(name):
    """E exp(score) = 1 where the target is absent: who expects something else than what is released would miss it."""
    (scenario,) = [s for s in scenarios() if s.name == name]
    present, absent = scores_of(scenario, 40, 2)
    assert np.exp(absent).mean() == pytest.approx(1.0, abs=0.5)
    assert np.exp(-present).mean() == pytest.approx(1.0, abs=0.5)
    assert present.mean() - absent.mean() > 0.3 * claimed_mu(scenario) ** 2  # and most of B is seen to be spent


def test_the_exponential_vote_is_not_judged_by_mu():
    (scenario,) = [s for s in scenarios() if s.name == "exponential"]
    assert measure(scenario, 8, 1, 1e-3).mu == 0.0


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
