"""Checks of what is charged and kept by an engine, a durable store and the server's worker, also over restarts."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import numpy as np

from indknn.core.accounting import UNIT, to_units
from indknn.core.quantise import quantise
from indknn.errors import StoreError
from indknn.ledger import SHARED, Scope
from indknn.settings import Settings
from indknn.store.journal import StoreJournal
from indknn.types import IntArray
from indknn_lab.audits.patches import patched
from indknn_lab.audits.scenarios import AXIS, BASE, ENDLESS, MODEL, NUMBERS, NUMBERS_MODEL, D, around, hurried, near
from indknn_lab.audits.served import WAYS, Question, Served, served
from indknn_lab.audits.tap import Noised, tap


@dataclass(frozen=True)
class History:
    """A history with one person, who has some records, and some queries near them.

    If `returning`, the person is forgotten and comes back after every fourth query. The process restarts in between.
    """

    settings: Settings
    records: int = 1
    queries: int = 40
    returning: bool = False
    way: str = "engine"


_VOTES = replace(ENDLESS, sigma2=0.2)
HISTORIES: Sequence[History] = [
    History(BASE),
    History(replace(BASE, sigma2=0.1)),
    History(replace(BASE, max_queries=300, sigma2=0.2), 5),
    History(replace(BASE, max_queries=2000, sigma2=3.0), 3),
    History(replace(BASE, reuse="labels", max_queries=300, classes=(0, 1, 2), sigma2=0.2)),
    History(_VOTES, queries=24),
    History(replace(_VOTES, classes=(0, 1, 2), model_share=0.9), 5, 24),
    History(replace(_VOTES, model_share=0.05), 3, 24),
    *(History(replace(numbers, sigma2=0.05), k, 24) for numbers in (NUMBERS, NUMBERS_MODEL) for k in (1, 3)),
    *(History(BASE, 1, 12, True, way) for way in (*WAYS, "cluster")),
    *(History(replace(_VOTES, sigma2=2.0), 2, 12, True, way) for way in (*WAYS, "cluster")),
]


def odometer(histories: Sequence[History] = HISTORIES) -> str | None:
    """The true cost for a lone person, computed from the shifts and scales of all releases, is charged and within B."""
    for history in histories:
        settings = history.settings
        with hurried() if settings.advised else nullcontext(), served(history.way, settings, 11) as model:
            problem = _drive(model, history)
        if problem:
            name = f"{history.way}, reuse={settings.reuse}, mode={settings.mode}, {history.records} records"
            return f"{name}: {problem}"
    return None


def _drive(model: Served, history: History) -> str | None:
    settings, records = history.settings, history.records
    mine = around(records), np.arange(records) % 2, ["ann"] * records
    model.add(*mine)
    shared = to_units(settings.shared_budget) if settings.advised else 0
    limits = {None: to_units(settings.budget) - shared, SHARED: shared}
    lost = dict.fromkeys(limits, Fraction(0))
    for i in range(history.queries):
        query = quantise(near(i)[None, :])
        public = model.engine.predictor._transcript(None).votes(query, settings.plan(0.5))
        with tap() as tape:
            model.predict(near(i)[None, :])
        for one in tape:
            lost[None if one.again is None else SHARED] += _loss(one, public)
        for scope, limit in limits.items():
            booked = int(model.engine.ledger.spent(["ann"], scope)[0])
            if lost[scope] * UNIT > booked or booked > limit:
                figures = f"lost {float(lost[scope]):.6g}, booked {booked / UNIT:.6g}, budget {limit / UNIT:.6g}"
                return f"query {i + 1}, {'votes' if scope is None else 'the shared model'}: {figures}"
        if not settings.numeric and any(votes.centred.sum() for votes in tape.kept):
            return f"query {i + 1}: votes left with their common part, which was not paid for"
        if history.returning and i % 4 == 3:
            model.forget(["ann"])
            model.restart()
            model.add(*mine)
    return None


def _loss(one: Noised, public: IntArray) -> Fraction:
    """Σ Δ²/2s² over everything that a lone person contributed: counts, votes without public ones, and sums."""
    if one.bare:
        return Fraction(10**6)
    parts = [part.astype(object) for part in one.exact]
    if one.kind == "votes" and one.plan is not None:
        parts[0] -= public if one.plan.ballot != "residual" else 0
        parts[0] -= round(Fraction(parts[0].sum(), len(public))) if one.plan.contrast else 0
    shifts = [int((part**2).sum()) for part in parts]
    return sum((Fraction(q, 2 * s * s) for q, s in zip(shifts, one.scales, strict=True)), Fraction(0))


def nothing_refunded(ways: Sequence[str] = WAYS) -> str | None:
    """Forgetting a record refunds nothing, for any analyst."""
    analysts: tuple[Scope, ...] = (None, "a")
    for way in ways:
        with served(way, BASE, 9) as model:
            model.add(AXIS[None, :], [1], ["ann"])
            for analyst in analysts * 2:
                before = int(model.engine.ledger.spent(["ann"], analyst)[0])
                model.predict(near(0)[None, :], analyst)
                model.forget(["ann"])
                model.restart()
                model.add(-AXIS[None, :], [1], ["bob"])  # takes her place
                model.add(AXIS[None, :], [1], ["ann"])
                model.restart()
                model.forget(["bob"])
                after = int(model.engine.ledger.spent(["ann"], analyst)[0])
                if after < before or after == 0:
                    return f"{way}: {before} units were spent before she left, {after} after she came back"
    return None


def global_budget() -> str | None:
    """All analysts together stay within the global budget."""
    for mode, way in ((BASE, "engine"), (MODEL, "engine"), (BASE, "store")):
        settings = replace(mode, global_epsilon=BASE.epsilon)
        with served(way, settings, 2) as model:
            model.add(AXIS[None, :], [1], ["ann"])
            for analyst in "abcdef":
                model.predict(around(8), analyst)
                if analyst == "c":
                    model.restart()
            spent = model.spent("ann") / UNIT
        if spent > settings.budget:
            return f"{way}: all together spent {spent:.4g} of {settings.budget:.4g}"
    return None


def same_everywhere() -> str | None:
    """The same history gives the same labels and charges through every interface, also after a restart.

    If a model answers, all analysts have names and an operator starts the training. The reason is that queries of the
    unnamed analyst may change the model, and a server sees several requests at once.
    """
    modes = {
        "reuse of labels": replace(BASE, reuse="labels", free_repeats=True, max_queries=200),
        "a global budget, tau from queries": replace(BASE, global_epsilon=BASE.epsilon, tau=None),
        "models": replace(ENDLESS, free_repeats=True),
    }
    for name, settings in modes.items():
        told = {}
        for way in WAYS:
            with hurried() if settings.advised else nullcontext(), served(way, settings, 21) as model:
                told[way] = _eventful(model, "b" if settings.advised else None)
        for way in WAYS[1:]:
            for what, one, other in zip(("labels", "charges"), told["engine"], told[way], strict=True):
                if one != other:
                    return f"{name}: the {what} of a {way} are not those of an engine"
    return None


def _eventful(model: Served, other: Scope) -> tuple[list[Any], list[Any]]:
    """All labels and charges of a history in which people come, go and return while two analysts ask, with repeats."""
    rng = np.random.default_rng(5)
    X, y, Q = AXIS + 0.5 * rng.normal(size=(30, D)), rng.integers(2, size=30), AXIS + 0.3 * rng.normal(size=(40, D))
    names = [f"p{i // 2}" for i in range(30)]
    at_once: list[Question] = [(Q[:20], other), (Q[18:24], "a"), (Q[15:22], other)]
    model.add(X[:20], y[:20], names[:20])
    model.train_if_any()
    labels = model.predict_all(at_once)
    model.add(X[20:], y[20:], names[20:])
    model.forget(["p1", "p12"])
    model.restart()
    labels += model.predict_all([*at_once, (Q[20:30], other)])
    model.add(X[2:4], y[2:4], ["p1", "somebody new"])
    model.train_if_any()
    model.restart()
    labels += model.predict_all([(Q[28:], "a"), (Q[30:], other)])
    everybody, ledger = [*dict.fromkeys(names), "somebody new"], model.engine.ledger
    return [one.tolist() for one in labels], [ledger.spent(everybody, scope).tolist() for scope in (other, "a", SHARED)]


def repeats_stand() -> str | None:
    """A repeated query gets the answer that was released before, even if records have changed since."""
    for way in WAYS:
        with served(way, replace(BASE, free_repeats=True), 1) as model, tap() as tape:
            model.add(AXIS[None, :], [1], ["ann"])
            model.predict(near(0)[None, :])
            model.add(near(1)[None, :], [0], ["bob"])
            model.forget(["ann"])
            model.restart()
            model.predict(near(0)[None, :])
        if len(tape.of("votes")) != 1:
            return f"{way}: a repeat was answered afresh after the records had changed"
    return None


def durable_first() -> str | None:
    """No answer leaves before its charge is in the file. If the file cannot be written, no answer leaves."""

    def full_disk(*_: object) -> None:
        raise OSError("disk full")

    for way in WAYS[1:]:
        with served(way, BASE, 1) as model:
            model.add(AXIS[None, :], [1], ["ann"])
            for i in range(2):
                model.predict(near(i)[None, :])
                if (lasting := model.after_crash("ann")) != model.spent("ann"):
                    return f"{way}: an answer left while the file had {lasting} of {model.spent('ann')} units"
            with patched([(StoreJournal, "_write", full_disk)]):
                try:
                    model.predict(near(2)[None, :])
                except StoreError:
                    continue
                return f"{way}: an answer left although the file could not be written"
    return None


def gone_is_gone() -> str | None:
    """No record of a forgotten person is found by any query, and their name and features are not in the file."""
    row = np.random.default_rng(2).normal(size=(1, D))
    for way in WAYS:
        with served(way, BASE, 1) as model:
            model.add(np.vstack([row, AXIS]), [1, 0], ["a long name of ann", "bob"])
            model.predict(AXIS[None, :])  # not the row itself, because queries are public and stay in the file
            model.forget(["a long name of ann"])
            model.restart()
            if len(model.engine.shard) != 1:
                return f"{way}: {len(model.engine.shard)} records are there, one was not forgotten"
            if way == "engine":
                continue
            held = b"".join(path.read_bytes() for path in model.files())
        if quantise(row).values.tobytes() in held or b"a long name of ann" in held:
            return f"{way}: what was forgotten is still in the file"
    return None
