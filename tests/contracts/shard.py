"""What the code above a shard uses of it, whether its records are here or in a cluster. Inherit, and provide `make`."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from indknn.core.mechanism import MIN_K
from indknn.core.quantise import quantise
from indknn.errors import InvalidInputError
from indknn.records.any_shard import NewRecords
from indknn.settings import Settings
from indknn.types import GRID, Cohort

SETTINGS = Settings(6, (0, 1, 2), epsilon=2.0, tau=0.2, sigma2=0.5, mode="votes")
PLAN, TAU = SETTINGS.plan(0.2), GRID // 5


def rows(n, seed=0):
    rng = np.random.default_rng(seed)
    return quantise(rng.normal(size=(n, 6))), rng.integers(3, size=n)


class ShardContract:
    def make(self, settings):
        raise NotImplementedError

    @given(st.lists(st.tuples(st.sampled_from("aaro"), st.integers(0, 5)), max_size=40), st.integers(0, 2**32))
    def test_in_any_order_it_holds_what_a_dict_would(self, steps, seed):
        """a: add three records of an owner, r: remove a record, o: forget an owner."""
        rng = np.random.default_rng(seed)
        shard, model = self.make(SETTINGS), {}
        ever = set()
        for step, number in steps:
            owner = str(number)
            if step == "a":
                ids = shard.add(quantise(rng.normal(size=(3, 6))), rng.integers(3, size=3), [owner] * 3).tolist()
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

    def test_equal_records_and_ids_are_found(self):
        shard = self.make(SETTINGS)
        (X, y), names = rows(4), ["a", "a", "b", "c"]
        new = NewRecords(X, y, names, ["1", None, "2", None])
        first = shard.match(new)
        ids = shard.add(*first.pick(first.fresh, new))
        again = shard.match(new._replace(record_ids=["1", None, "3", None]))
        assert again.ids.tolist() == [ids[0], -1, -1, -1]
        assert (again.stale.tolist(), again.copies) == ([], 2)
        other = shard.match(new._replace(labels=(y + 1) % 3))
        assert other.stale.tolist() == [0, 2]
        with pytest.raises(InvalidInputError, match="another owner"):
            shard.match(NewRecords(X, y, ["b", "b", "b", "b"], ["1", None, None, None]))

    def test_a_query_is_asked_then_its_votes_are_taken_and_paid_for(self):
        shard = self.make(SETTINGS)
        X, y = rows(30)
        names = [f"p{i % 20}" for i in range(30)]
        shard.add(X, y, names)
        near = shard.scan(X[slice(0, 2)], TAU)
        assert len(shard.ask(near, [(PLAN, "ann")] * 2, counted=False)) == 2
        assert not shard.ledger.total_spent(names).any()
        asked = shard.ask(near, [(PLAN, "ann"), (PLAN, "bob")])
        counted = shard.ledger.total_spent(names)
        assert counted.any()
        votes = shard.votes(asked, [MIN_K * GRID] * 2, [PLAN] * 2)
        assert next(votes).sum() > 0
        first = shard.ledger.total_spent(names)
        assert (first >= counted).all()
        assert (shard.ledger.spent(names, "ann") > 0).any()
        for later in votes:
            assert later.shape == (3,)
        assert (shard.ledger.total_spent(names) != first).any()

    def test_whoever_is_near_at_a_larger_threshold_is_counted(self):
        shard = self.make(SETTINGS)
        X, y = rows(30)
        shard.add(X, y, [f"p{i}" for i in range(30)])
        wide, narrow = (shard.scan(X[slice(0, 1)], tau)[0] for tau in (TAU, GRID // 2))
        totals = [shard.ask([near], [(PLAN, None)])[0].total for near in (wide, wide.within(GRID // 2), narrow)]
        assert totals[0] > totals[1] == totals[2] > 0

    def test_a_count_of_people_is_charged(self):
        shard = self.make(SETTINGS)
        X, y = rows(12)
        shard.add(X, y, [f"p{i % 6}" for i in range(12)])
        shard.ledger.shared_budget = shard.ledger.budget // 2
        people = shard.headcount(Cohort(1, 5), 7, 1, 0, GRID, shard.ledger.budget // 4, "\0shared")
        assert people.any()
        assert (shard.ledger.total_spent([f"p{i}" for i in range(6)]) > 0).all()
