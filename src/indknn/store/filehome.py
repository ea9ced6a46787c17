"""A store in its own SQLite file: the file, a lock that names its holder, reserved space for a full disk, log and head.

Three things tell how far a store is: the file itself, its log, and its head, a small file beside it. None of them may
be ahead of what opens. The file also says whether it was closed. If it was, it is whole without the others.

SQLite reads its log up to the first bad frame and silently drops the rest. So a bit that flips in the log, a log that
is cut or lost, or a copy without its log would give back budgets. The head finds that. It holds the position and hash
of the newest entry of the audit trail, under a keyed hash.

The head is written after SQLite has synced a transaction and before an answer leaves. So a file that opens is at its
head or ahead of it, and one that is behind has lost something. A process that is killed leaves the head as it was
written. A second wait for the disk in each commit would make answers much slower, so the head is synced once a second
at most, and between that the system is only told to write it. So a power cut may set the head back by milliseconds.
The answers of that time are in the log, which was synced. With `strict`, every transaction waits for the head too.

The head has two places. One of them holds the mark that was synced last, so that a torn write leaves that one.
"""

from __future__ import annotations

import fcntl
import hashlib
import math
import os
import socket
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import apsw
import numpy as np

from indknn.engine import Engine
from indknn.errors import DamagedStoreError, StaleStoreError, StoreError, StoreLockedError, missing
from indknn.place import private, private_file, sync_file
from indknn.proof import link
from indknn.store.chain import FileConnection, StoreConnection, now
from indknn.store.database import INDEXES, TABLES, VERSION, get_meta, refuse_other_version
from indknn.store.home import Home

