"""Makes and reads a store. Balances and later debits together give exactly the integers that were in memory."""

from __future__ import annotations

import json
import secrets
import uuid
from dataclasses import dataclass, replace
from typing import Any

from indknn.core.noise import Noise
from indknn.core.releases import PublicRows
from indknn.engine import Engine, MakeShard, new_ledger
from indknn.errors import DamagedStoreError, StoreError
from indknn.records.shard import new_index
from indknn.settings import Settings
from indknn.store import chain, database
from indknn.store.chain import Guard
from indknn.store.connection import Books, Connection
from indknn.store.home import Home
from indknn.store.journal import StoreJournal
from indknn.store.tables import VERSION
from indknn.tables.schema import Schema, from_plain


@dataclass
class State:
    """A store in memory: the open file or database, and what was read from it."""

    home: Home
    db: Connection
    engine: Engine
    journal: StoreJournal
    draft: bool
    store_id: str
    schema: Schema | None = None

    def begin_with(self, settings: Settings, public: PublicRows | None = None) -> None:
        """Use these settings from now on, in a store that has never held records."""
        old = self.engine
        self.engine = Engine(settings, old.noise, self.journal.ledger, self.journal, public, old.make_shard)


def create(home: Home, settings: Settings, draft: bool) -> None:
    """Make an empty store, completely or not at all. An existing store is never overwritten."""
    new_index(settings)  # refuses bad settings before the store is made
    settings.plan(settings.tau or 1.0)
    facts = json.loads(json.dumps(settings.stored(draft=draft)))

    def fill(db: Connection) -> None:
        key = secrets.token_bytes(32)
        db.keep(Books(key))
        with db:
            database.set_meta(db, "store", str(uuid.uuid4()))
            database.set_meta(db, "key", key)
            database.set_meta(db, "settings", json.dumps(facts))
            database.set_meta(db, "next_number", "0")
            chain.append(db, "init", settings=facts, schema=VERSION)

    home.create(fill)


def load(home: Home, noise: Noise, guard: Guard, make_shard: MakeShard | None = None, **options: Any) -> State:
    """Open the store and read everything."""
    db = home.connect(**options)
    try:
        check_books(db, home)
        store_id = str(database.get_meta(db, "store"))
        guard.check(db, store_id)
        stored = json.loads(database.get_meta(db, "settings"))
        settings, chosen = Settings.from_stored(stored), database.get_meta(db, "tau")
        if settings.tau is None and chosen is not None:
            settings = replace(settings, tau=chosen)
        ledger = new_ledger(settings, key=database.get_meta(db, "key"))
        ledger.house = bool(database.get_meta(db, "house"))
        journal = StoreJournal(db, ledger, guard)
        engine = Engine(settings, noise, ledger, journal, database.read_public(db), make_shard)
        database.read_records(db, settings.n_features, engine.shard)
        engine.shard.epoch = max(engine.shard.epoch, int(database.get_meta(db, "epoch") or 0))
        for scope, query, label, release in database.read_answers(db, settings.n_features):
            engine.predictor.remember(scope, query, label, release)
        schema = None if settings.schema is None else from_plain(settings.schema)
        return State(home, db, engine, journal, stored["n_features"] is None, store_id, schema)
    except BaseException as error:
        home.close(db)
        if isinstance(error, StoreError) or not isinstance(error, Exception):
            raise
        raise DamagedStoreError(f"{home.place} cannot be read as a store: {error!r}") from error


def check_books(db: Connection, home: Home) -> None:
    """Refuse a store whose rows do not agree with its audit trail. From now on its books are told of every change."""
    broken = next(chain.breaks(db), None)
    if broken is not None:
        raise DamagedStoreError(f"{home.place} cannot be read as a store: {broken}")
    books = Books(database.get_meta(db, "key"))
    if books.read(db) != chain.last(db).facts.get("books"):
        raise DamagedStoreError(f"{home.place} does not agree with its audit trail: {home.doubt}")
    db.keep(books)
