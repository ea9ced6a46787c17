"""Copies a store into a file that opens by itself. This is the only way to copy a store that is in use."""

from __future__ import annotations

import os
from contextlib import closing
from pathlib import Path
from typing import Any

import apsw

from indknn.core.files import copy_private, sync_file
from indknn.errors import InvalidInputError, StoreError
from indknn.place import keys_path, place_of
from indknn.store import chain
from indknn.store.filehome import FileHome
from indknn.store.opening import check_books
from indknn.store.sqlite import APPLICATION_ID, connect
from indknn.store.store import Store

_PAGES = 1024


def backup(store: Store, target: str | Path) -> dict[str, Any]:
    """Copy an open store and its file of keys, while it answers. Nothing is overwritten. Returns what was copied.

    The copy holds everything that was answered until the end of the copy. It is read once and compared with its audit
    trail before it gets its name.
    """
    path = place_of(target)
    if not (isinstance(store.home, FileHome) and isinstance(path, Path)):
        raise InvalidInputError("a backup is of a store in a file, to a file; for PostgreSQL use pg_dump")
    keys = keys_path(path)
    for there in (path, keys):
        if there.exists():
            raise StoreError(f"{there} exists already; a backup overwrites nothing")
    draft = path.with_name(path.name + ".new")
    try:
        draft.unlink(missing_ok=True)
        os.close(os.open(draft, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))  # only this user may read it
        _copy(store, draft)
        sync_file(draft)
        with closing(connect(draft, read_only=True)) as copy:
            check_books(copy, FileHome(draft))
            entry = chain.last(copy)
        for end in ("-wal", "-journal", "-head"):  # of a file that is gone
            path.with_name(path.name + end).unlink(missing_ok=True)
        if store.home.keys.exists():
            copy_private(store.home.keys, keys)
        draft.rename(path)
        sync_file(path.parent)
    except (apsw.Error, OSError) as error:
        raise StoreError(f"{path} cannot be made: {error}") from error
    finally:
        draft.unlink(missing_ok=True)
    facts = {"store": str(store.path), "backup": str(path), "keys": str(keys) if keys.exists() else None}
    return {**facts, "audit_entries": entry.position, "at": entry.at, "audit_hash": entry.hash.hex()}


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
