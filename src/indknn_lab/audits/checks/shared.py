"""Checks of the shared model, which every analyst sees: who pays for it, what it depends on, and whether it is kept."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np

from indknn.core.accounting import UNIT, to_units
from indknn.core.noise import SeededNoise
from indknn.engine import Engine
from indknn.ledger import SHARED
from indknn.models.rules import CELLS
from indknn_lab.audits.scenarios import AXIS, ENDLESS, D, around, hurried
from indknn_lab.audits.served import Served, served
from indknn_lab.audits.tap import Noised, tap

_SETTINGS = replace(ENDLESS, sigma2=0.1)
"""Votes are so expensive that a few of them use up the budget for one analyst."""


@contextmanager
def _lone(way: str = "engine", records: int = 1) -> Iterator[Served]:
    """A model with one person, who pays for everything."""
    with hurried(), served(way, _SETTINGS, 4) as model:
        model.add(around(records), np.arange(records) % 2, ["ann"] * records)
        yield model


def price_of(released: Sequence[Noised]) -> Fraction:
    """What these releases cost a person who is the only contributor, in ledger units."""
    total = Fraction(0)
    for one in released:
        parts = one.exact[0].astype(object)
        if one.plan is not None and one.plan.contrast and one.kind == "votes":
            parts = parts - round(Fraction(int(parts.sum()), len(parts)))
        total += Fraction(int((parts**2).sum()) * UNIT, 2 * one.scales[0] ** 2) if one.scales else Fraction(10**30)
    return total


def one_view() -> str | None:
    """What one analyst sees costs at most B in total. Shared and own releases are charged in separate ledgers."""
    limit, shared = to_units(_SETTINGS.budget), to_units(_SETTINGS.shared_budget)
    for way, records in (("engine", 1), ("engine", 4), ("store", 2)):
        with _lone(way, records) as model:
            seen = dict.fromkeys((SHARED, "a", "b"), Fraction(0))
            for i in range(8):
                for analyst in ("a", "b"):
                    with tap() as tape:
                        model.predict(around(40)[4 * i : 4 * i + 4], analyst)
                    seen[SHARED] += price_of(tape.shared)
                    seen[analyst] += price_of([one for one in tape if one.again is None])
            spent = {scope: int(model.engine.ledger.spent(["ann"], scope)[0]) for scope in seen}
        for scope, most in ((SHARED, shared), ("a", limit - shared), ("b", limit - shared)):
            if not seen[scope] <= spent[scope] <= most:
                found = f"released {float(seen[scope]):.6g}, charged {spent[scope]}, allowed {most}"
                return f"{way}, {records} records, {scope.strip()!r}: {found}"
        if seen["a"] + seen[SHARED] > limit:
            return f"{way}: one analyst saw {float(seen['a'] + seen[SHARED]) / limit:.3g} of B"
    return None


def house() -> str | None:
    """If one analyst's queries influenced what all see, then all analysts together stay within B.

    The order of asking does not matter: each analyst sees a model that depends on what the unnamed analyst was told.
    """
    limit = to_units(_SETTINGS.budget)
    for order in ((None, "a"), ("a", None), ("a", "b")):
        with _lone() as model:
            for i in range(2):  # far from everybody, so that no budget is spent; the second call starts a round
                model.predict(-around(18)[9 * i : 9 * i + 9])
            if not model.engine.ledger.joint:
                return "a round began by the number of one analyst's queries, and nothing says so"
            for k, analyst in enumerate(order):
                for i in range(8):
                    model.predict(around(50)[24 * k + 3 * i : 24 * k + 3 * i + 3], analyst)
            spent = model.spent("ann")
        if spent > limit:
            return f"asked in the order {order}: {spent / limit:.3g} of B was spent on one view"
    return None


def public_schedule() -> str | None:
    """Only a timer, an operator, or the unnamed analyst while nobody else has asked may start a round."""
    for first, asking, may in ((None, None, True), ("a", "a", False), ("a", None, False), (None, "a", False)):
        with hurried():
            engine = _crowd()
            engine.predict(around(1), first)
            rows, rounds = _shaped(engine)
            for i in range(1, 12):
                engine.predict(around(12)[i : i + 1], asking)
            if (_shaped(engine) != (rows, rounds)) and not may:
                return f"queries of {asking!r} shaped the model, after {first!r} had asked"
    return None


def first_rows() -> str | None:
    """Only the first request of all makes public rows of its queries. A purge begins a round with the same rows."""
    for names in (("a", "a"), ("a", "b"), ("a", None), (None, None)):
        with hurried():
            engine = _crowd()
            engine.predict(around(3), names[0])
            before, _ = _shaped(engine)
            engine.purge()
            engine.predict(around(9)[3:], names[1])
            rows, _ = _shaped(engine)
            engine.predict(around(40)[9:])
        if rows != before:
            return f"after a purge the queries of {names[1]!r}, who may have been told something, shaped the model"
        if engine.ledger.joint != (names[0] is names[1] is None):
            return f"after {names[0]!r} was told something, the queries of the unnamed analyst began a round"
    return None


def steps_last() -> str | None:
    """Every training step is in the file and charged before the next one. A restart continues and repeats nothing."""
    made: list[int] = []
    with _lone("store", 2) as model:
        for pieces in (3, 4, 99):
            with tap() as tape:
                for _, _ in zip(range(pieces), model.train(), strict=False):
                    if (lasting := model.after_crash("ann")) != model.spent("ann"):
                        return f"a step was made while the file had {lasting} of {model.spent('ann')} units"
            made += [len(one.exact[0]) for one in tape.shared]
            model.restart()
    whole = [2 * 2 + 1, *[2 * (D + 1)] * 4, CELLS]  # a count by label, of two labels, and of records
    return None if made == whole else f"a round that was interrupted twice released {made}, not {whole}"


def _crowd() -> Engine:
    engine = Engine(_SETTINGS, SeededNoise(5))
    engine.add(AXIS + 0.3 * np.random.default_rng(0).normal(size=(30, D)), np.arange(30) % 2, list(range(30)))
    return engine


def _shaped(engine: Engine) -> tuple[list[Any], int]:
    """The public rows of the shared model, and how many releases it has had."""
    model = engine.predictor.model
    assert model is not None
    assert model.public is not None
    return model.public.tolist(), model.rounds
