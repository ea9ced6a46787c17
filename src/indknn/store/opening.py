"""Reading a store back from its file: snapshot and replay give the very integers there were."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import apsw

from indknn.core.noise import Noise
from indknn.engine import Engine, new_ledger
from indknn.errors import StaleStoreError, StoreError
from indknn.settings import Settings
from indknn.store import chain, database
from indknn.store.journal import StoreJournal


@dataclass
class State:
    """A store in memory: the open file, and what was read from it."""

    db: apsw.Connection
    engine: Engine
    journal: StoreJournal
    draft: bool
    store_id: str


def load(
    path: Path,
    noise: Noise,
    on_commit: Callable[[chain.Entry], None],
    **options: Any,
) -> State:
    """Open the file and read everything."""
    db = database.connect(path, create=False, **options)
    try:
        database.settle_log(db, path)
        stored = json.loads(database.get_meta(db, "settings"))
        stored["center"] = None if stored["center"] is None else tuple(stored["center"])
        draft = stored["n_features"] is None
        stored["n_features"] = stored["n_features"] or 1
        settings = Settings(**{**stored, "classes": tuple(stored["classes"])})
        chosen = database.get_meta(db, "tau")
        if settings.tau is None and chosen is not None:
            settings = replace(settings, tau=chosen)
        ledger = new_ledger(settings, key=database.get_meta(db, "key"))
        touched = database.read_ledger(db, ledger)
        journal = StoreJournal(db, ledger, on_commit)
        journal.touched = touched
        engine = journaled_engine(settings, noise, journal)
        database.read_records(db, settings.n_features, engine.shard)
        for scope, query, label, release in database.read_answers(db, settings.n_features):
            engine.predictor.remember(scope, query, label, release)
        return State(db, engine, journal, draft, str(database.get_meta(db, "store")))
    except BaseException as error:
        database.close(db)
        if isinstance(error, StoreError) or not isinstance(error, Exception):
            raise
        raise StoreError(f"{path} cannot be read as a store: {error!r}") from error


def journaled_engine(settings: Settings, noise: Noise, journal: StoreJournal) -> Engine:
    """An engine that writes down what it answers, and the τ it chooses where none was given."""
    engine = Engine(settings, noise, journal.ledger, journal)
    if settings.tau is None and not settings.advised:
        journal.tau = lambda: None if engine.predictor.plan is None else engine.predictor.plan.tau
    return engine


def compare(db: apsw.Connection, path: Path, store_id: str, seen: dict[str, Any]) -> None:
    """Refuse a store that does not contain what its witness saw."""
    if seen["store"] != store_id:
        raise StaleStoreError(f"the witness is of store {seen['store']}, but {path} is {store_id}")
    found = db.execute("SELECT hash FROM audit WHERE position = ?", (seen["position"],)).get
    if found is None or found.hex() != seen["hash"]:
        raise StaleStoreError(
            f"{path} does not contain entry {seen['position']} of its audit trail, seen at {seen['at']}: "
            "it is an old copy, and budgets were spent since that it does not know of"
        )
