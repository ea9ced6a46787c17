"""Checks beside the usual road: analysts who were given less, paid schemas, kept values, people who come and go."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from indknn.core.noise import SeededNoise
from indknn.engine import Engine
from indknn.ledger import SHARED
from indknn.records.derived import Derived
from indknn.records.shard import Shard
from indknn.store import Store
from indknn.store.table_counts import pay_for_counts
from indknn.types import Cohort
from indknn_lab.audits.checks.shared import price_of
from indknn_lab.audits.scenarios import ENDLESS, MODEL, around, near
from indknn_lab.audits.served import WAYS, Repeatable, served
from indknn_lab.audits.tap import tap
from indknn_lab.audits.worlds import hurried


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
