"""The tables of a store in PostgreSQL.

They have the version of the file's schema, and `STEPS` correspond to its steps.
"""

from __future__ import annotations

import psycopg

from indknn.errors import StoreError
from indknn.store.books import TABLES
from indknn.store.schema import VERSION

COLUMNS = {
    "meta": ("text", "json"),
    "records": ("int8", "bytea"),
    "owners": ("int8", "int8", "bytea"),
    "scopes": ("int8", "text"),
    "balances": ("int8", "int8", "bytea"),
    "participation": ("int8", "bytea"),
    "answers": ("int8", "int8", "bytea", "float8", "int8", "text", "bytea"),
    "debits": ("int8", "bytea"),
    "requests": ("text", "bytea", "bytea", "int8"),
    "tombstones": ("bytea", "text", "int8"),
    "record_keys": ("int8", "bytea"),
    "joined": ("bytea", "text"),
    "additions": ("bytea", "bytea", "bytea", "int8"),
}
"""The types of the columns that `books.TABLES` names."""
KEYS = dict.fromkeys(COLUMNS, 1) | {"balances": 2}
"""How many of the first columns are the key."""
_OPEN = {("answers", "release")}  # columns that may be NULL


def _column(table: str, name: str, kind: str) -> str:
    collation = ' COLLATE "C"' if kind == "text" else ""
    return f"{name} {kind}{collation}" + ("" if (table, name) in _OPEN else " NOT NULL")


_TABLES = "\n".join(
    f"CREATE TABLE {table} ("
    + ", ".join(_column(table, name, kind) for name, kind in zip(TABLES[table], kinds, strict=True))
    + f", PRIMARY KEY ({', '.join(TABLES[table][: KEYS[table]])}));"
    for table, kinds in COLUMNS.items()
)
# ANALYZE keeps samples of values in a catalogue, which would outlive an erasure. So there are no statistics about
# personal data. Compression would only cost time: features, debits and hashes look like noise.
_PLAIN = "\n".join(
    f"ALTER TABLE {table} ALTER COLUMN {name} SET STATISTICS 0;"
    + (f" ALTER TABLE {table} ALTER COLUMN {name} SET STORAGE EXTERNAL;" if kind == "bytea" else "")
    for table, kinds in COLUMNS.items()
    for name, kind in zip(TABLES[table], kinds, strict=True)
    if kind in {"bytea", "text", "json"}
)
_VERSION_5 = f"""
{_TABLES}
{_PLAIN}
CREATE INDEX owners_by_slot ON owners (slot, number);
CREATE UNIQUE INDEX scopes_by_name ON scopes (name);
CREATE TABLE audit (
    position int8 PRIMARY KEY, at text NOT NULL, kind text NOT NULL, body text NOT NULL, hash bytea NOT NULL);

-- Who may write: a process that takes over raises the epoch, and every transaction of an earlier one is refused.
CREATE TABLE leases (id int8 PRIMARY KEY, epoch int8 NOT NULL, holder text NOT NULL);
INSERT INTO leases VALUES (0, 0, 'nobody');

CREATE FUNCTION zeroblob(length bigint) RETURNS bytea LANGUAGE sql IMMUTABLE STRICT
    AS $$ SELECT decode(repeat('00', length::int), 'hex') $$;
CREATE TABLE schema_version (version int8 NOT NULL);
INSERT INTO schema_version VALUES (5);
"""

FIRST = 5
STEPS = [_VERSION_5]
"""The first step makes version `FIRST`. Each later one takes a store from one version to the next."""


def create(pg: psycopg.Connection) -> None:
    """Make the tables, inside a transaction."""
    for number, step in enumerate(STEPS):
        _take(pg, FIRST + number, step)


def version_of(pg: psycopg.Connection) -> int:
    """The version of the tables. 0 if there are none."""
    if pg.execute("SELECT to_regclass('schema_version')").fetchone() == (None,):
        return 0
    row = pg.execute("SELECT version FROM schema_version").fetchone()
    return 0 if row is None else int(row[0])


def migrate(pg: psycopg.Connection, place: str) -> None:
    """Bring the tables to the version of this program. Refuses what is not a store, or is of a later version."""
    version = version_of(pg)
    if version == 0:
        raise StoreError(f"{place} does not exist; make a store with: indknn init {place}")
    if version > VERSION:
        raise StoreError(f"{place} has schema version {version}; this indknn knows versions up to {VERSION}")
    for number in range(version + 1, VERSION + 1):
        with pg.transaction():
            _take(pg, number, STEPS[number - FIRST])


def _take(pg: psycopg.Connection, number: int, step: str) -> None:
    pg.execute(step.encode())
    pg.execute("UPDATE schema_version SET version = %s", (number,))
