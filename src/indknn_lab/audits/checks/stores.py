"""Checks of people who come and go, expire or were promised less, of analysts who were given less, and of numbers."""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from indknn.core import accounting, clock
from indknn.core.noise import SeededNoise
from indknn.engine import Engine
from indknn.ledger import SHARED
from indknn.ledger.figures import ONE, account, statement
from indknn.records.derived import Derived
from indknn.records.shard import Shard
from indknn.settings import Settings
from indknn.store import Store
from indknn.store.table_counts import pay_for_counts
from indknn.types import GRID, Cohort
from indknn_lab.audits.checks.shared import price_of
from indknn_lab.audits.patches import patched
from indknn_lab.audits.scenarios import AXIS, BASE, ENDLESS, MODEL, NUMBERS, NUMBERS_MODEL, D, around, hurried, near
from indknn_lab.audits.served import WAYS, Repeatable, served
from indknn_lab.audits.tap import Tape, tap


def less_is_less() -> str | None:
    """An analyst who was given less than the shared model may cost sees nothing of it, whatever it became."""
    seen: list[Any] = []
    for seed in (1, 2, 3):
        with hurried():
            engine = Engine(replace(ENDLESS, sigma2=0.5, analysts={"eve": 0.5}), SeededNoise(seed))
            engine.add(around(9), np.arange(9) % 2, list(range(9)))
            for _ in engine.train():  # the models differ
                pass
            engine.predictor.noise = SeededNoise(7)
            with tap() as tape:
                labels = engine.predict(near(3)[None, :] + around(12), "eve").tolist()
        seen.append((labels, [(one.kind, one.scales, one.exact[0].tolist()) for one in tape]))
    return None if seen[0] == seen[1] == seen[2] else "what an analyst sees who was given less depends on the model"


def paid_schema() -> str | None:
    """Whoever is in the table of a paid schema is charged what the counts tell about them, before they leave."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "people.store"
        with Store.create(path, MODEL, draft=True, noise=Repeatable(5), synchronous="OFF") as store:
            with tap() as tape:
                pay_for_counts(store, {"age": ["41", "41", "67"]}, ["ann"] * 3)
            booked = int(store.engine.ledger.spent(["ann"], SHARED)[0])
    cost = price_of(tape)
    return None if cost <= booked else f"the counts cost {float(cost):.6g} units, and {booked} were charged"


def kept_values() -> str | None:
    """Values that are kept for a record are never taken for those of another record in the same place."""
    engine = Engine(MODEL, SeededNoise(0))
    engine.add(around(6), np.arange(6) % 2, list("abcdef"))
    shard = engine.shard
    assert isinstance(shard, Shard)
    derived = Derived(shard, lambda values, labels: values, Cohort(1, 256))
    derived.of(shard.slots())
    engine.forget_owners(["b", "e"])
    engine.add(-around(2), [0, 1], ["g", "h"])
    slots = shard.slots()
    same = np.array_equal(derived.of(slots), shard.values_of(slots))
    return None if same else "a newcomer counts with the features of somebody who left"


def quiet_changes() -> str | None:
    """Nothing is released, and no round begins, because somebody comes or goes."""
    for way in WAYS:
        with hurried(), served(way, ENDLESS, 4) as model:
            model.add(around(5), np.arange(5) % 2, list("abcde"))
            with tap() as tape:
                model.add(around(12), np.arange(12) % 2, [f"p{i}" for i in range(12)])
                model.forget(["a", "p3"])
            shared = model.engine.predictor.model
            if tape or (shared is not None and shared.started):
                return f"{way}: {[one.kind for one in tape]} left when somebody came or went"
            model.train_if_any()
            with tap() as tape:
                model.add(around(30), np.arange(30) % 2, [f"q{i}" for i in range(30)])
                model.forget(["b", "q3"])
            if tape or (shared is not None and shared.due() is not None):
                return f"{way}: after a round, {[one.kind for one in tape]} left when somebody came or went"
    return None


_SMALL = 0.25
_DAY = 86_400.0


def _asked(engine: Engine, analyst: str, turn: int) -> None:
    engine.predict(near(3)[None, :] + around(12) + turn / 100.0, analyst)


def _filled(settings: Settings, people: int = 9) -> Engine:
    engine = Engine(settings, SeededNoise(3))
    less = [_SMALL, *[None] * (people - 1)]
    engine.add(around(people), np.arange(people) % 2, [f"p{i}" for i in range(people)], epsilons=less)
    return engine


@contextmanager
def _clock() -> Iterator[list[float]]:
    """The time in seconds, which the check sets."""
    now = [20_000 * _DAY]
    with patched([(clock, "seconds", lambda: now[0])]):
        yield now


def own_promise() -> str | None:
    """Whoever was promised less pays no more than that, for one analyst's view, and no printed figure is above it."""
    for settings in (replace(MODEL, sigma2=0.05), replace(ENDLESS, sigma2=0.05)):
        with hurried():
            engine = _filled(settings)
            most = accounting.to_units(accounting.budget(_SMALL, settings.delta, settings.accountant))
            for turn in range(8):
                _asked(engine, "ann", turn)
                spent = engine.ledger.spent_by_scope("p0")
                paid = sum(int(spent[scope][0]) for scope in (SHARED, "ann") if scope in spent)
                if paid > most:
                    return f"somebody who was promised {_SMALL} paid {paid / most:.3g} of their budget"
            told = statement(engine, "p0")["one_analyst"]
            if not told["epsilon_so_far"] <= told["epsilon"] <= _SMALL:
                return f"somebody who was promised {_SMALL} is told {told['epsilon_so_far']} of {told['epsilon']}"
    return None


