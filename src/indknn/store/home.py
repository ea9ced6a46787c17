"""What a store asks of where it is kept: a connection that runs SQL, and a home that opens, locks and erases.

The SQL of the store is the same everywhere. What a file and a database do differently is in one class each:
`filehome.FileHome` for a SQLite file, `postgres.home.DatabaseHome` for PostgreSQL.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, Self, runtime_checkable

from indknn.errors import StoreError
from indknn.place import Address, Place, place_of

if TYPE_CHECKING:
    from indknn.engine import Engine


class Rows(Protocol):
    """The result of a statement. It is read once."""

    @property
    def get(self) -> Any:
        """The only value of the first row; None where there is no row."""
        ...

    def fetchone(self) -> Any:
        """The next row as a tuple; None behind the last."""
        ...

    def fetchall(self) -> list[Any]:
        """All rows that are left."""
        ...

    def __iter__(self) -> Iterator[Any]: ...

    def __next__(self) -> Any: ...


class Connection(Protocol):
    """An open store. `with` is a transaction: everything in it is written, durably, or nothing is.

    Statements keep to what every engine knows: `?` for values, INSERT ... VALUES with ON CONFLICT (key) DO UPDATE,
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
    """A connection that tells the books itself which rows it writes."""

    def keep(self, books: Any, /) -> None:
        """Tell these books from here on; `SELECT books_digest()` asks them."""
        ...

    def scan(self, sql: str, /) -> Iterator[Any]:
        """The rows of a large table, without holding them all. Nothing else may be asked meanwhile."""
        ...


class Copy(Protocol):
    """A copy of a store that is being made, piece by piece, while the store is used."""

    def step(self) -> bool:
        """Copy some more, in a millisecond or so, while nobody writes; whether all of it is there now."""
        ...

    def opened(self) -> AbstractContextManager[Connection]:
        """The copy, to be read in any thread. It is gone afterwards."""
        ...


class Home(Protocol):
    """The place of a store. One process holds it at a time; those who only read may share it."""

    doubt: str
    """What to think of where rows are not as the audit trail has them."""

    @property
    def place(self) -> Place:
        """Where it is, to be shown."""
        ...

    @property
    def keys(self) -> Path:
        """The file of API keys."""
        ...

    def exists(self) -> bool:
        """Whether there is a store, or anything else in its place."""
        ...

    def create(self, fill: Callable[[Connection], None]) -> None:
        """Make an empty store, whole or not at all; `fill` writes its first rows. A store is never overwritten."""
        ...

    def hold(self, *, read_only: bool = False) -> None:
        """Have the store, or say who has it. It must exist."""
        ...

    def release(self) -> None:
        """Let others have it."""
        ...

    def connect(self, *, read_only: bool = False, synchronous: str = "FULL", vfs: str | None = None) -> Connection:
        """An open, checked, migrated store, of which everything is durable that it shows."""
        ...

    def close(self, db: Connection) -> None:
        """Close, whatever the disk or the server says."""
        ...

    def refuse_if_moved(self) -> None:
        """Before anything is written or read anew: it must still be the store that was opened."""
        ...

    def keep_room(self, engine: Engine, debits: int, *, only_if_grown: bool = False) -> None:
        """Keep enough space that people can be forgotten on a full disk, where that is ours to keep."""
        ...

    def give_room(self) -> bool:
        """Give that space back; whether there was any."""
        ...

    def empty_log(self, db: Connection) -> bool:
        """Old bytes were erased: overwrite them in the log too, where that can be done at once. As `give_room`."""
        ...

    def copy(self, db: Connection) -> Copy:
        """Begin a copy of the open store, to be checked beside it."""
        ...

    def defects(self, db: Connection) -> Iterator[str]:
        """What the engine itself finds wrong with how its rows are kept."""
        ...

    def take_over(self) -> str:
        """Shut out whoever has the store, and say who that was."""
        ...

    def rewrite(self) -> Any:
        """Write anew what still holds old bytes; `postgres.erasure.Rewritten`, or None where nothing does."""
        ...

    def old_bytes(self, db: Connection) -> list[str]:
        """Why bytes of those who were erased may still be there; nothing where they are known to be gone."""
        ...

    def erasure(self, db: Connection) -> dict[str, Any]:
        """What a receipt says of old bytes."""
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
        raise StoreError(f"a store in PostgreSQL needs {missing.name!r}: pip install 'indknn[postgres]'") from None
    return DatabaseHome(place)
