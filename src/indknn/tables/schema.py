"""A public schema. It describes the columns of a table and turns its rows into vectors.

A schema is written by hand, or made from a public sample (`indknn.tables.infer`). It is one of the public settings of a
store. It must never be fitted to private rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from math import sqrt
from typing import Any

import numpy as np
import numpy.typing as npt

from indknn.errors import InvalidInputError
from indknn.tables.arrow import rows_in
from indknn.tables.column import Column, Ignored
from indknn.tables.values import Columns, as_list, columns_of, is_table, lookup_of
from indknn.types import FloatArray

CONSTANT = 0.3
"""The last coordinate of every row is this number times the square root of the number of columns. It gives a linear
model on unit vectors an intercept. It is small, so that it hardly changes which rows are near each other."""
_CHUNK = 512  # rows at a time, so that their coordinates stay in the processor's cache


@dataclass(frozen=True)
class Split:
    """The parts of a table: the feature columns, and labels, owners and record ids if the table has them."""

    features: Columns
    y: npt.NDArray[Any] | None
    owners: list[Any] | None
    record_ids: list[Any] | None


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

    def __post_init__(self) -> None:
        """Check that every column has one meaning, and that at least one is used."""
        for name, column in self.columns.items():
            if not isinstance(column, Column):
                raise InvalidInputError(f"column {name!r} must be a kind of column such as Number, got {column!r}")
        roles = self.roles
        twice = [name for name in roles if name in self.columns or roles.count(name) > 1]
        if twice:
            raise InvalidInputError(f"column {twice[0]!r} must have one meaning: a feature, label, owner or record_id")
        if all(isinstance(column, Ignored) for column in self.columns.values()):
            raise InvalidInputError("a schema must have at least one column that is not ignored")

    @property
    def roles(self) -> list[str]:
        """The columns that hold the label, the owner and the record id."""
        return [name for name in (self.label, self.owner, self.record_id) if name is not None]

    @cached_property
    def used(self) -> dict[str, Column]:
        """The columns that are not ignored."""
        return {name: column for name, column in self.columns.items() if not isinstance(column, Ignored)}

    @cached_property
    def places(self) -> list[str]:
        """A name for every coordinate of a row."""
        return [f"{name}: {place}" for name, column in self.used.items() for place in column.places] + ["constant"]

    @property
    def n_features(self) -> int:
        """The length of a row."""
        return len(self.places)

    @cached_property
    def parts(self) -> dict[str, slice]:
        """The coordinates of each column, as a slice of the row."""
        ends = np.cumsum([0, *(len(column.places) for column in self.used.values())]).tolist()
        return {name: slice(low, high) for name, (low, high) in zip(self.used, pairwise(ends), strict=True)}

    def encode(self, table: Any) -> FloatArray:
        """The rows of a table as vectors. Only public constants are used.

        The table is a pandas, polars or Arrow frame, a dict of columns, or a list of dicts. Columns are found by name.
        A column that is missing, not in the schema, or of the wrong type is refused. The vector of a row depends only
        on that row, to the last bit (rule 1).
        """
        values = self._read(table)
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
        columns = columns_of(table)
        taken = {name: columns.pop(name) for name in self.roles if name in columns}
        y, owners, ids = (
            None if role is None else taken.get(role) for role in (self.label, self.owner, self.record_id)
        )
        return Split(
            columns,
            None if y is None else self._labels(as_list(y)),
            None if owners is None else as_list(owners),
            None if ids is None else as_list(ids),
        )

    def _labels(self, values: list[Any]) -> npt.NDArray[Any]:
        """Labels in the form of the classes, whether they came as text or numbers.

        If a label is not among the classes, all labels are returned unchanged.
        """
        codes = lookup_of(map(str, self.classes))
        try:
            return np.asarray([self.classes[codes[value]] for value in values])
        except (KeyError, TypeError):
            return np.asarray(values)

    def outside(self, table: Any) -> dict[str, float]:
        """For each column, the share of values that are beyond its bounds or not listed."""
        values = self._read(table)
        return {name: column.outside(values[name]) for name, column in self.used.items()}

    def _read(self, table: Any) -> Columns:
        """The values of every column that is used. An error names the first wrong column."""
        columns = columns_of(table)
        for name in columns:
            if name not in self.columns:
                raise InvalidInputError(f"column {name!r} is not in the schema: list it there as ignored, or drop it")
        for name in self.used:
            if name not in columns:
                raise InvalidInputError(f"column {name!r} is missing: the table has only {', '.join(columns)}")
        return {name: column.read(columns[name], name, self.blanks) for name, column in self.used.items()}


def vectors_of(X: Any, schema: Schema | None) -> Any:
    """Vectors from X. A table is encoded with the schema. Without a schema, X must hold vectors or Arrow lists.

    An array has no column names. So an array is taken for vectors that the schema has made before, and its rows must
    have the length of such vectors.
    """
    if schema is None:
        return rows_in(X)
    if is_table(X):
        return schema.encode(schema.split(X).features)
    shape = np.shape(X)
    if len(shape) != 2 or shape[1] != schema.n_features:
        wanted = f"a table with column names, or vectors of {schema.n_features} numbers that the schema has made"
        raise InvalidInputError(f"this takes {wanted}, got shape {shape}")
    return X


def records_of(
    schema: Schema | None, X: Any, y: Any = None, owners: Any = None, record_ids: Any = None
) -> tuple[Any, Any, Any, Any]:
    """Vectors, labels, owners and record ids. A table may hold all of them. Give separately what it does not hold."""
    if schema is None or not is_table(X):
        return vectors_of(X, schema), y, owners, record_ids
    split = schema.split(X)
    found = {"y": (split.y, y), "owners": (split.owners, owners), "record_ids": (split.record_ids, record_ids)}
    for name, (held, given) in found.items():
        if held is not None and given is not None:
            raise InvalidInputError(f"{name} must be given once: the table has a column for it")
    labels, names, ids = (given if held is None else held for held, given in found.values())
    return schema.encode(split.features), labels, names, ids
