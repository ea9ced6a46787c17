"""One history in two worlds, with and without the target, the second forced to the releases of the first.

The proof of the theorem in docs/privacy.md, executed. After every event three things must hold. What others see is the
same to the bit. So is everybody else's ledger. And what all releases so far cost the target, as an exact fraction, is at
most what the target was charged.
"""

import tempfile
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path

import numpy as np

from coupled.histories import (
    ANALYSTS,
    START,
    TARGET,
    Ask,
    Forget,
    Hold,
    Later,
    Moment,
    Pieces,
    Records,
    Refused,
    Statement,
)
from coupled.roads import REFUSALS, Road
from coupled.tape import ALL, Divergence, Silent, Tape
from indknn.answering import predictor
from indknn.core import clock, training
from indknn.core.accounting import UNIT, to_units
from indknn.errors import IndKNNError
from indknn.ledger import SHARED
from indknn.models import adviser, feature_map, rules
from indknn.records import derived
from indknn.server import worker
from indknn.settings import Settings
from indknn.store import journal
from indknn_lab.audits.patches import patched
from indknn_lab.audits.scenarios import hurried
from indknn_lab.audits.served import Repeatable, in_step

SMALL = [
    (training, "_BLOCK", 3),
    (training, "_DENSE", 60),
    (training, "_SHARE", 3),
    (feature_map, "_BLOCK", 3),
    (rules, "_BLOCK", 3),
    (derived, "PORTION", 4),
    (predictor, "_BLOCK", 3),
    (predictor, "MAX_QUERIES", 4),
    (worker, "ROWS", 4),
    (journal, "FOLD_BYTES", 200),
    (journal, "_FOLD_LEAST", 200),
]
_HURRY = [(adviser, "_FIRST_COUNTS", 3), (adviser, "COUNT_EVERY", 4)]


@dataclass(frozen=True)
class Seen:
    """After an event: what came of it, what analysts see, everybody's ledger, and how much anybody may have paid."""

    outcome: object
    settings: Settings
    views: dict
    others: dict
    target: tuple
    limits: tuple
    apart: dict
    """Which analysts see nothing that is shared."""


