"""Records, their owners and what is left of them."""

import numpy as np

from cluster.histories import inline
from contracts.shard import ShardContract
from indknn import engine
from indknn.core.kernels import Cosine
from indknn.core.quantise import quantise
from indknn.ledger import MemoryLedger
from indknn.records.indexes import make_index
from indknn.records.shard import Shard


def new_shard(d=6):
    return Shard(make_index("exact", Cosine(), d), MemoryLedger(1000))


class TestHere(ShardContract):
    def make(self, settings):
        return engine.new_shard(settings, engine.new_ledger(settings))


class TestCluster(ShardContract):
    def make(self, settings):
        return inline(3).new_shard(settings, engine.new_ledger(settings))


def test_forgotten_bytes_are_overwritten():
    shard = new_shard()
    vectors = quantise(np.random.default_rng(0).normal(size=(5, 6)))
    ids = shard.add(vectors, np.arange(5), ["a", "b", "c", "d", "e"])
    assert list(shard.forget(shard.slots_of_owners(["c"])).values()) == ["c"]
    memory = shard.index.slots.values.tobytes()
    assert vectors.values[2].tobytes() not in memory
    assert vectors.values[1].tobytes() in memory
    assert shard._label[2] == -1
    assert ids[2] not in shard.record_ids()
    for _ in range(8):  # growing copies the store: the old copy must not linger with forgotten bytes
        old = shard.index.slots.values
        shard.add(quantise(np.random.default_rng(1).normal(size=(60, 6))), np.zeros(60, int), ["z"] * 60)
        assert old is shard.index.slots.values or not old.any()
