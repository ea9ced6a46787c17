"""The home of a store: the place where it is kept, how it is opened there, and who has it.

What differs between places is in one class each: `filehome.FileHome` for a SQLite file, `postgres.home.DatabaseHome`
for PostgreSQL.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from indknn.errors import StoreError, to_install
from indknn.place import Address, Place, keys_path, place_of
from indknn.store.connection import Connection

if TYPE_CHECKING:
    from indknn.engine import Engine


class Home(ABC):
    """The place of a store. One process holds it at a time. Processes that only read may share it."""

    doubt: str
    """What may have happened if rows do not agree with the audit trail."""

    def __init__(self, place: Place):
        self.place = place
        """Where it is, in a form that can be shown."""
        self.keys = keys_path(place)
        """The file of API keys: beside a file, or in a folder of this user."""

    @abstractmethod
    def exists(self) -> bool:
        """Whether there is a store, or anything else in its place."""

    @abstractmethod
    def create(self, fill: Callable[[Connection], None]) -> None:
        """Make an empty store, completely or not at all.

        `fill` writes its first rows. An existing store is never overwritten.
        """

    @abstractmethod
    def hold(self, *, read_only: bool = False) -> None:
        """Take the store, or raise an error that says who has it. It must exist."""

    @abstractmethod
    def release(self) -> None:
        """Release the store."""

    @abstractmethod
    def connect(self, *, read_only: bool = False, synchronous: str = "FULL", vfs: str | None = None) -> Connection:
        """An open store of this version. Everything that it shows is durable."""

    @abstractmethod
    def close(self, db: Connection) -> None:
        """Close, even if the disk or the server fails."""

    @contextmanager
    def opened(self, *, read_only: bool = False) -> Iterator[Connection]:
        """The store, held and open for a moment."""
        self.hold(read_only=read_only)
        try:
            db = self.connect(read_only=read_only)
            try:
                yield db
            finally:
                self.close(db)
        finally:
            self.release()

    @abstractmethod
    def copy(self, db: Connection) -> Iterator[Connection | None]:
        """Copy the open store, some more with each step, in about a millisecond and while nobody writes.

        A step gives None, or the copy once it is complete. It can be read in any thread while the store is used.
        """

    @abstractmethod
    def take_over(self) -> str:
        """Take the store away from the process that has it. Returns who that was."""

    # What only one of the places needs

    def refuse_if_moved(self) -> None:  # noqa: B027
        """Refuse if this is no longer the store that was opened. Called before writing, and before reading again."""

    def still_held(self, db: Connection) -> bool:
        """Whether this process still has the store, or somebody took it over. A short read, in no transaction.

        StoreError if that cannot be known now.
        """
        return True

    def keep_room(self, engine: Engine, debits: int) -> None:  # noqa: B027
        """Reserve space so that people can be forgotten on a full disk, if this process can do that."""

    def give_room(self) -> bool:
        """Give up the reserved space. Returns whether there was any."""
        return False

    def empty_log(self, db: Connection) -> bool:
        """Overwrite erased bytes in the log too, if that is possible at once. Returns the same as `give_room`."""
        return False

    def defects(self, db: Connection) -> Iterator[str]:
        """Errors that the place itself finds in its storage."""
        return iter(())

    def rewrite(self) -> Any:
        """Write tables anew that still hold old bytes.

        Returns `postgres.erasure.Rewritten`, or None if nothing was needed.
        """
        return None

    def old_bytes(self, db: Connection) -> list[str]:
        """Why bytes of erased people may still be there. Empty if they are known to be gone."""
        return []

    def erasure(self, db: Connection) -> dict[str, Any]:
        """What a receipt says about old bytes."""
        return {}


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
