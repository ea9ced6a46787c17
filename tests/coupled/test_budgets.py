"""The two worlds with promises of single people, votes that are paced, and budgets that are renewed."""

from dataclasses import dataclass, replace
from itertools import product

import numpy as np
import pytest

from coupled import worlds
from coupled.histories import (
    ANALYSTS,
    MODES,
    TARGET,
    Ask,
    Forget,
    History,
    Later,
    Moment,
    Query,
    Records,
    Row,
    random_history,
)
from coupled.mutants import COMES, CROWD, asks
from coupled.roads import ROADS, Road
from coupled.tape import ALL, Divergence
from coupled.worlds import World
from indknn.core.accounting import budget, to_units
from indknn.ledger import SHARED
from indknn.settings import Settings
from indknn_lab.audits.mutants import MUTANTS
from indknn_lab.audits.patches import patched

pytestmark = pytest.mark.filterwarnings(
    "ignore:.*byte for byte", "ignore::indknn.errors.PrivacyWarning", "ignore:training of the shared model was"
)
QUARTER = Later(5 * 24)
"""A quarter of a period goes by."""
TIMED = {"pace_days": 10, "renew_days": 20, "i_understand": "epsilon per period"}


@dataclass(frozen=True)
class Lower:
    """Somebody lowers their promise, to this share of it."""

    owner: str
    share: float

    @property
    def of_others(self):
        return self.owner != TARGET


class Budgets(World):
    """A world in which promises are lowered and time goes by. Over all periods, limits add up."""

    def play(self, event):
        if not isinstance(event, Lower):
            return super().play(event)
        held = event.owner in self.owners.values()
        if held and self.road.engine.ledger.find([event.owner])[0] >= 0:
            self.road.lower(event.owner, event.share)
        return None

    def _later(self, event):
        """The clock begins the next period if it is time, also where nobody asks."""
        super()._later(event)
        self.road.renew()

    def seen(self, outcome):
        after = super().seen(outcome)
        self._within()
        return after

    def _limits(self):
        limits, given = super()._limits()
        periods = self.road.engine.ledger.period + 1
        return tuple(None if one is None else one * periods for one in limits), {
            n: u * periods for n, u in given.items()
        }

    def _within(self):
        """Nobody who was promised less pays more than that in a period, or than they had paid with that analyst."""
        ledger = self.road.engine.ledger
        for name, (whole, most) in self.road.promised.items():
            if name == TARGET and not self.target_came:
                continue
            for analyst in ANALYSTS:
                if ledger.joint or analyst in self.road.settings.analysts:
                    continue
                paid = sum(int(ledger.spent([name], scope)[0]) for scope in {analyst, SHARED})
                if paid > max(whole, most.get((analyst, ledger.period), 0)):
                    raise Divergence(f"{name} was promised {whole} and paid {paid} with {analyst}")


class Promising(Road):
    """A road on which promises can be lowered and budgets are renewed."""

    def __init__(self, *arguments, **options):
        self.promised = {}
        super().__init__(*arguments, **options)

    def lower(self, owner, share):
        ledger, settings = self.engine.ledger, self.engine.settings
        (was,) = ledger.promises_of([owner])["epsilon"].tolist()
        most = settings.global_epsilon or settings.epsilon
        epsilon = min(max(share * (was or most), 1e-3), most)
        paid = {
            (analyst, ledger.period): sum(int(ledger.spent([owner], scope)[0]) for scope in {analyst, SHARED})
            for analyst in ANALYSTS
        }
        self._in_turn(lambda: self.model.lower(owner, epsilon))
        self.promised[owner] = to_units(budget(epsilon, settings.delta, settings.accountant)), paid

    def renew(self):
        self._in_turn(self.model.renew_if_due)

    def balances(self, owners):
        ledger, found = self.engine.ledger, super().balances(owners)
        earlier = {scope: ledger.spent_in_all(list(owners), scope).tolist() for scope in ledger.scopes} if found else {}
        return {
            name: ({scope: units[i] for scope, units in earlier.items() if units[i]}, queries, records)
            for i, (name, (_, queries, records)) in enumerate(found.items())
        }


@pytest.fixture(autouse=True)
def own_budgets():
    with patched([(worlds, "Road", Promising), (worlds, "World", Budgets)]):
        yield


