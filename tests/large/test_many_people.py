"""People who come in bulk get the slots and names that they would get one by one."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from indknn.core.inputs import Numbered, as_owner_list, as_owners
from indknn.errors import InvalidInputError
from indknn.ledger.memory import MemoryLedger, Roster

NUMBERS = st.lists(st.integers(0, 12), max_size=12)
TEXTS = st.lists(st.sampled_from(["ann", "bob", "0", "3", "03", "each-row:2", "each-row:x", "eve", "é"]), max_size=8)
WAVE = st.one_of(
    NUMBERS.map(lambda some: Numbered(np.array(some, dtype=np.int64))),
    NUMBERS.map(lambda some: Numbered(np.array(some, dtype=np.int64), "each-row:")),
    TEXTS,
)


@given(st.lists(st.tuples(WAVE, st.lists(st.integers(0, 30), max_size=4)), max_size=5))
@settings(max_examples=200, deadline=None)
def test_waves_of_people_who_come_and_go(waves):
    bulk, alone = Roster(), Roster()
    for names, leaving in waves:
        bulk.add_all(bulk.strangers(names))
        for name in names:
            if alone.slot(name) < 0:
                alone.add(name)
        assert bulk.slots_of(names).tolist() == [alone.slot(name) for name in names]
        taken = alone.taken().tolist()
        for slot in {taken[i] for i in leaving if i < len(taken)}:
            assert bulk.remove(slot) == alone.remove(slot)
        for one in (bulk, alone):
            assert vars(one) == vars(alone)
        assert list(bulk) == list(alone)


@given(st.lists(WAVE, max_size=4), st.lists(st.integers(0, 9), max_size=3))
@settings(max_examples=100, deadline=None)
def test_a_ledger_enrols_many_as_it_enrols_one(waves, retired):
    bulk, alone = (MemoryLedger(1000, key=bytes(32)) for _ in range(2))
    for names in waves:
        together = bulk.enrol(names)
        assert together.tolist() == [int(alone.enrol([name])[0]) for name in names]
        slots = np.unique(together)
        for ledger in (bulk, alone):
            ledger.charge(slots, slots + 1, "alice")
        here = np.intersect1d(slots, retired)
        for ledger in (bulk, alone):
            ledger.retire(here)  # the next wave may bring them back, with what they have spent
        assert bulk.next_number == alone.next_number
        assert bulk.owners() == alone.owners()
        everybody = bulk.owners()
        assert bulk.spent(everybody, "alice").tolist() == alone.spent(everybody, "alice").tolist()
    assert bulk.tombstones == alone.tombstones


def test_an_array_of_numbers_stays_one_and_means_the_same():
    for kind in ("int64", "int32", "uint8", "uint64"):
        names = as_owners(np.array([5, 0, 5], dtype=kind), length=3)
        assert isinstance(names, Numbered)
        assert list(names) == as_owner_list([5, 0, 5]) == ["5", "0", "5"]
    odd = [np.array([-1, 2]), np.array([2**63 + 1, 2], dtype=np.uint64), ["a", 2], np.array(["a", "b"])]
    for owners in odd:
        assert list(as_owners(owners, length=2)) == as_owner_list(owners)
        assert not isinstance(as_owners(owners, length=2), Numbered)


@pytest.mark.parametrize("owners", [np.array([1, 2]), np.array([[1], [2], [3]]), np.array([1.0, 2.0, 3.0])])
def test_what_names_nobody_is_refused(owners):
    with pytest.raises(InvalidInputError):
        as_owners(owners, length=3)


def test_names_beyond_63_bits_are_made_up_too():
    ledger = MemoryLedger(100)
    ledger.enrol([str(2**63 - 2)])
    assert list(ledger.new_names(2)) == [str(2**63 - 1), str(2**63)]
