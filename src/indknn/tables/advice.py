"""What to tell somebody whose queries do not fit the schema. Queries are public, so this says nothing of anybody."""

from __future__ import annotations

from typing import Any

from indknn.tables.categorical import Category
from indknn.tables.check import most_outside
from indknn.tables.schema import Schema
from indknn.tables.values import columns_of, is_table

_FEWEST = 50
"""Fewer queries say nothing about a column."""


class Outside:
    """Counts, over tables of queries, what is beyond the bounds or not listed.

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
        """Take in some queries; a wrong column is refused by name."""
        columns = columns_of(table)
        rows = len(next(iter(columns.values()), ()))
        for name, share in self._schema.outside(columns).items():
            self._outside[name] += share * rows
        self._rows += rows

    def advice(self) -> list[Warning]:
        """A line for every column of which much lies outside."""
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
    """The same for one table; nothing where there is no schema, or where X holds vectors."""
    if schema is None or not is_table(table):
        return []
    outside = Outside(schema)
    outside.see(schema.split(table).features)
    return outside.advice()