def with_budgets(history, seed, *, timed):
    """The same history, with promises that are lowered and, if `timed`, with time that goes by."""
    rng, events = np.random.default_rng(seed), []
    for event in history.events:
        events.append(event)
        if rng.random() < 0.3:
            events.append(Lower(TARGET if rng.random() < 0.5 else f"p{rng.integers(4)}", float(rng.choice([0.3, 0.9]))))
        if timed and rng.random() < 0.4:
            events.append(QUARTER)
    settings = replace(history.settings, **TIMED) if timed else history.settings
    events = [
        replace(e, settings=replace(e.settings, **TIMED)) if timed and isinstance(e, Records) and e.settings else e
        for e in events
    ]
    return replace(history, settings=settings, events=tuple(events))


@pytest.mark.parametrize("timed", [False, True], ids=["promises", "and time"])
@pytest.mark.parametrize(("road", "mode"), list(product(ROADS, MODES)))
def test_nobody_else_sees_it_and_what_is_released_is_paid_for(road, mode, timed):
    for seed in (1, 2):
        history = random_history(seed, road, mode, "exact", events=16)
        worlds.couple(with_budgets(history, seed, timed=timed))


@pytest.mark.parametrize(("road", "mode"), list(product(ROADS, MODES)))
def test_what_one_analyst_sees_does_not_depend_on_others(road, mode):
    for seed in (1, 2):
        history = random_history(seed, road, mode, "exact", events=16, apart=True, moody=0.5)
        worlds.couple(with_budgets(history, seed, timed=bool(seed % 2)), "ann")


SETTINGS = Settings(2, (0, 1), epsilon=4.0, tau=0.5, sigma2=0.1, **TIMED)


@pytest.mark.parametrize("road", ROADS)
def test_a_written_history(road):
    """The target lowers their promise between rounds, leaves, comes back, and is there when a period ends."""
    later, back = QUARTER, Records("add", (Row("t2", TARGET, (1.0, 0.1), 0),))
    events = (
        *(CROWD, COMES, later, *asks(1.0, 0.1, n=3), Lower(TARGET, 0.5), Lower("p1", 0.2), later),
        *(*asks(1.0, 0.3, n=3), Forget((TARGET,)), later, back, *asks(1.0, 0.4, n=3), Moment("restart"), later, later),
        *(*asks(1.0, 0.5, n=3), Lower(TARGET, 0.5), later, *asks(1.0, 0.6, n=3)),
    )
    tape = worlds.couple(History(0, road, SETTINGS, events))
    assert tape.cost[SHARED] > 0


class Unwatched(Budgets):
    """Nobody looks at the clock between two events."""

    def _later(self, event):
        World._later(self, event)


def at_ann(one, event, only, part=worlds._part):
    """What ann sees when she asks. What had happened in memory before, and when, shows to nobody."""
    return part(one, event, only) if isinstance(event, Ask) and event.requests[0].analyst == "ann" else {}


BOB = tuple(Ask((Query(((1.0, 0.1 + i / 50),), "bob", adaptive=True, unless=i % 2 if i else None),)) for i in range(9))


@pytest.mark.parametrize("between", [Forget(("p1",)), Lower("p1", 0.3), Moment("purge"), Records("fit", CROWD.rows)])
@pytest.mark.parametrize("road", [road for road in ROADS if road != "server"])
def test_without_a_server_nobody_sees_who_came_first_after_a_period(road, between):
    """That the target came, or that bob asked, does not decide who is still there when the shared model is trained."""
    between = replace(between, settings=SETTINGS) if isinstance(between, Records) else between
    rest = (between, *asks(1.0, 0.4, n=3))
    with patched([(worlds, "World", Unwatched), (worlds, "_part", at_ann)]):
        worlds.couple(History(0, road, SETTINGS, (CROWD, *asks(1.0, 0.1, n=3), *[QUARTER] * 4, COMES, *rest)))
        asked = (CROWD, *asks(1.0, 0.1, n=3), *BOB, *[QUARTER] * 4, *BOB[1:3], *rest)
        worlds.couple(History(1, road, SETTINGS, asked), "ann")


@pytest.mark.parametrize(
    ("name", "finding"),
    [("promise ignored", "target was promised"), ("periods forgotten", "had paid")],
)
def test_broken_variants_are_caught(name, finding):
    (mutant,) = (mutant for mutant in MUTANTS if mutant.name == name)
    settings = replace(SETTINGS, mode="votes", reuse="none", pace_days=None)
    events = (CROWD, COMES, Lower(TARGET, 0.1), *asks(1.0, 0.1, n=30), *[QUARTER] * 4)
    worlds.couple(History(0, "engine", settings, events), ALL)
    with mutant(), pytest.raises(Divergence, match=finding):
        worlds.couple(History(0, "engine", settings, events), ALL)
