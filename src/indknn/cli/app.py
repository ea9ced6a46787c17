"""The `indknn` command with its subcommands. They parse arguments, call the package and print the result."""

from __future__ import annotations

import warnings
from typing import Any

import click

from indknn import __version__
from indknn.cli.cluster import cluster_group
from indknn.cli.doctor import doctor
from indknn.cli.lab import WithLab
from indknn.cli.options import parameter_options
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
    except ModuleNotFoundError as missing:
        if missing.name != "apsw":
            raise
        return
    changing = (stores.init, stores.add, train, stores.predict, stores.forget, stores.purge)
    looking = (inspection.show_status, inspection.show_owner, inspection.export, inspection.verify)
    for command in (*changing, *looking, forecast_command, keys, rewrite, takeover):
        app.add_command(command)


_add_store_commands()
app.add_command(doctor)
app.add_command(serve_command)
app.add_command(cluster_group)
app.add_command(schema_group)
