"""Records, their owners and what is left of them."""

import pickle

import numpy as np

from cluster.histories import inline
from contracts.shard import ShardContract
from indknn import engine
from indknn.core.inputs import Numbered
from indknn.core.kernels import Cosine
from indknn.core.quantise import quantise
from indknn.ledger import MemoryLedger
from indknn.records.indexes import make_index
from indknn.records.shard import Shard
from indknn.types import Cohort


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


def bytes_beside(shard):
    """Bytes of everything that grows with the records but their features, and of what people spent."""
    held = {**vars(shard), **vars(shard.dates), **vars(shard.keys), **vars(shard.index.slots), "values": None}
    names = shard.ledger._roster
    assert not names._slot, "these names take no memory of their own"
    return sum(getattr(part, "nbytes", 0) for part in held.values()) + len(names._taken)


def test_a_record_takes_16_bytes_beside_its_features():
    shard, n = new_shard(64), 20_000
    rows = quantise(np.random.default_rng(0).normal(size=(n, 64)))
    shard.add(rows, np.arange(n) % 10, Numbered(np.arange(n), ""))
    assert bytes_beside(shard) == 14 * n  # length 4, owner 4, owner's first record 4, label 1, name 1
    shard.epoch = 1
    shard.forget(shard.slots_of_owners(["7"]))
    shard.add(rows[slice(0, 1)], np.zeros(1, int), ["7"])
    assert bytes_beside(shard) == 16 * n  # how often a slot was used 1, the round in which a record came 1
    assert shard.record_ids()[7] == (1 << 32) + 7
    assert shard.epochs_of(np.arange(6, 9)).tolist() == [0, 1, 0]


def test_columns_widen_and_keep_what_they_held():
    shard = new_shard()
    for label, n in ((100, 3), (30_000, 80), (1 << 21, 200)):
        shard.add(quantise(np.ones((n, 6))), np.full(n, label), ["ann"] * n)
    assert [shard.labels_of(np.array([i]))[0] for i in (0, 3, 83)] == [100, 30_000, 1 << 21]
    assert sorted(shard.slots_of_owners(["ann"]).tolist()) == list(range(283))
    for _ in range(130):  # more often than one byte can count
        (number,) = shard.add(quantise(np.ones((1, 6))), np.zeros(1, int), ["bob"]).tolist()
        shard.forget(shard.slots_of_owners(["bob"]))
    assert number == (129 << 32) + 283
    assert pickle.loads(pickle.dumps(shard)).labels_of(np.array([3])) == [30_000]


def test_which_of_equal_records_are_too_many_does_not_depend_on_others():
    """Ann has three equal records and one expires during a round of two. Slots that others left do not decide which."""
    row, left = quantise(np.array([[1.0, 1.0, 0.0]])), []
    for others in (["x", "y", "z"], ["x", "y"], ["x"]):  # those who come and go before
        shard = new_shard(3)
        for name in [*others, "w"]:
            shard.add(row, np.array([1]), [name])
        for name in others:
            shard.forget(shard.slots_of_owners([name]))
        for until in (9000, 9000, 5000):
            shard.add(row, np.array([0]), ["ann"], until=np.array([until]))
        left.append([])
        for hour in (4999, 5000):
            shard.ledger.minute = 60 * hour
            slots = shard.taking_part(Cohort(1, most=2))
            left[-1].append(int((shard.labels_of(slots) == 0).sum()))
    assert left[0] == left[1] == left[2]
    assert left[0][0] == 2
