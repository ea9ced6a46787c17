"""Runs items by name and writes outcome files. It does the units that are missing, and keeps each result at once."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict
from functools import lru_cache
from itertools import groupby
from pathlib import Path
from typing import Any

from joblib import Parallel, delayed, parallel_config

from indknn import __version__
from indknn.errors import InvalidInputError, meant
from indknn_lab.experiments.data import Result, Results, Unit, load, write_json
from indknn_lab.experiments.items import ENDLESS, ITEMS, Item, Outcome
from indknn_lab.experiments.methods import method_of
from indknn_lab.experiments.methods.own import load_methods
from indknn_lab.experiments.setting import Setting

Progress = Callable[[str, int, int], None]


def choose(name: str) -> list[type[Item]]:
    """The item with this name, the items of a group, or all items."""
    groups = {"all": list(ITEMS.values()), "endless": list(ENDLESS), **{key: [item] for key, item in ITEMS.items()}}
    if name not in groups:
        raise InvalidInputError(f"the item must be {', '.join(groups)}, got {name!r}{meant(name, groups)}")
    return groups[name]


def reproduce(
    items: Sequence[type[Item]],
    setting: Setting,
    out: Path,
    progress: Progress,
    *,
    jobs: int = 2,
    fresh: bool = False,
    so_far: bool = False,
) -> list[Outcome]:
    """Do the units that are not done yet, and write the results: `out/units/*.json`, then `out/items/*.json`.

    `fresh` first deletes the earlier results of these items. If that run is stopped, continue it without `fresh`.
    `so_far` does no more units, and writes what there is.
    """
    results = Results(out / "units")
    made = [item(setting, results) for item in items]
    units: list[Unit] = []
    for item in made:
        with suppress(Exception):  # its outcome will say what is wrong
            units += item.units() if item.present else []
    if fresh:
        for unit in units:
            results.discard(unit)
    if not so_far:
        try:
            run(units, setting, results, progress, jobs)
        except Exception as error:  # such as a process that the system has ended: what is done is worth a report
            text = f"{type(error).__name__}: {error}"
            results.failures |= {unit: text for unit in units if results.get(unit) is None}
    outcomes = list(map(_outcome, made))
    for outcome in outcomes:
        write_json(out / "items" / f"{outcome.name}.json", asdict(outcome))
    about = {"sources": setting.describe(), "quick": setting.quick, "stand_in": list(setting.stand_in)}
    write_json(out / "setting.json", {**about, "order": list(ITEMS)})
    return outcomes


def _outcome(item: Item) -> Outcome:
    """The outcome of an item. If it cannot be made, an outcome that says why: the others are not lost."""
    try:
        return item.outcome()
    except Exception as error:  # anything may go wrong in a comparison of strange data
        return item.failed(error)


@lru_cache
def _about_here() -> dict[str, Any]:
    """The day, the version and commit of the code, and the machine."""
    here = Path(__file__).parents[3]
    command = ["git", "-C", str(here), "describe", "--always", "--dirty"]
    commit = subprocess.run(command, capture_output=True, text=True, check=False) if (here / ".git").exists() else None
    return {
        "date": time.strftime("%Y-%m-%d"),
        "version": __version__,
        "commit": commit.stdout.strip() if commit else "",
        "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores, Python {sys.version.split()[0]}",
    }


def _about(unit: Unit) -> dict[str, Any]:
    """What is kept beside a result: the code and the machine, the most memory that this process has used so far, and
    for times how busy the machine is."""
    memory, load = 0, 0.0
    with suppress(ImportError):  # not on Windows
        import resource  # noqa: PLC0415

        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // (1 << (20 if sys.platform == "darwin" else 10))
    if method_of(unit).alone:
        with suppress(AttributeError, OSError):
            load = round(os.getloadavg()[0], 1)
    return {**_about_here(), "memory_mb": memory, "load": load}


def run(units: Iterable[Unit], setting: Setting, results: Results, progress: Progress, jobs: int = 2) -> None:
    """Do the missing units in several processes. Units that must run alone, such as timings, come last."""
    distinct = list(dict.fromkeys(units))
    todo = [unit for unit in distinct if results.get(unit) is None]
    done = len(distinct) - len(todo)
    progress("units", done, len(distinct))
    for alone, processes in ((False, jobs), (True, 1)):
        groups = _groups([unit for unit in todo if method_of(unit).alone == alone], apart=processes == 1)
        pairs = ([(unit, setting.path_of(unit)) for unit in group] for group in groups)
        work = [delayed(_do)(group, results, setting.methods) for group in pairs]
        with parallel_config("loky", inner_max_num_threads=1):
            for number, failures in Parallel(processes, return_as="generator_unordered", pre_dispatch="all")(work):
                results.failures |= failures
                done += number
                progress("units", done, len(distinct))


def measure(unit: Unit, path: Path) -> Result:
    """Do one unit."""
    return method_of(unit)(unit, load(path, unit.records)).measure()


def _groups(units: Sequence[Unit], *, apart: bool) -> list[list[Unit]]:
    """Groups of units that share work. The longest group is first, so that no process has a long one at the end."""

    def key(unit: Unit) -> str:
        return repr(method_of(unit).group(unit))

    groups = [list(group) for _, group in groupby(sorted(units, key=key), key=key)]
    groups.sort(key=lambda group: -sum(unit.T for unit in group))
    return [[unit] for group in groups for unit in group] if apart else groups


def _do(group: Sequence[tuple[Unit, Path]], results: Results, methods: Sequence[Path]) -> tuple[int, dict[Unit, str]]:
    """Do some units. Returns how many, and what went wrong with which."""
    load_methods(methods)  # this may run in another process
    failures = {}
    for unit, path in group:
        began = time.perf_counter()
        try:
            result = measure(unit, path)
            results.put(unit, result, time.perf_counter() - began, _about(unit))
        except Exception as error:  # the other units are worth having
            failures[unit] = f"{type(error).__name__}: {error}"
    return len(group), failures
