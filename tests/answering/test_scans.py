"""Requests that wait share one scan, and are answered as if each had come alone."""

import numpy as np
import pytest

from conftest import blobs
from indknn.answering.requests import Request, ScansAhead
from indknn.core.noise import SeededNoise
from indknn.engine import Engine
from indknn.records.shard import Shard
from indknn.settings import Settings
from indknn.types import GRID

X, _ = blobs(900, 3, 8)


def engine(index="exact"):
    made = Engine(Settings.of(8, (0, 1, 2), index=index, epsilon=8.0, sigma2=0.05), SeededNoise(3))
    made.add(X[:600], np.random.default_rng(2).integers(3, size=600))  # no model can be sure of these
    made.declare_public(X[600:640])  # else all queries of the first batch would be public rows
    return made


def requests(made, analysts="abcabc"):
    """Of analysts whose queries are spread differently, so that their τ differ."""
    spread = {name: 1.0 + i for i, name in enumerate(sorted(set(analysts)))}
    parts = np.array_split(X[600:], len(analysts))
    rng = np.random.default_rng(8)
    noisy = [
        rows + 0.3 * spread[name] * rng.normal(size=rows.shape) for rows, name in zip(parts, analysts, strict=True)
    ]
    return [Request(made.settings.quantise(rows, "q"), name) for rows, name in zip(noisy, analysts, strict=True)]


@pytest.mark.parametrize("index", ["exact", "sketch", "lsh"])
def test_a_batch_is_answered_as_if_its_requests_had_come_alone(index, monkeypatch):
    together, apart = engine(index), engine(index)
    scans, original = [], Shard.scan

    def scan(shard, queries, tau):
        scans.append(len(queries))
        return original(shard, queries, tau)

    monkeypatch.setattr(Shard, "scan", scan)
    for start in (0, 3):
        batch = requests(together)[start : start + 3]
        replies = together.predictor.compute(batch)
        shared = len(scans)
        alone = [apart.predictor.compute([request])[0] for request in requests(apart)[start : start + 3]]
        assert [reply.labels.tolist() for reply in replies] == [reply.labels.tolist() for reply in alone]
        assert together.ledger.scopes == apart.ledger.scopes
        for scope in together.ledger.scopes:
            assert together.ledger.column(scope).tolist() == apart.ledger.column(scope).tolist()
        assert shared
        scans.clear()
    taus = {together.predictor.adviser(name).tau for name in "abc"}
    assert len(taus) == 3


def test_one_scan_at_the_smallest_tau_serves_all_of_an_exact_index():
    made = engine()
    queries, made_scans = made.settings.quantise(X[600:640], "q"), []

    def scan(some, tau):
        made_scans.append((len(some), tau))
        yield from made.shard.scan(some, tau)

    parts = [(queries[slice(0, 10)], int(0.9 * GRID)), (queries[slice(10, 40)], int(0.4 * GRID))]
    ahead = ScansAhead(scan, nested=True)
    ahead.look_up(parts)
    assert made_scans == [(40, parts[1][1])]
    for some, tau in [*parts, (queries[slice(20, 30)], int(0.7 * GRID))]:
        for found, right in zip(ahead(some, tau), scan(some, tau), strict=True):
            assert found.slots.tolist() == right.slots.tolist()
            assert found.kappa.tolist() == right.kappa.tolist()
    made_scans.clear()
    list(ahead(queries[slice(20, 30)], int(0.3 * GRID)))  # not foreseen
    assert made_scans == [(10, int(0.3 * GRID))]


def test_an_index_that_may_miss_records_is_scanned_for_each_tau():
    made = engine("sketch")
    queries, made_scans = made.settings.quantise(X[600:640], "q"), []

    def scan(some, tau):
        made_scans.append((len(some), tau))
        yield from made.shard.scan(some, tau)

    ahead = ScansAhead(scan, nested=False)
    ahead.look_up([(queries[slice(0, 10)], 900), (queries[slice(10, 20)], 400), (queries[slice(20, 40)], 900)])
    assert made_scans == [(30, 900), (10, 400)]
    list(ahead(queries[slice(0, 10)], 900))
    assert len(made_scans) == 2
    list(ahead(queries[slice(0, 10)], 950))
    assert made_scans[-1] == (10, 950)
