"""An open store: rows are read and written, and the books are told of every row that is written (rule 16).

The books are keyed sums over all rows. Every row of every table has a keyed hash. The sums of these hashes, one per
table, determine which rows there are. If a row is changed, deleted, added or set back to an older form, a sum changes.
In a file, triggers update the sums while this process writes, so no code can forget it. A database cannot call this
process, so there the methods that write rows update the sums (`postgres/session.py`). Each entry of the audit trail
holds a digest of the sums at that time. Opening a store reads every row once and compares.

The key is in the store. So this finds damage and careless edits by itself. To find deliberate edits, it needs a
witness, which keeps the audit trail's state elsewhere.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Protocol, Self

import apsw

from indknn.store.head import Head
from indknn.store.tables import SUMMED, TABLES, Table

_MODULUS = 1 << 256
_INSERT, _UPSERT, _DELETE = (
    {name: statement(table, "?") for name, table in TABLES.items()}
    for statement in (Table.insert, Table.upsert, Table.delete)
)


class Connection(Protocol):
    """An open store. `with` is a transaction: either everything in it is written, durably, or nothing.

    Only `insert`, `upsert`, `delete` and `clear` write rows, inside a transaction, and the books are told of them.
    """

    books: Books

    def keep(self, books: Books, /) -> None:
        """Tell these books of every row that is written from now on."""
        ...

    def execute(self, sql: str, values: Sequence[Any] | None = None, /) -> Any:
        """Run a SELECT, with `?` for values, in SQL that every database knows.

        The result is read once, as rows: all of them by a loop or `fetchall`, one by `fetchone`, a single value by
        `get`, which is None if there is no row.
        """
        ...

    def scan(self, sql: str, /) -> Iterator[Any]:
        """The rows of a large table, without holding them all. No other statement may run meanwhile."""
        ...

    def insert(self, table: str, rows: Iterable[tuple[Any, ...]], /) -> None:
        """Write new rows."""
        ...

    def upsert(self, table: str, rows: Iterable[tuple[Any, ...]], /) -> None:
        """Write rows, each in place of the one with its key, if there is one."""
        ...

    def delete(self, table: str, keys: Iterable[tuple[Any, ...]], /) -> None:
        """Delete the rows with these keys."""
        ...

    def clear(self, table: str, /) -> None:
        """Delete all rows."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(self, *error: Any) -> bool | None: ...

    def readonly(self, name: str, /) -> bool:
        """Whether nothing can be written."""
        ...

    def close(self) -> None:
        """Close the connection alone. A store is closed by its home."""
        ...


class Books:
    """The sums over the rows of a store. The audit trail holds their `digest`."""

    def __init__(self, key: bytes):
        self._sums = {table.name: 0 for table in SUMMED}
        self._hashers = {name: hashlib.blake2b(key=key, digest_size=32, person=name.encode()) for name in self._sums}
        self._digester = hashlib.blake2b(key=key, digest_size=32, person=b"books")

    def read(self, db: Connection) -> str:
        """Compute the sums from the rows in the store, and return their digest."""
        for table in SUMMED:
            hasher = self._hashers[table.name]
            total = sum(_hashed(hasher, row) for row in db.scan(f"SELECT {table.names} FROM {table.name}"))
            self._sums[table.name] = total % _MODULUS
        return self.digest()

    def digest(self) -> str:
        """A digest of all sums."""
        whole = self._digester.copy()
        for total in self._sums.values():
            whole.update(total.to_bytes(32, "little"))
        return whole.hexdigest()

    def entered(self, table: str, *row: Any) -> None:
        """Add a row that was written."""
        self._sums[table] = (self._sums[table] + _hashed(self._hashers[table], row)) % _MODULUS

    def struck(self, table: str, *row: Any) -> None:
        """Remove a row that was deleted, or that will be overwritten."""
        self._sums[table] = (self._sums[table] - _hashed(self._hashers[table], row)) % _MODULUS

    def emptied(self, table: str) -> None:
        """Remove all rows of a table that was emptied."""
        self._sums[table] = 0


def _hashed(hasher: Any, row: tuple[Any, ...]) -> int:
    """The keyed hash of a row as a number. Two different rows are never encoded in the same way."""
    parts: list[bytes] = []
    for value in row:
        if isinstance(value, bytes):
            parts += b"b%d;" % len(value), value
        elif isinstance(value, int):
            parts.append(b"i%d;" % value)
        elif isinstance(value, str):
            text = value.encode(errors="surrogatepass")
            parts += b"s%d;" % len(text), text
        else:
            parts.append(b"n;" if value is None else b"f%s;" % value.hex().encode())
    one = hasher.copy()
    one.update(b"".join(parts))
    return int.from_bytes(one.digest(), "little")


class FileConnection(apsw.Connection):
    """An open file. When `with` ends, a transaction is durable, and its head is written."""

    books: Books
    head: Head | None = None
    """The head, once the file was found to be complete and may be written."""

    def __enter__(self) -> Self:
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> bool:
        done = super().__exit__(*error)
        if self.head is not None and error[0] is None and not self.in_transaction:
            self.head.follow(*self.newest())
        return done

    def newest(self) -> tuple[int, bytes]:
        """The position and hash of the newest entry of the audit trail."""
        row: Any = self.execute("SELECT position, hash FROM audit ORDER BY position DESC LIMIT 1").fetchone()
        return int(row[0]), bytes(row[1])

    def keep(self, books: Books) -> None:
        """Let triggers tell these books of every row that is written from now on."""
        self.books = books
        functions: dict[str, Any] = {"entered": books.entered, "struck": books.struck}
        for name, function in functions.items():
            self.create_scalar_function(name, function)
        self.pragma("recursive_triggers", 1)  # otherwise REPLACE would delete rows without calling the triggers
        for table in SUMMED:
            old, new = (", ".join(f"{side}.{column}" for column in table.columns) for side in ("OLD", "NEW"))
            strike, enter = f"SELECT struck('{table.name}', {old});", f"SELECT entered('{table.name}', {new});"
            for event, work in (("INSERT", enter), ("DELETE", strike), ("UPDATE", strike + enter)):
                trigger = f"{table.name}_{event}"
                self.execute(f"CREATE TEMP TRIGGER {trigger} AFTER {event} ON main.{table.name} BEGIN {work} END")

    def scan(self, sql: str) -> Iterator[Any]:
        """The rows of a large table."""
        return iter(self.execute(sql))

    def insert(self, table: str, rows: Iterable[tuple[Any, ...]]) -> None:
        """Write new rows."""
        self.executemany(_INSERT[table], rows)

    def upsert(self, table: str, rows: Iterable[tuple[Any, ...]]) -> None:
        """Write rows, each in place of the one with its key, if there is one."""
        self.executemany(_UPSERT[table], rows)

    def delete(self, table: str, keys: Iterable[tuple[Any, ...]]) -> None:
        """Delete the rows with these keys."""
        self.executemany(_DELETE[table], keys)

    def clear(self, table: str) -> None:
        """Delete all rows."""
        self.execute(f"DELETE FROM {table}")
