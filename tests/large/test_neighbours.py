"""In a very large store the number of neighbours is fixed, not their share; in all others nothing changes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from indknn.core import calibrate
from indknn.core.calibrate import MANY_RECORDS, NEAR_SHARE, SELECTED_SHARE, near_share, tau_from_queries
from indknn.core.kernels import Cosine
from indknn.core.noise import SeededNoise
from indknn.core.quantise import quantise
from indknn.engine import Engine
from indknn.errors import InvalidInputError
from indknn.models import new_adviser, new_model
from indknn.models.shared_model import ShownModel
from indknn.settings import Settings
from indknn.types import GRID, tau_on_grid
from indknn_lab.cli.tune import init_line
from indknn_lab.tuning import USUAL, Candidate, Target, Trial, Tuning, possible

D = 8
SETTINGS = Settings(D, ("no", "yes"))
QUERIES = quantise(np.random.default_rng(0).standard_normal((300, D)))


class KnowsNothing:
    """The rule of a model for which all classes are alike."""

    @staticmethod
    def plain(values):
        return np.full((len(values), 2), 0.5)


def adviser_of(count, **values):
    model = new_model(replace(SETTINGS, **values))
    if count:
        model.shown = ShownModel(0, count, KnowsNothing, None, np.zeros((0, D), dtype=np.int8), np.zeros(0))
    return new_adviser(replace(SETTINGS, **values), model)


@pytest.mark.parametrize("share", [NEAR_SHARE, SELECTED_SHARE, 0.06])
def test_a_share_below_a_million_and_a_number_above(share):
    for n in (None, 1, 1000, 1_000_000, MANY_RECORDS):
        assert near_share(share, n) == share
    for n in (10**7, 10**8, 10**9):
        assert near_share(share, n) * n == pytest.approx(share * MANY_RECORDS)


def test_the_noisy_count_or_the_operator_tells_the_adviser():
    usual = adviser_of(0.0)
    usual.advise(QUERIES[slice(0, 64)])
    assert usual.tau == tau_from_queries(QUERIES[slice(0, 64)], Cosine(), NEAR_SHARE)
    assert usual.density.usual_share == NEAR_SHARE
    many = near_share(NEAR_SHARE, 20e6)
    for large in (adviser_of(20e6), adviser_of(0.0, expected_records=20_000_000)):
        large.advise(QUERIES[slice(0, 64)])
        assert large.tau == tau_from_queries(QUERIES[slice(0, 64)], Cosine(), many) > usual.tau
        assert large.density.usual_share == many
    given = adviser_of(20e6, tau=0.5)
    given.advise(QUERIES[slice(0, 64)])
    assert given.tau == 0.5
    assert given.density.usual_share == NEAR_SHARE


@pytest.mark.parametrize("n", [1e6, 1e7, 1e8, 1e9])
def test_the_foretold_number_stays_the_same(n):
    adviser = adviser_of(n)
    adviser.advise(QUERIES[slice(0, 64)])
    for i in range(250):
        adviser.note(QUERIES[slice(i, i + 1)], None)
    tau = tau_on_grid(adviser.tau)
    shares = [adviser.density.look(QUERIES[slice(i, i + 1)], tau)[0] for i in range(250, 300)]
    K = np.mean([adviser.expected(share) / GRID for share in shares])
    aim = NEAR_SHARE * min(n, MANY_RECORDS)
    assert aim / 3 < K < 10 * aim  # 250 queries tell little of a share of 1/60,000


def test_records_near_a_query_in_stores_of_any_size(monkeypatch):
    monkeypatch.setattr(calibrate, "MANY_RECORDS", 2000)
    rng, found = np.random.default_rng(1), []
    for n in (2000, 8000, 32_000):
        settings = replace(SETTINGS, mode="votes", expected_records=n, max_queries=300)
        engine = Engine(settings, SeededNoise(0))
        engine.add(rng.standard_normal((n, D)), np.array(["no", "yes"])[np.arange(n) % 2])
        near = engine.shard.scan(QUERIES, tau_on_grid(tau_from_queries(QUERIES, Cosine(), settings.near_share)))
        found.append(np.mean([len(one.slots) for one in near]))
    assert np.all(np.abs(np.array(found) / (2000 * SELECTED_SHARE) - 1.0) < 0.5), found


def test_algorithm_3_plans_with_what_the_operator_expects():
    few, many = (
        Engine(replace(SETTINGS, mode="votes", expected_records=n), SeededNoise(0)) for n in (None, 10 * MANY_RECORDS)
    )
    for engine in (few, many):
        engine.predictor._fixed_plan(QUERIES)
    assert few.predictor.tau == tau_from_queries(QUERIES, Cosine(), SELECTED_SHARE)
    assert many.predictor.tau == tau_from_queries(QUERIES, Cosine(), SELECTED_SHARE / 10) > few.predictor.tau


def test_few_queries_do_not_tell_a_small_share():
    few, tiny = QUERIES[slice(0, 20)], 1e-6
    nearest = tau_from_queries(few, Cosine(), 4 / (20 * 19))
    assert tau_from_queries(few, Cosine(), tiny) == nearest
    more = quantise(np.random.default_rng(2).standard_normal((1500, D)))
    assert tau_from_queries(more, Cosine(), tiny) > tau_from_queries(more[slice(0, 256)], Cosine(), tiny)
    assert tau_from_queries(more, Cosine(), 0.01) == tau_from_queries(more[slice(0, 256)], Cosine(), 0.01)


def test_a_file_has_the_number_only_where_it_was_given():
    assert SETTINGS.stored()["expected_records"] is None
    told = replace(SETTINGS, expected_records=5)
    assert Settings.from_stored(told.stored()) == told
    with pytest.raises(InvalidInputError, match="expected_records must be a whole number, at least 1, got 0"):
        replace(SETTINGS, expected_records=0)


def test_tuning_tries_what_a_store_of_that_size_would_be():
    assert possible(USUAL, D, 1_000_000) == list(USUAL)
    shares = {c.share for c in possible(USUAL, D, 4 * MANY_RECORDS)}
    assert shares == {None, 0.015 / 4, 0.03 / 4, 0.06 / 4}
    for n, told in ((1_000_000, False), (4 * MANY_RECORDS, True)):
        trial = Trial(Candidate("model", None, model_share=0.9), None, None, (0.9,))
        line = init_line(Tuning(Target(n), [trial], 1, 1, 1, 1))
        assert (f"--expected-records {n}" in line) == told
