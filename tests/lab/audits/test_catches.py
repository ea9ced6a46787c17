"""The product passes every check, every mutant fails one, and nothing stays broken afterwards."""

from dataclasses import replace

import numpy as np
import pytest

from indknn.answering.predictor import Predictor
from indknn.cluster.host import Host
from indknn.core import mechanism, statistics, training
from indknn.core.noise import SeededNoise
from indknn.core.targets import Number
from indknn.engine import Engine
from indknn.ledger import MemoryLedger
from indknn.models.adviser import Adviser
from indknn.models.feature_map import FeatureMap
from indknn.models.rules import ResidualRule
from indknn.records import shard
from indknn.records.by_slot import Dates
from indknn.records.derived import Derived
from indknn.records.shard import Shard
from indknn.server.worker import Worker
from indknn.store import Store, database, table_counts
from indknn.store import store as stores
from indknn.store.change import Change, Erased
from indknn.store.journal import Batch, StoreJournal
from indknn_lab.audits.attacks import float_attack, membership, naive, one_run, ours
from indknn_lab.audits.checks import CHECKS
from indknn_lab.audits.checks.serving import HISTORIES, nothing_refunded, odometer
from indknn_lab.audits.measure import claimed_mu, measure, measure_gradients, measure_simulated, scores_of, simulations
from indknn_lab.audits.mutants import MUTANTS
from indknn_lab.audits.runner import PROBES, failed_checks, failed_probes
from indknn_lab.audits.scenarios import scenarios
from indknn_lab.audits.served import WAYS

PRODUCT = (mechanism, statistics, training, Adviser, FeatureMap, MemoryLedger, SeededNoise, Shard, Predictor)
SERVING = (database, table_counts, Batch, Change, Store, StoreJournal, Worker)
BESIDE = (Dates, Derived, Engine, Erased, Host, stores)
NUMBERS = (Number, ResidualRule, shard)
PATCHED = (*PRODUCT, *SERVING, *BESIDE, *NUMBERS)
KNOWN_BY = {
    "private mean": "own selection",
    "top-k": "own selection",
    "reused noise": "fresh noise",
    "half noise": "scales",
    "private adviser": "same path",
    "shared adviser": "analysts apart",
    "reused gradient noise": "fresh noise",
    "reused card": "fresh noise",
    "house ignored": "house",
    "named queries": "same path",
    "private centre": "own sums",
    "replayed for nothing": "same everywhere",
    "steps repeated": "same everywhere",
    "steps before the file": "steps last",
    "shared pool": "analysts apart",
    "fresh repeats": "repeats stand",
    "no balance": "nothing refunded",
    "unwritten charges": "durable first",
    "store answers first": "durable first",
    "server answers first": "durable first",
    "stale rows": "kept values",
    "forgetful": "first rows",
    "less sees all": "less is less",
    "free schema": "paid schema",
    "adds begin rounds": "quiet changes",
    "expired votes": "expired is out",
    "held votes": "held is out",
    "back in time": "time stays",
    "expiry refunds": "expiry refunds nothing",
    "expiry begins rounds": "quiet expiry",
    "promise ignored": "own promise",
    "promise untrained": "own promise",
    "lowering tells all": "lowering is apart",
    "pace ignored": "paced votes",
    "periods forgotten": "periods add up",
    "residual uncut": "small votes",
    "bounds ignored": "bounds hold",
    "unpaid interval": "released intervals",
}
"""The check that is about a mutant. The first check, of all charges, notices every other mutant."""


def parts():
    """Everything that a mutant may replace. `copy` notes the names of slots in a class when it first copies one."""
    return [{name: part for name, part in vars(where).items() if name != "__slotnames__"} for where in PATCHED]


def named(items, name):
    (found,) = [item for item in items if item.name == name]
    return found


@pytest.mark.parametrize("name", CHECKS)
def test_the_product_passes_every_check(name):
    assert failed_checks({name: CHECKS[name]}) == {}


@pytest.mark.slow
def test_the_product_passes_every_probe():
    assert failed_probes(seed=1, trials=20) == {}


