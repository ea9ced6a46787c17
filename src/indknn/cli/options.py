"""What all commands share: options, options made from the parameters of a store, how results and progress are shown."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import click
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from indknn.core.inputs import Parameter, as_whole
from indknn.errors import InvalidInputError, to_install
from indknn.place import is_address, place_of, private_file
from indknn.settings import PARAMETERS
from indknn.tables.read import Named
from indknn.tables.schema import Schema

_DAYS = "_days"
Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


class StorePlace(click.Path):
    """The type of an option that takes a file or the address of a PostgreSQL database."""

    def __init__(self) -> None:
        super().__init__(path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The place that was typed. An address with a password in it is refused."""
        return place_of(value) if is_address(str(value)) else super().convert(value, param, ctx)

    def split_envvar_value(self, rv: str) -> list[str]:
        """The places in a variable, with commas between them. Addresses are full of the usual colons."""
        return rv.split(",")


STORE = click.argument("store", type=StorePlace())
FILE = click.argument("file", type=click.Path(path_type=Path))
JSON = click.option("--json", "in_json", is_flag=True, help="Print JSON.")
WITNESS = click.option(
    "--witness", type=click.Path(path_type=Path), help="A file on another disk that detects old copies."
)
URL = click.option("--url", help="Ask the server at this address, which has the store open, as http://127.0.0.1:8080.")
KEY = click.option(
    "--key",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    help="With --url: the file that holds your key.",
)
LABEL = click.option("--label", default="y", show_default=True, help="Column of the label (not for npz).")
OWNER = click.option("--owner", default="owner", show_default=True, help="Column of the owner (not for npz).")
RECORD = click.option(
    "--record-id", "record", default="record_id", show_default=True, help="Column of your own ids (not for npz)."
)
EXPIRES = click.option(
    "--expires",
    default="expires",
    show_default=True,
    help="Column of the days or times (UTC) from which rows take no further part and are erased (not for npz).",
)
PROMISED = click.option(
    "--owner-epsilon", "epsilon", default="", help="Column of what the owner is promised, if less (not for npz)."
)
RECEIPT = click.option("--receipt", type=click.Path(path_type=Path), help="Write the receipt to this file as well.")
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
        """The number that was typed. Commas are allowed, as in 10,000. So are days, as in 400d, if it is about days."""
        text = str(value).replace(",", "")
        if param is not None and (param.name or "").endswith(_DAYS):
            text = text.removesuffix("d")
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
    short = [f"--{name.removesuffix(_DAYS)}"] if name.endswith(_DAYS) else []  # --keep 400d for --keep-days 400
    return click.option(flag, *short, name, type=kind, default=default, show_default=default is not None, help=about)


def column_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options that name the columns of records, for `columns`."""
    for option in (FEATURES, PROMISED, EXPIRES, RECORD, OWNER, LABEL):
        command = option(command)
    return command


def columns(label: str = "", owner: str = "", features: str | None = None, record: str = "", **more: str) -> Named:
    """The columns that the options name. `more` are those of dates and promises."""
    return Named(label, owner, tuple(features.split(",")) if features else (), record, **more)


def class_names(listed: str) -> tuple[Any, ...]:
    """Labels from a text such as a,b,c. If all are whole numbers, they become numbers."""
    names = [name.strip() for name in listed.split(",")]
    if "" in names or len(set(names)) < len(names):
        raise InvalidInputError(f"classes must be different names with commas between them, as a,b,c, got {listed!r}")
    return as_whole(names)


def as_json(value: Any) -> str:
    """A value as JSON that people and programs can read."""
    return json.dumps(value, indent=2, default=str)


def with_named_columns(schema: Schema) -> Schema:
    """The schema of a store, with the columns that options name and the schema does not. It cannot be contradicted."""
    context, given = click.get_current_context(), {}
    roles = {"label": "label", "owner": "owner", "record": "record_id", "expires": "expires", "epsilon": "epsilon"}
    roles["features"] = ""
    for name, role in roles.items():
        if context.get_parameter_source(name) is not click.core.ParameterSource.COMMANDLINE:
            continue
        option = "--owner-epsilon" if role == "epsilon" else f"--{(role or name).replace('_', '-')}"
        value, known = context.params[name], getattr(schema, role, "")
        if known not in {None, value}:
            what = f"; it says {known!r}" if known else ""
            raise InvalidInputError(f"{option} is not for this store: its schema names the columns{what}")
        if value in schema.used:
            raise InvalidInputError(f"{option} {value} is not for this store: column {value!r} is a feature there")
        given[role] = value
    return schema.with_roles(**given) if given else schema


def write_receipt(path: Path | None, facts: Any) -> None:
    """Write a receipt to a file that only its owner can read, if one was asked for."""
    if path is not None:
        with private_file(path) as file:
            file.write(as_json(facts) + "\n")


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
def remote(url: str, key: Path | None) -> Iterator[Any]:
    """A client of a running server, with the key in this file."""
    with wanted("client"):
        from indknn.client import Client  # noqa: PLC0415
    text = None if key is None else key.read_text(encoding="utf-8").strip()
    with Client(url, text, timeout=None) as client:
        yield client


def on_terminal() -> bool:
    """Whether somebody sees what is written on stderr as it grows."""
    return Console(stderr=True).is_terminal


@contextmanager
def stages_on_terminal(shown: bool) -> Iterator[Callable[[str, int, int | None], None]]:
    """As `stages`, if there is a terminal. Older versions of rich end even a disabled bar with an empty line."""
    if not (shown and on_terminal()):
        yield lambda label, done, total: None
        return
    with stages() as show:
        yield show


@contextmanager
def stages() -> Iterator[Callable[[str, int, int | None], None]]:
    """Progress bars by name. A bar starts when its name is first used. Its total may be unknown."""
    times = TimeElapsedColumn(), TextColumn("left:"), TimeRemainingColumn()
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), *times
    with Progress(*columns, console=Console(stderr=True)) as bar:
        tasks: dict[str, TaskID] = {}

        def show(label: str, done: int, total: int | None) -> None:
            if label not in tasks:
                tasks[label] = bar.add_task(label, total=total)
            bar.update(tasks[label], completed=done)

        yield show


def many(n: int, one: str, more: str = "") -> str:
    """A number of things in words.

    >>> many(1, "record"), many(1200, "record")
    ('1 record', '1,200 records')
    """
    return f"{n:,} {one if n == 1 else more or f'{one}s'}"


def records_of(records: int, people: int) -> str:
    """How many records of how many people."""
    return f"{many(records, 'record')} of {many(people, 'person', 'people')}"
