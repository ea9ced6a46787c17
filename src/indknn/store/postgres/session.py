"""A connection to PostgreSQL with the interface of `home.Connection`.

It tells the books of every row that is written, and refuses transactions after a takeover. SQLite's triggers call this
process for every row. PostgreSQL cannot do that, and the key of the books must not be used in the database server. So
rows are written by a few methods alone, and each knows its rows: new rows are the values that are sent, and old rows
are read in the same transaction.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import islice
from typing import Any, Self

import psycopg
from psycopg.abc import Buffer
from psycopg.types.json import Json, set_json_dumps, set_json_loads
from psycopg.types.string import StrBinaryDumper, StrDumper, TextBinaryLoader, TextLoader

from indknn.errors import FencedError, StoreError
from indknn.store.connection import Books
from indknn.store.postgres import leases
from indknn.store.postgres.leases import Lease
from indknn.store.tables import TABLES, Table

_PIECE = 4096
logging.getLogger("psycopg").addHandler(logging.NullHandler())  # what goes wrong is raised


class Rows(list[Any]):
    """Rows that were received."""

    @property
    def get(self) -> Any:
        """The only value of the first row. None if there is no row."""
        row = self.fetchone()
        return row if row is None or len(row) > 1 else row[0]

    def fetchone(self) -> Any:
        """The first row. None if there is none."""
        return self[0] if self else None

    def fetchall(self) -> list[Any]:
        """All rows."""
        return self


class Session:
    """An open store in a database. A transaction begins by reading and locking the lease.

    Reading alone is not enough. A process could take over between the reading and the commit, and read the store
    without what is committed then. With FOR SHARE, either the process that takes over waits for this transaction, or
    this transaction is refused.
    """

    lease_lock = "FOR SHARE"
    books: Books

    def __init__(self, pg: psycopg.Connection, *, read_only: bool = False):
        self.pg = pg
        self.lease: Lease | None = None
        """What must still be in the row of the lease in every transaction."""
        self._read_only = read_only
        self._inside = self._enclosed = False
        register_text(pg)
        set_json_dumps(any_dumps, pg)
        set_json_loads(any_loads, pg)

    def close(self) -> None:
        """Close the connection, even if the server fails."""
        with suppress(psycopg.Error):
            self.pg.close()

    def readonly(self, _: str = "main") -> bool:
        """Whether nothing can be written."""
        return self._read_only

    def keep(self, books: Books) -> None:
        """Tell these books of every row that is written from now on."""
        self.books = books

    # Transactions

    def __enter__(self) -> Self:
        if self._enclosed:
            return self
        assert not self._inside, "transactions are not nested"
        with translated():
            rows = self.pg.execute(f"BEGIN; {leases.LOOK} {self.lease_lock}".encode())
            rows.nextset()
            row = rows.fetchone()
        self._inside = True
        if self.lease is not None and (row is None or Lease(*row) != self.lease):
            self._roll_back()
            raise FencedError(
                "another process has taken this store over, or it was restored: nothing was written; stop this process"
            )
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if self._enclosed:
            return
        if kind is not None:
            self._roll_back()
            return
        self._inside = False
        try:
            done = self.pg.execute("COMMIT").statusmessage
        except psycopg.Error as lost:
            with suppress(psycopg.Error):
                self.pg.close()  # do not ask the server again on a connection in an unknown state
            words = f"it is not known whether this was written ({_words(lost)}); ask again with the same request id"
            raise StoreError(words) from None
        if done != "COMMIT":
            raise StoreError("nothing was changed, because the database ended the transaction")

    def _roll_back(self) -> None:
        self._inside = False
        with suppress(psycopg.Error):
            self.pg.execute("ROLLBACK")

    @contextmanager
    def enclosed(self) -> Iterator[None]:
        """Be part of a transaction that the caller begins and ends. Meanwhile `with` does nothing."""
        self._enclosed = self._inside = True
        yield
        self._enclosed = self._inside = False

    # Rows

    def execute(self, sql: str, values: Sequence[Any] | None = None) -> Rows:
        """Run a SELECT."""
        assert sql.startswith("SELECT"), "the books would not know what this writes"
        with translated():
            return Rows(self._ask(sql.replace("%", "%%").replace("?", "%s"), values))

    def scan(self, sql: str) -> Iterator[Any]:
        """The rows of a large table, without holding them all. No other statement may run meanwhile."""
        with translated(), self.pg.transaction(), self.pg.cursor("scan", binary=True) as cursor:
            cursor.itersize = _PIECE
            cursor.execute(sql.encode())
            yield from cursor

    def insert(self, table: str, rows: Iterable[tuple[Any, ...]]) -> None:
        """Write new rows."""
        with translated():
            for piece in self._pieces(rows):
                self._enter(TABLES[table], piece)

    def upsert(self, table: str, rows: Iterable[tuple[Any, ...]]) -> None:
        """Write rows, each in place of the one with its key, if there is one."""
        made = TABLES[table]
        kinds = ", ".join(f"%s::{kind}[]" for kind in made.postgres_types[: made.key])
        old = f"SELECT {made.names} FROM {table} WHERE ({', '.join(made.keys)}) IN (SELECT * FROM unnest({kinds}))"
        with translated():
            for piece in self._pieces(rows):
                keys = [list(part) for part in zip(*(row[: made.key] for row in piece), strict=True)]
                assert len(set(zip(*keys, strict=True))) == len(piece), "a key occurs twice"
                known = set()
                for row in self._ask(old, keys):
                    self.books.struck(table, *row)
                    known.add(row[: made.key])
                self._enter(made, [row for row in piece if row[: made.key] not in known])
                self._enter(made, [row for row in piece if row[: made.key] in known], made.upsert("%s"))

    def delete(self, table: str, keys: Iterable[tuple[Any, ...]]) -> None:
        """Delete the rows with these keys."""
        statement = f"{TABLES[table].delete('%s')} RETURNING {TABLES[table].names}"
        with translated():
            for piece in self._pieces(keys):
                cursor: psycopg.Cursor[tuple[Any, ...]] = self.pg.cursor(binary=True)
                cursor.executemany(statement.encode(), piece, returning=True)
                for found in cursor.results():
                    for row in found:
                        self.books.struck(table, *row)

    def clear(self, table: str) -> None:
        """Delete all rows."""
        assert self._inside, "only a transaction writes"
        with translated():
            self.pg.execute(f"DELETE FROM {table}".encode())
        self.books.emptied(table)

    def _pieces(self, rows: Iterable[tuple[Any, ...]]) -> Iterator[list[tuple[Any, ...]]]:
        """Some rows at a time."""
        assert self._inside, "only a transaction writes"
        left = iter(rows)
        while piece := [tuple(row) for row in islice(left, _PIECE)]:
            yield piece

    def _ask(self, sql: str, values: Sequence[Any] | None = None) -> list[Any]:
        return self.pg.execute(sql.encode(), values, binary=True).fetchall()

    def _enter(self, table: Table, rows: list[tuple[Any, ...]], statement: str = "") -> None:
        """Write rows with this statement, or new rows in the fastest way."""
        if table.summed:
            for row in rows:
                self.books.entered(table.name, *row)
        if "any" in table.columns.values():
            rows = [(name, Json(value)) for name, value in rows]
        if len(rows) == 1:  # mostly: this avoids the round trips of a copy or a pipeline
            self.pg.execute((statement or table.insert("%s")).encode(), rows[0])
        elif rows and statement:
            self.pg.cursor().executemany(statement.encode(), rows)
        elif rows:
            into = f"COPY {table.name} FROM STDIN (FORMAT BINARY)"
            with self.pg.cursor() as cursor, cursor.copy(into.encode()) as copy:
                copy.set_types(table.postgres_types)
                for row in rows:
                    copy.write_row(row)


@contextmanager
def translated(words: Callable[[str], str] = lambda text: f"PostgreSQL says: {text}") -> Iterator[None]:
    """Turn errors of the driver into ours, with the first line only: details may hold values of rows, or an address."""
    try:
        yield
    except psycopg.Error as error:
        raise StoreError(words(_words(error))) from None


def _words(error: psycopg.Error) -> str:
    primary = error.diag.message_primary
    return primary or str(error).strip().partition("\n")[0]


# Values that PostgreSQL does not accept: texts with a NUL, and values of any type in one column


def any_dumps(value: Any) -> str:
    """A value of `meta`: text, a number, or bytes.

    >>> any_loads(any_dumps(b"key")), any_loads(any_dumps(0.1))
    (b'key', 0.1)
    """
    return json.dumps({"hex": value.hex()} if isinstance(value, bytes) else value)


def any_loads(text: str | bytes) -> Any:
    """What `any_dumps` wrote."""
    value = json.loads(text)
    return bytes.fromhex(value["hex"]) if isinstance(value, dict) else value


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\0", "\\0") if "\\" in text or "\0" in text else text


def _plain(text: Any) -> str:
    assert isinstance(text, str)
    return text if "\\" not in text else "\\".join(part.replace("\\0", "\0") for part in text.split("\\\\"))


class _Dumper(StrDumper):
    def dump(self, obj: str) -> Buffer | None:
        return super().dump(_escaped(obj))


class _BinaryDumper(StrBinaryDumper):
    def dump(self, obj: str) -> Buffer | None:
        return super().dump(_escaped(obj))


class _Loader(TextLoader):
    def load(self, data: Buffer) -> str:
        return _plain(super().load(data))


class _BinaryLoader(TextBinaryLoader):
    def load(self, data: Buffer) -> str:
        return _plain(super().load(data))


def register_text(pg: psycopg.Connection) -> None:
    """Escape texts in both directions, so that a name with a NUL works as in a file."""
    for dumper in (_Dumper, _BinaryDumper):
        pg.adapters.register_dumper(str, dumper)
    for loader in (_Loader, _BinaryLoader):
        pg.adapters.register_loader("text", loader)
