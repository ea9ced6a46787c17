"""A record never changes its owner: the new one would not have paid for what was released about it (rule 4)."""

import numpy as np
import pytest

from indknn.errors import InvalidInputError
from indknn.settings import Settings
from indknn.store import Store
from indknn.store.verify import problems
from indknn.types import Given

SETTINGS = Settings(n_features=2, classes=("a", "b"), tau=0.3, max_queries=6, reuse="none", free_repeats=False)


@pytest.fixture
def store(tmp_path):
    with Store.create(tmp_path / "a.store", SETTINGS) as store:
        store.add(np.eye(2), ["a", "b"], ["ann", "7"])
        yield store


def test_an_exhausted_record_does_not_move_to_a_fresh_person(store):
    number = int(store.engine.shard.record_ids()[0])
    for i in range(40):
        store.predict([[1.0, 0.01 * i]])
    spent = store.spent(["ann"])
    assert spent > 0
    for owner in ("carl", "7", 7):
        with pytest.raises(InvalidInputError, match="a record never changes its owner") as told:
            store.upsert(Given(np.array([[0.6, 0.8]]), ["b"], [owner]), [number])
        assert "\n" not in str(told.value)
    assert store.spent(["ann"]) == spent
    assert sorted(store.engine.ledger.owners()) == ["7", "ann"]
    assert not list(problems(store))


def test_the_owner_may_be_named_in_any_form_or_left_out(store):
    number = int(store.engine.shard.record_ids()[1])
    for x, owner in enumerate((7, "7", None)):
        (number,) = store.upsert(Given(np.array([[0.6, 0.1 * x]]), ["b"], [owner]), [number]).numbers.tolist()
    assert sorted(store.engine.ledger.owners()) == ["7", "ann"]
    assert not list(problems(store))
