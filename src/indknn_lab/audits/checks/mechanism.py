"""Checks of what is computed: noise at the right scales, always, never twice; and nothing depends on others."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

import numpy as np

from indknn.core.accounting import UNIT, to_units
from indknn.core.noise import SeededNoise
from indknn.core.quantise import quantise
from indknn.core.statistics import MomentNoise, tally_scale
from indknn.engine import Engine
from indknn.ledger import MemoryLedger
from indknn.settings import Settings
from indknn.types import GRID, FloatArray, Int8Array, IntArray, OwnerId, Vectors
from indknn_lab.audits.scenarios import AXIS, BASE, ENDLESS, STATISTICS, D, around, near
from indknn_lab.audits.tap import halves, tap
from indknn_lab.audits.worlds import hurried


def scales() -> str | None:
    """Noise is drawn at the scales that the plan and what was *released* dictate, and is as large as that."""
    settings = replace(BASE, max_queries=10_000)
    engine, plan = Engine(settings, SeededNoise(3)), settings.plan(0.5)
    engine.add(np.repeat(AXIS[None, :], 60, axis=0), np.zeros(60, dtype=int), list(range(60)))
    with tap() as tape:
        engine.predict(around(600))
    for count, votes in zip(tape.of("count"), tape.of("votes"), strict=True):
        if (count.scales, votes.scales) != ([plan.scale1], [plan.scale2(count.K)]):
            return f"drew at {count.scales} and {votes.scales}, for a released count of {count.K / GRID:.2f}"
    spread = float(np.std(np.concatenate([one.noise[0] / one.scales[0] for one in tape])))
    if abs(spread - 1.0) >= 0.08:
        return f"the noise is {spread:.3f} times as wide as it should be"
    return _scales_of_sums()


def _scales_of_sums() -> str | None:
    """Every part of a sum has noise of the size that it was drawn at."""
    units: list[list[float]] = [[], [], [], []]
    for seed in range(15):
        with hurried(), tap() as tape:
            engine = Engine(ENDLESS, SeededNoise(seed))
            engine.add(around(9), np.arange(9) % 2, list(range(9)))
            engine.predict(around(5))
        for one in tape.of("sum"):
            if one.bare:
                return f"a sum of {len(one.exact)} parts drew noise for {len(one.scales)}"
            for i, (noise, scale) in enumerate(zip(one.noise, one.scales, strict=True)):
                units[i if len(one.exact) == 3 else 3] += (noise / scale).tolist()
    spreads = [float(np.std(part)) for part in units]
    wrong = [f"{spread:.2f}" for spread in spreads if abs(spread - 1.0) >= 0.1]
    return f"the noise on sums is {', '.join(wrong)} times as wide as it should be" if wrong else None


def same_path() -> str | None:
    """An empty neighbourhood, an exhausted store, one label left: the same draws as ever, in every mode."""
    c, d = 2, D
    modes: list[tuple[Settings, list[int], list[int]]] = [  # what is drawn at first, and then for each answer
        (replace(BASE, sigma2=0.1), [], [1, c]),
        (replace(BASE, sigma2=0.1, reuse="labels"), [], [1, c]),
        (replace(STATISTICS, sigma2=0.1), [d * (d - 1) // 2, d, d * c], [c]),
        (replace(ENDLESS, prior="none", sigma2=0.1), [], [1, c]),
    ]
    crowds = {"nobody near": -AXIS[None, :], "nobody": np.zeros((0, D)), "exhausted": AXIS[None, :], "many": around(40)}
    for settings, first, each in modes:
        for what, rows in crowds.items():
            engine, asked = Engine(settings, SeededNoise(5)), 12 if what == "exhausted" else 1
            engine.add(rows, np.zeros(len(rows), dtype=int), list(range(len(rows))))
            with tap() as tape:
                engine.predict(around(asked))
            drawn = [len(part) for one in tape for part in one.exact[: len(one.scales)]]
            if drawn != first + asked * each:
                return f"{what}: drew {drawn} values, not {first + asked * each}"
    return None


def fresh_noise() -> str | None:
    """No draw is ever seen twice."""
    with tap() as tape:
        Engine(BASE, SeededNoise(6)).predict(around(100))
    for kind in ("count", "votes"):
        drawn = [int(one.noise[0][0]) for one in tape.of(kind)]
        if len(set(drawn)) < 0.9 * len(drawn):
            return f"{len(drawn)} draws gave only {len(set(drawn))} values"
    with hurried(), tap() as tape:
        Engine(replace(ENDLESS, prior_share=0.1), SeededNoise(6)).predict(around(24))
    cards = [one.noise[0] for one in tape.of("sum") if len(one.exact) == 1 and len(one.exact[0]) > 1]
    for cell in (0, -1):  # the first and the last cell of a report card
        drawn = [int(card[cell]) for card in cards]
        if len(set(drawn)) < len(drawn):
            return f"{len(drawn)} report cards had noise of only {len(set(drawn))} values"
    return None


def own_selection() -> str | None:
    """Whether and how a record is selected does not depend on who else is there."""
    rng = np.random.default_rng(8)
    X, queries = AXIS + 0.4 * rng.normal(size=(60, D)), quantise(AXIS + 0.4 * rng.normal(size=(6, D)))
    options: dict[Any, dict[str, int]] = {"exact": {}, "lsh": {"n_tables": 4, "n_bits": 4}, "sketch": {"n_bits": 64}}
    for index, chosen in options.items():
        settings = replace(BASE, index=index, index_options=chosen)
        whole = _selected(settings, X, queries)
        for rows in (slice(0, 30), slice(30, 60), slice(59, 60)):
            if [{k: v for k, v in s.items() if k in range(60)[rows]} for s in whole] != [
                {k + rows.start: v for k, v in s.items()} for s in _selected(settings, X[rows], queries)
            ]:
                return f"{index}: the records {rows.start} to {rows.stop} are selected differently without the others"
    return None


def _selected(settings: Settings, X: FloatArray, queries: Vectors) -> list[dict[int, int]]:
    engine = Engine(settings, SeededNoise(0))
    engine.add(X, np.zeros(len(X), dtype=int))
    scans = engine.shard.scan(queries, int(0.7 * GRID))
    return [dict(zip(s.slots.tolist(), s.kappa.tolist(), strict=True)) for s in scans]


class _ByLabel:
    """The simplest model of a report card: a record's cell is its label."""

    n_cells: ClassVar[int] = 2

    def cells(self, values: Int8Array, labels: IntArray) -> IntArray:
        """The cell of each record."""
        return labels


