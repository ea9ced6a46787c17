"""`Store`: the engine with everything kept durably, in a file or a database.

Everything is computed in memory, by the same engine as everywhere, and written in one transaction before an answer
leaves. After a disk error, memory may be ahead of the file. Then it is discarded and read again.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import fields, replace
from itertools import islice
from pathlib import Path
from threading import RLock
from typing import Any, Self

import apsw
import numpy as np
import numpy.typing as npt

from indknn.answering.predictor import MayShow, at_once
from indknn.answering.requests import Reply, Request
from indknn.answering.trainer import Progress
from indknn.core.advice import about_copies, about_delta, tell
from indknn.core.inputs import EACH_ROW, as_owner_list, refuse_unwritable
from indknn.core.noise import Noise, SecureNoise
from indknn.engine import Engine, MakeShard, public_rows
from indknn.errors import FencedError, InvalidInputError, PrivacyError, StoreError
from indknn.ledger import Scope
from indknn.ledger.figures import statement
from indknn.place import Place
from indknn.settings import Settings
from indknn.store import chain, intake, opening
from indknn.store.analysts import settings_with_limit
from indknn.store.change import ERASED, PURGED, REWRITTEN, Change
from indknn.store.connection import Connection
from indknn.store.home import home_of
from indknn.store.intake import Added, Item, NewRows
from indknn.store.journal import Batch, Upload, answered
from indknn.tables.schema import Schema, records_of, vectors_of
from indknn.types import FloatArray, IntArray, OwnerId, Vectors


class Store:
    """A durable store of records, with every person's ledger. One process owns it at a time.

    Use `Store.create` or `indknn.open`. A store is a context manager. With `read_only`, nothing can be changed or
    answered. If a cluster holds the records, `make_shard` is its `Cluster.new_shard`.
    """

    _state: opening.State

    def __init__(
        self,
        path: str | Place,
        *,
        witness: str | Path | None = None,
        new_witness: bool = False,
        noise: Noise | None = None,
        synchronous: str = "FULL",
        vfs: str | None = None,
        read_only: bool = False,
        make_shard: MakeShard | None = None,
    ):
        if noise is not None and not noise.secure:
            raise PrivacyError("a store serves people's data and refuses seeded noise; use an estimator in memory")
        self.home = home_of(path)
        self.path = self.home.place
        self.noise = SecureNoise() if noise is None else noise
        self.generation = 0
        self._options = {"synchronous": synchronous, "vfs": vfs, "read_only": read_only}
        self._make_shard = make_shard
        self._lock, self._closed, self._background = RLock(), False, False
        self._records = self._added = 0  # how many records there were when space was reserved, and how many came since
        self._process = os.getpid()  # a forked process inherits the lock and must not write
        self.home.hold(read_only=read_only)
        self._guard = chain.Guard(self.home, None if witness is None else Path(witness), new_witness)
        try:
            self._load()
        except BaseException:
            self.home.release()
            raise
        if not read_only:
            self._keep_room()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Fold debits into balances, and release the store."""
        with self._lock:
            if self._closed:
                return
            try:
                if self._state.journal.failure is None:
                    with suppress(StoreError):  # everything that was answered is on disk, and folding can wait
                        self.fold()
            finally:
                self._closed = True
                with self._state.journal.io:
                    self.home.close(self._state.db)
                self.home.release()

    @classmethod
    def create(cls, path: str | Place, settings: Settings, *, draft: bool = False, **options: Any) -> Store:
        """Make a new, empty store. A `draft` takes the number of features and the classes from the first records."""
        opening.create(home_of(path), settings, draft)
        return cls(path, **options)

    @classmethod
    def made_or_opened(cls, place: Place, settings: Settings, make_shard: MakeShard | None) -> tuple[Store, bool]:
        """The store in this place, and whether it was made now. One that is there must have the same settings."""
        if not home_of(place).exists():
            return cls.create(place, settings, make_shard=make_shard), True
        store = cls(place, make_shard=make_shard)
        try:
            store.refuse_other(settings)
        except BaseException:
            store.close()
            raise
        return store, False

    def refuse_other(self, settings: Settings) -> None:
        """Refuse other settings than the store was made with. Only a τ that was left open may differ."""
        kept = replace(self.settings, tau=settings.tau) if settings.tau is None else self.settings
        differing = [f.name for f in fields(settings) if getattr(kept, f.name) != getattr(settings, f.name)]
        if differing:
            raise InvalidInputError(f"{self.path} was made with other parameters: {', '.join(differing)} differ")

    # To look at

    @property
    def settings(self) -> Settings:
        """The public parameters in use."""
        return self._state.engine.settings

    @property
    def draft(self) -> bool:
        """Whether the number of features and the classes are still open."""
        self._reload_if_failed()
        return self._state.draft

    @property
    def schema(self) -> Schema | None:
        """The schema of tables, if queries and records may be tables."""
        self._reload_if_failed()
        return self._state.schema

    @property
    def engine(self) -> Engine:
        """The engine in memory. Only for reading: changes made directly to it would not be written."""
        self._reload_if_failed()
        return self._state.engine

    @property
    def db(self) -> Connection:
        """The open file. Only for reading, while no other thread uses the store. Otherwise use `reading`."""
        self._reload_if_failed()
        return self._state.db

    @property
    def fenced(self) -> bool:
        """Whether another process is known to have taken over the store."""
        return isinstance(self._state.journal.failure, FencedError)

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """The open file for reading, while other threads wait."""
        with self._exclusive():
            yield self._state.db

    @contextmanager
    def changing(self) -> Iterator[Change]:
        """A transaction that changes the open file."""
        with self._exclusive(), self._transaction() as change:
            yield change

    def spent(self, owners: Any = None, analyst: Scope = None) -> FloatArray:
        """How much each owner has spent, as ρ. The default is all owners who have records.

        With `analyst`, only what was spent with that analyst; otherwise the sum over all analysts.
        """
        return self.engine.spent(owners, analyst)

    # Answering

    def predict(self, Q: npt.ArrayLike, analyst: Scope = None, *, request_id: str | None = None) -> npt.NDArray[Any]:
        """The label of each query. This spends the budget of the people near the queries. Charges are durable.

        With a `request_id` it is safe to ask again after a crash or a lost connection: the same request gets the same
        answers and is charged once.
        """
        return np.asarray(self.settings.class_array[self._answered(Q, analyst, request_id).labels])

    def predict_proba(self, Q: npt.ArrayLike, analyst: Scope = None, *, request_id: str | None = None) -> FloatArray:
        """The probability of each class for each query. It costs the same as `predict`.

        The same `request_id` gives the same probabilities again.
        """
        return self.predict_both(Q, analyst, request_id=request_id)[1]

    def predict_both(
        self, Q: npt.ArrayLike, analyst: Scope = None, *, request_id: str | None = None
    ) -> tuple[npt.NDArray[Any], FloatArray]:
        """The label of each query and the probability of each class, in one request."""
        reply = self._answered(Q, analyst, request_id, likely=True)
        assert reply.likely is not None
        return np.asarray(self.settings.class_array[reply.labels]), reply.likely

    def _answered(self, Q: npt.ArrayLike, analyst: Scope, request_id: str | None, *, likely: bool = False) -> Reply:
        if self.draft:
            raise InvalidInputError(f"{self.path} has never held records, so it cannot answer; add records first")
        queries = self.settings.quantise(vectors_of(Q, self.schema), "the queries")
        for name, text in (("analyst", analyst), ("request_id", request_id)):
            refuse_unwritable(name, text)
        batch = self.compute([Request(queries, analyst, request_id, likely)])
        batch.commit()
        self.fold_if_long()
        (outcome,) = batch.outcomes
        if isinstance(outcome, InvalidInputError):
            raise outcome
        return outcome

    def compute(self, requests: Sequence[Request]) -> Batch:
        """Answer several requests with one scan and one sync. The answers are as if each request had come alone.

        The answers are charged, but the charges are not durable yet. Send them only after `Batch.commit` (rule 2).
        """
        with self.computing() as state:
            return answered(requests, state.engine.predictor, state.journal)

    def knows(self, request_id: str) -> bool:
        """Whether a request with this id was answered before."""
        return self._state.journal.request(request_id) is not None

    # The shared model

    def train(self, may_show: MayShow = at_once) -> Iterator[Progress]:
        """Train the shared model, or train it again if there are enough newcomers. Each step is made durable.

        Iterate over the result to run the steps. The time of a training is public. A clock or your own decision may
        start it, but never what is in the records (rule 14). `may_show` is as for `go_on`.
        """
        with self.computing() as state:
            state.engine.start_round()
        yield from self.go_on(may_show)

    def go_on(self, may_show: MayShow = at_once) -> Iterator[Progress]:
        """Continue the current round, piece by piece, each durable. It ends early if the store was read again.

        It also ends if the model is finished and `may_show` says that it must not be shown yet.
        """
        with self.computing() as state:
            generation, pieces = self.generation, state.engine.predictor.training(may_show)
        while True:
            with self.computing() as state:
                progress = next(pieces, None) if self.generation == generation else None
            if progress is None:
                return
            yield progress
            if not state.journal.background:  # otherwise the next commit also folds
                self.fold_if_long()

    def train_in_background(self) -> None:
        """From now on answers do not wait for training. The caller must run `go_on` between answers."""
        self._background = self._state.journal.background = True

    def _finish_round(self) -> None:
        """Run the round that an event began. Otherwise whoever asks next would decide when it is made (rule 17)."""
        for _ in () if self._background or self.draft else self.go_on():
            pass

    def declare_public(self, X: npt.ArrayLike, y: npt.ArrayLike | None = None) -> None:
        """Give public rows to the shared model, with their labels if they are known. Once, before the first answer."""
        with self.changing() as change:
            settings = self.settings
            if y is not None and not settings.classes:
                known = "give classes or a schema"
                raise InvalidInputError(f"public rows can have labels only if the classes are known: {known}")
            if self._state.draft and np.ndim(X) == 2:  # it takes any number of features
                settings = replace(settings, n_features=np.shape(X)[1])
            change.declare_public(public_rows(settings, X, y))

    # Settings that are given later

    def adopt(self, schema: Schema) -> None:
        """Give this store a schema. This is possible once, before the first records."""
        with self.changing() as change:
            change.adopt(schema)

    def limit_analyst(self, analyst: str, epsilon: float) -> None:
        """Give this analyst a smaller ε than the store's, for everything that they will ever be told.

        This is possible only before the first answer to that analyst. Until then you may lower it again. You can never
        raise it.
        """
        with self._exclusive():
            self._state.journal.commit()
            settings = settings_with_limit(self._state, analyst, epsilon)
            if settings is not None:
                with self._transaction() as change:
                    change.limit_analyst(settings, analyst)

    # Records

    def add(self, X: Any, y: Any = None, owners: Any = None, record_ids: Any = None) -> IntArray:
        """Add records, all or none, and return their numbers.

        With a schema, X may be a table that also holds labels, owners and record ids. `owners` names a person for each
        row (rule 13). If the store never had any people, owners="each-row" says that every row is a new person.
        `record_ids` are your own ids. A row whose id is already here replaces that record of the same owner. If it is
        equal, nothing changes.
        """
        return self.add_batches([(X, y, owners, record_ids)])

    def add_batches(self, batches: Any, classes: npt.ArrayLike | None = None) -> IntArray:
        """Add records from an iterable of (X, y, owners) or (X, y, owners, record_ids), all or none.

        Returns their numbers. The first records of a draft fix the number of features, and the labels if they were not
        given.
        """
        added = self._put((NewRows(*records_of(self.schema, *batch)) for batch in batches), classes=classes)
        tell(added.advice)
        return added.numbers

    def put(
        self, vectors: Vectors, labels: IntArray, owners: Any, record_ids: Any = None, *, instead: bool = False
    ) -> IntArray:
        """Add prepared records, all or none, and return their numbers. With `instead`, all earlier records go."""
        added = self._put([NewRows(vectors, labels, owners, record_ids, prepared=True)], instead=instead)
        tell(added.advice)
        return added.numbers

    def replace_all(self, vectors: Vectors, labels: IntArray, owners: Any, record_ids: Any = None) -> IntArray:
        """Replace all records by these, all or nothing, and return their numbers. What people have spent is kept."""
        return self.put(vectors, labels, owners, record_ids, instead=True)

    def upsert(
        self, X: FloatArray, items: Sequence[Item], *, each_row: bool = False, once: Upload | None = None
    ) -> Added:
        """Add and replace records, all or none. With `each_row`, every row is a new person.

        `once` identifies the upload. The store remembers it, so that a repeated upload is not done twice.
        """
        owners = EACH_ROW if each_row else None
        rows = NewRows(vectors_of(X, self.schema), intake.labels_of(items), owners, items=items)
        return self._put([rows], once=once)

    def _put(
        self,
        batches: Iterable[NewRows],
        *,
        classes: npt.ArrayLike | None = None,
        instead: bool = False,
        once: Upload | None = None,
    ) -> Added:
        """Add records, all or none. All ways to add end here.

        What is wrong with the first batch, mostly the only one, is told before anything is touched.
        """
        left = iter(batches)
        with self._exclusive():
            state = self._state
            taking = intake.Intake(state.engine.ledger, instead=instead)
            first = [] if state.draft else [taking.ready(state.engine, rows) for rows in islice(left, 1)]
            with self._transaction() as change:
                if instead and len(slots := state.engine.shard.slots()):
                    change.erase(slots, staying=first[0].owners or ())
                parts = [change.put(ready) for ready in first]
                for rows in left:
                    if state.draft:
                        change.complete(np.asarray(rows.X), rows.y, classes)
                    parts.append(change.put(taking.ready(state.engine, rows)))
                numbers = np.concatenate([np.zeros(0, dtype=np.int64), *parts])
                if instead:
                    change.begin_round()
                change.note_added(once, numbers)
            self._empty_log(change.erased)
            engine = state.engine
            self._added += change.added
            if self._added > 1000 + self._records:
                self._keep_room()
        if instead:
            self._finish_round()
        settings, now = engine.settings, engine.ledger.n_owners
        advice = change.advice + taking.profile.advice(settings.center_)
        advice += about_delta(settings.delta, taking.people, now)
        return Added(numbers, change.copies, advice + about_copies(change.copies, len(numbers)))

    # Erasing

    def forget(self, owners: Any = (), *, records: Sequence[int] = ()) -> dict[str, Any]:
        """Remove all records of these owners, and the records with these numbers. Returns a receipt.

        An owner who has no record left is forgotten. Only what they have spent is kept, under a keyed hash of their
        name. Answers and the model that were released before are differentially private and are kept; see `purge`.
        """
        names = as_owner_list(owners)
        try:
            receipt = self._forget(names, records)
        except StoreError as error:
            full = isinstance(error.__cause__, apsw.FullError | apsw.IOError | OSError)
            if not (full and self.home.give_room()):
                raise
            receipt = self._forget(names, records)  # with the space that the ballast held
            self._keep_room()
        left = [statement(self._state.engine, name) for name in names]
        return {**receipt, **({"owners": [facts["owner"] for facts in left], "on_the_books": left} if names else {})}

    def _forget(self, owners: Sequence[OwnerId], records: Sequence[int]) -> dict[str, Any]:
        with self._exclusive():
            shard = self._state.engine.shard
            slots = np.union1d(shard.slots_of_owners(owners), shard.slots_of_records(records))
            with self._transaction() as change:
                gone = change.erase(slots)
            self._empty_log(1)
            facts = {"records": len(slots), "owners_forgotten": len(gone), **ERASED}
            return self._receipt("erasure", **facts, **self.home.erasure(self._state.db))

    def rewrite(self) -> dict[str, Any]:
        """Overwrite the old bytes of erased people in a database. Returns the second receipt.

        In a file the bytes are overwritten before the first receipt. A rewrite may take long. The store can answer
        meanwhile.
        """
        with self.reading() as db:
            self.flush()
            before = chain.last(db)
        done = self.home.rewrite()
        if done is not None:
            with self.changing() as change:
                chain.append(change.state.db, "rewrite", upto=before.position, **vars(done))
        with self.reading() as db:
            kept = self.home.old_bytes(db)
            facts = {"stage": "old bytes may still be there" if kept else REWRITTEN, "erased_until": before.at}
            elsewhere = {key: value for key, value in self.home.erasure(db).items() if key == "elsewhere"}
            return self._receipt("rewrite", **facts, **({"why": kept} if kept else {}), **elsewhere)

    def _receipt(self, what: str, **facts: Any) -> dict[str, Any]:
        """The receipt of an erasure or a purge. An entry of the audit trail has the same hash.

        The receipt leaves out the position of the entry. It would count what happened to other people, which is private
        (rule 14).
        """
        entry, store = self._guard.newest, self._state.store_id
        assert entry is not None
        return {"receipt": what, "store": store, "at": entry.at, **facts, "audit_hash": entry.hash.hex()}

    def purge(self) -> dict[str, Any]:
        """Delete all answers and the shared model, for all analysts. Returns a receipt.

        People pay again for new ones. **A purge is a public event**: everybody who asks again can see it.
        So purge on a schedule, and never because one person was forgotten (rule 14).
        """
        with self._exclusive():
            with self._transaction() as change:
                change.purge()
            self._empty_log(1)
            receipt = self._receipt("purge", **PURGED, **self.home.erasure(self._state.db))
        self._finish_round()
        return receipt

    # Computing, and folding debits into balances

    @contextmanager
    def computing(self) -> Iterator[opening.State]:
        """The state in memory, for computing while others wait.

        After an error it may have charges that are never written.
        """
        with self._lock:
            self._reload_if_failed()
            try:
                yield self._state
            except BaseException as error:
                self._state.journal.failure = error
                raise

    def fold_if_long(self) -> None:
        """Fold debits if they have grown. The answers are paid for by then, so a failure can wait."""
        if self._state.journal.failure is None and self._state.journal.is_long:
            with suppress(StoreError):
                self.fold()

    def fold(self) -> None:
        """Replace debits by balances. The file becomes smaller and opens faster."""
        with self._exclusive():
            self._state.journal.commit()
            if self._state.journal.touched:
                with self._transaction() as change:
                    change.fold()
                    chain.append(self._state.db, "fold")

    def flush(self) -> None:
        """Return when everything that was computed is on disk."""
        with self._exclusive():
            self._state.journal.commit()

    def _empty_log(self, erased: int) -> None:
        """Empty the log, which still holds what was erased."""
        if erased and self.home.empty_log(self._state.db):
            self._keep_room()

    # Writing and opening

    @contextmanager
    def _exclusive(self) -> Iterator[None]:
        """Nobody else computes or writes. What is read in here is still true in a transaction that follows."""
        with self._lock:
            self._reload_if_failed()
            with self._state.journal.io:
                self._reload_if_failed()  # writing may have failed while this thread waited
                yield

    @contextmanager
    def _transaction(self) -> Iterator[Change]:
        """A change of records or people, within `_exclusive`. After a failure, memory is discarded."""
        journal = self._state.journal
        journal.commit()
        try:
            self._guard.refuse_if_moved()
            try:
                with self._state.db:
                    yield Change(self._state)
            except (apsw.Error, OSError) as error:
                raise StoreError(f"nothing was changed, because writing failed: {error}") from error
            self._guard.saw(chain.last(self._state.db))
        except BaseException as error:
            journal.failure = error
            raise

    def _keep_room(self) -> None:
        """Reserve space, so that people can be forgotten on a full disk."""
        self.home.keep_room(self._state.engine, self._state.journal.fold_bytes)
        self._records, self._added = len(self._state.engine.shard), 0

    def _reload_if_failed(self) -> None:
        if self._closed:
            raise StoreError(f"{self.path} is closed")
        if os.getpid() != self._process:
            raise PrivacyError(f"{self.path} was opened by the process that this one was forked from; open it here")
        if self._state.journal.failure is not None:
            with self._lock:
                if self._state.journal.failure is not None:
                    with self._state.journal.io:
                        self.home.close(self._state.db)
                    try:
                        self._load()
                    except FencedError as error:
                        self._state.journal.failure = error
                        raise

    def _load(self) -> None:
        self._guard.refuse_if_moved()
        self._state = opening.load(self.home, self.noise, self._guard, self._make_shard, **self._options)
        self._state.journal.background = self._background
        self.generation += 1
