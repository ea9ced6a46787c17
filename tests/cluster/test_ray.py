"""Shards on a real Ray, started here and bound to the loopback."""

import os
import signal
from importlib.util import find_spec

import pytest

from cluster.histories import DEFAULT, PAPER, by_engine, with_one
from golden.transcripts import MODES, data, settings
from indknn.cluster.ray_hosts import connected, ray_cluster, shards_named
from indknn.errors import ShardError
from indknn.store import Store
from indknn.store.verify import problems

pytestmark = [
    pytest.mark.ray,
    pytest.mark.slow,
    pytest.mark.skipif(find_spec("ray") is None, reason="Ray is not installed: pip install 'indknn[cluster]'"),
]


@pytest.fixture(scope="module", autouse=True)
def ray():
    found = connected(None)
    yield found
    found.shutdown()


def test_ray_listens_on_the_loopback_alone_and_asks_for_a_token(ray):
    assert [node["NodeManagerAddress"] for node in ray.nodes()] == ["127.0.0.1"]
    assert os.environ["RAY_AUTH_MODE"] == "token"
    assert os.environ["RAY_USAGE_STATS_ENABLED"] == "0"


@pytest.mark.parametrize("mode", [PAPER, DEFAULT])
def test_shards_on_ray_are_as_one_in_this_process(mode):
    with ray_cluster(None, 2, name="equal", cpus=0.1) as cluster:
        assert by_engine(mode, cluster) == with_one(mode)
        assert len(shards_named("equal")) == 2
    assert not shards_named("equal")


def test_an_actor_that_dies_or_hangs_is_replaced_and_nothing_is_lost(ray, tmp_path):
    X, y, owners, Q = data()
    with (
        ray_cluster(None, 2, name="dying", cpus=0.1) as cluster,
        Store.create(tmp_path / "people.store", settings(MODES[PAPER]), make_shard=cluster.new_shard) as store,
    ):
        store.add(X, y, owners)
        told = store.predict(Q[:10], request_id="first").tolist()
        spent = store.spent(sorted(set(owners))).tolist()
        for sign in (signal.SIGKILL, signal.SIGSTOP):
            os.kill(ray.get(cluster._links[1]._actor.process.remote()), sign)
            cluster._links[1]._patience = 1.0
            with pytest.raises(ShardError, match="shard 1"):
                store.predict(Q[20:30])
            assert store.spent(sorted(set(owners))).tolist() == spent
        assert store.predict(Q[:10], request_id="first").tolist() == told
        store.predict(Q[20:30])
        assert not list(problems(store))


def test_the_next_coordinator_ends_what_the_last_one_left():
    with ray_cluster(None, 2, name="left", cpus=0.1) as first:
        by_engine(PAPER, first)
        with ray_cluster(None, 1, name="left", cpus=0.1) as second:
            assert len(shards_named("left")) == 2  # nothing is ended before the store is ours
            by_engine(PAPER, second)
            assert len(shards_named("left")) == 1
