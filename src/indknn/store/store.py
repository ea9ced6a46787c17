"""A store that loses nothing: the engine, written down in one file.

Everything is decided in memory, by the same engine as everywhere, and written in one transaction before it is
answered. After an error of the disk memory may be ahead of the file; it is thrown away and read anew.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from itertools import islice
from pathlib import Path
from threading import RLock
from typing import Any, Self, TypeAlias

import apsw
import numpy as np
import numpy.typing as npt

from indknn.answering.predictor import Predictor
from indknn.core.inputs import as_owner_list
from indknn.core.noise import Noise, SecureNoise
from indknn.engine import Engine, new_index
from indknn.errors import InvalidInputError, PrivacyError, RequestConflictError, StoreError
from indknn.ledger import MemoryLedger, Scope
from indknn.records.shard import Shard
from indknn.settings import RECEIPT, Derived, Settings, as_derived
from indknn.store import chain, creation, database
from indknn.store.codec import BLOCK
from indknn.store.files import Ballast, Lock, Witness
from indknn.store.journal import StoreJournal
from indknn.store.opening import compare, journaled_engine, load
from indknn.store.space import ballast_bytes, truncate_log
from indknn.store.upsert import erase
from indknn.types import FloatArray, IntArray, OwnerId, Vectors

FOLD_BYTES = 8 << 20
"""Debits are folded into balances when they have grown to this; earlier in a small store."""
_FOLD_LEAST = 256 << 10
Prepared: TypeAlias = tuple[Vectors, IntArray, list[OwnerId] | None]


class Store:
    """A durable store of records, with every person's ledger. One process owns it at a time.

    Use `Store.create` or `indknn.open`; it is a context manager.
    """

    _draft: bool
    _engine: Engine
    _journal: StoreJournal
    _db: apsw.Connection

    def __init__(
        self,
        path: str | Path,
        *,
        witness: str | Path | None = None,
        noise: Noise | None = None,
        synchronous: str = "FULL",
        vfs: str | None = None,
    ):
        if noise is not None and not noise.secure:
            raise PrivacyError("a store serves people's data and refuses seeded noise; use an estimator in memory")
        self.path = Path(path).resolve()  # a link to a store is that store, with one lock
        self.noise = SecureNoise() if noise is None else noise
        self._options = {"synchronous": synchronous, "vfs": vfs}
        self._witness = None if witness is None else Witness(Path(witness))
        self._lock = RLock()
        self._closed = False
        self._process = os.getpid()  # a fork inherits the lock, and must not write
        if self.path.is_dir():
            raise StoreError(f"{self.path} is a folder; a store is a file")
        if not self.path.exists():
            raise StoreError(f"{self.path} does not exist; make a store with: indknn init {self.path}")
        self._file_lock = Lock(self.path)
        self._ballast = Ballast(self.path)
        self._filled_for = 0  # records
        try:
            self._load()
            self._check_witness()
        except BaseException:
            if hasattr(self, "_db"):
                database.close(self._db)
            self._file_lock.release()
            raise
        self._fill_ballast()

    @classmethod
    def create(cls, path: str | Path, settings: Settings, *, draft: bool = False, **options: Any) -> Store:
        """A new, empty store file. A `draft` takes the number of features and the classes from the first records."""
        path = Path(path).resolve()
        new_index(settings)  # refuses bad settings before there is a file
        settings.plan(settings.tau or 1.0)
        creation.refuse_existing(path)
        lock = Lock(path)
        try:
            creation.refuse_existing(path)  # somebody may have been quicker
            creation.write_empty(path, {**asdict(settings), **({"n_features": None} if draft else {})})
        finally:
            lock.release()
        return cls(path, **options)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Fold, and let others have the file."""
        with self._lock:
            if self._closed:
                return
            try:
                if self._journal.failure is None:
                    with suppress(StoreError):  # all that was answered is on disk, and folding can wait
                        self.fold()
            finally:
                self._closed = True
                with self._journal.io:
                    database.close(self._db)
                self._file_lock.release()

    @property
    def draft(self) -> bool:
        """Whether the number of features and the classes are still open."""
        self._ready()
        return self._draft

    @property
    def settings(self) -> Settings:
        """The public parameters, as they are in force."""
        return self._engine.settings

    @property
    def engine(self) -> Engine:
        """What is in memory. To look at; changes made to it directly would not be written."""
        self._ready()
        return self._engine

    @property
    def ledger(self) -> MemoryLedger:
        """The ledger in memory. To look at."""
        return self.engine.ledger

    @property
    def shard(self) -> Shard:
        """The records in memory. To look at."""
        return self.engine.shard

    @property
    def predictor(self) -> Predictor:
        """The predictor in memory. To look at: what it computes is not written."""
        return self.engine.predictor

    @property
    def db(self) -> apsw.Connection:
        """The open file. To look at, while no other thread uses the store; else see `reading`."""
        self._ready()
        return self._db

    @contextmanager
    def reading(self) -> Iterator[apsw.Connection]:
        """The open file, to look at while other threads wait."""
        with self._lock:
            self._ready()
            with self._journal.io:
                yield self._db

    def predict(self, Q: npt.ArrayLike, analyst: Scope = None, *, request_id: str | None = None) -> npt.NDArray[Any]:
        """The label of each query, durably charged. Spends the budget of the people near the queries.

        A `request_id` makes it safe to ask again after a crash or a lost connection: the same request gets
        the same answers at one charge.
        """
        if self.draft:
            raise InvalidInputError(f"{self.path} has never held records, so nothing is known of its features")
        queries = self.settings.quantise(Q, "the queries")
        for name, text in (("analyst", analyst), ("request_id", request_id)):
            _refuse_unwritable(name, text)
        with self._lock:
            self._ready()
            journal = self._journal
            labels = self._known(request_id, queries, analyst)
            if labels is None:
                labels = self._compute(queries, analyst)
                journal.seal(request_id, request_digest(queries, analyst), labels)
        journal.commit()
        if journal.unfolded_bytes > self._fold_bytes:
            with suppress(StoreError):  # the answer is paid for, and folding can wait
                self.fold()
        return np.asarray(self.settings.class_array[labels])

    def add(self, X: npt.ArrayLike, y: npt.ArrayLike, owners: Sequence[OwnerId] | None = None) -> IntArray:
        """Add records, all or none; their ids."""
        return self.add_batches([(X, y, owners)])

    def add_batches(self, batches: Any, classes: npt.ArrayLike | None = None) -> IntArray:
        """Add records from an iterable of (X, y, owners or None), all or none; their ids.

        The first records of a draft fix the number of features, and the label set where it was not given.
        """
        batches = iter(batches)
        # What is wrong with the first batch, mostly the only one, is told before anything is touched.
        first = [] if self.draft else [self._prepare(*batch) for batch in islice(batches, 1)]
        with self._change() as db:
            ids = [self._put(db, *records) for records in first]
            for X, y, owners in batches:
                if self._draft:
                    self._complete(db, np.asarray(X), np.asarray(y if classes is None else classes))
                ids.append(self._put(db, *self._prepare(X, y, owners, after=sum(map(len, ids)))))
            total = np.concatenate([np.zeros(0, dtype=np.int64), *ids])
            self._count_added(db, len(total))
        self._keep_ballast()
        return total

    def put(self, vectors: Vectors, labels: IntArray, owners: Sequence[OwnerId] | None) -> IntArray:
        """Add prepared records, all or none; their ids."""
        names = _names(owners, vectors)
        with self._change() as db:
            ids = self._put(db, vectors, labels, names)
            self._count_added(db, len(ids))
        self._keep_ballast()
        return ids

    def replace_all(self, vectors: Vectors, labels: IntArray, owners: Sequence[OwnerId]) -> IntArray:
        """Put these records in the place of all that are here, all or nothing; their ids. What was spent stays."""
        names = _names(owners, vectors)
        with self._lock:
            with self._change() as db:
                old = self._engine.shard.record_ids()
                if len(old):
                    erase(self, db, old.tolist(), old & 0xFFFFFFFF)
                ids = self._put(db, vectors, labels, names)
                self._count_added(db, len(ids))
            if len(old) and truncate_log(self._db, self.path, self._ballast):
                self._fill_ballast()
        self._keep_ballast()
        return ids

    def forget_owners(self, owners: Sequence[OwnerId], derived: Derived = "keep") -> int:
        """Remove every record of these owners; how many. `forget` gives a receipt as well."""
        return int(self.forget(owners, derived=derived)["records"])

    def forget_records(self, ids: Sequence[int]) -> int:
        """Remove these records; how many. An owner whose last record goes is forgotten."""
        return int(self._forget(records=ids)["records"])

    def forget(self, owners: Sequence[OwnerId], *, derived: Derived = "keep") -> dict[str, Any]:
        """Remove every trace of these owners but what they spent, under a keyed hash. Gives a receipt.

        `derived` says what becomes of answers and statistics that were released while they were here: they are
        differentially private and may be kept, or are purged and made anew from those who remain, who pay again.
        """
        names, purge = as_owner_list(owners), as_derived(derived) == "purge"
        return {**self._forget(owners=names, purge=purge), "owners": [str(name) for name in names]}

    def spent(self, owners: Sequence[OwnerId] | None = None, analyst: Scope = None) -> FloatArray:
        """ρ of each owner (of all who have records), with one analyst or with all together."""
        return self.engine.spent(owners, analyst)

    def flush(self) -> None:
        """Return when everything that was computed is on disk."""
        with self._lock:
            self._ready()
            self._journal.flush()

    def restarted(self, settings: Settings, noise: Noise) -> Store:
        """A store keeps the settings it was made with."""
        raise InvalidInputError(f"{self.path} was opened by this object; store must stay {str(self.path)!r}")

    def fold(self) -> None:
        """Turn debits into balances: a smaller file, a quicker start."""
        with self._lock:
            self._ready()
            self._journal.flush()
            if self._journal.touched:
                with self._change() as db:
                    self._fold(db)

    def _compute(self, queries: Vectors, analyst: Scope) -> IntArray:
        try:
            return self._engine.predictor.compute(queries, analyst)
        except InvalidInputError as error:
            if not self._journal.untouched:  # else it was told before anybody was charged
                self._journal.failure = error
            raise
        except BaseException as error:  # an interrupt, say: memory may know charges or answers that no group holds
            self._journal.failure = error
            raise

    def _count_added(self, db: apsw.Connection, n: int) -> None:
        database.set_meta(db, "next_number", str(self._engine.ledger.next_number))  # may exceed 63 bits
        chain.append(db, "add", records=n)

    def _put(self, db: apsw.Connection, vectors: Vectors, labels: IntArray, owners: Any) -> IntArray:
        ledger, shard = self._engine.ledger, self._engine.shard
        newcomers = ledger.strangers(owners if owners is not None else ())
        back = [digest for digest in map(ledger.digest, newcomers) if digest in ledger.tombstones]
        first = ledger.next_number
        ids = self._engine.put(vectors, labels, owners)
        if owners is None:
            newcomers = list(range(first, ledger.next_number))
        database.write_records(db, shard, ids & 0xFFFFFFFF, vectors, labels)
        slots = ledger.slots_of(newcomers).tolist()
        database.write_owners(db, zip(slots, newcomers, strict=True))
        if back:  # they resume what they had spent: it moves from the tombstones into the balances
            db.executemany("DELETE FROM tombstones WHERE digest = ?", ((digest,) for digest in back))
            self._touch(slots)
            self._fold(db)
        return ids

    def _forget(
        self, owners: Sequence[OwnerId] = (), records: Sequence[int] = (), purge: bool = False
    ) -> dict[str, Any]:
        try:
            return self._forget_once(owners, records, purge)
        except StoreError as error:
            full = isinstance(error.__cause__, apsw.FullError | apsw.IOError)
            if not (full and self._ballast.drop()):
                raise
        receipt = self._forget_once(owners, records, purge)  # with the space that the ballast held
        self._fill_ballast()
        return receipt

    def _forget_once(self, owners: Sequence[OwnerId], records: Sequence[int], purge: bool) -> dict[str, Any]:
        with self._settled():
            shard, ledger = self.engine.shard, self.engine.ledger
            slots = shard.slots_of_records(records) if records else shard.slots_of_owners(owners)
            concerned = {slot: ledger.name_of(slot) for slot in np.unique(shard.owners_of(slots)).tolist()}
            with self._change() as db:
                count = shard.forget_records(records) if records else shard.forget_owners(owners)
                gone = {s: name for s, name in concerned.items() if ledger.slots_of([name])[0] < 0}
                database.clear_records(db, shard, slots, self.settings.n_features)
                database.blank_owners(db, gone)
                for digest in map(ledger.digest, gone.values()):
                    database.write_tombstone(db, digest, ledger.tombstones[digest])
                self._touch(gone)
                self._fold(db)
                if purge:
                    database.purge_answers(db)
                    chain.append(db, "purge", upto=self._journal.last_noted)
                    self._journal.forget_requests()
                    self._engine.predictor.purge()
                entry = chain.append(db, "forget", records=count, owners=len(gone))
            if truncate_log(self._db, self.path, self._ballast):
                self._fill_ballast()
        return {
            "receipt": "erasure",
            "store": self._store_id,
            "at": entry.at,
            "records": count,
            "owners_forgotten": len(gone),
            "kept": "what was spent, under a keyed hash of the owner's name",
            "derived": RECEIPT["purge" if purge else "keep"],
            "audit_position": entry.position,
            "audit_hash": entry.hash.hex(),
        }

    @property
    def _fold_bytes(self) -> int:
        """How long debits may become before they are folded: many times the balances, within bounds."""
        return min(FOLD_BYTES, max(_FOLD_LEAST, 64 * 12 * len(self._engine.ledger.participation)))

    def _keep_ballast(self) -> None:
        if len(self._engine.shard) > 2 * self._filled_for + 1000:
            self._fill_ballast()

    def _fill_ballast(self) -> None:
        with self._lock:
            self._ballast.fill(ballast_bytes(self._engine, self._fold_bytes))
            self._filled_for = len(self._engine.shard)

    def _fold(self, db: apsw.Connection) -> None:
        blocks = sorted(self._journal.touched, key=str)
        database.write_balances(db, database.snapshot(self._engine.ledger, blocks), self._journal.last_noted)
        self._journal.touched.clear()
        self._journal.unfolded_bytes = 0

    def _touch(self, owner_slots: Iterable[int]) -> None:
        blocks = {slot // BLOCK for slot in owner_slots}
        self._journal.touched |= {(scope, b) for scope in self._engine.ledger.scopes for b in blocks}

    @contextmanager
    def _settled(self) -> Iterator[None]:
        """What is looked up in here still holds in a `_change` that follows: nobody else's writing can fail meanwhile.

        Else memory would be read anew in between, and somebody be forgotten in the memory that was thrown away.
        """
        with self._lock:
            self._ready()
            with self._journal.io:
                self._ready()  # writing may have failed while we waited; a journal read anew is nobody else's yet
                yield

    @contextmanager
    def _change(self) -> Iterator[apsw.Connection]:
        """A transaction that changes records or people. Memory that ran ahead of a failure is thrown away."""
        with self._lock:
            self._ready()
            journal = self._journal
            with journal.io:
                journal.flush()
                try:
                    with self._db:
                        yield self._db
                except BaseException as error:
                    journal.failure = error
                    if isinstance(error, apsw.Error | OSError):
                        raise StoreError(f"nothing was changed, because writing failed: {error}") from error
                    raise
                try:
                    self._saw(chain.last(self._db))
                except BaseException as error:
                    journal.failure = error
                    raise

    def _prepare(self, X: Any, y: Any, owners: Any, after: int = 0) -> Prepared:
        """Records as they are kept, or an error that tells the row, counted from the first of all batches."""
        try:
            vectors, labels = self._engine.settings.prepare(X, y)
            return vectors, labels, _names(owners, vectors)
        except InvalidInputError as error:
            raise InvalidInputError(f"{error}, counting from row {after}" if after else str(error)) from None

    def _complete(self, db: apsw.Connection, X: npt.NDArray[Any], classes: npt.NDArray[Any]) -> None:
        """Settle what a draft left open, inside the transaction that adds its first records."""
        if X.ndim != 2:
            raise InvalidInputError(f"X must be a table of shape (rows, features), got shape {X.shape}")
        labels = self._engine.settings.classes or tuple(np.unique(classes).tolist())
        settings = replace(self._engine.settings, n_features=X.shape[1], classes=labels)
        database.set_meta(db, "settings", json.dumps(asdict(settings)))
        chain.append(db, "settings", n_features=settings.n_features, classes=list(labels))
        self._engine = journaled_engine(settings, self.noise, self._journal)
        self._draft = False

    def _known(self, request_id: str | None, queries: Vectors, analyst: Scope) -> IntArray | None:
        if request_id is None:
            return None
        found = self._journal.request(request_id)
        if found is None:
            return None
        digest, labels = found
        if digest != request_digest(queries, analyst):
            raise RequestConflictError(f"request id {request_id!r} was used before for other queries; use a new one")
        return labels

    def _ready(self) -> None:
        if self._closed:
            raise StoreError(f"{self.path} is closed")
        if os.getpid() != self._process:
            raise PrivacyError(f"{self.path} was opened by the process that this one was forked from; open it here")
        if self._journal.failure is None:
            return
        with self._lock:
            if self._journal.failure is not None:
                with self._journal.io:
                    database.close(self._db)
                self._load()

    def _load(self) -> None:
        state = load(self.path, self.noise, self._saw, **self._options)
        self._db, self._journal, self._engine = state.db, state.journal, state.engine
        self._draft, self._store_id = state.draft, state.store_id

    def _saw(self, entry: chain.Entry) -> None:
        if self._witness is not None:
            self._witness.write(self._store_id, entry.position, entry.hash)

    def _check_witness(self) -> None:
        seen = None if self._witness is None else self._witness.read()
        try:
            if seen is not None:
                compare(self._db, self.path, self._store_id, seen)
            newest = chain.last(self._db)
        except (apsw.Error, TypeError) as error:
            raise StoreError(f"{self.path} cannot be read as a store: its audit trail is damaged ({error})") from error
        self._saw(newest)


def _refuse_unwritable(name: str, text: Any) -> None:
    try:
        if text is None or text.encode():
            return
    except (AttributeError, UnicodeEncodeError):
        pass
    if text != "":
        raise InvalidInputError(f"{name} must be None or a str without lone surrogates, got {text!r}")


def _names(owners: Any, vectors: Vectors) -> list[OwnerId] | None:
    return None if owners is None else as_owner_list(owners, length=len(vectors))


def request_digest(queries: Vectors, analyst: Scope) -> bytes:
    """What makes two requests the same."""
    body = repr(analyst).encode() + queries.values.tobytes() + queries.scale.tobytes()
    return hashlib.blake2b(body, digest_size=32).digest()
