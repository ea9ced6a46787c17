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