def lowering_is_apart() -> str | None:
    """After somebody lowers their promise, what all analysts see does not depend on what one was told about them."""
    left = []
    for asked in (False, True):
        with hurried():
            engine = _filled(replace(ENDLESS, sigma2=0.05))
            for _ in engine.train():
                pass
            if asked:
                _asked(engine, "ann", 0)
            engine.lower("p1", 0.9 * engine.settings.epsilon)
            left.append(engine.ledger.remaining(engine.ledger.find(["p1"]), SHARED).tolist())
    return None if left[0] == left[1] else "what is left for all analysts depends on what one was told"


def paced_votes() -> str | None:
    """By any time, votes have used no more than their part of it."""
    with hurried(), _clock() as now:
        engine = _filled(replace(MODEL, sigma2=0.05, pace_days=100))
        for turn, days in enumerate((0, 10, 40, 40)):
            now[0] += days * _DAY
            _asked(engine, "ann", turn)
            most = int(engine.ledger.column("ann").max()) if "ann" in engine.ledger.scopes else 0
            share = (0, 10, 50, 90)[turn] / 100
            if most > share * engine.ledger.limit("ann"):
                return f"after {share:.0%} of the time, votes had used {most / engine.ledger.limit('ann'):.0%}"
    return None


def periods_add_up() -> str | None:
    """After a renewal, what was spent before still counts over all periods, and the figures say so."""
    with hurried(), _clock() as now:
        settings = replace(MODEL, sigma2=0.05, renew_days=100, i_understand="epsilon per period")
        engine, total = _filled(settings), 0
        for turn in range(3):
            for _ in engine.train() if turn else ():  # no query of a named analyst finishes a round of a new period
                pass
            _asked(engine, "ann", turn)
            spent = int(engine.ledger.spent(["p1"], "ann")[0])
            total += spent
            found = int(engine.ledger.spent_in_all(["p1"], "ann")[0])
            if found != total:
                return f"{total} units were spent in {turn + 1} periods, and the books have {found}"
            bound = account(settings, ONE, total, rounded=False, periods=turn + 1)
            printed = statement(engine, "p1")["over_all_periods"]["one_analyst"]
            if printed["spent"] < bound.spent or (turn and printed["epsilon"] <= settings.epsilon):
                return f"over {turn + 1} periods, somebody is told {printed}"
            now[0] += 100 * _DAY
    return None


HOUR = 3600.0
START = 500_000 * HOUR
SOON = datetime.fromtimestamp(START + HOUR, UTC).isoformat()
"""The hour after the beginning, at which ann's record expires."""


@contextmanager
def clock_at(hours: float) -> Iterator[None]:
    """Inside the `with`, it is so many hours later than the beginning."""
    with patched([(clock, "seconds", lambda: START + HOUR * hours)]):
        yield


def _with_others(model: Engine | Store) -> None:
    """Ann, who is near what will be asked and whose record expires soon, and some others."""
    model.add(around(6), np.arange(6) % 2, list("bcdefg"))
    model.add([near(0)], [1], ["ann"], expires=[SOON])


@contextmanager
def _store() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder, clock_at(0.0):
        path = Path(folder) / "people.store"
        Store.create(path, BASE, noise=Repeatable(3), synchronous="OFF").close()
        with Store(path, synchronous="OFF") as store:
            _with_others(store)
        yield path


def _sums(tape: Tape) -> list[list[int]]:
    return [np.asarray(one.exact[0]).tolist() for one in tape]


def expired_is_out() -> str | None:
    """A record that has expired adds nothing to any sum, and its owner pays nothing, before anything is erased."""
    for settings in (BASE, ENDLESS):
        seen = []
        for present in (True, False):
            with hurried(), clock_at(0.0):
                engine = Engine(settings, SeededNoise(4))
                _with_others(engine)
                if not present:
                    engine.forget_owners(["ann"])
            with hurried(), clock_at(1.0), tap() as tape:
                engine.predict(near(1)[None, :] + around(4))
            if engine.spent(["ann"])[0]:
                return f"{settings.mode}: somebody paid whose record had expired"
            seen.append(_sums(tape))
        if seen[0] != seen[1]:
            return f"{settings.mode}: a record that has expired is in what was released"
    return None


