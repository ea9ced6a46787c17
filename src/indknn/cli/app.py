"""The `indknn` command with its subcommands. They parse arguments, call the package and print the result."""

from __future__ import annotations

import os
import sys
import warnings
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Final

import click

from indknn import __version__
from indknn.cli.options import parameter_options
from indknn.core import accounting
from indknn.errors import IndKNNError, InvalidInputError, StoreError, StoreLockedError, meant, missing, to_install

_MODULES: Final = {
    "records": ("add", "sync", "forget", "expire", "hold"),
    "stores": ("init", "purge", "rewrite", "takeover", "backup", "restore"),
    "answers": ("train", "predict", "explain"),
    "inspection": ("status", "owner", "verify", "forecast", "export"),
    "doctor": ("doctor", "check"),
    "keys": ("keys", "analysts"),
    "schema": ("schema",),
    "serve": ("serve", "cluster"),
}
"""The commands of each module here. A module is loaded when one of its commands is called or described."""
_MODULE_OF: Final = {command: module for module, commands in _MODULES.items() for command in commands}
_LAB = "indknn.commands"
"""The group of entry points with which `indknn_lab` adds commands for research. Nothing in `indknn` imports it."""


class Commands(click.Group):
    """A group of commands. An error becomes one line on stderr and a documented exit code."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command. Errors are shown without a traceback, and every warning in one line."""
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("default", UserWarning)
                warnings.showwarning = lambda message, *_: click.echo(f"indknn: {message}", err=True)
                return super().invoke(ctx)
        except BrokenPipeError:  # whoever reads the output, such as head, has seen enough
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        except (IndKNNError, ValueError, OSError) as error:
            click.echo(f"indknn: {_words(error)}", err=True)
            ctx.exit(3 if isinstance(error, StoreError | OSError) else 2)

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        """The command that was typed. An unknown one is refused with the one that may have been meant."""
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            hint = meant(args[0], self.list_commands(ctx))
            raise click.UsageError(error.message.rstrip(".") + hint, ctx) from None

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names of all commands."""
        return sorted({*super().list_commands(ctx), *_MODULE_OF, *entry_points(group=_LAB).names})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command with this name. If it cannot be loaded, a command that says what to install."""
        found: click.Command | None = super().get_command(ctx, cmd_name)
        extra = "lab" if cmd_name not in _MODULE_OF else "check" if cmd_name == "check" else "store"
        try:
            if found is None and cmd_name in _MODULE_OF:
                module = import_module(f"indknn.cli.{_MODULE_OF[cmd_name]}")
                named = (value for value in vars(module).values() if isinstance(value, click.Command))
                found = next(command for command in named if command.name == cmd_name)
            for point in entry_points(group=_LAB, name=cmd_name) if found is None else ():
                found = point.load()
        except ModuleNotFoundError as missing:
            return _stand_in(cmd_name, str(missing.name), extra)
        return found


def _words(error: Exception) -> str:
    """An error in one line. One of the operating system names the file, and not its own number."""
    if isinstance(error, StoreLockedError):
        return f"{error}. If that is a server, ask it: indknn status --url, indknn backup --url"
    if isinstance(error, FileNotFoundError) and error.filename:
        return missing(Path(os.fsdecode(error.filename)))
    if isinstance(error, OSError) and error.filename and error.strerror:
        return f"{os.fsdecode(error.filename)}: {error.strerror}"
    return str(error)


def _stand_in(name: str, module: str, extra: str) -> click.Command:
    def refuse(**_: Any) -> None:
        raise InvalidInputError(to_install(module, extra, f"indknn {name}"))

    words = click.Argument(["words"], nargs=-1, type=click.UNPROCESSED)
    about = to_install(module, extra, "This")
    return click.Command(name, {"ignore_unknown_options": True}, refuse, [words], help=about)


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

    Exit codes: 0 done; 1 verify, check, doctor, schema check or audit found a problem; 2 an argument or a value is not
    allowed; 3 the store or a file cannot be used (locked, damaged, an old copy, disk full); 4 audit had no time for
    everything.
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
    budgets = {accountant: accounting.budget(epsilon, delta, accountant) for accountant in ("gdp", "rdp")}
    click.echo(f"{'filter':<8}{'B':>12}{'price of being counted once':>30}")
    for accountant, B in budgets.items():
        click.echo(f"{accountant:<8}{B:>12.6g}{f'{3 * B / max(queries, 6):.3g}':>30}")
