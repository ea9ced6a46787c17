"""Properties of a correct mechanism that need no statistics. Each check returns what is wrong, or None.

They run against whatever is in place: the product, which must pass all of them, or a mutant.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction

import numpy as np

from indknn.accounting import UNIT, to_units
from indknn.audits.scenarios import AXIS, BASE, D, near
from indknn.audits.tap import Release, tap
from indknn.engine import Engine, Settings
from indknn.ledgers import MemoryLedger, Scope
from indknn.noise import SeededNoise
from indknn.quantise import quantise
from indknn.types import GRID, FloatArray, Vectors

Check = Callable[[], str | None]


def odometer() -> str | None:
    """What the releases really cost a lone person, from shifts and scales as drawn, is booked and within B."""
    histories: list[tuple[Settings, int, bool]] = [
        (BASE, 1, False),
        (replace(BASE, sigma2=0.1), 1, False),
        (replace(BASE, max_queries=300, sigma2=0.2), 5, False),
        (replace(BASE, max_queries=2000, sigma2=3.0), 3, False),
        (BASE, 1, True),
    ]
    for settings, records, returning in histories:
        engine, loss = Engine(settings, SeededNoise(11)), Fraction(0)
        rows, labels = np.stack([near(i) for i in range(records)]), np.arange(records) % 2
        engine.add(rows, labels, ["ann"] * records)
        for i in range(40):
            with tap() as releases:
                engine.predict(near(i)[None, :])
            loss += sum((_loss(r) for r in releases), Fraction(0))
            booked = Fraction(int(engine.ledger.total_spent(["ann"])[0]), UNIT)
            if loss > booked or booked > Fraction(to_units(settings.budget), UNIT):
                return (
                    f"query {i + 1}: lost {float(loss):.6g}, booked {float(booked):.6g}, budget {settings.budget:.6g}"
                )
            if returning and i % 4 == 3:
                engine.forget_owners(["ann"])
                engine.add(rows, labels, ["ann"] * records)
    return None


def _loss(release: Release) -> Fraction:
    """Σ Δ²/2s² of one release of a lone person: their count and votes are all there is."""
    if release.raw is None or release.scores is None or release.votes is None:
        return Fraction(10**6)  # something left without noise
    count = release.raw - int(release.noise[0][0])
    squares = [(count, release.scales[0]), *((int(v), release.scales[1]) for v in release.votes)]
    return sum((Fraction(shift * shift, 2 * scale * scale) for shift, scale in squares), Fraction(0))


def scales() -> str | None:
    """Noise is drawn at the scales that the plan and the *released* count dictate, and is as large as that."""
    settings = replace(BASE, max_queries=10_000)
    engine, plan = Engine(settings, SeededNoise(3)), settings.plan(0.5)
    engine.add(np.repeat(AXIS[None, :], 60, axis=0), np.zeros(60, dtype=int), list(range(60)))
    with tap() as releases:
        engine.predict(np.stack([near(i) for i in range(1200)]))
    units = []
    for release in releases:
        if release.scales != [plan.scale1, plan.scale2(release.K)]:
            return f"drew at {release.scales}, for a released count of {release.K / GRID:.2f}"
        units += [float(v) / s for s, values in zip(release.scales, release.noise, strict=True) for v in values]
    spread = float(np.std(units))
    return None if abs(spread - 1.0) < 0.08 else f"the noise is {spread:.3f} times as wide as it should be"


def same_path() -> str | None:
    """An empty neighbourhood, an exhausted store, one label left: the same draws as ever."""
    crowd = [near(i) for i in range(40)]
    for what, rows, asked in (("nobody near", [-AXIS], 1), ("exhausted", [AXIS], 40), ("usual", crowd, 1)):
        engine = Engine(replace(BASE, sigma2=0.1), SeededNoise(5))
        engine.add(np.stack(rows), np.zeros(len(rows), dtype=int), list(range(len(rows))))
        with tap() as releases:
            engine.predict(np.stack([near(i) for i in range(asked)]))
        sizes = [len(values) for values in releases[-1].noise]
        if sizes != [1, 2]:
            return f"{what}: drew {sizes} values, not [1, 2]"
    return None


def fresh_noise() -> str | None:
    """No draw is ever seen twice."""
    engine = Engine(BASE, SeededNoise(6))
    with tap() as releases:
        engine.predict(np.stack([near(i) for i in range(100)]))
    for position in (0, 1):
        drawn = [int(r.noise[position][0]) for r in releases if len(r.noise) > position]
        if len(set(drawn)) < 0.9 * len(drawn):
            return f"{len(drawn)} draws gave only {len(set(drawn))} values"
    return None


def own_selection() -> str | None:
    """Whether and how a record is selected does not depend on who else is there."""
    rng = np.random.default_rng(8)
    X, queries = AXIS + 0.4 * rng.normal(size=(60, D)), quantise(AXIS + 0.4 * rng.normal(size=(6, D)))
    options: dict[str, dict[str, int]] = {"exact": {}, "lsh": {"n_tables": 4, "n_bits": 4}, "sketch": {"n_bits": 64}}
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


def nothing_refunded() -> str | None:
    """Spent budget outlives the record, for each analyst."""
    analysts: tuple[Scope, ...] = (None, "a")
    engine = Engine(BASE, SeededNoise(9))
    for _ in range(3):
        engine.add(AXIS[None, :], [1], ["ann"])
        for analyst in analysts:
            before = int(engine.ledger.spent(["ann"], analyst)[0])
            engine.predict(near(0)[None, :], analyst)
            engine.forget_owners(["ann"])
            engine.add(AXIS[None, :], [1], ["ann"])
            after = int(engine.ledger.spent(["ann"], analyst)[0])
            if after < before or after == 0:
                return f"{before} units were spent before she left, {after} after she came back"
        engine.forget_owners(["ann"])
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


def analysts_apart() -> str | None:
    """What one analyst asked changes nothing for another: not the votes, not the budgets."""
    seen = []
    for asked in (0, 12):
        engine = Engine(replace(BASE, reuse="labels", free_repeats=True), SeededNoise(4))
        engine.add(np.stack([near(i) for i in range(5)]), [0, 1, 1, 0, 1], list(range(5)))
        for i in range(asked):
            engine.predict(near(i)[None, :], "a")
        engine.predictor.noise = SeededNoise(12)
        with tap() as releases:
            engine.predict(np.stack([near(i) for i in range(4)]), "b")
        seen.append([(r.K, None if r.votes is None else r.votes.tolist()) for r in releases])
    return None if seen[0] == seen[1] else "the votes for b are others after a has asked"


def global_budget() -> str | None:
    """All analysts together stay within the global budget."""
    settings = replace(BASE, global_epsilon=BASE.epsilon)
    engine = Engine(settings, SeededNoise(2))
    engine.add(AXIS[None, :], [1], ["ann"])
    for analyst in "abcdef":
        engine.predict(np.stack([near(i) for i in range(8)]), analyst)
    spent = float(engine.spent(["ann"])[0])
    return None if spent <= settings.budget else f"all together spent {spent:.4g} of {settings.budget:.4g}"


def repeats_stand() -> str | None:
    """A repeat is answered from the transcript, whatever came or went meanwhile."""
    engine = Engine(replace(BASE, free_repeats=True), SeededNoise(1))
    engine.add(AXIS[None, :], [1], ["ann"])
    with tap() as releases:
        engine.predict(near(0)[None, :])
        engine.add(near(1)[None, :], [0], ["bob"])
        engine.forget_owners(["ann"])
        engine.predict(near(0)[None, :])
    return None if len(releases) == 1 else "a repeat was answered afresh after the records had changed"


class _FullDisk:
    """A journal that cannot write."""

    def note(self, analyst: Scope, query: Vectors, label: int, release: object) -> None:
        """Taken down, in memory."""

    def flush(self) -> None:
        """Fails."""
        raise OSError("disk full")


def durable_first() -> str | None:
    """No answer leaves before its charge is durable."""
    engine = Engine(BASE, SeededNoise(1), journal=_FullDisk())
    try:
        engine.predict(near(0)[None, :])
    except OSError:
        return None
    return "an answer left although the journal could not be written"


CHECKS: dict[str, Check] = {
    check.__name__.replace("_", " "): check
    for check in (
        odometer,
        scales,
        same_path,
        fresh_noise,
        own_selection,
        nothing_refunded,
        exact_books,
        analysts_apart,
        global_budget,
        repeats_stand,
        durable_first,
    )
}