@pytest.mark.slow
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda m: m.name)
def test_every_mutant_is_caught_and_leaves_no_trace(mutant):
    before = parts()
    assert {where for where, _, _ in mutant.replacements()} <= set(PATCHED)
    with mutant():
        assert parts() != before
        check = KNOWN_BY.get(mutant.name, "odometer")
        assert failed_checks({check: CHECKS[check]})
    assert parts() == before


def test_a_cluster_that_books_no_counts_is_caught():
    histories = [history for history in HISTORIES if history.way == "cluster"]
    with named(MUTANTS, "counts free in a cluster")():
        assert odometer(histories).startswith("cluster")


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    "name", ["refund on return", "free votes", "unclipped votes", "rounded down", "any budget left"]
)
def test_wrong_charges_are_caught_by_each_way_alone(way, name):
    """What the engine's own checks see is seen through the store and the server as well."""
    mutant = named(MUTANTS, name)
    histories = [history for history in HISTORIES if history.way == way and history.returning]
    assert odometer(histories) is None
    with mutant():
        assert odometer(histories).startswith(way)


@pytest.mark.parametrize("way", ["store", "server"])
@pytest.mark.parametrize("name", ["refund on return", "no tombstone", "no balance"])
def test_a_refund_is_caught_by_each_way_alone(way, name):
    mutant = named(MUTANTS, name)
    with mutant():
        assert failed_checks({"nothing refunded": lambda: nothing_refunded([way])})


def test_every_probe_sees_a_mutant():
    assert {name for mutant in MUTANTS for name in mutant.probes} == {scenario.name for scenario in PROBES}


@pytest.mark.parametrize("scenario", scenarios(), ids=lambda s: s.name)
def test_every_scenario_runs_and_holds(scenario):
    found = measure(scenario, 12, seed=1, error=1e-3)
    assert found.holds
    assert found.trials == 24


def test_a_half_sized_noise_is_measured_above_the_claim():
    honest = measure_simulated(simulations()[0], 20_000, 1, 1e-4)
    assert 0.5 * honest.claimed_epsilon < honest.epsilon_gdp <= honest.claimed_epsilon
    assert honest.holds
    once = replace(named(scenarios(), "one query"), exact_noise=False)
    with named(MUTANTS, "half noise")():
        assert not measure(once, 500, 1, 1e-3).holds


@pytest.mark.slow
def test_all_of_b_in_gradients_is_measured_near_the_claim_and_not_above():
    honest = measure_gradients(4000, 1, 1e-3)
    assert honest.holds
    assert honest.epsilon_gdp > 0.7 * honest.claimed_epsilon
    with named(MUTANTS, "thin gradient noise")():
        assert not measure_gradients(12_000, 1, 1e-2).holds


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["reuse", "model, five records", "model and votes", "newcomers", "rounds", "numbers, model and residuals"]
)
def test_the_score_of_the_adversary_is_a_likelihood_ratio(name):
    """E exp(score) = 1 where the target is absent: who expects something else than what is released would miss it."""
    scenario = named(scenarios(), name)
    present, absent = scores_of(scenario, 100, 3)
    assert np.exp(absent).mean() == pytest.approx(1.0, abs=0.5)
    assert np.exp(-present).mean() == pytest.approx(1.0, abs=0.5)
    assert present.mean() - absent.mean() > 0.3 * claimed_mu(scenario) ** 2  # and most of B is seen to be spent


def test_many_canaries_in_one_run():
    found = one_run(600, seed=1, error=1e-3)
    assert 0.5 < found.epsilon < found.claimed_epsilon


def test_textbook_floats_leak_and_ours_do_not():
    assert float_attack("naive", naive(1), 4000, 1e-3).leaks
    assert not float_attack("ours", ours(1), 4000, 1e-3).leaks


def test_membership_inference_stays_below_its_bound():
    found = membership(600, 1, 1e-3)
    assert found.holds
    assert found.auc < found.bound_auc < found.control_auc
    assert np.all(np.diff(found.bound) >= 0)
