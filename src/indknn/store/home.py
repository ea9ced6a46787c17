"""The home of a store: the place where it is kept, how it is made, opened and read there, and who has it.

What differs between places is in one class each: `filehome.FileHome` for a SQLite file, `postgres.home.DatabaseHome`
for PostgreSQL. Balances and later debits together give exactly the integers that were in memory.
"""

from __future__ import annotations

import json
import secrets
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from indknn.core import clock
from indknn.core.noise import Noise
from indknn.core.releases import PublicRows
from indknn.engine import Engine, MakeShard, new_ledger
from indknn.errors import DamagedStoreError, StoreError, to_install
from indknn.place import Address, Place, keys_path, place_of
from indknn.proof import Signer, breaks
from indknn.records.shard import new_index
from indknn.settings import Settings
from indknn.store import chain, database
from indknn.store.chain import Books, Guard, StoreConnection
from indknn.store.database import VERSION
from indknn.store.journal import StoreJournal
from indknn.tables.schema import Schema, from_plain


class Home(ABC):
    """The place of a store. One process holds it at a time. Processes that only read may share it."""

    doubt: str
    """What may have happened if rows do not agree with the audit trail."""
    other_keys = ""
    """What a receipt says about files of keys that this process does not know of."""

    def __init__(self, place: Place):
        self.place = place
        """Where it is, in a form that can be shown."""
        self.keys = keys_path(place)
        """The file of API keys: beside a file, or in a folder of this user."""

    @abstractmethod
    def exists(self) -> bool:
        """Whether there is a store, or anything else in its place."""

    @abstractmethod
    def create(self, fill: Callable[[StoreConnection], None]) -> None:
        """Make an empty store, completely or not at all.

        `fill` writes its first rows. An existing store is never overwritten.
        """

    @abstractmethod
    def hold(self, *, read_only: bool = False) -> None:
        """Take the store, or raise an error that says who has it. It must exist."""

    @abstractmethod
    def release(self) -> None:
        """Release the store."""

    @abstractmethod
    def connect(self, *, read_only: bool = False, synchronous: str = "FULL", vfs: str | None = None) -> StoreConnection:
        """An open store of this version. Everything that it shows is durable."""

    @abstractmethod
    def close(self, db: StoreConnection) -> None:
        """Close, even if the disk or the server fails."""

    @contextmanager
    def opened(self, *, read_only: bool = False) -> Iterator[StoreConnection]:
        """The store, held and open for a moment."""
        self.hold(read_only=read_only)
        try:
            db = self.connect(read_only=read_only)
            try:
                yield db
            finally:
                self.close(db)
        finally:
            self.release()

    @abstractmethod
    def copy(self, db: StoreConnection) -> Iterator[StoreConnection | None]:
        """Copy the open store, some more with each step, in about a millisecond and while nobody writes.

        A step gives None, or the copy once it is complete. It can be read in any thread while the store is used.
        """

    @abstractmethod
    def still_held(self, db: StoreConnection) -> bool:
        """Whether this process still has the store, or somebody took it over. A short read, in no transaction.

        StoreError if that cannot be known now.
        """

    @abstractmethod
    def take_over(self) -> str:
        """Take the store away from the process that has it. Returns who that was."""

    # What only one of the places needs

    def refuse_if_moved(self) -> None:  # noqa: B027
        """Refuse if this is no longer the store that was opened. Called before writing, and before reading again."""

    def keep_room(self, engine: Engine, debits: int) -> None:  # noqa: B027
        """Reserve space so that people can be forgotten on a full disk, if this process can do that."""

    def give_room(self) -> bool:
        """Give up the reserved space. Returns whether there was any."""
        return False

    def empty_log(self, db: StoreConnection) -> bool:
        """Overwrite erased bytes in the log too, if that is possible at once. Returns the same as `give_room`."""
        return False

    def defects(self, db: StoreConnection) -> Iterator[str]:
        """Errors that the place itself finds in its storage."""
        return iter(())

    def rewrite(self) -> Any:
        """Write tables anew that still hold old bytes.

        Returns `postgres.home.Rewritten`, or None if nothing was needed.
        """
        return None

    def old_bytes(self, db: StoreConnection) -> list[str]:
        """Why bytes of erased people may still be there. Empty if they are known to be gone."""
        return []

    def erasure(self, db: StoreConnection) -> dict[str, Any]:
        """What a receipt says about old bytes."""
        return {}


