"""How a store comes into being: whole, or not at all."""

from __future__ import annotations

import json
import os
import secrets
import uuid
from pathlib import Path
from typing import Any

import apsw

from indknn.engine import new_index
from indknn.errors import StoreError
from indknn.settings import Settings
from indknn.store import chain, database
from indknn.store.books import Books
from indknn.store.files import Lock, sync_file
from indknn.store.schema import VERSION


def create(path: Path, settings: Settings, draft: bool) -> None:
    """Make an empty store file. A store is never overwritten."""
    new_index(settings)  # refuses bad settings before there is a file
    settings.plan(settings.tau or 1.0)
    _refuse_existing(path)
    lock = Lock(path)
    try:
        _refuse_existing(path)  # somebody may have been quicker
        _write_empty(path, settings.stored(draft=draft))
    finally:
        lock.release()


def _refuse_existing(path: Path) -> None:
    if path.exists():
        raise StoreError(f"{path} exists already; a store is never overwritten")


def _write_empty(path: Path, stored: dict[str, Any]) -> None:
    """A store is there as a whole or not at all: it is made under another name, then given its own."""
    draft = path.with_name(path.name + ".new")
    drafts = [draft.with_name(draft.name + end) for end in ("", "-wal", "-journal")]
    # The log of a store that was deleted without it would be taken for that of the new one, and replayed.
    stale = [path.with_name(path.name + end) for end in ("-wal", "-journal")]
    facts = json.loads(json.dumps(stored))
    try:
        for leftover in (*drafts, *stale):
            leftover.unlink(missing_ok=True)
        os.close(os.open(draft, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))  # nobody else's business
        db = database.connect(draft, create=True)
        try:
            key = secrets.token_bytes(32)
            Books(db, key)
            with db:
                database.set_meta(db, "store", str(uuid.uuid4()))
                database.set_meta(db, "key", key)
                database.set_meta(db, "settings", json.dumps(facts))
                database.set_meta(db, "next_number", "0")
                database.set_meta(db, "names", "text")
                chain.append(db, "init", settings=facts, schema=VERSION)
            database.empty_log(db, draft)
        finally:
            database.close(db)
        sync_file(draft)
        draft.rename(path)
        sync_file(path.parent)
    except (apsw.Error, OSError) as error:
        raise StoreError(f"{path} cannot be made: {error}") from error
    finally:
        for leftover in drafts:
            leftover.unlink(missing_ok=True)
