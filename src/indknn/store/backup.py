"""Copies a store into a file that opens by itself, and puts such a copy back if nothing was spent since.

This is the only way to copy a store that is in use.
"""

from __future__ import annotations

from contextlib import closing, suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

import apsw

from indknn.errors import InvalidInputError, StaleStoreError, StoreError
from indknn.place import copy_private, keys_path, place_of, sync_file
from indknn.proof import Entry
from indknn.store import chain
from indknn.store.chain import now
from indknn.store.database import get_meta
from indknn.store.filehome import APPLICATION_ID, FileHome, Lock, connect, has_log, head_path, new_file, read_mark
from indknn.store.home import check_books
from indknn.store.store import Store

_PAGES = 1024
_READ = apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI


def backup(store: Store, target: str | Path, *, keys: bool = True) -> dict[str, Any]:
    """Copy an open store and its file of keys, while it answers. Nothing is overwritten. Returns what was copied.

    The copy holds everything that was answered until the end of the copy. It is read once and compared with its audit
    trail before it gets its name. Debits are folded before, so that a store that answers nothing more and is closed
    writes nothing that the copy lacks.
    """
    path = place_of(target)
    if not (isinstance(store.home, FileHome) and isinstance(path, Path)):
        raise InvalidInputError("a backup is of a store in a file, to a file; for PostgreSQL use pg_dump")
    key_file = keys_path(path)
    for there in (path, key_file) if keys else (path,):
        if there.exists():
            raise StoreError(f"{there} exists already; a backup overwrites nothing")
    if not store.read_only:
        store.fold()
    try:
        with new_file(path) as draft:
            _copy(store, draft)
            with closing(connect(draft, read_only=True)) as copy:
                check_books(copy, FileHome(draft))
                entry = chain.last(copy)
            if keys and store.home.keys.exists():
                copy_private(store.home.keys, key_file)
    except BaseException:
        if keys:
            key_file.unlink(missing_ok=True)
        raise
    facts = {"store": str(store.path), "backup": str(path), "keys": str(key_file) if key_file.exists() else None}
    return {**facts, "audit_entries": entry.position, "at": entry.at, "audit_hash": entry.hash.hex()}


def restore(source: str | Path, target: str | Path, witness: Path | None = None) -> dict[str, Any]:
    """Put a backup in the place of a store that cannot be used any more. Returns what was done.

    A copy does not know what people have spent since, and nobody else does. So it is refused if the witness, or the
    head of the store that was there, has seen anything newer: the error says what is lost. Without a head, the file
    that was there says how far it was, if it can be read. The files that were there are kept under other names. So is
    the file of keys in its place, because keys may have been revoked since.
    """
    path = place_of(target)
    if not isinstance(path, Path):
        raise InvalidInputError("a restore is of a store in a file; for PostgreSQL use pg_restore")
    lock, draft = Lock(path), path.with_name(path.name + ".restored")
    try:
        with Store(source, witness=witness, read_only=True) as copy:
            reached = _refuse_older_than_head(copy, path, witness)
            draft.unlink(missing_ok=True)
            facts = backup(copy, draft, keys=False)
            keys, kept = keys_path(path), keys_path(path).exists()
            if not kept and copy.home.keys.exists():
                copy_private(copy.home.keys, keys)
        # A head that this copy reaches stays: if this process dies now, it goes on to refuse older copies.
        moved = _move_aside(path, ["", "-wal"] if reached else ["", "-wal", "-head"])
        draft.rename(path)
        sync_file(path.parent)
        facts |= {"backup": str(source), "store": str(path), "keys": str(keys) if keys.exists() else None}
        return {**facts, "kept_keys": kept, "moved": moved}
    finally:
        lock.release()


def _move_aside(path: Path, ends: list[str]) -> list[str]:
    """Give other names to a store that is there, and to what belongs to it. Returns the new names."""
    aside = f"{path.name}.before-{now().replace(':', '')}"
    there = [end for end in ends if path.with_name(path.name + end).exists()]
    for end in there:
        path.with_name(path.name + end).rename(path.with_name(aside + end))
    return [aside + end for end in there]


def _refuse_older_than_head(copy: Store, path: Path, witness: Path | None) -> bool:
    """Refuse a copy that lacks what the head in its future place has seen. Returns whether there is a head to reach."""
    with copy.reading() as db:
        mark, newest = read_mark(path, get_meta(db, "key")), chain.last(db)
        there = _newest_in(path, get_meta(db, "store")) if mark is None else mark
        found = None if there is None else next(chain.entries(db, there.position), None)
    if mark is None and witness is None and (head_path(path).exists() or has_log(path)):
        raise StaleStoreError(
            f"{head_path(path)} is missing or cannot be read, so nobody can tell whether {copy.path} is old: give "
            "--witness"
        )
    if there is not None and (found is None or found.hash != there.hash):
        raise StaleStoreError(
            f"{copy.path} ends with entry {newest.position} of the audit trail, of {newest.at}, and {path} had "
            f"{there.position}: what people spent since then is lost with those entries. Repair {path} "
            "(indknn verify says what is wrong), or find a newer copy"
        )
    return mark is not None


def _newest_in(path: Path, store_id: str) -> Entry | None:
    """The newest entry in a file without its log. None if it cannot be read, or is of another store."""
    with (
        suppress(apsw.Error, StoreError),
        closing(apsw.Connection(f"file:{quote(str(path))}?immutable=1", flags=_READ)) as file,
    ):
        (own,) = file.execute("SELECT value FROM meta WHERE name = 'store'").fetchone() or ("",)
        row: Any = file.execute("SELECT * FROM audit ORDER BY position DESC LIMIT 1").fetchone()
        return Entry(*row) if row is not None and own == store_id else None
    return None


def _copy(store: Store, draft: Path) -> None:
    with closing(apsw.Connection(str(draft))) as copy:
        with store.reading() as db:
            assert isinstance(db, apsw.Connection)
            work, done, generation = copy.backup("main", db, "main"), False, store.generation
        with work:
            while not done:
                with store.reading():
                    if store.generation != generation:
                        raise StoreError("the store was read again during the backup; start it again")
                    store.flush()
                    work.step(_PAGES)
                    done = work.done
        copy.pragma("journal_mode", "DELETE")
        copy.pragma("application_id", APPLICATION_ID)  # whole without a log and a head
        copy.pragma("journal_mode", "WAL")
