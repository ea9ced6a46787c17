"""Copies a store into a file that opens by itself. This is the only way to copy a store that is in use."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import apsw

from indknn.core.files import copy_private
from indknn.errors import InvalidInputError, StoreError
from indknn.place import keys_path, place_of
from indknn.store import chain
from indknn.store.filehome import FileHome, new_file
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
    try:
        with new_file(path) as draft:
            _copy(store, draft)
            with closing(connect(draft, read_only=True)) as copy:
                check_books(copy, FileHome(draft))
                entry = chain.last(copy)
            if store.home.keys.exists():
                copy_private(store.home.keys, keys)
    except BaseException:
        keys.unlink(missing_ok=True)
        raise
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
