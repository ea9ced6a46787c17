"""Checks of records that expire and of holds: they take no part, what was spent stays, and nothing shows."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from indknn.core import clock
from indknn.core.noise import SeededNoise
from indknn.engine import Engine
from indknn.store import Store
from indknn_lab.audits.patches import patched
from indknn_lab.audits.scenarios import BASE, ENDLESS, around, near
from indknn_lab.audits.served import Repeatable
from indknn_lab.audits.tap import Tape, tap
from indknn_lab.audits.worlds import hurried

HOUR = 3600.0
START = 500_000 * HOUR
SOON = datetime.fromtimestamp(START + HOUR, UTC).isoformat()
"""The hour after the beginning, at which ann's record expires."""


@contextmanager
def clock_at(hours: float) -> Iterator[None]:
    """Inside the `with`, it is so many hours later than the beginning."""
    with patched([(clock, "seconds", lambda: START + HOUR * hours)]):
        yield


def _crowd(model: Engine | Store) -> None:
    """Ann, who is near what will be asked and whose record expires soon, and some others."""
    model.add(around(6), np.arange(6) % 2, list("bcdefg"))
    model.add([near(0)], [1], ["ann"], expires=[SOON])


@contextmanager
def _store() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder, clock_at(0.0):
        path = Path(folder) / "people.store"
        Store.create(path, BASE, noise=Repeatable(3), synchronous="OFF").close()
        with Store(path, synchronous="OFF") as store:
            _crowd(store)
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
                _crowd(engine)
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
            _crowd(store)
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