APPLICATION_ID = 0x696B6E6E  # "iknn": the file was closed, and everything is in it
OPEN_ID = 0x4F50454E  # "OPEN": it is in use, or was when its process ended, and is nothing without its head and log
_PAGES = 256  # of 4 KiB
_HOLDER_BYTES = 256
_SPARE = 2 << 20
_LOG_PAGES = 4096
"""The log is moved into the file when it has this many pages. Answers wait for that, so it should be rare."""
_PAGE = 4096 + 24  # in the log
_FIELDS = struct.Struct("<16sQQ32s")  # what, count, position, hash
_WHAT = b"indknn head 1\0\0\0"
_SUM = 32
_PLACE = 4096
_SECONDS = 1.0  # after which the head is synced again


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

    def create(self, fill: Callable[[StoreConnection], None]) -> None:
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
            raise StoreError(missing(self.place, f"; make a store with: indknn init {self.place}"))
        self._lock = Lock(self.place, read_only)
        self._found = found_at(self.place)

    def release(self) -> None:
        """Unlock it."""
        if self._lock is not None:
            self._lock.release()

    def connect(self, *, read_only: bool = False, synchronous: str = "FULL", vfs: str | None = None) -> StoreConnection:
        """Open the file, if nothing is missing, and make durable what an earlier process left in its log."""
        for dropped in (False, True):
            try:
                self._db = open_whole(self.place, read_only=read_only, synchronous=synchronous, vfs=vfs)
                return self._db
            except (apsw.FullError, OSError) as error:
                if dropped or not self.give_room():
                    raise DamagedStoreError(f"{self.place} cannot be read as a store: {error!r}") from error
        raise AssertionError

    def close(self, db: StoreConnection) -> None:
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
        balances = len(ledger.participation) * (8 * len(ledger.all_scopes) + 4)
        most = int(np.bincount(shard.owners_of(shard.slots()), minlength=1).max())
        self._ballast.fill(_SPARE + debits + balances * 5 // 4 + most * _PAGE)

    def give_room(self) -> bool:
        """Give up the reserved space."""
        return self._ballast.drop()

    def empty_log(self, db: StoreConnection) -> bool:
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

    def copy(self, db: StoreConnection) -> Iterator[FileConnection | None]:
        """A copy in memory, made by SQLite itself. Changes to the store meanwhile also go into the copy."""
        assert isinstance(db, apsw.Connection)
        copy = FileConnection(":memory:")
        with copy.backup("main", db, "main") as backup:
            while not backup.step(_PAGES):
                yield None
        yield copy

    def defects(self, db: StoreConnection) -> Iterator[str]:
        """Errors that SQLite finds in its pages."""
        for (line,) in db.execute("PRAGMA integrity_check"):
            if line != "ok":
                yield f"file: {line}"
        head = None if self._db is None else self._db.head
        if head is not None and not head.is_intact():
            yield f"the head of {self.place} was changed or replaced"

    def still_held(self, db: StoreConnection) -> bool:
        """A process that has the lock has it until it ends."""
        return True

    def take_over(self) -> str:
        """The operating system drops the lock of a process that ends, so there is nothing to take over."""
        raise StoreError(f"a takeover needs PostgreSQL, and {self.place} is a file; end the process that has it open")


@contextmanager
def new_file(path: Path) -> Iterator[Path]:
    """The path of an empty file, which only this user may read. It gets its name, durably, when `with` ends well.

    It is refused where the log or the head of another store was left: they may be all that knows what was spent there,
    and SQLite would replay that log into the new store.
    """
    for end in ("-head", "-wal", "-journal"):
        left = path.with_name(path.name + end)
        if left.exists() and left.stat().st_size:
            raise StoreError(
                f"{left} is left of a store that was here and knows what people spent in it: find that store, or move "
                f"{left} away if it is gone for good"
            )
        left.unlink(missing_ok=True)
    draft = path.with_name(path.name + ".new")
    drafts = [draft.with_name(draft.name + end) for end in ("", "-wal", "-journal")]
    try:
        for leftover in drafts:
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
            why = error.strerror if store.parent.is_dir() else f"there is no folder {store.parent}"
            raise StoreError(f"{self.path} cannot be opened: {why}") from None
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


# The connection, and the log, which must be whole and ends in the file


def connect(
    path: Path, *, create: bool = False, synchronous: str = "FULL", vfs: str | None = None, read_only: bool = False
) -> FileConnection:
    """Open and check a file. It uses WAL, syncs every commit, and overwrites deleted content.

    Closing the connection leaves the log as it is. With `create`, the file is empty and gets its tables.
    """
    name, flags = str(path), apsw.SQLITE_OPEN_READWRITE | (apsw.SQLITE_OPEN_CREATE if create else 0)
    if read_only:
        if has_log(path):
            raise StoreError(
                f"{log_path(path)} holds changes that are not in the store yet: open it where it can be written"
            )
        # with "immutable" SQLite writes nothing at all, not even a lock
        name, flags = f"file:{quote(name)}?immutable=1", apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI
    try:
        db = FileConnection(name, flags=flags, vfs=vfs)
    except apsw.Error as error:
        raise StoreError(f"{path} cannot be opened as a store: {error}") from error
    try:
        db.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)  # a log that is refused must stay as it was
        db.pragma("locking_mode", "EXCLUSIVE")  # one writer; keeps the WAL index out of a shared file
        if not create:  # check first, because the file may belong to somebody else
            if db.pragma("application_id") not in (APPLICATION_ID, OPEN_ID):
                raise StoreError(f"{path} is not an indknn store")
            refuse_other_version(path, db.pragma("user_version"))
        db.pragma("journal_mode", "WAL")
        db.pragma("synchronous", synchronous)
        db.pragma("wal_autocheckpoint", _LOG_PAGES)
        db.pragma("secure_delete", 1)
        db.pragma("temp_store", "MEMORY")
        if create:
            with db:
                db.execute("".join(table.in_sqlite() for table in TABLES.values()) + INDEXES)
                db.pragma("application_id", APPLICATION_ID)
                db.pragma("user_version", VERSION)
    except apsw.Error as error:
        db.close(True)
        raise StoreError(f"{path} cannot be opened as a store: {error}") from error
    except BaseException:
        db.close(True)
        raise
    return db


def open_whole(path: Path, *, read_only: bool = False, synchronous: str = "FULL", **options: Any) -> FileConnection:
    """Open a file, and make durable what an earlier process left in its log. Refuse a file that lacks anything."""
    said = _application_id(path)  # before SQLite has the file: closing another handle would drop its locks
    db = connect(path, read_only=read_only, synchronous=synchronous, **options)
    try:
        key = bytes(get_meta(db, "key"))
        mark = read_mark(path, key)
        _refuse_incomplete(db, path, mark, closed=said == db.pragma("application_id") == APPLICATION_ID)
        if not read_only:
            _begin(db, path, key, synchronous)
    except BaseException as error:
        abandon(db)
        if isinstance(error, StoreError | apsw.FullError | OSError) or not isinstance(error, Exception):
            raise
        raise DamagedStoreError(f"{path} cannot be read as a store: {error!r}") from error
    return db


