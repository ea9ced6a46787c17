"""What a ledger must keep (rule 4), with the C extension and without. Inherit, and provide `make(budget, global_budget)`."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.ledgers import took_part
from indknn.errors import LedgerError, UnknownOwnerError

NAMES = ["ann", "bob", "0", "7", "-3", "007", "ünï", str(10**30), "each-row:3", "\udc80"]


def units(*values):
    return np.array(values, dtype=np.int64)


class LedgerContract:
    def make(self, budget, global_budget=None):
        raise NotImplementedError

    def test_everyone_starts_with_the_whole_budget(self):
        ledger = self.make(100)
        slots = ledger.enrol(NAMES)
        assert len(set(slots.tolist())) == len(NAMES)  # a name is a text, character by character
        assert ledger.remaining(slots, None).tolist() == [100] * len(NAMES)
        assert ledger.owners() == NAMES
        assert ledger.enrol(NAMES).tolist() == slots.tolist()

    def test_a_charge_is_all_or_none(self):
        ledger = self.make(100)
        slots = ledger.enrol(["ann", "bob"])
        ledger.charge(slots, units(60, 10), None)
        with pytest.raises(LedgerError):
            ledger.charge(slots, units(41, 1), None)
        with pytest.raises(LedgerError):
            ledger.charge(slots, units(-1, 1), None)
        assert ledger.spent(["ann", "bob"], None).tolist() == [60, 10]
        ledger.charge(slots, units(40, 90), None)
        assert ledger.remaining(slots, None).tolist() == [0, 0]

    def test_forgetting_keeps_what_was_spent_and_coming_back_resumes_it(self):
        ledger = self.make(100)
        slots = ledger.enrol(["ann", "bob"])
        ledger.charge(slots, units(60, 10), None)
        ledger.retire(slots[:1])
        assert ledger.owners() == ["bob"]
        assert ledger.slots_of(["ann", "bob"]).tolist() == [-1, slots[1]]
        assert ledger.spent(["ann"], None).tolist() == [60]
        newcomer = ledger.enrol(["eve"])  # takes the freed slot, not what was spent there
        assert ledger.remaining(newcomer, None).tolist() == [100]
        again = ledger.enrol(["ann"])
        assert ledger.remaining(again, None).tolist() == [40]
        assert ledger.spent(["bob", "ann", "eve"], None).tolist() == [10, 60, 0]

    def test_one_who_spent_nothing_is_still_known_after_being_forgotten(self):
        ledger = self.make(100)
        ledger.retire(ledger.enrol(["ann"]))
        assert ledger.spent(["ann"], None).tolist() == [0]

    def test_strangers_are_named(self):
        ledger = self.make(100)
        ledger.enrol(["ann"])
        for call in (ledger.slots_of, lambda o: ledger.spent(o, None), ledger.total_spent):
            with pytest.raises(UnknownOwnerError, match="unknown owner 'zoe'"):
                call(["ann", "zoe"])

    def test_analysts_have_ledgers_of_their_own(self):
        ledger = self.make(100)
        slots = ledger.enrol(["ann", "bob"])
        ledger.charge(slots, units(70, 0), "alice")
        ledger.charge(slots, units(80, 5), "carl")
        assert ledger.remaining(slots, "alice").tolist() == [30, 100]
        assert ledger.remaining(slots, "nobody yet").tolist() == [100, 100]
        assert ledger.total_spent(["ann", "bob"]).tolist() == [150, 5]
        ledger.retire(slots)
        back = ledger.enrol(["bob", "ann"])
        assert ledger.remaining(back, "carl").tolist() == [95, 20]
        assert ledger.total_spent(["ann"]).tolist() == [150]

    def test_a_global_budget_stands_behind_the_analysts(self):
        ledger = self.make(100, 120)
        slots = ledger.enrol(["ann", "bob"])
        ledger.charge(slots, units(100, 20), "alice")
        assert ledger.remaining(slots, "carl").tolist() == [20, 100]
        with pytest.raises(LedgerError):
            ledger.charge(slots, units(21, 0), "carl")
        ledger.charge(slots, units(20, 100), "carl")
        assert ledger.remaining(slots, None).tolist() == [0, 0]

    def test_taking_part_is_counted_and_outlives_the_records(self):
        ledger = self.make(100)
        slots = ledger.enrol(["ann", "bob"])
        ledger.charge(slots, units(1, 1), None)
        ledger.charge(slots[:1], units(1), None)
        ledger.charge(slots[:1], units(1), None, joining=False)  # a part of a release that another charge counts
        assert took_part(ledger, ["ann", "bob"]) == [2, 1]
        ledger.retire(slots[:1])
        assert took_part(ledger, ["bob", "ann"]) == [1, 2]
        newcomer = ledger.enrol(["eve"])  # takes the freed slot, not what was counted there
        assert took_part(ledger, ["eve"]) == [0]
        ledger.charge(np.concatenate([newcomer, ledger.enrol(["ann"])]), units(0, 1), None)
        assert took_part(ledger, ["ann", "eve"]) == [3, 1]

    def test_names_for_the_nameless_were_never_anybodys(self):
        ledger = self.make(100)
        assert list(ledger.new_names(2)) == ["0", "1"]
        ledger.retire(ledger.enrol(["41", "x", "043"]))
        assert list(ledger.new_names(2)) == ["42", "43"]
        assert list(ledger.new_names(1, "each-row:")) == ["each-row:44"]

    def test_finding_asks_nobody_whether_they_were_ever_here(self):
        ledger = self.make(100)
        slots = ledger.enrol(["ann", "bob"])
        ledger.retire(slots[:1])
        assert ledger.find(["bob", "ann", "zoe"]).tolist() == [slots[1], -1, -1]

    def test_record_ids_have_hashes_of_their_own(self):
        ledger = self.make(100)
        keys = ledger.record_keys(["a", None, "b", "a"])
        assert keys.shape == (4, 2)
        assert (keys[0] == keys[3]).all()
        assert (keys[0] != keys[2]).any()
        assert not keys[1].any()
        assert ledger.digest("a")[:16] != keys[0].tobytes()

    def test_a_lowered_budget_leaves_nothing_rather_than_less(self):
        ledger = self.make(100)
        slots = ledger.enrol(["ann"])
        ledger.charge(slots, units(80), None)
        ledger.budget = 50
        assert ledger.remaining(slots, None).tolist() == [0]

    @given(st.lists(st.tuples(st.sampled_from("acfr"), st.sampled_from(NAMES), st.integers(0, 120)), max_size=60))
    def test_in_any_order_spent_only_grows_and_never_exceeds_the_budget(self, steps):
        """a: enrol, f: forget, c: charge as one analyst, r: as another, on random people."""
        ledger = self.make(100, 150)
        model = {}
        for step, owner, amount in steps:
            if step == "a":
                ledger.enrol([owner])
                model.setdefault(owner, {"c": 0, "r": 0})
            elif owner in ledger.owners():
                slot = ledger.slots_of([owner])
                if step == "f":
                    ledger.retire(slot)
                elif amount <= min(100 - model[owner][step], 150 - sum(model[owner].values())):
                    ledger.charge(slot, units(amount), step)
                    model[owner][step] += amount
                else:
                    with pytest.raises(LedgerError):
                        ledger.charge(slot, units(amount), step)
            for name, spent in model.items():
                assert ledger.spent([name], "c").tolist() == [spent["c"]]
                assert ledger.total_spent([name]).tolist() == [sum(spent.values())]