def held_is_out() -> str | None:
    """A record under a hold adds nothing, its owner pays nothing, and its bytes stay until the hold ends."""
    with _store() as path, Store(path, noise=Repeatable(5), synchronous="OFF") as store:
        store.hold("ann")
        store.predict([near(1)])
        paid = bool(store.spent(["ann"])[0])
        store.forget("ann")
        kept = len(store.engine.shard) == 7
        store.release_hold("ann")
        gone = len(store.engine.shard) == 6
    if paid:
        return "somebody under a hold paid for an answer"
    return None if kept and gone else "a hold did not keep what was to be erased, or keeps it after its end"


def time_stays() -> str | None:
    """A clock that is set back brings nobody back whose record has expired, not even after a restart."""
    with _store() as path:
        with clock_at(1.0), Store(path, noise=Repeatable(5), synchronous="OFF") as store:
            store.predict([near(1)])
        with Store(path, noise=Repeatable(6), synchronous="OFF") as store:
            store.predict([near(2)])
            paid = store.spent(["ann"])[0]
            back = store.add([near(0)], [1], ["ann"], expires=[SOON])[0] >= 0
    return "with the clock set back, an expired record takes part again" if paid or back else None


def expiry_refunds_nothing() -> str | None:
    """Whoever comes back after their records have expired has spent what they had."""
    with _store() as path, Store(path, noise=Repeatable(5), synchronous="OFF") as store:
        store.predict([near(1)])
        spent = store.spent(["ann"])[0]
        with clock_at(1.0):
            store.expire()
            left = store.spent(["ann"])[0]
            store.add([near(0)], [1], ["ann"])
            back = store.spent(["ann"])[0]
    return None if spent and spent == left == back else f"{spent} was spent, {left} is left of it, and {back} on return"


def quiet_expiry() -> str | None:
    """Nothing is released, and no round begins, because a record expires or a hold begins or ends."""
    with tempfile.TemporaryDirectory() as folder, hurried(), clock_at(0.0):
        path, settings = Path(folder) / "people.store", replace(ENDLESS, tau=0.5)
        with Store.create(path, settings, noise=Repeatable(3), synchronous="OFF") as store:
            _with_others(store)
            for _ in store.train():
                pass
            with tap() as tape, clock_at(1.0):
                store.hold("b")
                store.expire()
                store.release_hold("b")
                store.add([near(3)], [0], ["h"])
            shared = store.engine.predictor.model
            due = None if shared is None else shared.due()
    return None if not tape and due is None else f"{[one.kind for one in tape]}, {due} because a record expired"


_CROWD = 60


def _with_ann(settings: Settings, says: float) -> Engine:
    """Many people far from the queries say the least number, and one person near says something else."""
    engine, rng = Engine(settings, SeededNoise(3)), np.random.default_rng(1)
    far = -AXIS + 0.1 * rng.normal(size=(_CROWD, D))
    with warnings.catch_warnings():  # numbers outside the bounds are meant here
        warnings.simplefilter("ignore")
        engine.add(far, np.zeros(_CROWD), [f"p{i}" for i in range(_CROWD)])
        engine.add(AXIS[None, :], [says], ["ann"])
    return engine


def small_votes() -> str | None:
    """No record votes with more than its weight, however far its number is from what the model says."""
    with hurried(), tap() as tape:
        _with_ann(NUMBERS_MODEL, 1.0).predict(around(4), "a")
    most = max(int(np.abs(one.exact[0]).max()) for one in tape.of("votes"))
    return None if 0 < most <= GRID else f"the vote of one record is {most / GRID:.3g} times its weight at most"


def bounds_hold() -> str | None:
    """A number beyond the bounds counts as the bound, and answers are between the bounds."""
    for settings in (NUMBERS, NUMBERS_MODEL):
        seen: list[Any] = []
        for says in (1.0, 7.0):
            with hurried(), tap() as tape:
                engine = _with_ann(settings, says)
                answers = engine.predict(around(6), "a")
            if not ((answers >= 0.0) & (answers <= 1.0)).all():
                return f"mode={settings.mode}: the bounds are 0 and 1, and an answer is {answers.tolist()}"
            sums = [part.tolist() for one in tape for part in one.exact]
            seen.append((sums, int(engine.ledger.total_spent(["ann"])[0])))
        if seen[0] != seen[1]:
            return f"mode={settings.mode}: a number beyond the bounds counts for more than the bound"
    return None


def released_intervals() -> str | None:
    """Intervals follow from the report card that was paid for, not from the records as they are."""
    with hurried():
        engine, found = _with_ann(NUMBERS_MODEL, 0.0), []
        answers = engine.predict(around(4), "a")
        for newcomers in (0, 2 * _CROWD):
            engine.add(around(2 * _CROWD)[:newcomers], np.ones(newcomers), list(range(newcomers)))
            found.append(engine.intervals(answers, 0.8, "a").tolist())
    return None if found[0] == found[1] else "an interval changed because somebody came, and nobody paid for that"
