"""Checks of stores whose records say numbers: how far one record can move an answer, and where intervals come from."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

from indknn.core.noise import SeededNoise
from indknn.engine import Engine
from indknn.settings import Settings
from indknn.types import GRID
from indknn_lab.audits.scenarios import AXIS, NUMBERS, NUMBERS_MODEL, D, around
from indknn_lab.audits.tap import tap
from indknn_lab.audits.worlds import hurried

_CROWD = 60


def _filled(settings: Settings, says: float) -> Engine:
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
        _filled(NUMBERS_MODEL, 1.0).predict(around(4), "a")
    most = max(int(np.abs(one.exact[0]).max()) for one in tape.of("votes"))
    return None if 0 < most <= GRID else f"the vote of one record is {most / GRID:.3g} times its weight at most"


def bounds_hold() -> str | None:
    """A number beyond the bounds counts as the bound, and answers are between the bounds."""
    for settings in (NUMBERS, NUMBERS_MODEL):
        seen: list[Any] = []
        for says in (1.0, 7.0):
            with hurried(), tap() as tape:
                engine = _filled(settings, says)
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
        engine, found = _filled(NUMBERS_MODEL, 0.0), []
        answers = engine.predict(around(4), "a")
        for newcomers in (0, 2 * _CROWD):
            engine.add(around(2 * _CROWD)[:newcomers], np.ones(newcomers), list(range(newcomers)))
            found.append(engine.intervals(answers, 0.8, "a").tolist())
    return None if found[0] == found[1] else "an interval changed because somebody came, and nobody paid for that"