class World:
    """One of the two worlds. It skips the target's part of every event where the target is not `present`."""

    def __init__(self, history, present, folder, noise):
        self.hours = START
        clock.seconds = lambda: 3600.0 * self.hours
        table = [row for row in history.table if present or row[0] != TARGET]
        self.road = Road(history.road, history.settings, folder, noise, history.public, table)
        self.present = present
        self.ids, self.owners = {}, {}  # of the records that are held, by their names in the script
        self.dates = {}  # when they expire
        self.named = {}  # the same by their owners' own ids
        self.others = dict.fromkeys(owner for owner, _ in table if owner != TARGET)
        self.target_came = any(owner == TARGET for owner, _ in table)
        self.settings = [history.settings]
        self._last = {}

    def play(self, event):
        """What others see of this event."""
        step = {
            Records: self._records,
            Forget: self._forget,
            Ask: self._ask,
            Statement: self._statement,
            Pieces: self._pieces,
            Later: self._later,
            Hold: self._hold,
            Moment: lambda moment: getattr(self.road, moment.how)(),
            Refused: self._refused,
        }[type(event)]
        try:
            outcome = step(event)
        except REFUSALS as error:
            outcome = type(error).__name__
        self.road.idle()
        return outcome if getattr(event, "of_others", True) else None

    def seen(self, outcome):
        others = self.road.balances(self.others)
        target = self.road.balances([TARGET])[TARGET] if self.target_came else ({}, 0, 0)
        views = self.road.views(ANALYSTS)
        apart = {analyst: self.road.apart(analyst) for analyst in ANALYSTS}
        return Seen(outcome, self.road.engine.settings, views, others, target, self._limits(), apart)

    def _limits(self):
        """What somebody may have paid for the shared model, with one analyst, for one view, and in all.

        Under earlier settings it may have been more.
        """
        shared = [to_units(s.shared_budget) if s.advised else 0 for s in self.settings]
        budgets = [to_units(settings.budget) for settings in self.settings]
        own = [budget - part for budget, part in zip(budgets, shared, strict=True)]
        named = {name for s in self.settings for name in s.analysts}
        given = {name: max(to_units(s.seen_by(name).budget) for s in self.settings) for name in named}
        behind = [s.global_budget for s in self.settings]
        if self.road.engine.ledger.joint:
            behind = [s.budget for s in self.settings]
        return (max(shared), max(own), max(budgets), None if None in behind else max(map(to_units, behind))), given

    def _records(self, event):
        rows = [row for row in event.rows if self.present or row.owner != TARGET]
        if not rows:
            return
        plain = [(row.owner, row.x, row.label, row.key, row.expires) for row in rows]
        if event.how == "upsert":
            made = self.road.upsert(plain, [self.ids.get(row.old) for row in rows])
        elif event.how == "fit":
            made = self.road.fit(plain, event.settings)
            self.settings.append(self.road.settings)
        else:
            made = getattr(self.road, event.how)(plain)
        again = [self.named.get(row.key) for row in rows if row.key]
        self._drop([*again, *(row.old for row in rows)] if event.how in {"add", "upsert"} else list(self.ids))
        self.named |= {row.key: row.name for row in rows if row.key}
        self.ids |= dict(zip((row.name for row in rows), made.tolist(), strict=True))
        self.owners |= {row.name: row.owner for row in rows}
        self.dates |= {row.name: row.expires for row in rows}
        self.others |= dict.fromkeys(row.owner for row in rows if row.owner != TARGET)
        self.target_came |= any(row.owner == TARGET for row in rows)

    def _forget(self, event):
        owners = [name for name in event.owners if name != TARGET or self.target_came]
        names = [name for name in event.records if name in self.ids]
        if not owners and not names:
            return None
        receipt = self.road.forget(owners, [self.ids[name] for name in names])
        self._drop([*names, *(name for name, owner in self.owners.items() if owner in owners)])
        return receipt

    def _drop(self, names):
        for name in names:
            self.ids.pop(name, None)
            self.owners.pop(name, None)

    def _ask(self, event):
        requests, asked = (
            [],
            [query for query in event.requests if self._last.get(query.analyst, 0) % 2 != query.unless],
        )
        for query in asked:
            Q = np.array(query.Q) + (0.1 * (self._last.get(query.analyst, 0) % 5) if query.adaptive else 0.0)
            requests.append((Q, query.analyst, query.name, query.most))
        found = self.road.ask(requests) if requests else []
        answers = [(query.analyst, answer) for query, answer in zip(asked, found, strict=True)]
        self._last |= {analyst: answer[-1] for analyst, answer in answers if isinstance(answer, list)}
        return answers

    def _pieces(self, event):
        releases, seen = self.road.pieces(), []
        for part in event.parts:
            next(releases, None)
            seen.append(self.play(part))
        for _ in releases:
            pass
        return seen

    def _later(self, event):
        """Whoever keeps the records knows which have expired, and does not name them any more."""
        self.hours += event.hours
        self._drop([name for name, hour in self.dates.items() if hour is not None and hour <= self.hours])
        self.road.erase_some()

    def _hold(self, event):
        if event.owner in self.others or (event.owner == TARGET and self.target_came):
            self.road.hold(event.owner, event.begins)

    def _statement(self, event):
        return self.road.statement(event.owner)

    def _refused(self, event):
        x = (0.5,) * self.road.settings.n_features
        return {
            "owner": lambda: self.road.forget(["nobody"]),
            "record": lambda: self.road.forget([], [1 << 40]),
            "label": lambda: self.road.add([("p0", x, 0, None, None), ("p0", x, "unknown", None, None)]),
            "features": lambda: self.road.add([("p0", (*x, 1.0), 0, None, None)]),
            "queries": lambda: self.road.ask([(np.ones((1, len(x) + 1)), None, None, None)]),
        }[event.how]()


def couple(history, only=ALL):
    """Play the history twice. Gives the tape of the second world; raises `Divergence` where the theorem fails.

    With `only` it is about the view of that analyst. Then everything else that is released is drawn anew.
    """
    first, seen = Tape(), []
    in_time = [(clock, "seconds", clock.seconds)]  # every world sets it
    with hurried(), in_step(), patched([*_HURRY, *in_time, *(SMALL if history.small else [])]):
        with closing(_played(history, True, first, Repeatable(history.seed))) as world:
            for at, after in enumerate(world):
                with _event(at):
                    _keeps_the_law(history.events[at], seen[-1] if seen else None, after)
                seen.append(after)
        apart = only is not ALL and any(one.apart[only] for one in seen)
        second = Tape(first, ALL if only is ALL else {only} if apart else {only, SHARED})
        noise = Silent() if only is ALL else Repeatable(history.seed + 1)
        with closing(_played(history, False, second, noise)) as world:
            for at, after in enumerate(world):
                with _event(at):
                    _same_to_others(*(_part(one, history.events[at], only) for one in (seen[at], after)))
                    _paid_for(seen[at].target[0], second.cost)
        second.finish()
    return second


