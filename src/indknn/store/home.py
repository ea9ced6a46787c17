"""What a store needs from the place where it is kept: a connection that runs SQL, and a home that opens and locks.

The SQL of the store is the same everywhere. What differs is in one class each: `filehome.FileHome` for a SQLite file,
`postgres.home.DatabaseHome` for PostgreSQL.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, Self, runtime_checkable

from indknn.errors import StoreError, to_install
from indknn.place import Address, Place, place_of

if TYPE_CHECKING:
    from indknn.engine import Engine


class Rows(Protocol):
    """The result of a statement. It is read once."""

    @property
    def get(self) -> Any:
        """The only value of the first row. None if there is no row."""
        ...

    def fetchone(self) -> Any:
        """The next row as a tuple. None after the last."""
        ...

    def fetchall(self) -> list[Any]:
        """All remaining rows."""
        ...

    def __iter__(self) -> Iterator[Any]: ...

    def __next__(self) -> Any: ...


class Connection(Protocol):
    """An open store. `with` is a transaction: either everything in it is written, durably, or nothing.

    Statements use only what every engine knows: `?` for values, INSERT ... VALUES with ON CONFLICT (key) DO UPDATE,
    UPDATE ... SET ... WHERE, DELETE ... WHERE, SELECT. Only statements inside a transaction may write.
    """

    def execute(self, sql: str, values: Sequence[Any] | None = None, /) -> Rows:
        """Run one statement."""
        ...

    def executemany(self, sql: str, rows: Iterable[Sequence[Any]], /) -> Any:
        """Run a statement once for each row."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(self, *error: Any) -> bool | None: ...

    def readonly(self, name: str, /) -> bool:
        """Whether nothing can be written."""
        ...


@runtime_checkable
class BookedConnection(Connection, Protocol):
    """A connection that itself reports to the books which rows it writes."""

    def keep(self, books: Any, /) -> None:
        """Report to these books from now on. `SELECT books_digest()` returns their digest."""
        ...

    def scan(self, sql: str, /) -> Iterator[Any]:
        """The rows of a large table, without holding them all. No other statement may run meanwhile."""
        ...


class Copy(Protocol):
    """A copy of a store that is made piece by piece, while the store is used."""

    def step(self) -> bool:
        """Copy some more, in about a millisecond, while nobody writes. Returns whether the copy is complete."""
        ...

    def opened(self) -> AbstractContextManager[Connection]:
        """The copy, for reading in any thread. It is deleted afterwards."""
        ...


class Home(Protocol):
    """The place of a store. One process holds it at a time. Processes that only read may share it."""

    doubt: str
    """What may have happened if rows do not agree with the audit trail."""

    @property
    def place(self) -> Place:
        """Where it is, in a form that can be shown."""
        ...

    @property
    def keys(self) -> Path:
        """The file of API keys."""
        ...

    def exists(self) -> bool:
        """Whether there is a store, or anything else in its place."""
        ...

    def create(self, fill: Callable[[Connection], None]) -> None:
        """Make an empty store, completely or not at all.

        `fill` writes its first rows. An existing store is never overwritten.
        """
        ...

    def hold(self, *, read_only: bool = False) -> None:
        """Take the store, or raise an error that says who has it. It must exist."""
        ...

    def release(self) -> None:
        """Release the store."""
        ...

    def connect(self, *, read_only: bool = False, synchronous: str = "FULL", vfs: str | None = None) -> Connection:
        """An open, checked and migrated store. Everything that it shows is durable."""
        ...

    def close(self, db: Connection) -> None:
        """Close, even if the disk or the server fails."""
        ...

    def refuse_if_moved(self) -> None:
        """Refuse if this is no longer the store that was opened. Called before writing, and before reading again."""
        ...

    def still_held(self, db: Connection) -> bool:
        """Whether this process still has the store, or somebody took it over. A short read, in no transaction.

        StoreError if that cannot be known now.
        """
        ...

    def keep_room(self, engine: Engine, debits: int, *, only_if_grown: bool = False) -> None:
        """Reserve space so that people can be forgotten on a full disk, if this process can do that."""
        ...

    def give_room(self) -> bool:
        """Give up the reserved space. Returns whether there was any."""
        ...

    def empty_log(self, db: Connection) -> bool:
        """Overwrite erased bytes in the log too, if that is possible at once. Returns the same as `give_room`."""
        ...

    def copy(self, db: Connection) -> Copy:
        """Begin a copy of the open store, which can be checked while the store is used."""
        ...

    def defects(self, db: Connection) -> Iterator[str]:
        """Errors that the database itself finds in its storage."""
        ...

    def take_over(self) -> str:
        """Take the store away from the process that has it. Returns who that was."""
        ...

    def rewrite(self) -> Any:
        """Write tables anew that still hold old bytes.

        Returns `postgres.erasure.Rewritten`, or None if nothing was needed.
        """
        ...

    def old_bytes(self, db: Connection) -> list[str]:
        """Why bytes of erased people may still be there. Empty if they are known to be gone."""
        ...

    def erasure(self, db: Connection) -> dict[str, Any]:
        """What a receipt says about old bytes."""
        ...


def scan(db: Connection, sql: str) -> Iterator[Any]:
    """The rows of a large table, without holding them all in memory."""
    return db.scan(sql) if isinstance(db, BookedConnection) else iter(db.execute(sql))


def home_of(where: str | Path | Address) -> Home:
    """The home that a path or an address means."""
    place = place_of(where)
    if isinstance(place, Path):
        from indknn.store.filehome import FileHome  # noqa: PLC0415

        return FileHome(place)
    try:
        from indknn.store.postgres.home import DatabaseHome  # noqa: PLC0415
    except ModuleNotFoundError as missing:
        raise StoreError(to_install(str(missing.name), "postgres", "a store in PostgreSQL")) from None
    return DatabaseHome(place)
