"""What all commands share: options, options made from the parameters of a store, how results and progress are shown."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from indknn.core.inputs import as_whole
from indknn.core.parameters import Parameter
from indknn.errors import InvalidInputError, to_install
from indknn.place import is_address, place_of
from indknn.settings import PARAMETERS
from indknn.tables.read import Named

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
LABEL = click.option("--label", default="y", show_default=True, help="Column of the label (not for npz).")
OWNER = click.option("--owner", default="owner", show_default=True, help="Column of the owner (not for npz).")
RECORD = click.option(
    "--record-id", "record", default="record_id", show_default=True, help="Column of your own ids (not for npz)."
)
FEATURES = click.option("--features", help="Columns of the features (not for npz), as a,b,c. Default: all others.")


if TYPE_CHECKING:
    _Type: TypeAlias = click.ParamType[float | int | None]
else:
    _Type = click.ParamType  # before click 8.4 it takes no parameter


class NumberOrNone(_Type):
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


def columns(label: str = "", owner: str = "", features: str | None = None, record: str = "") -> Named:
    """The columns that the options name."""
    return Named(label, owner, tuple(features.split(",")) if features else (), record)


def class_names(listed: str) -> tuple[Any, ...]:
    """Labels from a text such as a,b,c. If all are whole numbers, they become numbers."""
    return as_whole(name.strip() for name in listed.split(","))


def as_json(value: Any) -> str:
    """A value as JSON that people and programs can read."""
    return json.dumps(value, indent=2, default=str)


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
        raise InvalidInputError(to_install(package, extra)) from None


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
