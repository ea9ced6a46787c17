"""People with a smaller promise than the public default."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from contracts.ledger import units
from indknn.core import accounting
from indknn.core.noise import SecureNoise
from indknn.engine import Engine, new_ledger
from indknn.errors import InvalidInputError, LedgerError
from indknn.ledger import SHARED, MemoryLedger, memory
from indknn.ledger.figures import ONE, STEPS, TOGETHER, account, statement
from indknn.ledger.promises import wanted
from indknn.settings import Settings

PLAIN = Settings(2, ("no", "yes"), reuse="none")
MODEL = Settings(2, ("no", "yes"))


def units_of(epsilon):
    return accounting.to_units(accounting.budget(epsilon, 1e-5))


def ledger_with(settings, people, **promised):
    ledger = new_ledger(settings)
    asked = wanted(settings, ledger, people, np.array([promised.get(name, np.nan) for name in people]))
    slots = ledger.enrol(people)
    if asked is not None:
        ledger.lower(asked)
    return ledger, slots


def lower(settings, ledger, name, epsilon):
    ledger.lower(wanted(settings, ledger, [name], np.array([epsilon])))


@pytest.mark.parametrize("settings", [PLAIN, MODEL], ids=["votes", "model"])
def test_a_smaller_promise_scales_every_limit(settings):
    ledger, slots = ledger_with(settings, ["ann", "bob"], ann=0.25)
    whole = np.array([units_of(0.25), ledger.budget])
    shared, own = (ledger.remaining(slots, scope) for scope in (SHARED, None))
    assert np.abs(own + shared - whole).max() <= 1
    assert (shared[0] / max(whole[0], 1)) == pytest.approx(settings.shared_budget / settings.budget, abs=1e-9)
    assert (ledger.remaining(slots, "alice") == own).all()
    ledger.charge(slots[:1], own[:1], "alice")
    with pytest.raises(LedgerError):
        ledger.charge(slots[:1], units(1), "alice")


def test_analysts_who_were_given_less_have_the_smaller_of_both():
    settings = Settings(2, ("no", "yes"), reuse="none", analysts={"alice": 0.25, "bob": 0.75})
    ledger, slots = ledger_with(settings, ["ann"], ann=0.5)
    assert ledger.remaining(slots, "alice").tolist() == [units_of(0.25)]
    assert ledger.remaining(slots, "bob").tolist() == [units_of(0.5)]


def test_a_global_bound_is_the_persons_own():
    settings = Settings(2, ("no", "yes"), reuse="none", global_epsilon=2.0)
    ledger, slots = ledger_with(settings, ["ann", "bob"], ann=1.25)
    ledger.charge(slots, ledger.remaining(slots, "alice"), "alice")
    assert ledger.remaining(slots, "bob")[0] == units_of(1.25) - units_of(1.0)
    ledger.charge(slots, ledger.remaining(slots, "bob"), "bob")
    assert ledger.total_spent(["ann"]).tolist() == [units_of(1.25)]
    found = account(settings, TOGETHER, units_of(1.25), rounded=True, own=(1.25, units_of(1.25), 0, 0))
    assert found.epsilon_so_far <= found.epsilon == 1.25


def test_only_lower_and_only_one():
    ledger, _ = ledger_with(PLAIN, ["ann", "bob"], ann=0.25)
    for names, asked, message in (
        (["ann"], [0.5], "epsilon of owner 'ann' may only be lower: 0.25 was promised, got 0.5"),
        (["bob"], [1.5], "epsilon of row 0 must be at least 0.0001 and at most the store's, 1"),
        (["bob"], [0.0], "epsilon of row 0 must be"),
        (["bob", "bob"], [0.5, 0.25], "owner 'bob' has rows with epsilon 0.5 and 0.25"),
    ):
        with pytest.raises(InvalidInputError, match=message):
            wanted(PLAIN, ledger, names, np.array(asked))
    lower(PLAIN, ledger, "ann", 0.25)  # equal is fine
    assert wanted(PLAIN, ledger, ["ann"], np.array([np.nan])) is None


def test_coming_back_has_the_smaller_promise():
    ledger, slots = ledger_with(MODEL, ["ann", "bob"], ann=0.25)
    left = {scope: ledger.remaining(slots, scope)[0] for scope in (None, SHARED)}
    ledger.retire(slots[:1])
    assert not ledger.promises["whole"].any()
    newcomer = ledger.enrol(["eve"])
    assert ledger.remaining(newcomer, None)[0] > left[None]
    with pytest.raises(InvalidInputError, match="may only be lower"):
        wanted(MODEL, ledger, ["ann"], np.array([0.5]))
    back = ledger.enrol(["ann"])
    assert all(ledger.remaining(back, scope)[0] == room for scope, room in left.items())
    assert ledger.copy().promises.tolist() == ledger.promises.tolist()


def test_lowering_below_what_is_spent_makes_it_what_is_spent():
    ledger, slots = ledger_with(MODEL, ["ann"])
    ledger.charge(slots, units(ledger.limit(SHARED) // 2), SHARED)
    ledger.charge(slots, units(ledger.limit("alice")), "alice")
    lower(MODEL, ledger, "ann", 0.25)
    spent = int(ledger.spent(["ann"], SHARED)[0] + ledger.spent(["ann"], "alice")[0])
    assert [ledger.remaining(slots, scope)[0] for scope in (SHARED, "alice", "bob")] == [0, 0, 0]
    (before,) = ledger.promises_of(["ann"])["before"].tolist()
    assert before == spent
    found = account(MODEL, ONE, spent, rounded=True, own=(0.25, units_of(0.25), before, 0))
    assert found.epsilon == found.epsilon_so_far > 0.25
    assert found.left == 0.0


EPSILONS = st.lists(st.floats(0.001, 0.999), min_size=1, max_size=5).map(lambda those: sorted(those, reverse=True))
BUDGET = accounting.to_units(PLAIN.budget)


def told(spent, epsilons, settings=PLAIN):
    """The statements of somebody who spent this much with alice, and then lowered their promise again and again."""
    engine = Engine(settings, SecureNoise())
    engine.add(np.ones((1, 2)), ["no"], ["ann"])
    slots = engine.ledger.find(["ann"])
    engine.ledger.charge(slots, units(spent), "alice")
    for epsilon in epsilons:
        engine.lower("ann", epsilon)
        yield statement(engine, "ann")
    engine.ledger.charge(slots, engine.ledger.remaining(slots, "alice"), "alice")
    now = statement(engine, "ann")
    yield now
    left = float(accounting.from_units(engine.ledger.spent(["ann"], "alice"))[0])
    assert left <= now["one_analyst"]["spent"] * (1 + 1e-12) <= now["one_analyst"]["budget"] * (1 + 1e-9)


@given(st.integers(0, STEPS - 1), st.floats(0.0, 1.0), st.floats(0.0, 1.0), EPSILONS)
@example(20, 0.0, 1.0, [accounting.epsilon(PLAIN.budget * 20.5 / STEPS, PLAIN.delta, "gdp")])
def test_lowering_shows_no_more_than_a_step(step, one, other, epsilons):
    """Whoever lowers their promise bit by bit does not learn when it is less than what they have spent (rule 8)."""
    low, high = (BUDGET * k // STEPS for k in (step, step + 1))
    one, other = (min(low + 1 + int(share * (high - low)), high) for share in (one, other))
    assert list(told(one, epsilons)) == list(told(other, epsilons))


def test_a_promise_that_is_kept_stays_as_it_was():
    """It is not rounded, not when it was made and not when it is used up."""
    small = accounting.epsilon(PLAIN.budget * 20.5 / STEPS, PLAIN.delta, "gdp")
    assert [found["one_analyst"]["epsilon"] for found in told(3 * BUDGET // STEPS, [0.9, small])] == [0.9, small, small]
    (lowered, later) = told(20 * BUDGET // STEPS + 1, [small])
    assert lowered["one_analyst"]["epsilon"] == later["one_analyst"]["epsilon"] > small
    assert lowered["one_analyst"]["budget"] == pytest.approx(PLAIN.budget * 21 / STEPS)


def test_a_smaller_delta_does_not_make_less_of_what_was_spent():
    """Under another δ the same ε is a smaller budget. What was spent within the larger one still counts."""
    engine = Engine(PLAIN, SecureNoise())
    engine.add(np.ones((1, 2)), ["no"], ["ann"], epsilons=[0.5])
    slots = engine.ledger.find(["ann"])
    engine.ledger.charge(slots, engine.ledger.remaining(slots, "alice"), "alice")
    again = engine.restarted(replace(PLAIN, delta=1e-7), SecureNoise())
    again.add(np.ones((1, 2)), ["no"], ["ann"])
    found = statement(again, "ann")["one_analyst"]
    assert found["spent"] >= float(again.spent(["ann"])[0])
    assert found["epsilon"] >= found["epsilon_so_far"] > 0.5


EVENTS = st.lists(
    st.tuples(st.sampled_from(["lower", "charge"]), st.sampled_from([None, "alice", SHARED]), st.floats(0.0, 1.0)),
    max_size=12,
)


@given(EVENTS, st.booleans(), st.booleans())
def test_nobody_ever_pays_more_than_promised_or_spent_before(events, native, house):
    """For each analyst: the sum with what all see is at most the promise, or what it was when the promise was made."""
    with pytest.MonkeyPatch.context() as patch:
        if not native:
            patch.setattr(memory, "_votes", None)
        ledger, slots = ledger_with(MODEL, ["ann", "bob"])
        ledger.joint = house
        spent = {scope: np.zeros(2, dtype=np.int64) for scope in (None, "alice", SHARED)}
        bound, promised = dict.fromkeys((None, "alice"), ledger.budget), 1.0
        for event, scope, share in events:
            if event == "lower":
                promised = max(promised * share, 1e-4)
                shared_before = int(ledger.remaining(slots, SHARED)[1])
                lower(MODEL, ledger, "ann", promised)
                assert ledger.remaining(slots, SHARED)[1] == shared_before
                for analyst in bound:
                    whole = sum(int(spent[one][0]) for one in ({*spent} if house else {analyst, SHARED}))
                    bound[analyst] = max(units_of(promised), whole)
            else:
                price = np.floor(ledger.remaining(slots, scope) * share).astype(np.int64)
                ledger.charge(slots, price, scope)
                spent[scope] += price
            for analyst, most in bound.items():
                whole = sum(int(spent[one][0]) for one in ({*spent} if house else {analyst, SHARED}))
                assert whole <= most


def test_what_all_see_never_depends_on_what_one_analyst_was_told():
    """Two people who differ only in what an analyst was told about them have the same part for what all see."""
    ledger, slots = ledger_with(MODEL, ["ann", "bob"])
    ledger.charge(slots, units(ledger.limit("alice"), 0), "alice")
    for name in ("ann", "bob"):
        lower(MODEL, ledger, name, 0.5)
    assert ledger.remaining(slots, SHARED)[0] == ledger.remaining(slots, SHARED)[1]


def test_a_ledger_without_promises_has_no_column():
    ledger = MemoryLedger(100)
    ledger.enrol(["ann"])
    assert len(ledger.promises) == 0
