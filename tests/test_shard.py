"""Records, their owners and what is left of them."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from indknn.core.kernels import Cosine
from indknn.core.quantise import quantise
from indknn.ledger import MemoryLedger
from indknn.records.indexes import make_index
from indknn.records.shard import Shard


def new_shard(d=6):
    return Shard(make_index("exact", Cosine(), d), MemoryLedger(1000))


@given(st.lists(st.tuples(st.sampled_from("aaro"), st.integers(0, 5)), max_size=40), st.integers(0, 2**32))
def test_in_any_order_the_shard_holds_what_a_dict_would(steps, seed):
    """a: add three records of an owner, r: remove a record, o: forget an owner."""
    rng = np.random.default_rng(seed)
    shard, model = new_shard(), {}
    ever = set()
    for step, number in steps:
        owner = str(number)
        if step == "a":
            ids = shard.add(quantise(rng.normal(size=(3, 6))), rng.integers(4, size=3), [owner] * 3).tolist()
            assert not ever & set(ids)
            ever |= set(ids)
            model.update(dict.fromkeys(ids, owner))
        elif step == "r" and model:
            record = rng.choice(list(model))
            shard.forget(shard.slots_of_records([int(record)]))
            del model[record]
        elif step == "o" and owner in model.values():
            slots = shard.slots_of_owners([owner])
            assert len(slots) == list(model.values()).count(owner)
            assert list(shard.forget(slots).values()) == [owner]
            model = {r: o for r, o in model.items() if o != owner}
        assert sorted(shard.record_ids().tolist()) == sorted(model)
        assert len(shard) == len(model)
        assert set(shard.ledger.owners()) == set(model.values())


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