def own_sums() -> str | None:
    """What an owner adds to a sum and pays for it does not depend on who else is there."""
    rng = np.random.default_rng(8)
    X, y = AXIS + 0.4 * rng.normal(size=(30, D)), rng.integers(2, size=30)
    owners = np.repeat(np.arange(12), [1, 1, 1, 4, 1, 7, 1, 1, 6, 3, 2, 2])
    noise, scale, price = MomentNoise.for_price(0.05, 2), tally_scale(0.02, 1), to_units(0.05)

    def given(rows: IntArray) -> tuple[list[IntArray], dict[OwnerId, int]]:
        engine = Engine(STATISTICS, SeededNoise(0))
        engine.add(X[rows], y[rows], owners[rows].tolist())
        first = engine.shard.moments(0, noise, 2, price, None).sums
        then = engine.shard.tally([_ByLabel()], 0, scale, price, None).sums
        names = engine.ledger.owners()
        return [*first, *then], dict(zip(names, engine.ledger.spent(names, None).tolist(), strict=True))

    whole, charges = given(rng.permutation(30))
    parts = [given(np.flatnonzero(owners == owner)) for owner in range(12)]
    if {name: spent for _, one in parts for name, spent in one.items()} != charges:
        return "somebody is charged otherwise when others are there"
    alone = [sum(matrices) for matrices in zip(*(one for one, _ in parts), strict=True)]
    return None if all((a == b).all() for a, b in zip(alone, whole, strict=True)) else "what one adds depends on others"


def fresh_only() -> str | None:
    """Statistics that are released later hold the records that came since, and nobody else's."""
    settings = replace(ENDLESS, prior_share=0.1, sigma2=50.0)
    X, y, names = around(80), np.arange(80) % 2, list(range(80))
    with hurried(), tap() as tape:
        engine = Engine(settings, SeededNoise(3))
        engine.add(X[:4], y[:4], names[:4])
        engine.predict(X[:2])
        engine.add(X[4:], y[4:], names[4:])
        for i in range(2, 9):
            engine.predict(X[i : i + 1])
    found = [one.exact for one in tape.of("sum") if len(one.exact) == 3]
    if len(found) < 2:
        return f"76 fresh records came and {len(found)} statistics were released"
    alone = Engine(settings, SeededNoise(3))
    alone.add(X[4:], y[4:], names[4:])
    price = 0.1 * settings.budget
    A, b = alone.shard.moments(0, MomentNoise.for_price(price, 2), 2, to_units(price), None).sums
    same = all((x == z).all() for x, z in zip(found[1], halves(A, b), strict=True))
    return None if same else "somebody is in statistics that others paid for"


def analysts_apart() -> str | None:
    """What one analyst asked changes nothing for another: not the sums, not the votes, not the budgets."""
    for settings in (replace(BASE, reuse="labels"), ENDLESS):
        seen = []
        for asked in (0, 12):
            with hurried():
                engine = Engine(replace(settings, free_repeats=True), SeededNoise(4))
                engine.add(around(5), [0, 1, 1, 0, 1], list(range(5)))
                for i in range(asked):
                    engine.predict(near(i)[None, :], "a")
                engine.predictor.noise = SeededNoise(12)
                with tap() as tape:
                    engine.predict(around(4), "b")
            seen.append([(one.kind, one.K, [part.tolist() for part in one.exact]) for one in tape])
        if seen[0] != seen[1]:
            return f"{settings.reuse}: what b sees is different after a has asked"
    return None


def exact_books() -> str | None:
    """Small charges after a large one are not swallowed."""
    ledger = MemoryLedger(to_units(1.0))
    slots = ledger.enrol(["ann"])
    ledger.charge(slots, np.array([UNIT // 2 + 1]), None)
    for _ in range(1000):
        ledger.charge(slots, np.array([7]), None)
    gained = int(ledger.spent(["ann"], None)[0]) - UNIT // 2 - 1
    return None if gained == 7000 else f"1000 charges of 7 units added {gained}"
