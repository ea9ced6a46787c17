"""Commands: parse, call, print."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from indknn import __version__, accounting, demo
from indknn.errors import IndKNNError


class Commands(click.Group):
    """A group whose own errors end in one line on stderr and exit code 2."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; show the user what is wrong, not a traceback."""
        try:
            return super().invoke(ctx)
        except (IndKNNError, ValueError, OSError) as error:
            click.echo(f"indknn: {error}", err=True)
            ctx.exit(2)


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__)
def app() -> None:
    """Private predictions from sensitive data that keeps changing.

    \b
    Try:
      indknn demo                       see the whole idea on real data, in a minute
      indknn budget --epsilon 1         what a promise of epsilon = 1 lets a person spend

    Exit codes: 0 done, 2 something you gave is not allowed.
    """


@app.command("demo")
@click.option("--queries", default=1000, show_default=True, help="How many queries to answer.")
@click.option("--epsilon", default=1.0, show_default=True, help="The promise to every person.")
@click.option("--tau", default=0.7, show_default=True, help="How similar a record must be to take part.")
@click.option("--sigma2", default=0.7, show_default=True, help="Noise on the votes.")
@click.option(
    "--out",
    type=click.Path(path_type=Path, dir_okay=False),
    default=Path("out/demo.png"),
    show_default=True,
    help="Where the picture goes.",
)
def demo_command(queries: int, epsilon: float, tau: float, sigma2: float, out: Path) -> None:
    """Answer queries on Fashion-MNIST privately, show who paid what, forget somebody.

    50,000 images play private records, one per person; 10,000 others are public queries. The defaults of
    tau and sigma2 come from earlier experiments on this data, which, as in the paper, nobody paid for.
    The noise is real, so every run differs a little.
    """
    console = Console(soft_wrap=True, highlight=False)
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    with Progress(*columns, console=console) as progress:

        def show(label: str, done: int, total: int) -> None:
            if label not in tasks:
                tasks[label] = progress.add_task(label, total=total)
            progress.update(tasks[label], completed=done)

        tasks: dict[str, TaskID] = {}
        result = demo.run(queries=queries, epsilon=epsilon, tau=tau, sigma2=sigma2, progress=show)
    console.print(demo.story(result))
    console.print(f"Picture: {demo.picture(result, out)}")


@app.command("budget")
@click.option("--epsilon", type=float, required=True, help="The promise.")
@click.option("--delta", default=1e-5, show_default=True, help="The chance that it may fail.")
@click.option("--queries", default=1000, show_default=True, help="T, the number of queries planned for.")
def budget_command(epsilon: float, delta: float, queries: int) -> None:
    """Show what (epsilon, delta) lets each person spend, under both filters.

    \b
    Example:
      indknn budget --epsilon 1 --delta 1e-6
    """
    click.echo(f"{'filter':<8}{'B':>12}{'price of being counted once':>30}")
    for accountant in ("gdp", "rdp"):
        B = accounting.budget(epsilon, delta, accountant)
        click.echo(f"{accountant:<8}{B:>12.6g}{f'{3 * B / max(queries, 6):.3g}':>30}")
