"""Checks of the computation: noise always has the right scale, is never reused, and nothing depends on others."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from indknn.core.accounting import UNIT, to_units
from indknn.core.noise import SeededNoise
from indknn.core.quantise import quantise
from indknn.core.statistics import tally_scale
from indknn.core.training import Weights, step_scale
from indknn.engine import Engine
from indknn.ledger import SHARED, MemoryLedger
from indknn.models.feature_map import feature_map
from indknn.models.rules import CELLS
from indknn.models.shared_model import CLIP
from indknn.records.derived import Arguments
from indknn.settings import Settings
from indknn.types import GRID, Cohort, FloatArray, IntArray, OwnerId, Vectors
from indknn_lab.audits.scenarios import AXIS, BASE, ENDLESS, MODEL, D, around, hurried, near
from indknn_lab.audits.tap import Noised, tap


def scales() -> str | None:
    """Noise has the scale that follows from the plan and from what was *released*, and is really that large."""
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
    """The noise on every sum is as large as the scale at which it was drawn."""
    units: dict[str, list[float]] = {"tally": [], "gradient": []}
    for seed in range(15):
        with hurried(), tap() as tape:
            engine = Engine(ENDLESS, SeededNoise(seed))
            engine.add(around(9), np.arange(9) % 2, list(range(9)))
            engine.predict(around(5))
        for one in tape.shared:
            if one.bare:
                return f"a {one.kind} was released without noise"
            units[one.kind] += (one.noise[0] / one.scales[0]).tolist()
    spreads = {kind: float(np.std(part)) for kind, part in units.items()}
    wrong = [f"{kind} {spread:.2f}" for kind, spread in spreads.items() if abs(spread - 1.0) >= 0.1]
    return f"the noise on sums is not as wide as it should be: {', '.join(wrong)} times" if wrong else None


def same_path() -> str | None:
    """In every mode, the same noise is drawn if nobody is near, if all budgets are spent, or if one label is left."""
    c, steps = 2, [(D + 1) * 2] * 4
    modes: list[tuple[Settings, list[int], list[int]]] = [  # what is drawn first, and then for each answer
        (replace(BASE, sigma2=0.1), [], [1, c]),
        (replace(BASE, sigma2=0.1, reuse="labels"), [], [1, c]),
        (replace(ENDLESS, sigma2=0.1), [2 * c + 1, *steps, CELLS], [c]),
    ]
    crowds = {"nobody near": -AXIS[None, :], "nobody": np.zeros((0, D)), "exhausted": AXIS[None, :], "many": around(40)}
    for settings, first, each in modes:
        for what, rows in crowds.items():
            engine, asked = Engine(settings, SeededNoise(5)), 12 if what == "exhausted" else 1
            engine.add(rows, np.zeros(len(rows), dtype=int), list(range(len(rows))))
            with hurried(), tap() as tape:
                engine.predict(around(asked), "a")
            drawn = [len(part) for one in tape for part in one.exact[: len(one.scales)]]
            if drawn != first + asked * each:
                return f"{what}: drew {drawn} values, not {first + asked * each}"
    return None


def fresh_noise() -> str | None:
    """No noise value is used twice."""
    with tap() as tape:
        Engine(BASE, SeededNoise(6)).predict(around(100))
    for kind in ("count", "votes"):
        drawn = [int(one.noise[0][0]) for one in tape.of(kind)]
        if len(set(drawn)) < 0.9 * len(drawn):
            return f"{len(drawn)} draws gave only {len(set(drawn))} values"
    for kind in ("tally", "gradient"):
        noise = [one.noise[0] for one in _three_rounds() if one.kind == kind]
        for entry in (0, -1):  # the first and last cell of a report card or of a gradient
            drawn = [int(part[entry]) for part in noise]
            if len(set(drawn)) < len(drawn):
                return f"{len(drawn)} times a {kind} had noise of only {len(set(drawn))} values"
    return None


def _three_rounds() -> list[Noised]:
    """The sums of three rounds of training, each with twice as many people as the one before."""
    with hurried(), tap() as tape:
        engine = Engine(ENDLESS, SeededNoise(6))
        for n in (40, 120, 360):
            engine.add(around(n), np.arange(n) % 2, [f"{n}-{i}" for i in range(n)])
            for _ in engine.train():
                pass
        return tape.shared


def own_selection() -> str | None:
    """Whether and how a record is selected does not depend on other people's records."""
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


