"""A connection to PostgreSQL with the interface of `chain.StoreConnection`, and who may write with it.

It tells the books of every row that is written, and refuses transactions after a takeover. SQLite's triggers call this
process for every row. PostgreSQL cannot do that, and the key of the books must not be used in the database server. So
rows are written by a few methods alone, and each knows its rows: new rows are the values that are sent, and old rows
are read in the same transaction.

Whoever may write has the one row of `leases` that has this id. A process that takes the store over writes the row anew.
Three things identify the holder of a lease, and every writing transaction compares them with the row locked: the epoch,
which counts; a random token in the text, which never repeats; and the transaction that wrote the row. A restored backup
brings back an epoch and a token, but another transaction writes the row. So nobody who was replaced becomes valid
again. A second process is refused while the session of the holder lives. The row says which session that is. There is
no lock for it, because anybody who may log in could take one.
"""

from __future__ import annotations

import json
import logging
import re
import secrets
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import islice
from time import monotonic, sleep
from typing import Any, Self

import psycopg
from psycopg.abc import Buffer
from psycopg.types.json import Json, set_json_dumps, set_json_loads
from psycopg.types.string import StrBinaryDumper, StrDumper, TextBinaryLoader, TextLoader

from indknn.errors import FencedError, StoreError, StoreLockedError
from indknn.store.chain import Books
from indknn.store.database import TABLES, Table

_ID = 0
LOOK = f"SELECT epoch, holder, xmin::text FROM leases WHERE id = {_ID}"
"""Reads what identifies the holder."""
_DATABASE = (
    "SELECT system_identifier || '/' || oid FROM pg_control_system(), pg_database WHERE datname = current_database()"
)
_SESSION = "SELECT usesysid, extract(epoch FROM backend_start) FROM pg_stat_activity WHERE pid = pg_backend_pid()"
# The start of a session of another role cannot be seen. Its number and role can.
_ALIVE = (
    "FROM pg_stat_activity WHERE pid = %(pid)s AND usesysid = %(role)s "
    "AND coalesce(extract(epoch FROM backend_start) = %(start)s::numeric, true) AND pid <> pg_backend_pid()"
)
_HOLDER = re.compile(r"(?P<who>.*) \(lease [0-9a-f]{32}(?:, session (?P<session>\d+ \d+ [\d.]*))?\)", re.DOTALL)
_PATIENCE, _PAUSE = 2.0, 0.05  # seconds; the server may still be ending the session of a process that was killed
_PIECE = 4096
_PERSONAL = ("records", "owners")  # features and names
logging.getLogger("psycopg").addHandler(logging.NullHandler())  # what goes wrong is raised


class Received(list[Any]):
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
        self.undone = False
        self._inside = self._enclosed = self._personal = False
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
            rows = self.pg.execute(f"BEGIN; {LOOK} {self.lease_lock}".encode())
            rows.nextset()
            row = rows.fetchone()
        self._inside, self._personal = True, False
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
            self.undone |= self._personal
            with suppress(psycopg.Error):
                self.pg.close()  # do not ask the server again on a connection in an unknown state
            words = f"it is not known whether this was written ({_words(lost)}); ask again with the same request id"
            raise StoreError(words) from None
        if done != "COMMIT":
            self.undone |= self._personal
            raise StoreError("nothing was changed, because the database ended the transaction")

    def _roll_back(self) -> None:
        self._inside = False
        self.undone |= self._personal
        with suppress(psycopg.Error):
            self.pg.execute("ROLLBACK")

    @contextmanager
    def enclosed(self) -> Iterator[None]:
        """Be part of a transaction that the caller begins and ends. Meanwhile `with` does nothing."""
        self._enclosed = self._inside = True
        yield
        self._enclosed = self._inside = False

    # Rows

    def execute(self, sql: str, values: Sequence[Any] | None = None) -> Received:
        """Run a SELECT."""
        assert sql.startswith("SELECT"), "the books would not know what this writes"
        with translated():
            return Received(self._ask(sql.replace("%", "%%").replace("?", "%s"), values))

    def scan(self, sql: str) -> Iterator[Any]:
        """The rows of a large table, without holding them all. No other statement may run meanwhile."""
        with translated(), self.pg.transaction(), self.pg.cursor("scan", binary=True) as cursor:
            cursor.itersize = _PIECE
            cursor.execute(sql.encode())
            yield from cursor

    def insert(self, table: str, rows: Iterable[tuple[Any, ...]]) -> None:
        """Write new rows."""
        self._personal |= table in _PERSONAL
        with translated():
            for piece in self._pieces(rows):
                self._enter(TABLES[table], piece)

    def upsert(self, table: str, rows: Iterable[tuple[Any, ...]]) -> None:
        """Write rows, each in place of the one with its key, if there is one."""
        made = TABLES[table]
        self._personal |= table in _PERSONAL
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


