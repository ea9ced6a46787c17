"""Options that several commands share, options made from the parameters of a store, and how results are printed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from indknn.cli.files import Columns, as_json
from indknn.core.parameters import Parameter
from indknn.errors import InvalidInputError
from indknn.place import is_address, place_of
from indknn.settings import PARAMETERS

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


class StorePlace(click.Path):
    """The type of an option that takes a file or the address of a PostgreSQL database."""

    def __init__(self) -> None:
        super().__init__(path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The place that was typed. An address with a password in it is refused."""
        return place_of(value) if is_address(str(value)) else super().convert(value, param, ctx)


STORE = click.argument("store", type=StorePlace())
FILE = click.argument("file", type=click.Path(path_type=Path))
JSON = click.option("--json", "in_json", is_flag=True, help="Print JSON.")
WITNESS = click.option(
    "--witness", type=click.Path(path_type=Path), help="A file on another disk that detects old copies."
)
LABEL = click.option("--label", default="y", show_default=True, help="Column of the label (csv, parquet).")
OWNER = click.option("--owner", default="owner", show_default=True, help="Column of the owner (csv, parquet).")
RECORD = click.option(
    "--record-id", "record", default="record_id", show_default=True, help="Column of your own ids (csv, parquet)."
)
FEATURES = click.option("--features", help="Columns of the features (csv, parquet), as a,b,c. Default: all others.")


class NumberOrNone(click.ParamType[float | int | None]):
    """The type of an option that takes a number or the word none."""

    def __init__(self, number: click.ParamType[Any]):
        self.number = number
        self.name = f"{number.name}|none"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The number that was typed. Commas are allowed, as in 10,000."""
        text = str(value).replace(",", "")
        return None if text == "none" else self.number.convert(text, param, ctx)


def parameter_options(*names: str, of: Mapping[str, Parameter] = PARAMETERS) -> Decorator:
    """An option for each of these parameters, with the help, the default and the choices of its description."""

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        for name in reversed(names):
            command = _option(name, of[name])(command)
        return command

    return decorate


def _option(name: str, described: Parameter) -> Decorator:
    word, default = name.replace("_", "-"), described.default
    flag = f"--{word}/--no-{word}" if described.kind is bool else f"--{word}"
    kind: Any = click.Choice(described.choices) if described.choices else described.kind
    if described.none and described.kind in {int, float}:
        kind = NumberOrNone(click.INT if kind is int else click.FLOAT)
    about = f"{described.help} Without it: {described.none}." if described.none else described.help
    return click.option(flag, name, type=kind, default=default, show_default=default is not None, help=about)


def columns(label: str = "", owner: str = "", features: str | None = None, record: str = "") -> Columns:
    """The columns that the options name."""
    return Columns(label, owner, tuple(features.split(",")) if features else (), record=record)


def refuse_column_options() -> None:
    """Refuse options that name columns, because the schema of the store names them."""
    context = click.get_current_context()
    for name in ("label", "owner", "record", "features"):
        if context.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE:
            option = "record-id" if name == "record" else name
            raise InvalidInputError(f"--{option} is not for this store: its schema names the columns")


def show(facts: Any, in_json: bool, *lines: str) -> None:
    """Print the facts as JSON for programs, or these lines for people."""
    for line in [as_json(facts)] if in_json else lines:
        click.echo(line)


@contextmanager
def wanted(extra: str) -> Iterator[None]:
    """If a package is missing, raise an error that says how to install it."""
    try:
        yield
    except ModuleNotFoundError as missing:
        package = (missing.name or "indknn").partition(".")[0]
        if package == "indknn":
            raise
        raise InvalidInputError(f"this needs {package!r}: pip install 'indknn[{extra}]'") from None
