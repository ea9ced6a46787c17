"""From names of items to outcome files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from indknn.errors import InvalidInputError
from indknn_lab.experiments import (
    endless_change,
    endless_figures,
    endless_streams,
    figure1a,
    figure1b,
    figure2,
    figure3a,
    figure3b,
    figure4,
    hyperparameters,
    size,
    table1,
    table2,
    table3,
)
from indknn_lab.experiments.outcome import Item, Outcome
from indknn_lab.experiments.results import Results, write_json
from indknn_lab.experiments.runner import Progress, run
from indknn_lab.experiments.setting import Setting

ITEMS: dict[str, Item] = {
    module.ITEM.name: module.ITEM
    for module in (
        table1,
        figure1a,
        figure1b,
        figure2,
        figure3a,
        figure3b,
        figure4,
        table2,
        table3,
        size,
        hyperparameters,
        endless_figures,
        endless_streams,
        endless_change,
    )
}
GROUPS = {"endless": ("endless_figures", "endless_streams", "endless_change")}


def choose(name: str) -> list[Item]:
    """The item of that name, those of a group, or all of them."""
    if name == "all":
        return list(ITEMS.values())
    if name in GROUPS:
        return [ITEMS[member] for member in GROUPS[name]]
    if name not in ITEMS:
        raise InvalidInputError(f"the item must be all, {', '.join((*ITEMS, *GROUPS))}, got {name!r}")
    return [ITEMS[name]]


def reproduce(
    items: Sequence[Item], setting: Setting, out: Path, progress: Progress, *, jobs: int = 2, fresh: bool = False
) -> list[Outcome]:
    """Do what is not done yet, and write down what came out: `out/units/*.json`, then `out/items/*.json`.

    `fresh` forgets first what was done of these items; a run that is stopped after that goes on without it.
    """
    results = Results(out / "units")
    units = [unit for item in items if item.runnable(setting) for unit in item.units(setting)]
    if fresh:
        for unit in units:
            results.discard(unit)
    run(units, setting, results, progress, jobs)
    outcomes = [item.outcome(setting, results) for item in items]
    for outcome in outcomes:
        write_json(out / "items" / f"{outcome.name}.json", outcome.as_json())
    about = {"sources": setting.describe(), "quick": setting.quick, "stand_in": list(setting.stand_in)}
    write_json(out / "setting.json", {**about, "order": list(ITEMS)})
    return outcomes