def own_sums() -> str | None:
    """What an owner adds to a sum, and pays for it, does not depend on other people's records."""
    rng = np.random.default_rng(8)
    X, y = AXIS + 0.4 * rng.normal(size=(30, D)), rng.integers(2, size=30)
    owners = np.repeat(np.arange(12), [1, 1, 1, 4, 1, 7, 1, 1, 6, 3, 2, 2])
    mapped = feature_map(quantise(rng.normal(size=(60, D))).values, 2, 1000.0, 0)
    weights, scale = Weights.of(rng.normal(size=(mapped.width + 1, 2))), step_scale(CLIP, 4, 0.1)

    def given(rows: IntArray) -> tuple[list[IntArray], dict[OwnerId, int]]:
        engine = Engine(MODEL, SeededNoise(0))
        engine.add(X[rows], y[rows], owners[rows].tolist())
        shard = engine.shard
        cohort = Cohort(before=1, most=5)
        values, labels = (shard.derived(rule, cohort) for rule in (lambda v, y: mapped.apply(v), lambda v, y: y))
        sums = [
            shard.gradient(values, Arguments(weights, CLIP, scale, 0, cohort), SHARED),
            shard.tally(labels, 2, tally_scale(0.02), to_units(0.05), SHARED),
            shard.headcount(cohort, 4, 1, 0, tally_scale(0.02), to_units(0.05), SHARED),
        ]
        names = engine.ledger.owners()
        return sums, dict(zip(names, engine.ledger.spent(names, SHARED).tolist(), strict=True))

    whole, charges = given(rng.permutation(30))
    parts = [given(np.flatnonzero(owners == owner)) for owner in range(12)]
    if {name: spent for _, one in parts for name, spent in one.items()} != charges:
        return "somebody is charged otherwise when others are there"
    alone = [sum(matrices) for matrices in zip(*(one for one, _ in parts), strict=True)]
    return None if all((a == b).all() for a, b in zip(alone, whole, strict=True)) else "what one adds depends on others"


def analysts_apart() -> str | None:
    """The queries of one analyst change nothing for another: neither the model, nor the votes, nor the budgets."""
    for settings in (replace(BASE, reuse="labels"), replace(ENDLESS, sigma2=None)):
        seen: list[Any] = []
        for asked in (0, 12):
            with hurried():
                engine = Engine(replace(settings, free_repeats=True), SeededNoise(4))
                engine.add(around(5), [0, 1, 1, 0, 1], list(range(5)))
                if settings.advised:
                    for _ in engine.train():
                        pass
                for i in range(asked):
                    engine.predict(near(i)[None, :], "a")
                engine.predictor.noise = SeededNoise(12)
                with tap() as tape:
                    engine.predict(around(4), "b")
            seen.append([_model_of(engine), *((one.kind, one.scales, one.exact[0].tolist()) for one in tape)])
        if seen[0] != seen[1]:
            return f"mode {settings.mode}: what b sees is different after a has asked"
    return None


def _model_of(engine: Engine) -> Any:
    """The parts of the shared model that every analyst sees."""
    model = engine.predictor.model
    if model is None or model.public is None:
        return None
    return model.public.tolist(), model.rounds, model.step, model.count, model.weights.whole.tolist()


def exact_books() -> str | None:
    """Small charges after a large one are not lost by rounding."""
    ledger = MemoryLedger(to_units(1.0))
    slots = ledger.enrol(["ann"])
    ledger.charge(slots, np.array([UNIT // 2 + 1]), None)
    for _ in range(1000):
        ledger.charge(slots, np.array([7]), None)
    gained = int(ledger.spent(["ann"], None)[0]) - UNIT // 2 - 1
    return None if gained == 7000 else f"1000 charges of 7 units added {gained}"
