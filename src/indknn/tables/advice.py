"""Warnings for an analyst whose queries do not fit the schema. Queries are public, so they reveal nothing private."""

from __future__ import annotations

from typing import Any

from indknn.tables.categorical import Category
from indknn.tables.check import most_outside
from indknn.tables.schema import Schema
from indknn.tables.values import columns_of, is_table

_FEWEST = 50
"""With fewer queries than this, there is no warning."""


class Outside:
    """Counts how many values of the queries are beyond the bounds or not listed. It can take several tables.

    >>> from indknn.tables import Number
    >>> outside = Outside(Schema({"age": Number(bounds=(0, 100))}))
    >>> outside.see({"age": [20, 180] * 30})
    >>> [str(one) for one in outside.advice()]
    ["50% of the queries are beyond the bounds of column 'age' and were clipped: are they in the unit of the schema?"]
    """

    def __init__(self, schema: Schema):
        self._schema = schema
        self._rows = 0
        self._outside = dict.fromkeys(schema.used, 0.0)

    def see(self, table: Any) -> None:
        """Count the values of these queries. The error about a wrong column names the column."""
        columns = columns_of(table)
        rows = len(next(iter(columns.values()), ()))
        for name, share in self._schema.outside(columns).items():
            self._outside[name] += share * rows
        self._rows += rows

    def advice(self) -> list[Warning]:
        """A warning for every column with many values beyond the bounds or not listed."""
        found: list[Warning] = []
        for name, count in self._outside.items():
            column = self._schema.columns[name]
            if self._rows < _FEWEST or count <= most_outside(column) * self._rows:
                continue
            text = f"are beyond the bounds of column {name!r} and were clipped: are they in the unit of the schema?"
            if isinstance(column, Category):
                text = f"have values in column {name!r} that the schema does not list: are they spelled as there?"
            found.append(UserWarning(f"{count / self._rows:.0%} of the queries {text}"))
        return found


def about_queries(schema: Schema | None, table: Any) -> list[Warning]:
    """The warnings for one table. The list is empty if there is no schema, or if the queries are vectors."""
    if schema is None or not is_table(table):
        return []
    outside = Outside(schema)
    outside.see(schema.split(table).features)
    return outside.advice()
