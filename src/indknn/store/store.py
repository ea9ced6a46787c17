"""A store that loses nothing: the engine, written down in one file. What its users call."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import Any

import apsw
import numpy as np
import numpy.typing as npt

from indknn.answering.requests import Reply, Request
from indknn.answering.training import Progress
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

    Use `Store.create` or `indknn.open`; it is a context manager. With `read_only` nothing can be changed or answered.
    `make_shard` is `Cluster.new_shard` of a cluster that holds the records.
    """

    @classmethod
    def create(cls, path: str | Place, settings: Settings, *, draft: bool = False, **options: Any) -> Store:
        """A new, empty store file. A `draft` takes the number of features and the classes from the first records."""
        creation.create(home_of(path), settings, draft)
        return cls(path, **options)

    def spent(self, owners: Any = None, analyst: Scope = None) -> FloatArray:
        """ρ of each owner (of all who have records), with one analyst or with all together."""
        return self.engine.spent(owners, analyst)

    # Answering

    def predict(self, Q: npt.ArrayLike, analyst: Scope = None, *, request_id: str | None = None) -> npt.NDArray[Any]:
        """The label of each query, durably charged. Spends the budget of the people near the queries.

        A `request_id` makes it safe to ask again after a crash or a lost connection: the same request gets
        the same answers at one charge.
        """
        return np.asarray(self.settings.class_array[self._answered(Q, analyst, request_id).labels])

    def predict_proba(self, Q: npt.ArrayLike, analyst: Scope = None, *, request_id: str | None = None) -> FloatArray:
        """How likely each class is, from what `predict` releases anyway, at its price. The same id gives the same."""
        return self.predict_both(Q, analyst, request_id=request_id)[1]

    def predict_both(
        self, Q: npt.ArrayLike, analyst: Scope = None, *, request_id: str | None = None
    ) -> tuple[npt.NDArray[Any], FloatArray]:
        """The label of each query and how likely each class is, in one request."""
        reply = self._answered(Q, analyst, request_id, likely=True)
        assert reply.likely is not None
        return np.asarray(self.settings.class_array[reply.labels]), reply.likely

    def _answered(self, Q: npt.ArrayLike, analyst: Scope, request_id: str | None, *, likely: bool = False) -> Reply:
        if self.draft:
            raise InvalidInputError(f"{self.path} has never held records, so nothing is known of its features")
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
        """Answer all requests at the price of one scan and one sync, in order, as if each had come alone.

        What comes back is charged and noted, but not yet durable: it may leave after `Batch.commit` (rule 2).
        """
        with self.computing() as state:
            return answered(requests, state.engine.predictor, state.journal)

    def train(self) -> Iterator[Progress]:
        """Train the shared model, or another round of it if newcomers call for one; durably, piece by piece.

        When it happens must be public: a clock or your word, never what is in the records (rule 14).
        """
        return rounds.train(self)

    def train_in_background(self) -> None:
        """From here on no answer waits for training: somebody takes the pieces of `rounds.go_on` between answers."""
        self._background = self._state.journal.background = True

    def declare_public(self, X: npt.ArrayLike) -> None:
        """Unlabelled public rows that the shared model may use. Once, before the first answer."""
        with self.changing() as change:
            change.declare_public(rounds.public_rows(self._state, X))

    def adopt(self, schema: Schema) -> None:
        """Take a schema, once, before the first records: what `Settings.schema` does for a new store."""
        with self.changing() as change:
            change.adopt(schema)
        self.schema = schema

    def give_less(self, analyst: str, epsilon: float) -> None:
        """Promise that this analyst learns no more of anybody than ε, which is less than the store's. For good.

        Only before the first answer to that analyst. Until then it may be lowered; it is never raised.
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
        """Add records, all or none; their numbers. With a schema, X may be a table that holds the rest as well.

        `owners` names a person for each row (rule 13). In a store that nobody was in yet, owners="each-row" says that
        every row is a new person's. `record_ids` are ids of your choice: a row whose id is here already takes the place
        of that record of the same owner, and changes nothing if it is equal.
        """
        return self.add_batches([(X, y, owners, record_ids)])

    def add_batches(self, batches: Any, classes: npt.ArrayLike | None = None) -> IntArray:
        """Add records from an iterable of (X, y, owners) or (X, y, owners, record_ids), all or none; their numbers.

        The first records of a draft fix the number of features, and the label set where it was not given.
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
        """Add prepared records, all or none; their numbers."""
        with self._exclusive():
            engine, chosen = self._state.engine, as_record_ids(record_ids, len(vectors))
            names = intake.people_of(owners, len(vectors), engine.ledger, intake.is_vacant(engine))
            match = None if names is None else engine.match(vectors, labels, names, chosen)
            with self._adding() as change:
                numbers = change.put(vectors, labels, names, chosen, match)
        tell(change.advice)
        return numbers

    def replace_all(self, vectors: Vectors, labels: IntArray, owners: Any, record_ids: Any = None) -> IntArray:
        """Put these records in the place of all that are here, all or nothing; their numbers. What was spent stays."""
        with self._exclusive():
            engine = self._state.engine
            names = intake.people_of(owners, len(vectors), engine.ledger, not engine.ledger.anything_spent())
            chosen, slots = as_record_ids(record_ids, len(vectors)), engine.shard.slots()
            with self._adding() as change:
                if len(slots):
                    change.erase(slots, staying=names or ())
                numbers = change.put(vectors, labels, names, chosen)
        tell(change.advice)
        return numbers

    def upsert(
        self, X: FloatArray, items: Sequence[intake.Item], *, each_row: bool = False, once: Upload | None = None
    ) -> intake.Added:
        """Add and replace, all or none. With `each_row` all are of new people; `once` is remembered as done."""
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
        """A transaction that adds records, and what is to be told of them afterwards."""
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
        """Remove every record of these owners, and these records; gives a receipt.

        An owner who has no record left is forgotten: only what they spent stays, under a keyed hash of their name.
        Answers and the model that were released before are differentially private and are kept; see `purge`.
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
        """Have old bytes of those who were erased written over, in a database; gives the second receipt.

        In a file that was done before the first one. It may take long, and answers can be given meanwhile.
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
        """Drop all answers and the shared model, for all analysts; gives a receipt.

        People pay again for new ones. **A purge is a public event**: everybody who asks again can see that it happened.
        Do it on a schedule, never because one person was forgotten (rule 14).
        """
        with self._exclusive():
            with self._transaction() as change:
                change.purge()
            self._empty_log(1)
            return receipt_of(self._state, "purge", **PURGED, **self.home.erasure(self._state.db))
