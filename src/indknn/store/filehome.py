"""A store in its own SQLite file."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import apsw

from indknn.core.files import sync_file
from indknn.engine import Engine
from indknn.errors import DamagedStoreError, StoreError
from indknn.place import keys_path
from indknn.store import database
from indknn.store.database import FileConnection
from indknn.store.files import Lock
from indknn.store.head import found_at
from indknn.store.home import Connection
from indknn.store.space import Space
from indknn.store.sqlitelog import abandon, close_whole, empty_log, open_whole

_PAGES = 256  # of 4 KiB


class FileHome:
    """The file, its lock, its log, and the reserved space beside it."""

    def __init__(self, path: Path):
        self.place = path
        self.doubt = (
            f"bits were changed, or the file and its log ({path.name}-wal) do not belong together; "
            "restore a backup made by indknn backup"
        )
        self._lock: Lock | None = None
        self._space = Space(path)
        self._found = found_at(path)
        self._db: FileConnection | None = None

    @property
    def keys(self) -> Path:
        """The file of API keys, beside the store."""
        return keys_path(self.place)

    def exists(self) -> bool:
        """Whether there is a file."""
        return self.place.exists()

    def create(self, fill: Callable[[Connection], None]) -> None:
        """Make an empty file under another name, then rename it."""
        self._refuse_existing()
        lock = Lock(self.place)
        try:
            self._refuse_existing()  # another process may have been faster
            self._make(fill)
        finally:
            lock.release()

    def _refuse_existing(self) -> None:
        if self.place.exists():
            raise StoreError(f"{self.place} exists already; a store is never overwritten")

    def _make(self, fill: Callable[[Connection], None]) -> None:
        path = self.place
        draft = path.with_name(path.name + ".new")
        drafts = [draft.with_name(draft.name + end) for end in ("", "-wal", "-journal")]
        # If an old store was deleted but not its log, SQLite would replay that log into the new store.
        stale = [path.with_name(path.name + end) for end in ("-wal", "-journal", "-head")]
        try:
            for leftover in (*drafts, *stale):
                leftover.unlink(missing_ok=True)
            os.close(os.open(draft, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))  # only this user may read it
            db = database.connect(draft, create=True)
            try:
                fill(db)
                empty_log(db, draft)
            finally:
                abandon(db)
            sync_file(draft)
            draft.rename(path)
            sync_file(path.parent)
        except (apsw.Error, OSError) as error:
            raise StoreError(f"{path} cannot be made: {error}") from error
        finally:
            for leftover in drafts:
                leftover.unlink(missing_ok=True)

    def hold(self, *, read_only: bool = False) -> None:
        """Lock the file."""
        if self.place.is_dir():
            raise StoreError(f"{self.place} is a folder; a store is a file")
        if not self.place.exists():
            raise StoreError(f"{self.place} does not exist; make a store with: indknn init {self.place}")
        self._lock = Lock(self.place, read_only)
        self._found = found_at(self.place)

    def release(self) -> None:
        """Unlock it."""
        if self._lock is not None:
            self._lock.release()

    def connect(self, *, read_only: bool = False, synchronous: str = "FULL", vfs: str | None = None) -> Connection:
        """Open the file, if nothing is missing, and make durable what an earlier process left in its log."""
        for dropped in (False, True):
            try:
                self._db = open_whole(self.place, read_only=read_only, synchronous=synchronous, vfs=vfs)
                return self._db
            except (apsw.FullError, OSError) as error:
                if dropped or not self.give_room():
                    raise DamagedStoreError(f"{self.place} cannot be read as a store: {error!r}") from error
        raise AssertionError

    def close(self, db: Connection) -> None:
        """Close, even if the disk fails."""
        assert isinstance(db, FileConnection)
        self._db = None
        close_whole(db, self.place)

    def refuse_if_moved(self) -> None:
        """Refuse if the file was moved. Writes to it would be lost."""
        if found_at(self.place) != self._found:
            raise StoreError(f"{self.place} was moved, deleted or replaced while it was open; stop, and open it again")

    def still_held(self, db: Connection) -> bool:
        """Always: the operating system keeps the lock for this process."""
        return True

    def keep_room(self, engine: Engine, debits: int, *, only_if_grown: bool = False) -> None:
        """Reserve space beside the file."""
        (self._space.fill_if_grown if only_if_grown else self._space.fill)(engine, debits)

    def give_room(self) -> bool:
        """Give up the reserved space."""
        return self._space.drop()

    def empty_log(self, db: Connection) -> bool:
        """Empty the log, which still holds old pages. Returns whether the reserved space was needed for that."""
        assert isinstance(db, apsw.Connection)
        return self._space.empty_log(db)

    def copy(self, db: Connection) -> FileCopy:
        """A copy that is only in memory."""
        assert isinstance(db, apsw.Connection)
        return FileCopy(db)

    def defects(self, db: Connection) -> Iterator[str]:
        """Errors that SQLite finds in its pages."""
        for (line,) in db.execute("PRAGMA integrity_check"):
            if line != "ok":
                yield f"file: {line}"
        head = None if self._db is None else self._db.head
        if head is not None and not head.is_intact():
            yield f"the head of {self.place} was changed or replaced"

    def take_over(self) -> str:
        """The operating system drops the lock of a process that ends, so there is nothing to take over."""
        raise StoreError(f"a takeover needs PostgreSQL, and {self.place} is a file; end the process that has it open")

    def rewrite(self) -> None:
        """Nothing to do: bytes are overwritten when they are erased."""

    def old_bytes(self, db: Connection) -> list[str]:
        """Always empty: old bytes are overwritten, and the log emptied, before there is a receipt."""
        return []

    def erasure(self, db: Connection) -> dict[str, Any]:
        """Nothing to add: bytes are overwritten, and the log emptied, before there is a receipt."""
        return {}


class FileCopy:
    """A copy made by SQLite itself. Changes to the store during the copy also go into the copy."""

    def __init__(self, db: apsw.Connection):
        self._copy = apsw.Connection(":memory:")
        self._backup = self._copy.backup("main", db, "main")

    def step(self) -> bool:
        """Copy some pages."""
        self._backup.step(_PAGES)
        if self._backup.done:
            self._backup.finish()
        return self._backup.done

    @contextmanager
    def opened(self) -> Iterator[Connection]:
        """The copy."""
        try:
            yield self._copy
        finally:
            self._copy.close()
