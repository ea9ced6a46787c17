"""All writes to PostgreSQL go through here, so that the books know which rows were added and removed (rule 16).

SQLite's triggers call this process for every row. PostgreSQL cannot do that, and the key of the books must not be used
in the database server. So every writing statement has one of a few forms, and each form says how its rows are known:
new rows are the values that are sent, and old rows are read in the same transaction.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

from indknn.store.books import TABLES
from indknn.store.postgres.schema import COLUMNS, KEYS

_INSERT = re.compile(
    r"INSERT INTO (\w+)(?: \(([\w, ]+)\))? VALUES \([?, ]+\)"
    r"(?: ON CONFLICT \(([\w, ]+)\) DO UPDATE SET [\w=., ]+)?(?: RETURNING (\w+))?"
)
_UPDATE = re.compile(r"UPDATE (\w+) SET (.+?)(?:\s+WHERE (.+))?", re.DOTALL)
_DELETE = re.compile(r"DELETE FROM (\w+)(?: WHERE (.+))?", re.DOTALL)


@dataclass(frozen=True)
class Statement:
    """A statement of the store, and the PostgreSQL statements that carry it out. Rows are those of `books.TABLES`."""

    kind: str
    """select, other (a table without books), insert, upsert, update, delete or empty."""
    table: str
    do: str
    old: str = ""
    """For an upsert: reads the rows that have these keys."""
    numbered: bool = False
    """Whether the key is left out and becomes the next number."""
    where_values: int = 0
    """For an update: how many values belong to its WHERE, which is used twice."""


@lru_cache(maxsize=256)
def read(sql: str) -> Statement:
    """Parse a statement. A writing statement of an unknown form is refused."""
    text = sql.strip()
    if text.startswith(("SELECT", "WITH")):
        return Statement("select", "", _native(text))
    if found := _INSERT.fullmatch(text):
        table, named, conflict, _ = found.groups()
        if table in COLUMNS:
            return _insert(table, named, conflict)
    elif found := _UPDATE.fullmatch(text):
        table, change, where = found.groups()
        if table in COLUMNS:
            return _update(table, change, where)
    elif found := _DELETE.fullmatch(text):
        table, where = found.groups()
        if table in COLUMNS:
            kind = "empty" if where is None else "delete"
            return Statement(kind, table, _native(text + ("" if where is None else f" RETURNING {_names(table)}")))
    if re.match(r"INSERT INTO audit ", text):
        return Statement("other", "audit", _native(text))
    raise AssertionError(f"the books would not know what this writes: {text}")


def _insert(table: str, named: str | None, conflict: str | None) -> Statement:
    columns, key = TABLES[table], TABLES[table][: KEYS[table]]
    given = columns if named is None else tuple(named.split(", "))
    assert given in {columns, columns[1:]}
    assert conflict is None or tuple(conflict.split(", ")) == key
    do = f"INSERT INTO {table} VALUES ({', '.join(['%s'] * len(columns))})"
    if conflict is None:
        return Statement("insert", table, do, numbered=given != columns)
    change = ", ".join(f"{name} = excluded.{name}" for name in columns[len(key) :])
    kinds = ", ".join(f"%s::{kind}[]" for kind in COLUMNS[table][: len(key)])
    old = f"SELECT {_names(table)} FROM {table} WHERE ({', '.join(key)}) IN (SELECT * FROM unnest({kinds}))"
    return Statement("upsert", table, f"{do} ON CONFLICT ({', '.join(key)}) DO UPDATE SET {change}", old)


def _update(table: str, change: str, where: str | None) -> Statement:
    which = "" if where is None else f" WHERE {where}"
    # Both parts see the rows as they were before the statement, so `was` has the old rows.
    do = (
        f"WITH was AS MATERIALIZED (SELECT {_names(table)} FROM {table}{which}), "
        f"now AS (UPDATE {table} SET {change}{which} RETURNING {_names(table)}) "
        f"SELECT false AS entered, was.* FROM was UNION ALL SELECT true, now.* FROM now"
    )
    return Statement("update", table, _native(do), where_values=which.count("?"))


def _names(table: str) -> str:
    return ", ".join(TABLES[table])


def _native(sql: str) -> str:
    return sql.replace("%", "%%").replace("?", "%s")
