"""The `indknn` command with its subcommands. They parse arguments, call the package and print the result."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import click

from indknn import __version__
from indknn.cli.cluster import cluster_group
from indknn.cli.doctor import doctor
from indknn.cli.extract import extract_command
from indknn.cli.lab import WithLab
from indknn.cli.options import parameter_options, wanted
from indknn.cli.progress import stages
from indknn.cli.schema import schema_group
from indknn.cli.serve import serve_command
from indknn.core import accounting
from indknn.errors import IndKNNError, StoreError


class Commands(WithLab):
    """A group of commands. An error becomes one line on stderr and a documented exit code."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command. Errors are shown without a traceback, and every warning in one line."""
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("default", UserWarning)
                warnings.showwarning = lambda message, *_: click.echo(f"indknn: {message}", err=True)
                return super().invoke(ctx)
        except (IndKNNError, ValueError, OSError) as error:
            click.echo(f"indknn: {error}", err=True)
            ctx.exit(3 if isinstance(error, StoreError | OSError) else 2)


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__)
def app() -> None:
    """Private predictions from sensitive data that keeps changing.

    \b
    Try:
      indknn demo                              see the whole idea on real data, in a minute
      indknn budget --epsilon 1                what a promise of epsilon = 1 lets a person spend
      indknn init people.store --epsilon 1     make a store that survives crashes
      indknn add people.store records.npz
      indknn predict people.store queries.npz -o answers.csv
      indknn forget people.store ann
      indknn serve people.store                answer over HTTP

    Exit codes: 0 done; 1 verify, doctor, schema check or audit found a problem; 2 an argument or a value is not
    allowed; 3 the store or a file cannot be used (locked, damaged, an old copy, disk full).
    """


@app.command("demo")
@click.option("--queries", default=1000, show_default=True, help="How many queries to answer.")
@parameter_options("epsilon")
@click.option("--tau", default=0.7, show_default=True, help="Algorithm 3: how similar a record must be to take part.")
@click.option("--sigma2", default=0.7, show_default=True, help="Algorithm 3: the noise on the votes.")
@click.option(
    "--out",
    type=click.Path(path_type=Path, dir_okay=False),
    default=Path("out/demo.html"),
    show_default=True,
    help="The file for the report, a page of HTML.",
)
@click.option(
    "--store", type=click.Path(path_type=Path, dir_okay=False), help="Only make a store of the same data, in this file."
)
def demo_command(queries: int, epsilon: float, tau: float, sigma2: float, out: Path, store: Path | None) -> None:
    """Answer queries on Fashion-MNIST privately, compare with private training, show who paid, forget a person.

    50,000 images play the private records, one per person. 10,000 others are public queries. tau and sigma2 are for
    the paper's Algorithm 3, which runs beside the default. Their defaults come from earlier experiments on this data.
    As in the paper, no budget covers that search. The noise is real, so every run differs a little.

    \b
    Examples:
      indknn demo
      indknn demo --store demo.store && indknn serve demo.store
    """
    if store is not None:
        with wanted("store"):
            from indknn.cli.demonstration.served import make_store  # noqa: PLC0415
        questions = make_store(store)
        click.echo(f"{store} is ready: indknn serve {store}\nQuestions to paste into the console: {questions}")
        return
    from indknn.cli import demo  # noqa: PLC0415  (scikit-learn takes a second to load)

    with stages() as show:
        result = demo.run(queries=queries, epsilon=epsilon, tau=tau, sigma2=sigma2, progress=show)
    click.echo(demo.story(result))
    demo.write_report(result, out)
    click.echo(f"Report: {out}")


@app.command("budget")
@parameter_options("epsilon", "delta")
@click.option("--queries", default=1000, show_default=True, help="T, how many queries you plan for.")
def budget_command(epsilon: float, delta: float, queries: int) -> None:
    """Show how much each person may spend at (epsilon, delta), under both filters.

    The guarantee is for one observer: one analyst with --epsilon of a store, or all analysts together with its
    --global-epsilon.

    \b
    Example:
      indknn budget --epsilon 1 --delta 1e-6
    """
    click.echo(f"{'filter':<8}{'B':>12}{'price of being counted once':>30}")
    for accountant in ("gdp", "rdp"):
        B = accounting.budget(epsilon, delta, accountant)
        click.echo(f"{accountant:<8}{B:>12.6g}{f'{3 * B / max(queries, 6):.3g}':>30}")


def _add_store_commands() -> None:
    """Add the commands that need apsw. Without apsw, they say what to install."""
    try:
        from indknn.cli import inspection, stores  # noqa: PLC0415
        from indknn.cli.databases import rewrite, takeover  # noqa: PLC0415
        from indknn.cli.forecast import forecast_command  # noqa: PLC0415
        from indknn.cli.keys import keys  # noqa: PLC0415
        from indknn.cli.train import train  # noqa: PLC0415
        from indknn.cli.tune import tune_command  # noqa: PLC0415
    except ModuleNotFoundError as missing:
        if missing.name != "apsw":
            raise
        return
    changing = (stores.init, stores.add, train, stores.predict, stores.forget, stores.purge, stores.backup_command)
    looking = (inspection.show_status, inspection.show_owner, inspection.export, inspection.verify)
    for command in (*changing, *looking, forecast_command, tune_command, keys, rewrite, takeover):
        app.add_command(command)


_add_store_commands()
app.add_command(doctor)
app.add_command(serve_command)
app.add_command(cluster_group)
app.add_command(schema_group)
app.add_command(extract_command)
