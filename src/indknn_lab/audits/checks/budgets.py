"""Checks of budgets that are one person's own, or that depend on time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import numpy as np

from indknn.core import accounting, clock
from indknn.core.noise import SeededNoise
from indknn.engine import Engine
from indknn.ledger import SHARED
from indknn.ledger.figures import ONE, account, statement
from indknn.settings import Settings
from indknn_lab.audits.patches import patched
from indknn_lab.audits.scenarios import ENDLESS, MODEL, around, near
from indknn_lab.audits.worlds import hurried

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
