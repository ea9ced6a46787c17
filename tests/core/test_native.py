"""Votes and charges in C are those of the NumPy twins to the bit; where C is missing the twins do the work."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from contracts.ledger import LedgerContract, units
from indknn.core import mechanism, native
from indknn.core.accounting import MAX_UNITS, UNIT
from indknn.core.mechanism import Plan
from indknn.errors import LedgerError
from indknn.ledger import SHARED, MemoryLedger, memory
from indknn.types import GRID

pytestmark = pytest.mark.skipif(mechanism._votes is None, reason="the C extension was not built, or is turned off")


def twins(function, *args):
    """The result of C, and that of NumPy."""
    fast = function(*args)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mechanism, "_votes", None)
        return fast, function(*args)


@given(
    st.integers(0, 2**32),
    st.integers(0, 60),
    st.integers(1, 12),
    st.sampled_from([1, 2, 40]),
    st.booleans(),
    st.sampled_from([None, 1, 2]),
)
def test_votes_and_charges_are_those_of_numpy(seed, n, n_classes, per_owner, contrast, cap):
    rng = np.random.default_rng(seed)
    plan = Plan(0.5, float(rng.uniform(0.3, 90)), float(rng.uniform(0.05, 4)), n_classes, cap, contrast)
    owners, labels = rng.integers(max(n // per_owner, 1), size=n), rng.integers(n_classes, size=n)
    group = mechanism.group(owners, labels, rng.integers(GRID // 2, GRID + 1, size=n), plan)
    size = 10.0 ** rng.uniform(-9, 1, size=len(group.owners))
    remaining = np.where(rng.random(len(size)) < 0.2, rng.integers(0, 3, size=len(size)), (size * UNIT).astype(int))
    for fast, slow in (
        twins(mechanism.count, group, remaining, plan),
        twins(mechanism.settle, group, remaining, int(rng.integers(30, 5000)) * GRID, plan),
    ):
        for name, value in vars(slow).items():
            if name == "group":
                assert np.array_equal(fast.group.owners, value.owners)
                assert np.array_equal(fast.group.entry_vote, value.entry_vote)
            else:
                assert np.array_equal(getattr(fast, name), value), name


def test_a_charge_beyond_all_budgets_is_cut_as_by_numpy():
    group = mechanism.Group(*(np.array(a) for a in ([0], [1], [0], [0], [1 << 45])))
    plan = Plan(0.5, 1.0, 2.0**-20, 2)
    fast, slow = twins(mechanism.settle, group, np.array([MAX_UNITS]), 30 * GRID, plan)
    assert (fast.charges, fast.votes.tolist()) == (slow.charges, slow.votes.tolist())


def test_what_does_not_fit_together_is_refused():
    zeros = np.zeros(3, dtype=np.int64)
    with pytest.raises(ValueError, match="entries must be of the owners"):
        mechanism._votes.settle(b"", zeros + 7, zeros, zeros, zeros.copy(), zeros.copy(), False, 1.0, 1.0, 1.0, 9)
    assert not mechanism._votes.room(zeros, b"", zeros + 3, 5, 5, zeros.copy())
    assert native.whole(np.arange(6, dtype=np.int32)[::2]).tolist() == [0, 2, 4]


class TestLedgerWithoutC(LedgerContract):
    @pytest.fixture(autouse=True)
    def without(self, monkeypatch):
        monkeypatch.setattr(memory, "_votes", None)

    def make(self, budget, global_budget=None):
        return MemoryLedger(budget, global_budget)


@given(st.integers(0, 2**32), st.sampled_from([None, 150]), st.booleans(), st.booleans())
def test_a_ledger_is_the_same_with_and_without_c(seed, global_budget, shared, house):
    fast, slow = (MemoryLedger(100, global_budget, shared_budget=60 if shared else 0, key=b"k") for _ in "12")
    rng, names = np.random.default_rng(seed), [f"p{i}" for i in range(9)]
    for ledger in (fast, slow):
        ledger.enrol(names)
        ledger.house, ledger.budgets = house, {"bob": 70}
    for _ in range(20):
        slots = rng.permutation(9)[: rng.integers(10)]
        scope = rng.choice([None, "ann", "bob", SHARED] if shared else [None, "ann", "bob"])
        joining, price = bool(rng.integers(2)), units(*rng.integers(-1 if rng.random() < 0.1 else 0, 40, len(slots)))
        outcomes = []
        for ledger in (fast, slow):
            with pytest.MonkeyPatch.context() as patch:
                if ledger is slow:
                    patch.setattr(memory, "_votes", None)
                left = ledger.remaining(slots, scope).tolist()
                try:
                    ledger.charge(slots, price, scope, joining=joining)
                    outcomes.append((left, True))
                except LedgerError:
                    outcomes.append((left, False))
        assert outcomes[0] == outcomes[1]
        assert [fast.column(s).tolist() for s in fast.scopes] == [slow.column(s).tolist() for s in fast.scopes]
        assert fast.participation.tolist() == slow.participation.tolist()