def _is_behind(db: apsw.Connection, mark: Mark) -> bool:
    """Whether the audit trail does not reach the entry that its head knows."""
    return bool(db.execute("SELECT hash FROM audit WHERE position = ?", (mark.position,)).get != mark.hash)


def _application_id(path: Path) -> int:
    """What the file itself says, whatever its log says."""
    with path.open("rb") as file:
        return int.from_bytes(file.read(72)[68:], "big")


def _refuse_incomplete(db: FileConnection, path: Path, mark: Mark | None, closed: bool) -> None:
    lost = (
        f"Restore what is missing ({log_path(path).name}, {head_path(path).name}), or a backup made by indknn backup."
    )
    after = _entry_after(path, *db.newest()) if has_log(path) else None
    if mark is None and not closed:
        what = "is missing" if not head_path(path).exists() else "is damaged, or of another store"
        raise StaleStoreError(
            f"{path} is a copy of a store in use, or was not closed, and {head_path(path)} {what}: without it, nobody "
            f"knows whether charges are lost. {lost}"
        )
    if mark is None and head_path(path).exists():
        raise StaleStoreError(
            f"{head_path(path)} is damaged, or of another store. {path} was closed and is whole without it: "
            "if you have just put it there, remove the head; if not, look at the disk first"
        )
    if mark is not None and _is_behind(db, mark):
        raise StaleStoreError(
            f"{path} does not contain entry {mark.position} of its audit trail, which {head_path(path).name} has seen: "
            f"its log is damaged, cut or lost, or it is an old copy, and charges are missing. {lost}"
        )
    if after is not None:
        raise StaleStoreError(f"{path} contains entry {after} of its audit trail, but its log is older. {lost}")


def _entry_after(path: Path, position: int, digest: bytes) -> int | None:
    """The next entry of the audit trail on top of this one, if the file has it without its log. It may be torn."""
    flags = apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI
    with (
        suppress(apsw.Error, TypeError),
        closing(apsw.Connection(f"file:{quote(str(path))}?immutable=1", flags=flags)) as file,
    ):
        row: Any = file.execute("SELECT * FROM audit WHERE position = ?", (position + 1,)).fetchone()
        if row is not None and link(digest, *row[:4]) == row[4]:
            return position + 1
    return None


def _begin(db: FileConnection, path: Path, key: bytes, synchronous: str) -> None:
    """Empty the log, write the head, and then let the file say that it is open: in this order."""
    try:
        empty_log(db, path)
    except apsw.FullError:  # the file cannot grow, so the log stays where it is
        sync_file(log_path(path))
    head = Head(path, key, *db.newest(), synced=synchronous != "OFF", strict=synchronous == "EXTRA")
    try:
        if db.pragma("application_id") != OPEN_ID:
            db.pragma("application_id", OPEN_ID)
            empty_log(db, path)
    except BaseException:
        head.close()
        raise
    db.head = head


def close_whole(db: FileConnection, path: Path) -> None:
    """Move the log into the file, let the file say that it is closed, and close it. If the disk fails, it stays open.

    What was not moved is in the log, or was never answered.
    """
    try:
        if db.head is not None:
            empty_log(db, path)  # first: a file that says it is closed must be whole
            db.pragma("application_id", APPLICATION_ID)
            empty_log(db, path)
            db.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 0)  # SQLite deletes the log
    except (apsw.Error, OSError):
        pass
    finally:
        abandon(db)


def abandon(db: FileConnection) -> None:
    """Close the files, and leave them as they are."""
    if db.head is not None:
        db.head.close()
    with suppress(apsw.Error):
        db.close(True)


def empty_log(db: apsw.Connection, path: Path) -> None:
    """Move the log into the file, and truncate it, durably."""
    db.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)  # raises if something prevents it
    if log_path(path).exists():
        if has_log(path):
            raise apsw.BusyError("the log is in use")
        sync_file(log_path(path))  # SQLite does not sync the truncation: a power failure would bring old bytes back


# The head


@dataclass(frozen=True)
class Mark:
    """What one place of a head says: how far the audit trail is. `count` grows by one with each mark."""

    count: int
    position: int
    hash: bytes

    def packed(self, key: bytes) -> bytes:
        """The mark as bytes."""
        text = _FIELDS.pack(_WHAT, self.count, self.position, self.hash)
        return (text + _sum(text, key)).ljust(_PLACE, b"\0")

    @staticmethod
    def unpacked(body: bytes, key: bytes) -> Mark | None:
        """The mark in these bytes. None if it is damaged, torn, empty or of another store."""
        text, digest = body[: _FIELDS.size], body[_FIELDS.size : _FIELDS.size + _SUM]
        if len(text) < _FIELDS.size or digest != _sum(text, key):
            return None
        what, count, position, entry = _FIELDS.unpack(text)
        return Mark(count, position, entry) if what == _WHAT else None


