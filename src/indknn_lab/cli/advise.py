"""`indknn advise`: says which tool is right for a task."""

from __future__ import annotations

from math import ceil
from typing import Any

import click

from indknn.cli.inspection import per_day
from indknn.cli.options import as_json
from indknn.errors import InvalidInputError
from indknn_lab.advice.measurements import measured
from indknn_lab.advice.verdict import Task, judge


@click.command("advise")
@click.option("--n", type=int, required=True, help="How many records there are.")
@click.option("--queries", type=int, required=True, help="How many queries there will be, in all.")
@click.option("--updates", default="0", show_default=True, help="How often batches of records come or go, as 10/day.")
@click.option("--days", default=365.0, show_default=True, help="For how many days.")
@click.option("--epsilon", default=1.0, show_default=True, help="The promise to every person, for all days together.")
@click.option("--features", type=int, help="How many features a record has.")
@click.option("--classes", type=int, help="How many labels there are.")
@click.option("--json", "as_text", is_flag=True, help="Print JSON.")
def advise(updates: str, days: float, as_text: bool, **values: Any) -> None:
    """Say whether Ind-KNN, Private-kNN or NoisySGD is the right tool.

    It interpolates between the project's own measurements on AG News and CIFAR-10, at delta = 1e-5, and prints the
    accuracies. Your data is different, so judge them yourself.

    \b
    Examples:
      indknn advise --n 50000 --queries 100000 --updates 10/day --epsilon 1
      indknn advise --n 20000 --queries 2000 --epsilon 0.5
    """
    if not 0.0 < days < 1e6:
        raise InvalidInputError(f"--days must be above 0 and below 1000000, got {days!r}")
    task = Task(updates=ceil(per_day(updates, "--updates") * days), **values)
    found = judge(task, measured())
    if as_text:
        options = [{**option.__dict__, "mean": option.mean} for option in found.options]
        facts = {"task": task.__dict__, "tool": found.best.name, "level": found.level, "reasons": found.reasons}
        click.echo(as_json({**facts, "cautions": found.cautions, "options": options}))
        return
    titles = [measured().title(d) for d in measured().data]
    click.echo(f"{'':<38}" + "".join(f"{title:>10}" for title in titles) + f"{'mean':>8}")
    for option in found.options:
        mark = "" if option.fit else "(does not fit) "
        figures = "".join(f"{option.accuracy[d]:>10.3f}" for d in measured().data)
        click.echo(f"{option.name:<38}{figures}{option.mean:>8.3f}  {mark}{option.note}")
    level = f" About level: {', '.join(found.level)}." if found.level else ""
    click.echo(f"\nThe right tool: {found.best.name}.{level}")
    for text in found.reasons:
        click.echo(text)
    for text in found.cautions:
        click.echo(f"Careful: {text}.")
