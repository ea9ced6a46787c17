"""Reads a store from its file. Balances and later debits together give exactly the integers that were in memory."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Any

from indknn.core.noise import Noise
from indknn.core.releases import PublicRows
from indknn.engine import Engine, MakeShard, new_ledger
from indknn.errors import DamagedStoreError, StoreError
from indknn.settings import Settings
from indknn.store import chain, database
from indknn.store.books import Books
from indknn.store.guard import Guard
from indknn.store.home import Connection, Home
from indknn.store.journal import StoreJournal
from indknn.store.renaming import names_to_text
from indknn.store.schema import VERSION
from indknn.tables.schema import Schema, from_plain


@dataclass
class State:
    """A store in memory: the open file or database, and what was read from it."""

    home: Home
    db: Connection
    books: Books
    engine: Engine
    journal: StoreJournal
    draft: bool
    store_id: str
    schema: Schema | None = None
    make_shard: MakeShard | None = None


def load(
    home: Home,
    noise: Noise,
    guard: Guard,
    make_shard: MakeShard | None = None,
    **options: Any,
) -> State:
    """Open the store and read everything."""
    db = home.connect(**options)
    try:
        books = checked_books(db, home)
        store_id = str(database.get_meta(db, "store"))
        guard.check(db, store_id)
        stored = json.loads(database.get_meta(db, "settings"))
        settings, draft = Settings.from_stored(stored), stored["n_features"] is None
        chosen = database.get_meta(db, "tau")
        if settings.tau is None and chosen is not None:
            settings = replace(settings, tau=chosen)
        ledger = new_ledger(settings, key=database.get_meta(db, "key"))
        if database.get_meta(db, "names") is None:
            names_to_text(db, ledger)
            guard.saw(chain.last(db))
        touched = database.read_ledger(db, ledger)
        journal = StoreJournal(db, ledger, guard)
        journal.touched = touched
        ledger.house = bool(database.get_meta(db, "house"))
        engine = journaled_engine(settings, noise, journal, database.read_public(db), make_shard)
        database.read_records(db, settings.n_features, engine.shard)
        engine.shard.epoch = max(engine.shard.epoch, int(database.get_meta(db, "epoch") or 0))
        for scope, query, label, release in database.read_answers(db, settings.n_features):
            engine.predictor.remember(scope, query, label, release)
        schema = None if settings.schema is None else from_plain(settings.schema)
        return State(home, db, books, engine, journal, draft, store_id, schema, make_shard)
    except BaseException as error:
        home.close(db)
        if isinstance(error, StoreError) or not isinstance(error, Exception):
            raise
        raise DamagedStoreError(f"{home.place} cannot be read as a store: {error!r}") from error


def checked_books(db: Connection, home: Home) -> Books:
    """Refuse a file whose rows do not agree with its audit trail. From now on every change is recorded in the sums."""
    broken = next(chain.breaks(db), None)
    if broken is not None:
        raise DamagedStoreError(f"{home.place} cannot be read as a store: {broken}")
    books = Books(db, database.get_meta(db, "key"))
    found, told = books.read(), chain.last(db).facts.get("books")
    if told is None and not any("books" in entry.facts for entry in chain.entries(db)):
        with db:  # a file from before there were sums
            chain.append(db, "upgrade", schema=VERSION)
    elif told != found:
        raise DamagedStoreError(f"{home.place} does not agree with its audit trail: {home.doubt}")
    return books


def journaled_engine(
    settings: Settings,
    noise: Noise,
    journal: StoreJournal,
    public: PublicRows | None = None,
    make_shard: MakeShard | None = None,
) -> Engine:
    """An engine that writes its answers to the journal, and also the τ that it chooses if none was given."""
    engine = Engine(settings, noise, journal.ledger, journal, public, make_shard)
    if settings.tau is None and not settings.advised:
        journal.tau = lambda: None if engine.predictor.plan is None else engine.predictor.plan.tau
    return engine