def _played(history, present, tape, noise):
    """What there is to see after every event."""
    with tempfile.TemporaryDirectory() as folder, tape():
        world = World(history, present, Path(folder), noise)
        try:
            for at, event in enumerate(history.events):
                with _event(at):
                    after = world.seen(world.play(event))
                yield after
            if wrong := world.road.problems():
                raise Divergence(f"the store is not in order: {wrong}")
        finally:
            world.road.close()


@contextmanager
def _event(at):
    """A divergence tells at which event. So does an error that nothing in a history should lead to."""
    try:
        yield
    except (Divergence, IndKNNError) as error:
        raise Divergence(f"event {at}: {error}") from error


def _part(seen, event, only):
    """What must be the same: all of it, or what concerns one analyst."""
    if only is ALL:
        return {"outcome": seen.outcome, "settings": seen.settings, "views": seen.views, "others": seen.others}
    scopes = (only,) if seen.apart[only] else (only, SHARED)
    others = {
        name: ([spent.get(scope, 0) for scope in scopes], records) for name, (spent, _, records) in seen.others.items()
    }
    outcome = _outcome_for(only, event, seen.outcome)
    return {"outcome": outcome, "settings": seen.settings, "view": seen.views.get(only), "others": others}


def _outcome_for(only, event, outcome):
    """What one analyst sees of what came of an event."""
    if isinstance(event, Ask):
        return [answer for analyst, answer in outcome if analyst == only]
    if isinstance(event, Pieces):
        return [_outcome_for(only, part, one) for part, one in zip(event.parts, outcome, strict=True)]
    if isinstance(event, Forget) and isinstance(outcome, dict):  # what a person is told of all analysts together
        return {name: what for name, what in outcome.items() if name != "on_the_books"}
    return None if isinstance(event, Statement) else outcome


def _same_to_others(told, after):
    for what in told:
        if told[what] != after[what]:
            raise Divergence("{}: {} with, {} without".format(what, *_difference(told[what], after[what])))


def _difference(x, z):
    """Where two values that are not the same differ."""
    if isinstance(x, dict) and isinstance(z, dict):
        x, z = list(x.items()), list(z.items())
    if isinstance(x, list | tuple) and type(x) is type(z) and len(x) == len(z):
        return next((_difference(a, b) for a, b in zip(x, z, strict=True) if a != b), (x, z))
    return x, z


def _paid_for(paid, cost):
    for scope, rho in cost.items():
        if rho > Fraction(paid.get(scope, 0), UNIT):
            raise Divergence(f"the target paid {paid.get(scope, 0) / UNIT:.9g} for {float(rho):.9g} of {scope}")


def _keeps_the_law(event, before, after):
    """Nothing that was spent comes back, whatever happens; nobody spends more than they have."""
    limits, given = after.limits
    for name, (spent, queries, _) in [*after.others.items(), (TARGET, after.target)]:
        shared = spent.get(SHARED, 0)
        own = max((units for scope, units in spent.items() if scope != SHARED and scope not in given), default=0)
        for analyst, most in given.items():
            if spent.get(analyst, 0) + (0 if after.apart[analyst] else shared) > most:
                raise Divergence(f"{name} paid {spent} with {analyst}, who was given {most}")
        paid = shared, own, shared + own, sum(spent.values())
        if any(limit is not None and units > limit for units, limit in zip(paid, limits, strict=True)):
            raise Divergence(f"{name} paid {spent} of {limits}")
        then = before and (before.target if name == TARGET else before.others.get(name))
        if then and (queries < then[1] or any(spent.get(scope, 0) < units for scope, units in then[0].items())):
            raise Divergence(f"{name} had paid {then[:2]}, and has paid {spent, queries} now")
    still = isinstance(event, Moment) and event.how in {"restart", "fail"}
    if still and before and (before.others, before.target) != (after.others, after.target):
        raise Divergence(f"{event.how} changed ledgers: {before.others} to {after.others}")


def smallest(history, only=ALL, tries=400):
    """The same history with as few events as still diverge, and what then diverges."""
    found, events = _finding(history, only), list(history.events)
    size = max(len(events) // 2, 1)
    while size and tries > 0:
        start = 0
        while start < len(events) and tries > 0:
            fewer = replace(history, events=(*events[:start], *events[start + size :]))
            finding, tries = _finding(fewer, only), tries - 1
            if finding is None:
                start += size
            else:
                found, events = finding, list(fewer.events)
        size //= 2
    return replace(history, events=tuple(events)), found


def _finding(history, only):
    try:
        couple(history, only)
    except Divergence as error:
        return str(error)
    return None
