"""`Store`: the engine with everything kept durably, in a file or a database. These are the methods for users."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import Any

import apsw
import numpy as np
import numpy.typing as npt

from indknn.answering.requests import Reply, Request
from indknn.answering.trainer import Progress
from indknn.core.advice import Profile, about_copies, about_delta, tell
from indknn.core.inputs import as_owner_list, as_record_ids, refuse_unwritable
from indknn.errors import InvalidInputError, StoreError
from indknn.ledger import Scope
from indknn.ledger.figures import statement
from indknn.place import Place
from indknn.settings import Settings
from indknn.store import chain, creation, intake, rounds
from indknn.store.analysts import settings_with_less
from indknn.store.batches import Batch, answered
from indknn.store.change import ERASED, PURGED, REWRITTEN, Change, receipt_of
from indknn.store.held import HeldStore
from indknn.store.home import home_of
from indknn.store.requests import Upload
from indknn.tables.schema import Schema, records_of, vectors_of
from indknn.types import FloatArray, IntArray, OwnerId, Vectors


class Store(HeldStore):
    """A durable store of records, with every person's ledger. One process owns it at a time.

    Use `Store.create` or `indknn.open`. A store is a context manager. With `read_only`, nothing can be changed or
    answered. If a cluster holds the records, `make_shard` is its `Cluster.new_shard`.
    """

    @classmethod
    def create(cls, path: str | Place, settings: Settings, *, draft: bool = False, **options: Any) -> Store:
        """Make a new, empty store. A `draft` takes the number of features and the classes from the first records."""
        creation.create(home_of(path), settings, draft)
        return cls(path, **options)

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

    def train(self) -> Iterator[Progress]:
        """Train the shared model, or train it again if there are enough newcomers. Each step is made durable.

        Iterate over the result to run the steps. The time of a training is public. A clock or your own decision may
        start it, but never what is in the records (rule 14).
        """
        return rounds.train(self)

    def train_in_background(self) -> None:
        """From now on answers do not wait for training. The caller must run `rounds.go_on` between answers."""
        self._background = self._state.journal.background = True

    def declare_public(self, X: npt.ArrayLike, y: npt.ArrayLike | None = None) -> None:
        """Give public rows to the shared model, with their labels if they are known. Once, before the first answer."""
        with self.changing() as change:
            change.declare_public(rounds.public_rows(self._state, X, y))

    def adopt(self, schema: Schema) -> None:
        """Give this store a schema. This is possible once, before the first records."""
        with self.changing() as change:
            change.adopt(schema)
        self.schema = schema

    def give_less(self, analyst: str, epsilon: float) -> None:
        """Give this analyst a smaller ε than the store's, for everything that they will ever be told.

        This is possible only before the first answer to that analyst. Until then you may lower it again. You can never
        raise it.
        """
        with self._exclusive():
            self._state.journal.commit()
            settings = settings_with_less(self._state, analyst, epsilon)
            if settings is not None:
                with self._transaction() as change:
                    change.give_less(settings, analyst)

    def knows(self, request_id: str) -> bool:
        """Whether a request with this id was answered before."""
        return self._state.journal.request(request_id) is not None

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
        batches = (records_of(self.schema, *batch) for batch in batches)
        with self._exclusive():
            ready = intake.Intake(self._state.engine)
            # What is wrong with the first batch, mostly the only one, is told before anything is touched.
            first = [] if self._state.draft else [ready(self._state.engine, *batch) for batch in islice(batches, 1)]
            with self._adding(ready.profile) as change:
                numbers = [change.put(*records) for records in first]
                for X, y, *names in batches:
                    if self._state.draft:
                        change.complete(np.asarray(X), y, classes)
                    numbers.append(change.put(*ready(self._state.engine, X, y, *names)))
        tell(change.advice)
        return np.concatenate([np.zeros(0, dtype=np.int64), *numbers])

    def put(self, vectors: Vectors, labels: IntArray, owners: Any, record_ids: Any = None) -> IntArray:
        """Add prepared records, all or none, and return their numbers."""
        with self._exclusive():
            engine, chosen = self._state.engine, as_record_ids(record_ids, len(vectors))
            names = intake.people_of(owners, len(vectors), engine.ledger, intake.is_vacant(engine))
            match = None if names is None else engine.match(vectors, labels, names, chosen)
            with self._adding() as change:
                numbers = change.put(vectors, labels, names, chosen, match)
        tell(change.advice)
        return numbers

    def replace_all(self, vectors: Vectors, labels: IntArray, owners: Any, record_ids: Any = None) -> IntArray:
        """Replace all records by these, all or nothing, and return their numbers. What people have spent is kept."""
        with self._exclusive():
            engine = self._state.engine
            names = intake.people_of(owners, len(vectors), engine.ledger, not engine.ledger.anything_spent())
            chosen, slots = as_record_ids(record_ids, len(vectors)), engine.shard.slots()
            with self._adding() as change:
                if len(slots):
                    change.erase(slots, staying=names or ())
                numbers = change.put(vectors, labels, names, chosen)
                change.begin_round()
        self._finish_round()
        tell(change.advice)
        return numbers

    def upsert(
        self, X: FloatArray, items: Sequence[intake.Item], *, each_row: bool = False, once: Upload | None = None
    ) -> intake.Added:
        """Add and replace records, all or none. With `each_row`, every row is a new person.

        `once` identifies the upload. The store remembers it, so that a repeated upload is not done twice.
        """
        X, y, profile = vectors_of(X, self.schema), intake.labels_of(items), Profile()
        with self._exclusive():
            replaced = self._state.engine.shard.slots_of_records([item.id for item in items if item.id is not None])
            chosen, names = intake.record_ids_of(items), intake.people_of_items(items, self._state.engine, each_row)
            prepared = match = None
            if not self._state.draft:
                prepared = self._state.engine.settings.prepare(X, y)
                match = None if names is None else self._state.engine.match(*prepared, names, chosen)
            with self._adding(profile) as change:
                if prepared is None:
                    change.complete(X, y)
                    prepared = self._state.engine.settings.prepare(X, y)
                numbers = change.put(*prepared, names, chosen, match, replaced)
                change.note_upload(once, numbers)
                profile.see(X)
        return intake.Added(numbers, change.copies, change.advice)

    @contextmanager
    def _adding(self, profile: Profile | None = None) -> Iterator[Change]:
        """A transaction that adds records. It also collects the warnings that the caller is given afterwards."""
        before = self._state.engine.ledger.n_owners
        with self._transaction() as change:
            yield change
            change.note_added()
        engine = self._state.engine
        self._empty_log(change.erased)
        self.home.keep_room(engine, self._fold_bytes, only_if_grown=True)
        if profile is not None:
            change.advice += profile.advice(engine.settings.center_)
        change.advice += about_delta(engine.settings.delta, before, engine.ledger.n_owners)
        change.advice += about_copies(change.copies, sum(map(len, change.slots)))

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
            self.home.keep_room(self._state.engine, self._fold_bytes)
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
            return receipt_of(self._state, "erasure", **facts, **self.home.erasure(self._state.db))

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
            told = {key: value for key, value in self.home.erasure(db).items() if key == "elsewhere"}
            return receipt_of(self._state, "rewrite", **facts, **({"why": kept} if kept else {}), **told)

    def purge(self) -> dict[str, Any]:
        """Delete all answers and the shared model, for all analysts. Returns a receipt.

        People pay again for new ones. **A purge is a public event**: everybody who asks again can see it.
        So purge on a schedule, and never because one person was forgotten (rule 14).
        """
        with self._exclusive():
            with self._transaction() as change:
                change.purge()
            self._empty_log(1)
            receipt = receipt_of(self._state, "purge", **PURGED, **self.home.erasure(self._state.db))
        self._finish_round()
        return receipt

    def _finish_round(self) -> None:
        """Run the round that an event began. Otherwise whoever asks next would decide when it is made (rule 17)."""
        for _ in () if self._background or self.draft else rounds.go_on(self):
            pass
