"""A connection to PostgreSQL with the interface of `home.Connection`.

It translates portable SQL, reports every write to the books, and refuses transactions after a takeover.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import islice
from typing import Any, Self

import psycopg
from psycopg.types.json import Json, set_json_dumps, set_json_loads

from indknn.errors import FencedError, StoreError
from indknn.store.books import TABLES, Books
from indknn.store.postgres import door, leases
from indknn.store.postgres.leases import Lease
from indknn.store.postgres.schema import COLUMNS, KEYS
from indknn.store.postgres.values import any_dumps, any_loads, register_text

_PIECE = 4096
logging.getLogger("psycopg").addHandler(logging.NullHandler())  # what goes wrong is raised
_DIGEST = "SELECT books_digest()"


class Rows:
    """Rows that were received."""

    def __init__(self, rows: Iterable[Any]):
        self._rows = iter(rows)

    @property
    def get(self) -> Any:
        """The only value of the first row. None if there is no row."""
        row = self.fetchone()
        return row if row is None or len(row) > 1 else row[0]

    def fetchone(self) -> Any:
        """The next row. None after the last."""
        return next(self._rows, None)

    def fetchall(self) -> list[Any]:
        """All remaining rows."""
        return list(self._rows)

    def __iter__(self) -> Iterator[Any]:
        return self._rows

    def __next__(self) -> Any:
        return next(self._rows)


class Session:
    """An open store in a database. A transaction begins by reading and locking the lease.

    Reading alone is not enough. A process could take over between the reading and the commit, and read the store
    without what is committed then. With FOR SHARE, either the process that takes over waits for this transaction, or
    this transaction is refused.
    """

    lease_lock = "FOR SHARE"

    def __init__(self, pg: psycopg.Connection, *, read_only: bool = False):
        self.pg = pg
        self.lease: Lease | None = None
        """What must still be in the row of the lease in every transaction."""
        self._books: Books | None = None
        self._read_only = read_only
        self._inside = self._enclosed = False
        register_text(pg)
        set_json_dumps(any_dumps, pg)
        set_json_loads(any_loads, pg)

    def readonly(self, _: str = "main") -> bool:
        """Whether nothing can be written."""
        return self._read_only

    def keep(self, books: Books) -> None:
        """Report every row that is written from now on to these books."""
        self._books = books

    # Transactions

    def __enter__(self) -> Self:
        if self._enclosed:
            return self
        assert not self._inside, "transactions are not nested"
        with told():
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

    # Statements

    def execute(self, sql: str, values: Sequence[Any] | None = None) -> Rows:
        """Run one statement."""
        if sql == _DIGEST:
            assert self._books is not None
            return Rows([(self._books.digest(),)])
        statement = door.read(sql)
        with told():
            if statement.kind == "select":
                return Rows(self._ask(statement.do, values))
            return self._write(statement, [tuple(values or ())])

    def executemany(self, sql: str, rows: Iterable[Sequence[Any]]) -> None:
        """Run a statement once for each row, in pieces."""
        statement, left = door.read(sql), iter(rows)
        while piece := [tuple(row) for row in islice(left, _PIECE)]:
            with told():
                self._write(statement, piece)

    def scan(self, sql: str) -> Iterator[Any]:
        """The rows of a large table, without holding them all. No other statement may run meanwhile."""
        with told(), self.pg.transaction(), self.pg.cursor("scan", binary=True) as cursor:
            cursor.itersize = _PIECE
            cursor.execute(sql.encode())
            yield from cursor

    def _ask(self, sql: str, values: Sequence[Any] | None = None) -> list[Any]:
        return self.pg.execute(sql.encode(), values, binary=True).fetchall()

    def _write(self, statement: door.Statement, rows: list[tuple[Any, ...]]) -> Rows:
        assert self._inside, "only a transaction writes"
        given: list[tuple[Any, ...]] = []
        if statement.kind == "other":
            self._send(statement.do, rows)
        elif statement.kind in {"insert", "upsert"}:
            given = self._enter(statement, rows)
        else:
            self._change(statement, rows)
        return Rows(given)

    def _change(self, statement: door.Statement, rows: list[tuple[Any, ...]]) -> None:
        books, table = self._kept(), statement.table
        if statement.kind == "empty":
            self.pg.execute(statement.do.encode())
            books.emptied(table)
            return
        if n := statement.where_values:
            rows = [(*row[-n:], *row) for row in rows]
        cursor: psycopg.Cursor[tuple[Any, ...]] = self.pg.cursor(binary=True)
        cursor.executemany(statement.do.encode(), rows, returning=True)
        for found in cursor.results():
            for row in found:
                if statement.kind == "delete":
                    books.struck(table, *row)
                else:
                    (books.entered if row[0] else books.struck)(table, *row[1:])

    def _enter(self, statement: door.Statement, rows: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
        """Write new rows, and replace existing rows. Returns the numbers that new rows were given."""
        table, books, n = statement.table, self._kept(), KEYS[statement.table]
        given: list[tuple[Any, ...]] = []
        if statement.numbered:
            ((first,),) = self._ask(f"SELECT coalesce(max({TABLES[table][0]}), 0) + 1 FROM {table}")
            rows = [(first + i, *row) for i, row in enumerate(rows)]
            given = [row[:1] for row in rows]
        known = set()
        if statement.kind == "upsert":
            keys = [list(part) for part in zip(*(row[:n] for row in rows), strict=True)]
            assert len(set(zip(*keys, strict=True))) == len(rows), "a key occurs twice"
            for row in self._ask(statement.old, keys):
                books.struck(table, *row)
                known.add(row[:n])
        for row in rows:
            books.entered(table, *row)
        if table == "meta":
            rows = [(name, Json(value)) for name, value in rows]
        changed = [row for row in rows if row[:n] in known] if known else []
        fresh = [row for row in rows if row[:n] not in known] if known else rows
        if len(fresh) > 1:  # faster than single statements, from the second row on
            with self.pg.cursor() as cursor, cursor.copy(f"COPY {table} FROM STDIN (FORMAT BINARY)".encode()) as copy:
                copy.set_types(COLUMNS[table])
                for row in fresh:
                    copy.write_row(row)
        else:
            changed += fresh
        self._send(statement.do, changed)
        return given

    def _send(self, sql: str, rows: list[tuple[Any, ...]]) -> None:
        if len(rows) == 1:  # most statements: this avoids the round trips of a pipeline
            self.pg.execute(sql.encode(), rows[0])
        elif rows:
            self.pg.cursor().executemany(sql.encode(), rows)

    def _kept(self) -> Books:
        assert self._books is not None, "nothing is written before the books are open"
        return self._books


@contextmanager
def told(what: Callable[[str], str] = lambda words: f"PostgreSQL says: {words}") -> Iterator[None]:
    """Turn errors of the driver into ours, with the first line only: details may hold values of rows, or an address."""
    try:
        yield
    except psycopg.Error as error:
        raise StoreError(what(_words(error))) from None


def _words(error: psycopg.Error) -> str:
    primary = error.diag.message_primary
    return primary or str(error).strip().partition("\n")[0]
