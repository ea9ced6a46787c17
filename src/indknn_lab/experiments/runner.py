"""Do the units that are not done yet: in a few processes, each result kept as soon as it is there."""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from itertools import groupby
from pathlib import Path

from threadpoolctl import threadpool_limits

from indknn_lab.experiments.fields import load
from indknn_lab.experiments.methods import endless, indknn, noisy_sgd, plain, private_knn, timing
from indknn_lab.experiments.queries import query_sets
from indknn_lab.experiments.results import Results
from indknn_lab.experiments.setting import Setting
from indknn_lab.experiments.trials import Trial
from indknn_lab.experiments.units import Result, Unit

Progress = Callable[[str, int, int], None]
Job = tuple[Unit, Path]

_MEASURES = {
    "indknn": indknn.measure,
    "private_knn": private_knn.measure,
    "noisy_sgd": noisy_sgd.measure,
    "plain": plain.measure,
    "timing": timing.measure,
}


def measure(unit: Unit, path: Path) -> Result:
    """Do one unit."""
    data = load(path, unit.records)
    if isinstance(unit, Trial):
        return endless.measure(unit, data)
    sets = query_sets(unit.data, len(data.truth), unit.T, unit.effort.sets)
    return {**_MEASURES[unit.kind](unit, data, sets), "disjoint": sets.disjoint, "classes": data.n_classes}


def run(units: Iterable[Unit], setting: Setting, results: Results, progress: Progress, jobs: int = 2) -> int:
    """Do what is missing among these units; how many there were. Timings come last, alone."""
    distinct = list(dict.fromkeys(units))
    todo = [unit for unit in distinct if results.get(unit) is None]
    done = len(distinct) - len(todo)
    progress("units", done, len(distinct))
    groups = _groups([(unit, setting.path_of(unit)) for unit in todo if unit.kind != "timing"])
    alone = [[(unit, setting.path_of(unit))] for unit in todo if unit.kind == "timing"]
    for number in _in_processes(groups, results.folder, jobs):
        done += number
        progress("units", done, len(distinct))
    for group in alone:
        done += _do(group, results.folder)
        progress("units", done, len(distinct))
    return len(todo)


def _groups(jobs: Sequence[Job]) -> list[list[Job]]:
    """Jobs that share work, together; the longest first, so that no process is left with a long one at the end."""
    ordered = sorted(jobs, key=lambda job: repr(job[0].affinity))
    groups = [list(group) for _, group in groupby(ordered, key=lambda job: repr(job[0].affinity))]
    return sorted(groups, key=lambda group: -sum(unit.T for unit, _ in group))


def _in_processes(groups: Sequence[list[Job]], folder: Path, jobs: int) -> Iterable[int]:
    if jobs <= 1 or len(groups) <= 1:
        for group in groups:
            for job in group:
                yield _do([job], folder)
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, mp_context=context, initializer=_one_thread) as pool:
        pending = {pool.submit(_do, group, folder, os.getpid()) for group in groups}
        try:
            while pending:
                finished, pending = wait(pending, return_when=FIRST_COMPLETED)
                yield sum(future.result() for future in finished)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _one_thread() -> None:
    threadpool_limits(1)


def _do(group: Sequence[Job], folder: Path, parent: int | None = None) -> int:
    results = Results(folder)
    for unit, path in group:
        if parent is not None and os.getppid() != parent:
            raise SystemExit("the run that started this process is gone")
        began = time.perf_counter()
        results.put(unit, measure(unit, path), time.perf_counter() - began)
    return len(group)
