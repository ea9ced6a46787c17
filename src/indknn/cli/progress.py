"""Progress bars on stderr, so that output can be piped."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn


@contextmanager
def counting(what: str, shown: bool) -> Iterator[Callable[[int], None]]:
    """A counter for work whose total is not known."""
    console = Console(stderr=True)
    if not (shown and console.is_terminal):  # older versions of rich end even a disabled bar with an empty line
        yield lambda done: None
        return
    columns = TextColumn(what), BarColumn(), TextColumn("{task.completed:,.0f}"), TimeElapsedColumn()
    with Progress(*columns, console=console) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done: bar.update(task, completed=done)


@contextmanager
def stages() -> Iterator[Callable[[str, int, int], None]]:
    """Progress bars by name. A bar starts when its name is first used."""
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    with Progress(*columns, console=Console(stderr=True)) as bar:
        tasks: dict[str, TaskID] = {}

        def show(label: str, done: int, total: int) -> None:
            if label not in tasks:
                tasks[label] = bar.add_task(label, total=total)
            bar.update(tasks[label], completed=done)

        yield show
