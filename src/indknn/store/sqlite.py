"""A store file and SQLite: the connection, and the log, which must be whole and ends in the file.

Three things tell how far a store is: the file itself, its log, and its head (`head.py`). None of them may be ahead of
what opens. The file also says whether it was closed. If it was, it is whole without the others.
"""

from __future__ import annotations

from contextlib import closing, suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

import apsw

from indknn.core.files import sync_file
from indknn.errors import DamagedStoreError, StaleStoreError, StoreError
from indknn.store import chain
from indknn.store.connection import FileConnection
from indknn.store.database import get_meta
from indknn.store.head import Head, Mark, has_log, head_path, log_path, read_mark
from indknn.store.tables import INDEXES, TABLES, VERSION, refuse_other_version

APPLICATION_ID = 0x696B6E6E  # "iknn": the file was closed, and everything is in it
OPEN_ID = 0x4F50454E  # "OPEN": it is in use, or was when its process ended, and is nothing without its head and log


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
        if row is not None and chain.link(digest, *row[:4]) == row[4]:
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