def home_of(where: str | Path | Address) -> Home:
    """The home that a path or an address means."""
    place = place_of(where)
    if isinstance(place, Path):
        from indknn.store.filehome import FileHome  # noqa: PLC0415

        return FileHome(place)
    try:
        from indknn.store.postgres.home import DatabaseHome  # noqa: PLC0415
    except ModuleNotFoundError as missing:
        raise StoreError(to_install(str(missing.name), "postgres", "a store in PostgreSQL")) from None
    return DatabaseHome(place)


@dataclass
class State:
    """A store in memory: the open file or database, and what was read from it."""

    home: Home
    db: StoreConnection
    engine: Engine
    journal: StoreJournal
    draft: bool
    store_id: str
    signer: Signer
    schema: Schema | None = None
    analysts: set[str] = field(default_factory=set)
    """The analysts who were declared."""

    def begin_with(self, settings: Settings, public: PublicRows | None = None) -> None:
        """Use these settings from now on, in a store that has never held records."""
        old = self.engine
        self.engine = Engine(settings, old.noise, self.journal.ledger, self.journal, public, old.make_shard)


def create(home: Home, settings: Settings, draft: bool) -> None:
    """Make an empty store, completely or not at all. An existing store is never overwritten."""
    new_index(settings)  # refuses bad settings before the store is made
    settings.plan(settings.tau or 1.0)
    facts = json.loads(json.dumps(settings.stored(draft=draft)))

    def fill(db: StoreConnection) -> None:
        key = secrets.token_bytes(32)
        db.keep(Books(key))
        with db:
            database.set_meta(db, "store", str(uuid.uuid4()))
            database.set_meta(db, "key", key)
            database.set_meta(db, "settings", json.dumps(facts))
            database.set_meta(db, "next_number", "0")
            database.set_meta(db, "born", clock.minute())
            signer = chain.new_signer(db, chain.now())
            chain.append(db, "init", settings=facts, schema=VERSION, signing=signer.public)

    home.create(fill)


def load(home: Home, noise: Noise, guard: Guard, make_shard: MakeShard | None = None, **options: Any) -> State:
    """Open the store and read everything."""
    db = home.connect(**options)
    try:
        check_books(db, home)
        meta = dict(db.execute("SELECT name, value FROM meta"))
        store_id = str(meta["store"])
        guard.check(db, store_id)
        if db.undone:
            with db:
                entry = chain.append(db, "undone")
            guard.saw(entry)
            db.undone = False
        stored = json.loads(meta["settings"])
        settings, chosen = Settings.from_stored(stored), meta.get("tau")
        if settings.tau is None and chosen is not None:
            settings = replace(settings, tau=chosen)
        ledger = new_ledger(settings, key=meta["key"])
        ledger.joint, ledger.born = bool(meta.get("joint")), int(meta["born"])
        ledger.period = int(meta.get("period", 0))
        journal = StoreJournal(db, ledger, guard)
        engine = Engine(settings, noise, ledger, journal, database.read_public(db), make_shard)
        database.read_records(db, settings.n_features, engine.shard)
        engine.shard.epoch = max(engine.shard.epoch, int(meta.get("epoch", 0)))
        for scope, query, label, release in database.read_answers(db, settings.n_features):
            engine.predictor.remember(scope, query, label, release)
        schema = None if settings.schema is None else from_plain(settings.schema)
        draft, declared = stored["n_features"] is None, database.read_analysts(db)
        return State(home, db, engine, journal, draft, store_id, Signer(meta[chain.SECRET]), schema, declared)
    except BaseException as error:
        home.close(db)
        if isinstance(error, StoreError) or not isinstance(error, Exception):
            raise
        raise DamagedStoreError(f"{home.place} cannot be read as a store: {error!r}") from error


def check_books(db: StoreConnection, home: Home) -> None:
    """Refuse a store whose rows do not agree with its audit trail. From now on its books are told of every change."""
    broken = next(breaks(chain.entries(db)), None)
    if broken is not None:
        raise DamagedStoreError(f"{home.place} cannot be read as a store: {broken}")
    books = Books(database.get_meta(db, "key"))
    if books.read(db) != chain.last(db).facts.get("books"):
        raise DamagedStoreError(f"{home.place} does not agree with its audit trail: {home.doubt}")
    db.keep(books)
