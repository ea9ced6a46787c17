"""A public schema. It describes the columns of a table and turns its rows into vectors.

A schema is written by hand as JSON or YAML, or made from a public sample (`indknn.tables.infer`). It is one of the
public settings of a store. It must never be fitted to private rows.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, fields, replace
from functools import cached_property
from itertools import pairwise
from math import sqrt
from pathlib import Path
from typing import Any, Final

import numpy as np

from indknn.core.targets import as_bounds
from indknn.errors import IndKNNError, InvalidInputError, meant, missing, needs
from indknn.tables.columns import Category, Column, Date, Ignored, Number, Ordered, Text, YesNo
from indknn.tables.read import Columns, Split, columns_of, is_table, rows_in, split_by
from indknn.tables.values import is_missing
from indknn.types import FloatArray, Given

CONSTANT = 0.3
"""The last coordinate of every row is this number times the square root of the number of columns. It gives a linear
model on unit vectors an intercept. It is small, so that it hardly changes which rows are near each other."""
_CHUNK = 512  # rows at a time, so that their coordinates stay in the processor's cache
KINDS: Final[dict[str, type[Column]]] = {
    kind.kind: kind for kind in (Number, Category, Ordered, YesNo, Date, Text, Ignored)
}
_YAML = {".yaml", ".yml"}
_SEPARATORS = (";", "\t", "|", ",")
VERSION = 1
"""The version of the encoding. It must change whenever the vectors of a schema change, because stores keep vectors."""
ROW_IDS = ("record_id", "id")
"""Columns that are taken for the ids of queries, unless they are features."""
_ROLES = ("owner", "record_id", "expires", "epsilon")
_TOP = {"version", "label", *_ROLES, "blanks", "columns"}


@dataclass(frozen=True)
class Schema:
    """The columns of a table, and which of them hold the label, the owner and the record id.

    >>> from indknn.tables import Category, Number, Schema
    >>> schema = Schema({"age": Number(bounds=(0, 100), knots=(50,)), "job": Category(values=("baker", "cook"))})
    >>> schema.n_features
    8
    >>> rows = schema.encode({"age": [39, None], "job": ["baker", "astronaut"]})
    >>> rows.shape
    (2, 8)
    >>> schema.encode({"age": [39]})
    Traceback (most recent call last):
    ...
    indknn.errors.InvalidInputError: column 'job' is missing: the table has only age
    """

    columns: Mapping[str, Column]
    label: str | None = None
    classes: tuple[Any, ...] = ()
    owner: str | None = None
    record_id: str | None = None
    blanks: tuple[str, ...] = ("",)
    """Texts that stand for a gap."""
    expires: str | None = None
    """The column of dates from which records take no further part."""
    epsilon: str | None = None
    """The column with the promises of owners who were promised less."""
    bounds: tuple[float, float] | None = None
    """The lowest and the highest number, if the label is a number."""

    def __post_init__(self) -> None:
        """Check that every column has one meaning, and that at least one is used."""
        for name, column in self.columns.items():
            if not isinstance(column, Column):
                raise InvalidInputError(f"column {name!r} must be a kind of column such as Number, got {column!r}")
        roles = self.roles
        single = (self.label, self.expires)
        twice = [name for name in roles if name in self.columns or (roles.count(name) > 1 and name in single)]
        if twice:
            of = "a feature, label, owner, record_id or expires"
            raise InvalidInputError(f"column {twice[0]!r} must have one meaning: {of}")
        if self.bounds is not None and (self.classes or self.label is None):
            raise InvalidInputError("bounds are of a label that is a number, which has no classes")
        if all(isinstance(column, Ignored) for column in self.columns.values()):
            raise InvalidInputError("a schema must have at least one column that is not ignored")

    def with_roles(self, ignored: Collection[str] = (), **roles: str) -> Schema:
        """The same schema with these columns as label, owner or record_id, and these ignored.

        >>> schema = Schema({"age": Number(bounds=(0, 100)), "visit": Ignored()}, owner="patient")
        >>> schema.with_roles(record_id="visit").columns.keys()
        dict_keys(['age'])
        """
        columns = {name: column for name, column in self.columns.items() if name not in roles.values()}
        columns |= dict.fromkeys(ignored, Ignored())
        return replace(self, columns=columns, **roles)  # type: ignore[arg-type]

    @property
    def roles(self) -> list[str]:
        """The columns that hold the label, the owner, the record id, the date and the promise. Two may be the same."""
        return [name for name in (self.label, *(getattr(self, role) for role in _ROLES)) if name is not None]

    @property
    def row_ids(self) -> list[str]:
        """The columns of queries that may hold the ids of their rows, the best first: the record id, record_id, id."""
        taken = {*self.used, self.label}
        return [name for name in (self.record_id, *ROW_IDS) if name is not None and name not in taken]

    @cached_property
    def used(self) -> dict[str, Column]:
        """The columns that are not ignored."""
        return {name: column for name, column in self.columns.items() if not isinstance(column, Ignored)}

    @cached_property
    def _places(self) -> dict[str, list[str]]:
        return {name: column.places for name, column in self.used.items()}

    @cached_property
    def places(self) -> list[str]:
        """A name for every coordinate of a row."""
        return [f"{name}: {place}" for name, places in self._places.items() for place in places] + ["constant"]

    @property
    def n_features(self) -> int:
        """The length of a row."""
        return len(self.places)

    @cached_property
    def parts(self) -> dict[str, slice]:
        """The coordinates of each column, as a slice of the row."""
        ends = np.cumsum([0, *map(len, self._places.values())]).tolist()
        return {name: slice(low, high) for name, (low, high) in zip(self.used, pairwise(ends), strict=True)}

    def encode(self, table: Any, see: Callable[[Columns], None] | None = None) -> FloatArray:
        """The rows of a table as vectors. Only public constants are used.

        The table is a pandas, polars or Arrow frame, a dict of columns, or a list of dicts. Columns are found by name.
        A column that is missing, not in the schema, or of the wrong type is refused. The vector of a row depends only
        on that row, to the last bit (rule 1). `see` is called with the values of the columns.
        """
        values = self.read(table)
        if see is not None:
            see(values)
        rows = len(next(iter(values.values())))
        out = np.empty((rows, self.n_features))
        for low in range(0, rows, _CHUNK):
            part = slice(low, low + _CHUNK)
            for name, column in self.used.items():
                column.write(values[name][part], out[part, self.parts[name]])
        out[:, -1] = CONSTANT * sqrt(len(self.used))
        return out

    def split(self, table: Any) -> Split:
        """The feature columns, and the labels, owners and record ids if the table has them."""
        found = split_by(table, self.label, self.owner, self.record_id, self.expires, self.epsilon)
        dates = found.expires or []
        lacking = ((self.label, found.y), (self.owner, found.owners))
        hints = tuple(f"; the schema calls it {name!r}" if name and part is None else "" for name, part in lacking)
        until = [None if is_missing(day, self.blanks) else day for day in dates] or found.expires
        return replace(found, expires=until, hints=hints)

    def split_queries(self, table: Any) -> Split:
        """The feature columns of queries, and the ids of their rows, in `record_ids`, if the table has them."""
        columns = columns_of(table)
        ids = next((name for name in self.row_ids if name in columns), None)
        return split_by(columns, self.label, self.owner, ids, self.expires, self.epsilon)

    def outside(self, table: Any) -> dict[str, float]:
        """For each column, the share of values that are beyond its bounds or not listed."""
        values = self.read(table)
        return {name: column.outside(values[name]) for name, column in self.used.items()}

    def read(self, table: Any) -> Columns:
        """The values of every column that is used. An error names the first wrong column."""
        return {name: self.used[name].read(column, name, self.blanks) for name, column in self.used_of(table).items()}

    def used_of(self, table: Any) -> Columns:
        """The columns of a table that are used, as they are. One that is missing or unknown is refused."""
        columns = columns_of(table)
        for name in columns:
            if name not in self.columns:
                hint = _one_column(columns) or meant(name, set(self.used) - set(columns))
                otherwise = ": list it there as ignored, or drop it"
                raise InvalidInputError(f"column {name!r} is not in the schema{hint or otherwise}")
        for name in self.used:
            if name not in columns:
                hint = meant(name, set(columns) - set(self.used))
                raise InvalidInputError(f"column {name!r} is missing: the table has only {', '.join(columns)}{hint}")
        return {name: columns[name] for name in self.used}


def _one_column(columns: Columns) -> str:
    """A hint for a table that was read with the wrong separator, so that all names are in one."""
    (name, *others) = columns
    found = next((mark for mark in _SEPARATORS if mark in name), None) if not others else None
    return "" if found is None else f"; the table was read as one column: say that {found!r} is between its columns"


def vectors_of(X: Any, schema: Schema | None) -> Any:
    """Vectors of queries. A table is encoded with the schema. Without a schema, X must hold vectors or Arrow lists.

    An array has no column names. So an array is taken for vectors that the schema has made before, and its rows must
    have the length of such vectors.
    """
    if schema is None:
        return rows_in(X)
    if is_table(X):
        return schema.encode(schema.split_queries(X).features)
    shape = np.shape(X)
    if len(shape) != 2 or shape[1] != schema.n_features:
        wanted = f"a table with column names, or vectors of {schema.n_features} numbers that the schema has made"
        raise InvalidInputError(f"this takes {wanted}, got shape {shape}")
    return X


def records_of(
    schema: Schema | None, given: Given, see: Callable[[Columns], None] | None = None, whole: bool = False
) -> Given:
    """The same with vectors. A table may also hold the other parts. `see` is called with the values of a table.

    If it must be `whole`, one without the label or the owner of its schema is refused: nobody is guessed (rule 13).
    """
    if schema is None or not is_table(given.X):
        return given._replace(X=vectors_of(given.X, schema))
    split = schema.split(given.X)
    parts = {name: getattr(split, name) for name in Given._fields[1:]}
    held = {name: part for name, part in parts.items() if part is not None}
    for name in held:
        if getattr(given, name) is not None:
            raise InvalidInputError(f"{name} must be given once: the table has a column for it")
    found = given._replace(X=schema.encode(split.features, see), **held)
    for part, hint in zip(("y", "owners"), split.hints, strict=True):
        if whole and hint and getattr(found, part) is None:
            raise InvalidInputError(f"the table has no {part}{hint}: add the column, or give {part}=")
    return found


def read_schema(source: Schema | Mapping[str, Any] | str | Path) -> Schema:
    """A schema from a file, or from the dict that such a file holds. A `Schema` is returned unchanged."""
    if isinstance(source, Schema):
        return source
    if isinstance(source, Mapping):
        return from_plain(source)
    path = Path(source)
    if not path.is_file():
        raise InvalidInputError(f"schema: {missing(path)}")
    try:
        return from_plain(_parse(path.read_text(encoding="utf-8"), path))
    except IndKNNError as error:
        raise InvalidInputError(f"{path}: {error}") from None


def _parse(text: str, path: Path) -> Any:
    if path.suffix not in _YAML:
        try:
            return json.loads(text)
        except ValueError as error:
            raise InvalidInputError(f"not readable as JSON ({error}); a YAML file must end in .yaml") from None
    try:
        return _yaml().load(text, _loader())
    except _yaml().YAMLError as error:
        raise InvalidInputError(f"not readable as YAML ({' '.join(str(error).split())})") from None


def _loader() -> Any:
    """A loader that keeps every value as text, except whole numbers without quotes.

    Otherwise YAML would read the country code NO as false. The class 0 is a number here, and "0" is a text.
    """
    loader: Any = type("Loader", (_yaml().BaseLoader,), {})
    whole = "tag:yaml.org,2002:int"
    loader.add_implicit_resolver(whole, re.compile(r"(0|-?[1-9][0-9]{0,17})$"), list("-0123456789"))
    loader.add_constructor(whole, lambda made, node: int(made.construct_scalar(node)))
    return loader


def from_plain(plain: Mapping[str, Any]) -> Schema:
    """A schema from dicts, lists, texts and numbers.

    >>> from_plain({"columns": {"age": {"kind": "number", "bounds": [0, "100"]}}}).used["age"].bounds
    (0, 100)
    """
    if not isinstance(plain, Mapping) or not isinstance(plain.get("columns"), Mapping):
        raise InvalidInputError("a schema must have 'columns', by name")
    _refuse_unknown("the schema", plain, _TOP)
    if str(plain.get("version", VERSION)) != str(VERSION):
        raise InvalidInputError(f"version must be {VERSION}, got {plain['version']!r}: made by a newer indknn?")
    label = plain.get("label") or {}
    if not isinstance(label, Mapping):
        label = {"column": label}
    _refuse_unknown("label", label, {"column", "classes", "bounds"})
    roles = {name: _name(plain.get(name), name) for name in _ROLES}
    return Schema(
        {str(name): _column(str(name), about) for name, about in plain["columns"].items()},
        label=_name(label.get("column"), "label"),
        classes=_classes(label.get("classes", ())),
        blanks=_texts(plain.get("blanks", ("",)), "blanks"),
        bounds=None if label.get("bounds") is None else as_bounds(label["bounds"]),
        **roles,
    )


def to_plain(schema: Schema) -> dict[str, Any]:
    """A schema as dicts, lists, texts and numbers, for `from_plain`. Default values are left out."""
    plain: dict[str, Any] = {"version": VERSION}
    if schema.label is not None:
        plain["label"] = {"column": schema.label, **({"classes": list(schema.classes)} if schema.classes else {})}
        if schema.bounds is not None:
            plain["label"]["bounds"] = list(schema.bounds)
    plain |= {name: value for name in _ROLES if (value := getattr(schema, name)) is not None}
    if schema.blanks != ("",):
        plain["blanks"] = list(schema.blanks)
    plain["columns"] = {name: _about(column) for name, column in schema.columns.items()}
    return plain


def schema_text(schema: Schema, *, as_yaml: bool, notes: tuple[str, ...] = ()) -> str:
    """The schema as JSON or YAML. In YAML, notes become comments."""
    plain = to_plain(schema)
    if not as_yaml:
        return json.dumps(plain, indent=2, ensure_ascii=False) + "\n"
    body: str = _yaml().safe_dump(plain, sort_keys=False, default_flow_style=None, width=110, allow_unicode=True)
    return "".join(f"# {note}\n" for note in notes) + body


def is_yaml(path: Path) -> bool:
    """Whether a file of this name holds YAML."""
    return path.suffix in _YAML


def _about(column: Column) -> dict[str, Any]:
    about: dict[str, Any] = {"kind": column.kind}
    for one in fields(column):
        value = getattr(column, one.name)
        if value != one.default:
            about[one.name] = list(value) if isinstance(value, tuple) else value
    return about


def _column(name: str, about: Any) -> Column:
    if isinstance(about, str):
        about = {"kind": about}
    kind = about.get("kind") if isinstance(about, Mapping) else None
    if kind not in KINDS:
        raise InvalidInputError(
            f"column {name!r}: kind must be one of {', '.join(KINDS)}, got {kind!r}{meant(str(kind), KINDS)}"
        )
    made = KINDS[kind]
    known = {one.name for one in fields(made)}
    _refuse_unknown(f"column {name!r}", about, known | {"kind"})
    try:
        return made(**{key: _value(key, value) for key, value in about.items() if key != "kind"})
    except (InvalidInputError, TypeError) as error:
        raise InvalidInputError(f"column {name!r}: {error}") from None


def _value(key: str, value: Any) -> Any:
    if key in {"values", "yes", "no"} and isinstance(value, list):
        return tuple(str(one) for one in value)  # JSON may have numbers there
    return tuple(value) if isinstance(value, list) else value


def _refuse_unknown(where: str, given: Mapping[str, Any], known: set[str]) -> None:
    unknown = sorted(str(key) for key in given if key not in known)
    if unknown:
        hint = meant(unknown[0], known)
        raise InvalidInputError(f"{where} must have only {', '.join(sorted(known))}, got {unknown[0]!r}{hint}")


def _name(value: Any, what: str) -> str | None:
    value = str(value) if type(value) is int else value
    if value is not None and (not isinstance(value, str) or not value):
        raise InvalidInputError(f"{what} must be the name of a column, got {value!r}")
    return value


def _texts(values: Any, what: str) -> tuple[str, ...]:
    if isinstance(values, str) or not all(isinstance(value, str | int) for value in values):
        raise InvalidInputError(f"{what} must be a list of texts, got {values!r}")
    return tuple(map(str, values))


def _classes(values: Any) -> tuple[Any, ...]:
    """Labels, as they are written: 0 is a number and "0" is a text. If their kinds differ, all are texts."""
    if isinstance(values, str) or not isinstance(values, list | tuple):
        raise InvalidInputError(f"classes must be a list of labels, got {values!r}")
    same = len({type(value) for value in values}) == 1 and isinstance(values[0], str | int)
    return tuple(values) if same else tuple(map(str, values))


def _yaml() -> Any:
    try:
        return needs("yaml", "tables", "a schema in YAML")
    except InvalidInputError as error:
        raise IndKNNError(f"{error}; or write the schema as JSON") from None
