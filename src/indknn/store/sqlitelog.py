"""The log of a store file: found whole when the file is opened, and moved into the file when it is closed.

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
from indknn.store.database import FileConnection, connect, get_meta, newest
from indknn.store.head import Head, Mark, has_log, head_path, log_path, read_mark
from indknn.store.schema import APPLICATION_ID, OPEN_ID


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


def _refuse_incomplete(db: apsw.Connection, path: Path, mark: Mark | None, closed: bool) -> None:
    lost = (
        f"Restore what is missing ({log_path(path).name}, {head_path(path).name}), or a backup made by indknn backup."
    )
    after = _entry_after(path, *newest(db)) if has_log(path) else None
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
    head = Head(path, key, *newest(db), synced=synchronous != "OFF", strict=synchronous == "EXTRA")
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
