import pickle

from contracts.ledger import LedgerContract, units
from indknn.ledger import MemoryLedger


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
    assert len({MemoryLedger(1, key=b"k").digest(o) for o in (7, "7", b"7")}) == 3


def test_thousands_of_owners_grow_the_arrays():
    ledger = MemoryLedger(100)
    slots = ledger.enrol(list(range(5000)))
    ledger.charge(slots, units(*range(5000)) % 100, "a")
    assert ledger.spent([4999, 150], "a").tolist() == [99, 50]
