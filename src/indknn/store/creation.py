"""Creates a store, completely or not at all."""

from __future__ import annotations

import json
import secrets
import uuid

from indknn.records.shard import new_index
from indknn.settings import Settings
from indknn.store import chain, database
from indknn.store.books import Books
from indknn.store.home import Connection, Home
from indknn.store.schema import VERSION


def create(home: Home, settings: Settings, draft: bool) -> None:
    """Make an empty store. An existing store is never overwritten."""
    new_index(settings)  # refuses bad settings before the store is made
    settings.plan(settings.tau or 1.0)
    facts = json.loads(json.dumps(settings.stored(draft=draft)))

    def fill(db: Connection) -> None:
        key = secrets.token_bytes(32)
        Books(db, key)
        with db:
            database.set_meta(db, "store", str(uuid.uuid4()))
            database.set_meta(db, "key", key)
            database.set_meta(db, "settings", json.dumps(facts))
            database.set_meta(db, "next_number", "0")
            database.set_meta(db, "names", "text")
            chain.append(db, "init", settings=facts, schema=VERSION)

    home.create(fill)
