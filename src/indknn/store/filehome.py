"""A store in its own SQLite file: the file, a lock that names its holder, and reserved space for a full disk."""

from __future__ import annotations

import fcntl
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import apsw
import numpy as np

from indknn.core.files import private, sync_file
from indknn.engine import Engine
from indknn.errors import DamagedStoreError, StoreError, StoreLockedError
from indknn.store.chain import now
from indknn.store.connection import Connection, FileConnection
from indknn.store.head import found_at
from indknn.store.home import Home
from indknn.store.sqlite import abandon, close_whole, connect, empty_log, open_whole

_PAGES = 256  # of 4 KiB
_HOLDER_BYTES = 256
_SPARE = 2 << 20
_PAGE = 4096 + 24  # in the log


class FileHome(Home):
    """The file, its lock, its log, and the reserved space beside it."""

    place: Path

    def __init__(self, path: Path):
        super().__init__(path)
        self.doubt = (
            f"bits were changed, or the file and its log ({path.name}-wal) do not belong together; "
            "restore a backup made by indknn backup"
        )
        self._lock: Lock | None = None
        self._ballast = Ballast(path)
        self._found = found_at(path)
        self._db: FileConnection | None = None

    def exists(self) -> bool:
        """Whether there is a file."""
        return self.place.exists()

    def create(self, fill: Callable[[Connection], None]) -> None:
        """Make an empty file under another name, then rename it."""
        self._refuse_existing()
        lock = Lock(self.place)
        try:
            self._refuse_existing()  # another process may have been faster
            with new_file(self.place) as draft:
                db = connect(draft, create=True)
                try:
                    fill(db)
                    empty_log(db, draft)
                finally:
                    abandon(db)
        finally:
            lock.release()

    def _refuse_existing(self) -> None:
        if self.place.exists():
            raise StoreError(f"{self.place} exists already; a store is never overwritten")

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

    def keep_room(self, engine: Engine, debits: int) -> None:
        """Reserve space beside the file, enough to forget anybody.

        That means overwriting debits, writing balances, and one page for each of their records.
        """
        shard, ledger = engine.shard, engine.ledger
        balances = len(ledger.participation) * (8 * len(ledger.scopes) + 4)
        most = int(np.bincount(shard.owners_of(shard.slots()), minlength=1).max())
        self._ballast.fill(_SPARE + debits + balances * 5 // 4 + most * _PAGE)

    def give_room(self) -> bool:
        """Give up the reserved space."""
        return self._ballast.drop()

    def empty_log(self, db: Connection) -> bool:
        """Empty the log, which still holds old pages. Returns whether the reserved space was needed for that."""
        assert isinstance(db, apsw.Connection)
        for dropped in (False, True):
            try:
                empty_log(db, self.place)
                return dropped
            except (apsw.Error, OSError) as error:
                if dropped or not self.give_room():
                    text = f"erased, but old bytes are still in the log, so do it again: {error}"
                    raise StoreError(text) from error
        raise AssertionError

    def copy(self, db: Connection) -> Iterator[FileConnection | None]:
        """A copy in memory, made by SQLite itself. Changes to the store meanwhile also go into the copy."""
        assert isinstance(db, apsw.Connection)
        copy = FileConnection(":memory:")
        with copy.backup("main", db, "main") as backup:
            while not backup.step(_PAGES):
                yield None
        yield copy

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


@contextmanager
def new_file(path: Path) -> Iterator[Path]:
    """The path of an empty file, which only this user may read. It gets its name, durably, when `with` ends well."""
    draft = path.with_name(path.name + ".new")
    drafts = [draft.with_name(draft.name + end) for end in ("", "-wal", "-journal")]
    # If an old store was deleted but not its log, SQLite would replay that log into the new store.
    stale = [path.with_name(path.name + end) for end in ("-wal", "-journal", "-head")]
    try:
        for leftover in (*drafts, *stale):
            leftover.unlink(missing_ok=True)
        os.close(os.open(draft, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
        yield draft
        sync_file(draft)
        draft.rename(path)
        sync_file(path.parent)
    except (apsw.Error, OSError) as error:
        raise StoreError(f"{path} cannot be made: {error}") from error
    finally:
        for leftover in drafts:
            leftover.unlink(missing_ok=True)


class Lock:
    """Makes sure that only one process owns a store.

    The operating system drops the lock when the process ends, for any reason. Processes that only read share the lock,
    if there is a lock file.
    """

    def __init__(self, store: Path, read_only: bool = False):
        self.path = store.with_name(store.name + ".lock")
        self._file = -1
        try:
            self._file = os.open(self.path, os.O_RDONLY if read_only else os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            if read_only:
                return
            raise StoreError(f"{self.path} cannot be opened: {error.strerror}") from None
        try:
            fcntl.flock(self._file, (fcntl.LOCK_SH if read_only else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(self._file, 4096, 0).decode(errors="replace").strip() or "an unknown process"
            os.close(self._file)
            raise StoreLockedError(f"{store} is in use by {holder}; a store has one writer at a time") from None
        if read_only:
            return
        holder = f"process {os.getpid()} on {socket.gethostname()} since {now()}"
        with suppress(OSError):  # people must be able to be forgotten on a full disk
            os.pwrite(self._file, holder.encode().ljust(_HOLDER_BYTES), 0)

    def release(self) -> None:
        """Release the lock."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


class Ballast:
    """Reserved space beside the store. It is given up when the disk is full, so that people can still be forgotten."""

    def __init__(self, store: Path):
        self.path = store.with_name(store.name + ".ballast")

    @property
    def size(self) -> int:
        """How many bytes are reserved."""
        return self.path.stat().st_size if self.path.exists() else 0

    def fill(self, need: int) -> None:
        """Reserve at least this much, rounded up to a power of two, if there is space."""
        if self.size >= need:
            return
        left = 1 << (need - 1).bit_length()
        try:
            with open(self.path, "wb", opener=private) as file:
                while left > 0:  # random bytes, because some file systems use no space for zeros
                    left -= file.write(os.urandom(min(left, 1 << 20)))
                file.flush()
                os.fsync(file.fileno())
        except OSError:
            self.drop()  # the disk is full: try again later

    def drop(self) -> bool:
        """Give up the space. Returns whether there was any."""
        had = self.size > 0
        self.path.unlink(missing_ok=True)
        return had
