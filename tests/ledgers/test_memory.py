import pickle

import numpy as np

from contracts.ledger import LedgerContract, units
from indknn.ledger import MemoryLedger
from indknn.ledger.memory import Tombstone, joint_units


class TestMemoryLedger(LedgerContract):
    def make(self, budget, global_budget=None):
        return MemoryLedger(budget, global_budget)


def test_no_name_of_the_forgotten_is_left():
    ledger = MemoryLedger(100)
    slots = ledger.enrol(["a very peculiar name", "bob"])
    ledger.charge(slots, units(5, 5), None)
    ledger.retire(slots[:1])
    assert b"peculiar" not in pickle.dumps(ledger)


def test_the_hash_of_a_name_needs_the_key():
    digests = {MemoryLedger(1).digest("ann") for _ in range(5)}
    assert len(digests) == 5
    assert MemoryLedger(1, key=b"k").digest("ann") == MemoryLedger(1, key=b"k").digest("ann")


def test_spending_under_an_older_form_of_a_name_is_found_and_joined():
    """Before names were text, 7, "7" and b"7" were three people, forgotten under three hashes."""
    ledger = MemoryLedger(100, key=b"k")
    graves = {form: ledger._hashed(form) for form in (b"i\x07", b"s7", b"b7")}
    stones = dict(zip(graves.values(), (Tombstone({None: u, "a": 1}, 2) for u in (4, 9, 25)), strict=True))
    ledger.restore((), {}, units(), stones, 0, old_names=True)
    assert ledger.spent(["7"], None).tolist() == [(2 + 3 + 5) ** 2]
    assert ledger.queries(["7"]).tolist() == [6]
    slots = ledger.enrol(["7"])
    assert ledger.remaining(slots, None).tolist() == [0]
    assert ledger.remaining(slots, "a").tolist() == [91]
    assert not ledger.tombstones
    assert MemoryLedger(1, key=b"k").graves("7") == []


def test_two_who_were_one_have_spent_what_their_contributions_cost_together():
    """|v + w|² is at most (|v| + |w|)², also summed over releases; the bound is rounded up to whole units."""
    rng = np.random.default_rng(0)
    for _ in range(50):
        v, w = rng.integers(0, 1000, size=(2, 8))
        a, b = int((v * v).sum()), int((w * w).sum())
        assert ((v + w) ** 2).sum() <= joint_units(a, b) <= 2 * (a + b) + 1
    assert joint_units(0, 5) == joint_units(5, 0) == 5


def test_numbers_as_names_take_a_byte_each():
    ledger = MemoryLedger(100)
    ledger.enrol([str(i) for i in range(1000)])
    assert not ledger._roster._name
    assert not ledger._roster._slot
    assert ledger.find(["999", "0999", "1000", "-0", "²"]).tolist() == [999, -1, -1, -1, -1]
    other = MemoryLedger(100)
    other.enrol(other.new_names(1000, "each-row:"))
    assert not other._roster._name
    assert other.find(["each-row:7", "7", "each-row:1000"]).tolist() == [7, -1, -1]
    assert other.owners()[999] == "each-row:999"


def test_thousands_of_owners_grow_the_arrays():
    ledger = MemoryLedger(100)
    slots = ledger.enrol([str(i) for i in range(5000)])
    ledger.charge(slots, units(*range(5000)) % 100, "a")
    assert ledger.spent(["4999", "150"], "a").tolist() == [99, 50]