def head_path(store: Path) -> Path:
    """The head that belongs to a store."""
    return store.with_name(store.name + "-head")


def log_path(store: Path) -> Path:
    """SQLite's log of a store."""
    return store.with_name(store.name + "-wal")


def has_log(store: Path) -> bool:
    """Whether there is anything in the log of a store."""
    return log_path(store).exists() and log_path(store).stat().st_size > 0


def read_mark(store: Path, key: bytes) -> Mark | None:
    """The newest mark in the head of a store. None if no mark can be read."""
    return max((mark for mark in _marks(store, key) if mark is not None), key=lambda mark: mark.count, default=None)


def _marks(store: Path, key: bytes) -> list[Mark | None]:
    """The marks in both places."""
    try:
        body = head_path(store).read_bytes()
    except FileNotFoundError:
        body = b""
    return [Mark.unpacked(body[at : at + _PLACE], key) for at in (0, _PLACE)]


class Head:
    """The head of a store that is open for writing."""

    def __init__(
        self, store: Path, key: bytes, position: int, digest: bytes, *, synced: bool = True, strict: bool = False
    ):
        """Begin with this entry: everything up to it was found, and is durable."""
        self._path, self._log, self._key = head_path(store), log_path(store), key
        self._synced, self._strict = synced, strict
        old = read_mark(store, key)
        self._mark = Mark(1 if old is None else old.count + 1, position, digest)
        if not self._path.exists() or self._path.stat().st_size != 2 * _PLACE:
            with private_file(self._path, "wb") as file:  # both places, completely or not at all
                file.write(self._mark.packed(key) * 2)
        self._place = int(_marks(store, key)[0] == read_mark(store, key))  # not the one with the newest mark
        self._file, self._synced_at = os.open(self._path, os.O_RDWR), -math.inf
        self._found = found_at(self._path)
        self._log_found: tuple[int, int] | None = None
        self._put()

    def close(self) -> None:
        """Close the file."""
        if self._file >= 0:
            os.close(self._file)
        self._file = -1

    def follow(self, position: int, digest: bytes) -> None:
        """SQLite has synced a transaction that ends with this entry."""
        if position != self._mark.position:
            self._refuse_if_moved()
            self._mark = Mark(self._mark.count + 1, position, digest)
            self._put()

    def _put(self) -> None:
        _write(self._file, self._path, self._mark.packed(self._key), _PLACE * self._place)
        now = time.monotonic()
        if self._synced and (self._strict or now - self._synced_at > _SECONDS):
            _sync(self._file, self._path)
            self._synced_at, self._place = now, 1 - self._place
        else:
            _hasten(self._file)

    def _refuse_if_moved(self) -> None:
        """Refuse if the head or the log was deleted or replaced: what is written would be lost with this process."""
        log = found_at(self._log)
        if log is None or self._log_found not in (None, log) or found_at(self._path) != self._found:
            raise OSError(f"{self._path} or {self._log.name} was moved, deleted or replaced while it was open")
        self._log_found = log

    def is_intact(self) -> bool:
        """Whether the file says what was written last, while nobody writes."""
        places = (os.pread(self._file, _PLACE, at) for at in (0, _PLACE))
        return found_at(self._path) == self._found and self._mark.packed(self._key) in places


def _sum(text: bytes, key: bytes) -> bytes:
    return hashlib.blake2b(text, key=key, digest_size=_SUM, person=b"head").digest()


def found_at(path: Path) -> tuple[int, int] | None:
    """The identity of the file at this path. None if there is none."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _write(handle: int, path: Path, body: bytes, at: int) -> None:
    """Write to an open file. `path` says which."""
    if os.pwrite(handle, body, at) != len(body):
        raise OSError(f"{path} was not written to its end")


def _hasten(handle: int) -> None:
    """Let the system begin to write an open file, and do not wait."""
    if hasattr(os, "posix_fadvise"):
        os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)


def _sync(handle: int, path: Path) -> None:
    """Make an open file durable. `path` says which."""
    os.fdatasync(handle)