# Leases


@dataclass(frozen=True)
class Lease:
    """The row as somebody wrote it, in the transaction with the number `written`."""

    epoch: int
    holder: str
    written: str

    @property
    def who(self) -> str:
        """Who holds it, to show."""
        found = _HOLDER.fullmatch(self.holder)
        return found["who"] if found else self.holder

    @property
    def session(self) -> dict[str, object] | None:
        """The session of the holder. None if nobody holds it."""
        found = _HOLDER.fullmatch(self.holder)
        if found is None or found["session"] is None:
            return None
        pid, role, start = found["session"].split(" ")
        return {"pid": int(pid), "role": int(role), "start": start or None}


@dataclass(frozen=True)
class TakenLease:
    """A lease of this process, and the database it is in. A copy of the database is another one."""

    lease: Lease
    database: str


def look(pg: psycopg.Connection) -> Lease | None:
    """The lease as it is now. None if the row is gone."""
    row = pg.execute(LOOK.encode()).fetchone()
    return None if row is None else Lease(*row)


def take(pg: psycopg.Connection, place: str, holder: str, earlier: TakenLease | None = None) -> TakenLease:
    """Take the lease of the store.

    `earlier` is what this process held before. Then it is refused if anybody has written the lease since.
    """
    database, found = _database(pg), _current(pg, place)
    if earlier is not None:
        if TakenLease(found, database) != earlier:
            raise FencedError(
                f"{place} was taken over by {found.who}, or restored; stop this process, and open the store again"
            )
        _end_session(pg, found)  # a lost session of this process may still be running
    if _lives(pg, found):
        raise StoreLockedError(
            f"{place} is in use by {found.who}; a store has one writer at a time. If that process is lost: "
            "indknn takeover"
        )
    pid, (role, start) = pg.info.backend_pid, pg.execute(_SESSION).fetchone() or (0, None)
    taken = _write(pg, found, f"{holder} (lease {secrets.token_hex(16)}, session {pid} {role} {start or ''})")
    if taken is None:
        raise StoreLockedError(f"{place}: another process was quicker to open it")
    return TakenLease(taken, database)


def take_over(pg: psycopg.Connection, place: str, holder: str) -> str:
    """Take the store away from the process that has it, and return who that was. Then anybody can open it.

    Waits for an open transaction of the holder. If this role may not end the session of the holder, it lives on, and
    can write nothing.
    """
    found = _current(pg, place)
    _end_session(pg, found)
    if _write(pg, found, f"{holder} (lease {secrets.token_hex(16)})") is None:
        now = _current(pg, place)
        raise StoreLockedError(f"{place} was not taken over: {now.who} has it since; try again")
    return found.who


def _write(pg: psycopg.Connection, found: Lease, holder: str) -> Lease | None:
    """Write the lease anew. None if somebody else has written it since it was found."""
    row = pg.execute(
        f"UPDATE leases SET epoch = epoch + 1, holder = %s WHERE id = {_ID} AND epoch = %s AND holder = %s "
        "AND xmin::text = %s RETURNING epoch, holder, xmin::text".encode(),
        (holder, found.epoch, found.holder, found.written),
    ).fetchone()
    return None if row is None else Lease(*row)


def _end_session(pg: psycopg.Connection, found: Lease) -> None:
    """End the session of the holder, if this role may do that."""
    if found.session is not None:
        pg.execute(
            f"SELECT pg_terminate_backend(pid) {_ALIVE} AND usename = current_user".encode(),
            found.session,
        )


def _lives(pg: psycopg.Connection, found: Lease) -> bool:
    """Whether the session of the holder lives on."""
    end = monotonic() + _PATIENCE
    while found.session is not None and pg.execute(f"SELECT 1 {_ALIVE}".encode(), found.session).fetchone():
        if monotonic() >= end:
            return True
        sleep(_PAUSE)
    return False


def _current(pg: psycopg.Connection, place: str) -> Lease:
    found = look(pg)
    if found is None:
        raise StoreError(f"{place} has lost its lease; restore it from a backup")
    return found


def _database(pg: psycopg.Connection) -> str:
    (name,) = pg.execute(_DATABASE).fetchone() or ("",)
    return str(name)
