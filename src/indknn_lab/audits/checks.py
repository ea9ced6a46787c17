"""Properties of a correct mechanism that need no statistics. Each check returns what is wrong, or None.

They run against whatever is in place: the product, which must pass all of them, or a mutant.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from fractions import Fraction

import numpy as np

from indknn.core.accounting import UNIT, to_units
from indknn.core.noise import SeededNoise
from indknn.core.quantise import quantise
from indknn.core.releases import Votes
from indknn.core.statistics import MomentNoise, tally_scale
from indknn.engine import Engine
from indknn.ledger import MemoryLedger, Scope
from indknn.settings import Settings
from indknn.types import GRID, FloatArray, Int8Array, IntArray, OwnerId, Vectors
from indknn_lab.audits.scenarios import AXIS, BASE, ENDLESS, STATISTICS, D, near
from indknn_lab.audits.tap import Release, SumRelease, halves, tap
from indknn_lab.audits.worlds import hurried

Check = Callable[[], str | None]


def odometer() -> str | None:
    """What the releases really cost a lone person, from shifts and scales as drawn, is booked and within B.

    The person asks, is forgotten and comes back every few queries where the history says so; records come then too.
    """
    prior, student = replace(STATISTICS, max_queries=300), replace(ENDLESS, sigma2=0.2)
    histories: list[tuple[Settings, int, bool]] = [
        (BASE, 1, False),
        (replace(BASE, sigma2=0.1), 1, False),
        (replace(BASE, max_queries=300, sigma2=0.2), 5, False),
        (replace(BASE, max_queries=2000, sigma2=3.0), 3, False),
        (BASE, 1, True),
        (prior, 1, False),
        (replace(prior, classes=(0, 1, 2), prior_share=0.1), 5, False),
        (replace(student, sigma2=2.0), 2, True),
        (replace(student, prior="none"), 3, False),
        (replace(BASE, reuse="votes", max_queries=300, classes=(0, 1, 2), sigma2=0.2), 1, False),
        (_CHOICE, 1, False),
        (replace(_CHOICE, classes=(0, 1, 2)), 5, True),
    ]
    for settings, records, returning in histories:
        kept = Kept()
        with ExitStack() as stack:
            if settings.advised:
                stack.enter_context(hurried())
            problem = _drive(Engine(settings, SeededNoise(11), journal=kept), records, returning)
        name = f"reuse={settings.reuse}, prior={settings.prior}, {settings.vote}, {records} records"
        if problem:
            return f"{name}: {problem}"
        if any(votes.centred.sum() for votes in kept.votes):
            return f"{name}: votes left with their common part, which was not paid for"
    return None


_CHOICE = replace(BASE, vote="exponential", accountant="rdp", max_queries=2000, sigma2=0.4)


class Kept:
    """A journal that keeps the votes that were released."""

    def __init__(self) -> None:
        self.votes: list[Votes] = []

    def note(self, analyst: Scope, query: Vectors, label: int, release: object) -> None:
        """Kept."""
        self.votes += [release] if isinstance(release, Votes) else []

    def flush(self) -> None:
        """Nothing is written."""


def _drive(engine: Engine, records: int, returning: bool) -> str | None:
    rows, labels, loss = np.stack([near(i) for i in range(records)]), np.arange(records) % 2, Fraction(0)
    engine.add(rows, labels, ["ann"] * records)
    limit = Fraction(to_units(engine.settings.budget), UNIT)
    for i in range(24 if engine.settings.advised else 40):
        query = quantise(near(i)[None, :])
        public = engine.predictor._transcript(None).votes(query, GRID // 2, len(engine.settings.classes))
        with tap() as releases:
            engine.predict(near(i)[None, :])
        loss += sum((_loss(r, public) for r in releases), Fraction(0)) + sum(
            (_sum_loss(r) for r in releases.sums), Fraction(0)
        )
        booked = Fraction(int(engine.ledger.total_spent(["ann"])[0]), UNIT)
        if loss > booked or booked > limit:
            return f"query {i + 1}: lost {float(loss):.6g}, booked {float(booked):.6g}, budget {float(limit):.6g}"
        if returning and i % 4 == 3:
            engine.forget_owners(["ann"])
            engine.add(rows, labels, ["ann"] * records)
    return None


def _loss(release: Release, public: IntArray) -> Fraction:
    """Σ Δ²/2s² of one release of a lone person: their count and votes are all there is, but for public votes."""
    nothing = release.scores is None and not release.chosen
    if (release.raw is None and release.counted) or nothing or release.votes is None or release.plan is None:
        return Fraction(10**6)  # something left without noise
    count = 0 if release.raw is None else release.raw - int(release.noise[0][0])
    scale, votes = release.scales[-1], [int(v) for v in release.votes - public]
    cost = Fraction(count * count, 2 * release.scales[0] ** 2)
    if release.chosen:
        return cost + Fraction((max(votes) - min(votes)) ** 2, 8 * scale * scale)
    common = round(Fraction(sum(votes), len(votes))) if release.plan.contrast else 0
    return cost + Fraction(sum((v - common) ** 2 for v in votes), 2 * scale * scale)


def _sum_loss(release: SumRelease) -> Fraction:
    """The same for a sum over the records of a lone person."""
    if len(release.scales) != len(release.parts):
        return Fraction(10**6)
    squares = (int((part.astype(object) ** 2).sum()) for part in release.parts)
    return sum((Fraction(q, 2 * s * s) for q, s in zip(squares, release.scales, strict=True)), Fraction(0))


def scales() -> str | None:
    """Noise is drawn at the scales that the plan and what was *released* dictate, and is as large as that."""
    settings = replace(BASE, max_queries=10_000)
    engine, plan = Engine(settings, SeededNoise(3)), settings.plan(0.5)
    engine.add(np.repeat(AXIS[None, :], 60, axis=0), np.zeros(60, dtype=int), list(range(60)))
    with tap() as releases:
        engine.predict(np.stack([near(i) for i in range(600)]))
    units = []
    for release in releases:
        if release.scales != [plan.scale1, plan.scale2(release.K)]:
            return f"drew at {release.scales}, for a released count of {release.K / GRID:.2f}"
        units += [float(v) / s for s, values in zip(release.scales, release.noise, strict=True) for v in values]
    spread = float(np.std(units))
    if abs(spread - 1.0) >= 0.08:
        return f"the noise is {spread:.3f} times as wide as it should be"
    return _scales_of_sums()


def _scales_of_sums() -> str | None:
    """Every part of a sum has noise of the size that it was drawn at."""
    units: list[list[float]] = [[], [], [], []]
    for seed in range(15):
        with hurried(), tap() as releases:
            engine = Engine(ENDLESS, SeededNoise(seed))
            engine.add(np.stack([near(i) for i in range(9)]), np.arange(9) % 2, list(range(9)))
            engine.predict(np.stack([near(i) for i in range(5)]))
        for one in releases.sums:
            if len(one.scales) != len(one.parts):
                return f"a sum of {len(one.parts)} parts drew noise for {len(one.scales)}"
            for i, (x, noisy, scale) in enumerate(zip(one.parts, one.noisy, one.scales, strict=True)):
                units[i if len(one.parts) == 3 else 3] += ((noisy - x) / scale).tolist()
    spreads = [float(np.std(part)) for part in units]
    wrong = [f"{spread:.2f}" for spread in spreads if abs(spread - 1.0) >= 0.1]
    return f"the noise on sums is {', '.join(wrong)} times as wide as it should be" if wrong else None


def same_path() -> str | None:
    """An empty neighbourhood, an exhausted store, one label left: the same draws as ever, in every mode."""
    crowd, (c, d) = [near(i) for i in range(40)], (2, D)
    modes: list[tuple[Settings, list[int]]] = [
        (replace(BASE, sigma2=0.1), [1, c]),
        (replace(BASE, sigma2=0.1, reuse="votes"), [1, c]),
        (replace(STATISTICS, sigma2=0.1), [d * (d - 1) // 2, d, d * c, c]),
        (replace(ENDLESS, prior="none", sigma2=0.1), [1, c]),
    ]
    for settings, wanted in modes:
        for what, rows, asked in (
            ("nobody near", [-AXIS], 1),
            ("nobody", [], 1),
            ("exhausted", [AXIS], 12),
            ("usual", crowd, 1),
        ):
            engine = Engine(settings, SeededNoise(5))
            engine.add(np.array(rows).reshape(-1, D), np.zeros(len(rows), dtype=int), list(range(len(rows))))
            with tap() as releases:
                engine.predict(np.stack([near(i) for i in range(asked)]))
            if len(releases) != asked:
                return f"{what}: {asked} queries were asked about, {len(releases)} drew noise"
            sums = [len(one) for release in releases.sums for one in release.parts[: len(release.scales)]]
            sizes = sums + [len(values) for values in releases[-1].noise]
            if sizes != wanted:
                return f"{what}: drew {sizes} values, not {wanted}"
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
    with hurried(), tap() as releases:
        engine = Engine(replace(ENDLESS, prior_share=0.1), SeededNoise(6))
        engine.predict(np.stack([near(i) for i in range(24)]))
    for one in (0, -1):  # the first and the last cell of a report card
        drawn = [
            int((r.noisy[0] - r.parts[0])[one]) for r in releases.sums if len(r.parts) == 1 and len(r.parts[0]) > 1
        ]
        if len(set(drawn)) < len(drawn):
            return f"{len(drawn)} report cards had noise of only {len(set(drawn))} values"
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


def own_sums() -> str | None:
    """What an owner adds to a sum and pays for it does not depend on who else is there."""
    rng = np.random.default_rng(8)
    X, y = AXIS + 0.4 * rng.normal(size=(30, D)), rng.integers(2, size=30)
    owners = np.repeat(np.arange(12), [1, 1, 1, 4, 1, 7, 1, 1, 6, 3, 2, 2])
    noise, scale = MomentNoise.for_price(0.05, 2), tally_scale(0.02, 1)

    def cells(values: Int8Array, labels: IntArray) -> IntArray:
        return labels[:, None]

    def given(rows: IntArray) -> tuple[list[IntArray], dict[OwnerId, int]]:
        engine = Engine(STATISTICS, SeededNoise(0))
        engine.add(X[rows], y[rows], owners[rows].tolist())
        price, ledger = to_units(0.05), engine.ledger
        first = engine.shard.moments(0, noise, 2, price, None).sums
        then = engine.shard.tally(cells, 0, 2, scale, price, None).sums
        names = ledger.owners()
        return [*first, *then], dict(zip(names, ledger.spent(names, None).tolist(), strict=True))

    whole, charges = given(rng.permutation(30))
    parts = [given(np.flatnonzero(owners == owner)) for owner in range(12)]
    if {name: spent for _, one in parts for name, spent in one.items()} != charges:
        return "somebody is charged otherwise when others are there"
    alone = [sum(matrices) for matrices in zip(*(one for one, _ in parts), strict=True)]
    return None if all((a == b).all() for a, b in zip(alone, whole, strict=True)) else "what one adds depends on others"


def fresh_only() -> str | None:
    """Statistics that are released later hold the records that came since, and nobody else's."""
    settings = replace(ENDLESS, prior_share=0.1, sigma2=50.0)
    X, y, names = np.stack([near(i) for i in range(80)]), np.arange(80) % 2, list(range(80))
    with hurried(), tap() as releases:
        engine = Engine(settings, SeededNoise(3))
        engine.add(X[:4], y[:4], names[:4])
        engine.predict(X[:2])
        engine.add(X[4:], y[4:], names[4:])
        for i in range(2, 9):
            engine.predict(X[i : i + 1])
    found = [one for one in releases.sums if len(one.parts) == 3]
    if len(found) < 2:
        return f"76 fresh records came and {len(found)} statistics were released"
    alone = Engine(settings, SeededNoise(3))
    alone.add(X[4:], y[4:], names[4:])
    price = 0.1 * settings.budget
    A, b = alone.shard.moments(0, MomentNoise.for_price(price, 2), 2, to_units(price), None).sums
    same = all((x == z).all() for x, z in zip(found[1].parts, halves(A, b), strict=True))
    return None if same else "somebody is in statistics that others paid for"


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
    """What one analyst asked changes nothing for another: not the sums, not the votes, not the budgets."""
    for settings in (replace(BASE, reuse="labels"), replace(BASE, reuse="votes"), ENDLESS):
        seen = []
        for asked in (0, 12):
            with hurried():
                engine = Engine(replace(settings, free_repeats=True), SeededNoise(4))
                engine.add(np.stack([near(i) for i in range(5)]), [0, 1, 1, 0, 1], list(range(5)))
                for i in range(asked):
                    engine.predict(near(i)[None, :], "a")
                engine.predictor.noise = SeededNoise(12)
                with tap() as releases:
                    engine.predict(np.stack([near(i) for i in range(4)]), "b")
            votes = [(r.K, None if r.votes is None else r.votes.tolist()) for r in releases]
            seen.append((votes, [[part.tolist() for part in one.parts] for one in releases.sums]))
        if seen[0] != seen[1]:
            return f"{settings.reuse}: what b sees is other after a has asked"
    return None


def global_budget() -> str | None:
    """All analysts together stay within the global budget."""
    for settings in (replace(BASE, global_epsilon=BASE.epsilon), replace(STATISTICS, global_epsilon=BASE.epsilon)):
        engine = Engine(settings, SeededNoise(2))
        engine.add(AXIS[None, :], [1], ["ann"])
        for analyst in "abcdef":
            engine.predict(np.stack([near(i) for i in range(8)]), analyst)
        spent = float(engine.spent(["ann"])[0])
        if spent > settings.budget:
            return f"all together spent {spent:.4g} of {settings.budget:.4g}"
    return None


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
        own_sums,
        fresh_only,
        nothing_refunded,
        exact_books,
        analysts_apart,
        global_budget,
        repeats_stand,
        durable_first,
    )
}
