"""However many shards there are and wherever they run, answers, charges and releases are the same to the last bit."""

import numpy as np
import pytest

from cluster.histories import DEFAULT, PAPER, by_engine, by_store, inline, with_one
from golden.transcripts import MODES, Replayed, data, settings
from indknn.cluster import local_cluster
from indknn.engine import Engine

SHARED = ["the shared model", DEFAULT]


@pytest.mark.parametrize("mode", MODES)
def test_many_shards_are_as_one(mode):
    assert by_engine(mode, inline(3)) == with_one(mode)


@pytest.mark.parametrize("mode", SHARED)
def test_in_the_default_mode_they_are_as_no_cluster_at_all(mode):
    assert by_engine(mode, inline(2)) == by_engine(mode)


@pytest.mark.parametrize("mode", [PAPER, DEFAULT])
@pytest.mark.parametrize("n", [1, 2, 4])
def test_shards_in_other_processes_are_as_one_in_this_one(mode, n):
    with local_cluster(n) as cluster:
        assert by_engine(mode, cluster) == with_one(mode)


@pytest.mark.parametrize("mode", [PAPER, DEFAULT])
def test_files_are_the_same_row_by_row(mode, tmp_path):
    one = by_store(mode, tmp_path / "one.store", inline(1))
    with local_cluster(2) as cluster:
        assert by_store(mode, tmp_path / "two.store", cluster) == one
    if mode == DEFAULT:
        assert by_store(mode, tmp_path / "plain.store") == one


@pytest.mark.parametrize(
    "mode", ["algorithm 3", "algorithm 3, tau and sigma2 from queries", "algorithm 3, a global budget"]
)
def test_one_query_at_a_time_the_papers_way_is_as_without_a_cluster(mode):
    """In a batch the counts come first, which is another order of the same releases."""
    X, y, owners, Q = data(MODES[mode])
    told = []
    for make in (None, inline(3).new_shard):
        engine = Engine(settings(MODES[mode]), Replayed(), make_shard=make)
        engine.add(X, y, owners)
        labels = [engine.predict(Q[i : i + 1], "ann" if i % 3 else None).tolist() for i in range(120)]
        told.append((labels, engine.spent(sorted(set(owners))).tolist()))
    assert told[0] == told[1]


def test_people_run_out_in_these_histories():
    """Else the tests above would say nothing about those who are exhausted."""
    X, y, owners, Q = data(MODES[PAPER])
    engine = Engine(settings(MODES[PAPER]), Replayed(), make_shard=inline(2).new_shard)
    engine.add(X, y, owners)
    engine.predict(Q)
    left = engine.ledger.remaining(engine.ledger.taken(), None)
    assert np.mean(left < 0.01 * engine.ledger.budget) > 0.2
