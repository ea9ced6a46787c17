"""`Store`: the engine with everything kept durably, in a file or a database.

Everything is computed in memory, by the same engine as everywhere, and written in one transaction before an answer
leaves. After a disk error, memory may be ahead of the file. Then it is discarded and read again.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import fields, replace
from itertools import islice
from math import inf
from pathlib import Path
from threading import RLock
from typing import Any, Self, TypeVar

import apsw
import numpy as np
import numpy.typing as npt

from indknn.answering.requests import Reply, Request
from indknn.answering.trainer import MayShow, Progress, at_once
from indknn.core import clock
from indknn.core.advice import about_copies, about_delta, about_parameters, tell
from indknn.core.inputs import EACH_ROW, as_owner_list, as_record_numbers, refuse_unwritable
from indknn.core.noise import Noise, SecureNoise
from indknn.core.statistics import MAX_RECORDS
from indknn.engine import Engine, MakeShard, public_rows
from indknn.errors import FencedError, InvalidInputError, PrivacyError, RequestConflictError, StoreError
from indknn.ledger import Scope
from indknn.ledger.figures import over_time, statement
from indknn.models.explanation import Explanation
from indknn.models.probabilities import ClassWeight, Decision
from indknn.place import Place
from indknn.proof import Signer
from indknn.published import content
from indknn.settings import Settings
from indknn.store import chain, home, intake
from indknn.store.analysts import (
    check_name,
    declare,
    is_published,
    known_analysts,
    mark_published,
    refuse_unknown,
    settings_with_limit,
)
from indknn.store.chain import StoreConnection
from indknn.store.change import ERASED, HELD, PURGED, REWRITTEN, Change, DeclinedError, Step, Synced, expire
from indknn.store.home import home_of
from indknn.store.intake import Added
from indknn.store.journal import Batch, Outcome, Upload
from indknn.tables.infer import Outside
from indknn.tables.schema import Schema, records_of, vectors_of
from indknn.types import FloatArray, Given, IntArray, OwnerId

T = TypeVar("T")
_PIECE = 1024
"""How many expired records are erased in one transaction."""


class Store:
    """A durable store of records, with every person's ledger. One process owns it at a time.

    Use `Store.create` or `indknn.open`. A store is a context manager. With `read_only`, nothing can be changed or
    answered. If a cluster holds the records, `make_shard` is its `Cluster.new_shard`.
    """

    _state: home.State

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
        self._in_log = 0  # how many expired records were erased, and are still in the log
        self._failed = 0  # the hour in which erasing expired records failed
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
            self.renew_if_due()
            self.expire_some()  # and looks at the clock

    def __repr__(self) -> str:
        """Where the store is and what it promises. Nothing about the people in it."""
        promised = self._state.engine.settings
        facts = f"epsilon={promised.epsilon:g}, delta={promised.delta:g}, mode={promised.mode!r}"
        return f"{type(self).__name__}({str(self.path)!r}, {facts}{', closed' if self._closed else ''})"

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
                with suppress(StoreError):  # everything that was answered is on disk, and folding can wait
                    if self._state.journal.failure is None:
                        self.fold()
                    elif self._state.db.undone:
                        self._reload_if_failed()  # to note it
            finally:
                self._closed = True
                with self._state.journal.io:
                    self.home.close(self._state.db)
                self.home.release()

    @classmethod
    def create(cls, path: str | Place, settings: Settings, *, draft: bool = False, **options: Any) -> Store:
        """Make a new, empty store. A `draft` takes the number of features and the classes from the first records."""
        tell(about_parameters(settings.delta, settings.classes, settings.expected_records))
        home.create(home_of(path), settings, draft)
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
        """Refuse other settings than the store was made with. A τ that was left open may differ, and who may ask."""
        kept = replace(self.settings, tau=settings.tau) if settings.tau is None else self.settings
        kept = replace(kept, analysts=settings.analysts)
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
    def db(self) -> StoreConnection:
        """The open file. Only for reading, while no other thread uses the store. Otherwise use `reading`."""
        self._reload_if_failed()
        return self._state.db

    @property
    def read_only(self) -> bool:
        """Whether nothing can be changed or answered."""
        return bool(self._options["read_only"])

    @property
    def signer(self) -> Signer:
        """Signs documents with the key of this store."""
        self._reload_if_failed()
        return self._state.signer

    @property
    def fenced(self) -> bool:
        """Whether another process is known to have taken over the store."""
        return isinstance(self._state.journal.failure, FencedError)

    @property
    def periods(self) -> int:
        """How many periods of budgets there were, with the present one. The store is not read anew for this."""
        return self._state.engine.ledger.period + 1

    @property
    def over_time(self) -> dict[str, Any] | None:
        """How budgets depend on the clock, as `periods`."""
        return over_time(self.settings, self._state.engine.ledger)

    @property
    def failed(self) -> bool:
        """Whether the store must read itself anew before it answers again: writing failed, or a shard was lost."""
        return self._state.journal.failure is not None or self._state.engine.shard.broken

    @contextmanager
    def reading(self) -> Iterator[StoreConnection]:
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

    def predict(
        self,
        Q: npt.ArrayLike,
        analyst: Scope = None,
        *,
        request_id: str | None = None,
        min_confidence: float | None = None,
        class_weight: ClassWeight = None,
    ) -> npt.NDArray[Any]:
        """The label of each query. This spends people's budget, for the shared model and for votes, durably.

        With a `request_id` it is safe to ask again after a crash or a lost connection: the same request gets the same
        answers and is charged once. `min_confidence` and `class_weight` are as for the estimator.
        """
        if min_confidence is None and class_weight is None:
            return self.settings.target_.decode(self._answered(Q, analyst, request_id).labels)
        self.engine.refuse_numbers("min_confidence and class_weight")
        decision = Decision(min_confidence, class_weight)
        self.engine.refuse_unfit(decision, analyst)
        return self.engine.decide(decision, *self.predict_both(Q, analyst, request_id=request_id), analyst)[0]

    def predict_proba(self, Q: npt.ArrayLike, analyst: Scope = None, *, request_id: str | None = None) -> FloatArray:
        """The probability of each class for each query. It costs the same as `predict`.

        The same `request_id` gives the same probabilities again.
        """
        return self.predict_both(Q, analyst, request_id=request_id)[1]

    def predict_both(
        self, Q: npt.ArrayLike, analyst: Scope = None, *, request_id: str | None = None
    ) -> tuple[npt.NDArray[Any], FloatArray]:
        """The label of each query and the probability of each class, in one request."""
        self.engine.refuse_numbers("predict_proba")
        reply = self._answered(Q, analyst, request_id, likely=True)
        assert reply.likely is not None
        return self.settings.target_.decode(reply.labels), reply.likely

    def predict_interval(
        self, Q: npt.ArrayLike, analyst: Scope = None, *, coverage: float = 0.9, request_id: str | None = None
    ) -> FloatArray:
        """The ends of an interval for each query, which holds the number in about this share of the cases.

        It costs the same as `predict`.
        """
        self.engine.refuse_coverage(coverage)
        return self.engine.intervals(self.predict(Q, analyst, request_id=request_id), coverage, analyst)

    def _answered(self, Q: npt.ArrayLike, analyst: Scope, request_id: str | None, *, likely: bool = False) -> Reply:
        if self.draft:
            raise InvalidInputError(f"{self.path} has never held records, so it cannot answer; add records first")
        queries = self.settings.quantise(vectors_of(Q, self.schema), "the queries")
        if analyst is not None:
            refuse_unwritable("analyst", analyst)
            self.check_analyst(analyst)
        if request_id is not None:
            refuse_unwritable("request_id", request_id)
        batch = self.compute([Request(queries, analyst, request_id, likely)])
        batch.commit()
        self.fold_if_long()
        self.expire_some()
        (outcome,) = batch.outcomes
        if isinstance(outcome, InvalidInputError):
            raise outcome
        return outcome

    def explain(self, Q: npt.ArrayLike, analyst: Scope = None) -> list[Explanation]:
        """Which columns moved the shared model's answer, for each row. Nobody is charged."""
        self.check_analyst(analyst)
        rows = np.asarray(vectors_of(Q, self.schema), dtype=np.float64)
        return self.engine.explain(rows, analyst, None if self.schema is None else self.schema.parts)

    def compute(self, requests: Sequence[Request]) -> Batch:
        """Answer several requests with one scan and one sync. The answers are as if each request had come alone.

        The answers are charged, but the charges are not durable yet. Send them only after `Batch.commit` (rule 2).
        """
        self.renew_if_due()
        with self.computing() as state:
            new, names = [], set()
            for i, request in enumerate(requests):
                name = request.request_id
                if name is None or (state.journal.request(name) is None and name not in names):
                    new.append(i)  # of several requests with one id, the first does the work
                    names.add(name)
            replies = state.engine.predictor.compute([requests[i] for i in new]) if new else []
            fresh = dict(zip(new, replies, strict=True))
            return Batch(state.journal, [fresh.get(i) or self._repeated(r) for i, r in enumerate(requests)])

    def _repeated(self, request: Request) -> Outcome:
        """The answer to a request that is known. A request id that was used for other queries is an error."""
        try:
            reply = self._state.journal.repeated(request)
        except RequestConflictError as error:
            return error
        if request.likely and reply.likely is None:  # the first request with this id did not ask for them
            likely = self._state.engine.predictor.probabilities(request.queries, request.analyst)
            return replace(reply, likely=likely)
        return reply

    def knows(self, request_id: str) -> bool:
        """Whether a request with this id was answered before."""
        return self._state.journal.request(request_id) is not None

    # The shared model

    def train(self, may_show: MayShow = at_once) -> Iterator[Progress]:
        """Train the shared model, or train it again if there are enough newcomers. Each step is made durable.

        Iterate over the result to run the steps. The time of a training is public. A clock or your own decision may
        start it, but never what is in the records (rule 14). `may_show` is as for `go_on`.
        """
        self.renew_if_due()
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

    def renewal_in(self) -> float:
        """Seconds until the next period begins. Infinite if budgets are not renewed."""
        if not self.settings.renew_days or self.read_only or self.draft:
            return inf
        ledger = self._state.engine.ledger
        return 60.0 * (ledger.born + (ledger.period + 1) * ledger.renewal) - clock.seconds()

    def renew_if_due(self) -> bool:
        """Begin a new period if one has ended. Returns whether that was so. The clock decides it, and nobody's query.

        A server looks at the clock by itself. Elsewhere this happens when the store is opened, and before anything is
        asked, added or lowered. So the round of the new period is about those who were there when the old one ended,
        less those who left since. It is not run here: that somebody came must not decide who had left by then (rule
        17).
        """
        if not self.settings.renew_days or self.read_only or self.draft:
            return False
        with self._exclusive():
            ledger = self._state.engine.ledger
            ledger.tick()
            if not ledger.periods_due:
                return False
            with self._transaction() as change:
                change.renew()
        return True

    def publish(self, *, with_queries: bool = False) -> dict[str, Any]:
        """The shared model as a document that may be published (`published.document`).

        The store remembers it: from now on no analyst can be promised less than the model may cost.
        """
        with self._exclusive():
            made = content(self._state.engine, with_queries=with_queries)
            self._state.journal.commit()
            if not is_published(self._state.db):
                with self._transaction() as change:
                    mark_published(change.state.db)
            return made

    def _finish_round(self) -> None:
        """Run the round that an event began. Otherwise whoever asks next would decide when it is made (rule 17)."""
        for _ in () if self._background or self.draft else self.go_on():
            pass

    def declare_public(self, X: npt.ArrayLike, y: npt.ArrayLike | None = None) -> None:
        """Give public rows to the shared model, with their labels if they are known. Once, before the first answer."""
        with self.changing() as change:
            settings = self.settings
            if y is not None and not (settings.classes or settings.numeric):
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

    def change_schema(self, schema: Schema) -> None:
        """Use a changed schema. This is possible before the first records and answers."""
        with self.changing() as change:
            change.change_schema(schema)

    @property
    def analysts(self) -> list[str]:
        """The names of the analysts who may ask."""
        with self._lock:
            self._reload_if_failed()
            return known_analysts(self._state)

    def check_analyst(self, analyst: Scope) -> None:
        """Refuse an analyst who may not ask, with the name that may have been meant. None may always ask."""
        with self._lock:
            self._reload_if_failed()
            refuse_unknown(self._state, analyst)

    def add_analyst(self, analyst: str, epsilon: float | None = None) -> bool:
        """Declare an analyst, who may ask from now on. Returns whether this is a new one.

        Every analyst has a budget of their own. With `epsilon` it is a smaller one, see `limit_analyst`. Declaring an
        analyst again changes nothing: nobody gets anything back.
        """
        check_name(analyst)
        new = analyst not in self.analysts
        if epsilon is not None:
            self.limit_analyst(analyst, epsilon)
        with self._exclusive():
            if analyst not in self._state.analysts:
                with self._transaction() as change:
                    change.state.analysts = declare(change.state.db, analyst)
        return new

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

    def add(
        self,
        X: Any,
        y: Any = None,
        owners: Any = None,
        record_ids: Any = None,
        *,
        expires: Any = None,
        epsilons: Any = None,
    ) -> IntArray:
        """Add records, all or none, and return their numbers.

        With a schema, X may be a table that also holds labels, owners and record ids. `owners` names a person for each
        row (rule 13). If the store never had any people, owners="each-row" says that every row is a new person.
        `record_ids` are your own ids. A row whose id is already here replaces that record of the same owner. If it is
        equal, nothing changes. `expires` are dates from which records take no further part and are erased. A row that
        has expired already is not kept, and its number is -1. `epsilons` are promises for the owners of single rows,
        smaller than the store's ε.
        """
        return self.add_batches([(X, y, owners, record_ids, expires, epsilons)]).numbers

    def add_batches(self, batches: Any, classes: npt.ArrayLike | None = None) -> Added:
        """Add records from an iterable of (X, y, owners[, record_ids[, expires[, epsilons]]]), all or none.

        The first records of a draft fix the number of features, and the labels if they were not given.
        """
        schema, outside = self.schema, Outside(self.schema)
        rows = (records_of(schema, Given(*batch), outside.take) for batch in batches)
        added = self._put(rows, classes=classes)
        tell(added.advice + outside.notes())
        return added

    def sync(
        self,
        X: Any,
        y: Any = None,
        owners: Any = None,
        record_ids: Any = None,
        *,
        delete_missing: bool = False,
        expires: Any = None,
        epsilons: Any = None,
    ) -> Synced:
        """Bring the records in step with a table, all or nothing: add new rows, replace changed ones, leave equal ones.

        The arguments are as for `add`, and every row needs a record id. With `delete_missing`, records whose ids the
        table does not have are forgotten; records without an id stay. Nothing that was spent is given back. A second
        call with the same table changes nothing.
        """
        return self.sync_batches([(X, y, owners, record_ids, expires, epsilons)], delete_missing=delete_missing)

    def sync_batches(
        self,
        batches: Any,
        classes: npt.ArrayLike | None = None,
        *,
        delete_missing: bool = False,
        agreed: Callable[[Synced], bool] | None = None,
    ) -> Synced:
        """The same for batches as in `add_batches`. If `agreed` says no to the counts, nothing is changed."""
        step = Step(delete_missing, agreed)
        schema, outside = self.schema, Outside(self.schema)
        rows = (step.checked(records_of(schema, Given(*batch), outside.take)) for batch in batches)
        with suppress(DeclinedError):
            tell(self._put(rows, classes=classes, at_last=step.take).advice + outside.notes())
        return step.synced

    def put(self, prepared: Given, *, instead: bool = False) -> IntArray:
        """Add prepared records, all or none, and return their numbers. With `instead`, all earlier records go."""
        added = self._put([prepared], instead=instead, at_last=Change.begin_round if instead else None)
        tell(added.advice)
        return added.numbers

    def replace_all(self, prepared: Given) -> IntArray:
        """Replace all records by these, all or nothing, and return their numbers. What people have spent is kept."""
        return self.put(prepared, instead=True)

    def upsert(
        self, given: Given, numbers: Sequence[int | None], *, each_row: bool = False, once: Upload | None = None
    ) -> Added:
        """Add records, and replace those with these numbers, all or none. With `each_row`, every row is a new person.

        `once` identifies the upload. The store remembers it, so that a repeated upload is not done twice.
        """
        if each_row and any(one is not None for one in (*given.owners, *numbers)):
            raise InvalidInputError("each_row is for new people: a record must name neither an owner nor an id")
        outside = Outside(self.schema)
        vectors = records_of(self.schema, Given(given.X), outside.take).X
        owners = EACH_ROW if each_row else given.owners
        rows = given._replace(X=vectors, y=intake.labels_of(given.y), owners=owners)
        added = self._put([rows], numbers=numbers, once=once)
        return replace(added, advice=added.advice + outside.notes())

    def _put(
        self,
        batches: Iterable[Given],
        *,
        numbers: Sequence[int | None] | None = None,
        classes: npt.ArrayLike | None = None,
        instead: bool = False,
        once: Upload | None = None,
        at_last: Callable[[Change], None] | None = None,
    ) -> Added:
        """Add records, all or none. All ways to add end here. `at_last` may change more in the same transaction.

        What is wrong with the first batch, mostly the only one, is told before anything is touched.
        """
        left = iter(batches)
        self.renew_if_due()
        with self._exclusive():
            state = self._state
            taking = intake.Intake(state.engine.ledger, instead=instead)
            first = [] if state.draft else [taking.ready(state.engine, rows, numbers) for rows in islice(left, 1)]
            with self._transaction() as change:
                if instead and len(slots := state.engine.shard.slots()):
                    change.erase(slots, staying=first[0].rows.owners)
                parts = [change.put(ready) for ready in first]
                for rows in left:
                    if state.draft:
                        change.complete(np.asarray(rows.X), rows.y, classes)
                    parts.append(change.put(taking.ready(state.engine, rows, numbers)))
                made = np.concatenate([np.zeros(0, dtype=np.int64), *parts])
                if at_last is not None:
                    at_last(change)
                change.note_added(once, made)
            self._empty_log(change.erased)
            self._added += change.added
            if self._added > 1000 + self._records:
                self._keep_room()
            self.expire_some()
        if instead:
            self._finish_round()
        settings, now = state.engine.settings, state.engine.ledger.n_owners
        advice = change.advice + taking.profile.advice(settings.center_)
        advice += about_delta(settings.delta, taking.people, now) + about_copies(change.copies, len(made))
        return Added(made, change.copies, change.replaced, change.unchanged, advice, change.expired)

    # Erasing

    def lower(self, owner: Any, epsilon: float) -> dict[str, Any]:
        """Promise a person less than the store's ε, from now on. Returns a signed receipt with their statement.

        It can be lowered again, and never raised. If more was spent already, the promise is what was spent, rounded up,
        and nothing further is learned: the receipt has the ε that holds, and what was `asked`. Who has which promise is
        private.
        """
        (name,) = as_owner_list([owner])
        self.renew_if_due()
        with self._exclusive():
            asked = self._state.engine.less_for(name, epsilon)
            with self._transaction() as change:
                change.lower(asked, receipt=True)
            facts = statement(self._state.engine, name)
            holds = facts["one_analyst"]["epsilon"]
            receipt = self._receipt("promise", owner=name, epsilon=holds, asked=epsilon, on_the_books=facts)
        return self.signer.signed(receipt)

    def forget(self, owners: Any = (), *, records: Any = None, record_ids: Any = None) -> dict[str, Any]:
        """Remove all records of these owners, and single records, all or none. Returns a receipt.

        `records` are the numbers that the store gave to records, and `record_ids` are your own ids. An owner who has no
        record left is forgotten. Only what they have spent is kept, under a keyed hash of their name. Answers and the
        model that were released before are differentially private and are kept; see `purge`.
        """
        names, numbers = as_owner_list(owners), as_record_numbers(records)
        ids = as_owner_list(() if record_ids is None else record_ids, what="record id")
        self.renew_if_due()  # the receipt has what was spent in this period
        receipt = self._with_room(lambda: self._forget(names, numbers, ids))
        left = [statement(self._state.engine, name) for name in names]
        whose = {"owners": [facts["owner"] for facts in left], "on_the_books": left} if names else {}
        return self.signer.signed({**receipt, **whose})

    def _with_room(self, erase: Callable[[], T]) -> T:
        """Erase something. On a full disk, the space that is kept for this is used."""
        try:
            return erase()
        except StoreError as error:
            full = isinstance(error.__cause__, apsw.FullError | apsw.IOError | OSError)
            if not (full and self.home.give_room()):
                raise
            done = erase()  # with the space that the ballast held
            self._keep_room()
            return done

    def _forget(self, owners: Sequence[OwnerId], records: Sequence[int], ids: Sequence[str]) -> dict[str, Any]:
        with self._exclusive():
            shard = self._state.engine.shard
            shard.ledger.tick()
            single = np.union1d(shard.slots_of_records(records), shard.slots_of_ids(ids))
            slots = np.union1d(shard.slots_of_owners(owners), single)
            erased = slots[shard.unexpired(slots) & ~shard.under_hold(slots)]  # others are as good as gone, or stay
            people = set(shard.owners_of(erased).tolist())
            with self._transaction() as change:
                gone = change.erase(slots)
            self._empty_log(1)
            # It depends on others how soon bytes are erased, so whoever has only expired records left counts too.
            if others := people - gone.keys():
                left = shard.slots_of_owners([shard.ledger.name_of(one) for one in others])
                people -= set(shard.owners_of(left[shard.unexpired(left)]).tolist())
            return self._erased(change, len(erased), len(people))

    def _erased(self, change: Change, records: int, people: int) -> dict[str, Any]:
        """The receipt of an erasure."""
        held = {"records_held": change.held, "held": HELD} if change.held else {}
        keys = ERASED["keys"] + self.home.other_keys
        facts = {"records": records, "owners_forgotten": people, **held, **ERASED, "keys": keys}
        return self._receipt("erasure", **facts, **self.home.erasure(self._state.db))

    def expire(self, most: int | None = None) -> int:
        """Erase records that have expired, at most so many, like a forget. Returns how many.

        They take no part from the moment of their dates. When their bytes are erased shows nowhere but in the audit
        trail.
        """
        return self._with_room(lambda: self._expire(MAX_RECORDS if most is None else most))

    def _expire(self, most: int) -> int:
        erased = 0
        while erased < most and (some := self.expire_piece(min(most - erased, _PIECE))):
            erased += some
            self.flush()
        return erased

    def expire_piece(self, most: int) -> int:
        """Erase at most so many expired records between answers. Returns how many.

        The next commit writes it. When there are none left, debits are folded and the log is emptied: both still hold
        traces of them.
        """
        with self.computing() as state:
            erased = expire(state, most)
        self._in_log += erased
        if not erased and self._in_log:
            with self._exclusive():
                self.fold()
                left, self._in_log = self._in_log, 0
                self._empty_log(left)
        return erased

    def expire_some(self) -> None:
        """Erase some records that have expired, if somebody has this store open. A failure can wait for an hour."""
        shard = self._state.engine.shard
        if self.read_only or self._background or (self._failed and shard.hour <= self._failed):
            return
        try:
            self.expire(16 * _PIECE)
        except StoreError:
            self._failed = shard.hour

    def hold(self, owners: Any) -> None:
        """Put people under a legal hold. From now on their records take no part, and nothing erases their bytes.

        Neither their dates nor `forget` do, until the hold ends. That somebody is under a hold is private (rule 14).
        """
        names = as_owner_list(owners)
        with self._exclusive():
            slots = self._state.engine.ledger.slots_of(names)
            if (slots < 0).any():
                raise InvalidInputError(f"owner {names[int(slots.argmin())]!r} has no records here that could be held")
            with self._transaction() as change:
                change.hold(set(slots.tolist()))

    def release_hold(self, owners: Any) -> dict[str, Any]:
        """End the hold of these people. Returns the receipt of what was due meanwhile and is erased now.

        Other records of theirs take part again.
        """
        names = as_owner_list(owners)
        self.renew_if_due()

        def release() -> dict[str, Any]:
            with self._exclusive():
                engine = self._state.engine
                held = engine.shard.holds.intersection(engine.ledger.slots_of(names).tolist())
                if not held:
                    raise InvalidInputError("none of these people is under a hold")
                with self._transaction() as change:
                    gone = change.end_hold(held)
                self._empty_log(1)
                return self._erased(change, change.erased, len(gone))

        return self.signer.signed({**self._with_room(release), "owners": names})

    @property
    def holds(self) -> list[OwnerId]:
        """The people under a hold. For the curator only."""
        with self.reading():
            ledger = self._state.engine.ledger
            return sorted(ledger.name_of(slot) for slot in self._state.engine.shard.holds)

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
            receipt = self._receipt("rewrite", **facts, **({"why": kept} if kept else {}), **elsewhere)
            return self.signer.signed(receipt)

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
        self.renew_if_due()
        with self._exclusive():
            with self._transaction() as change:
                change.purge()
            self._empty_log(1)
            receipt = self._receipt("purge", **PURGED, **self.home.erasure(self._state.db))
        self._finish_round()
        return self.signer.signed(receipt)

    def renew_signing_key(self) -> None:
        """Sign with a new key from now on. The public key of the old one stays published (`chain.py`)."""
        with self.changing() as change:
            change.state.signer = chain.renew_signer(change.state.db)

    # Computing, and folding debits into balances

    @contextmanager
    def computing(self) -> Iterator[home.State]:
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
                with self._transaction():
                    self._state.journal.fold()
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
        if self.failed:
            with self._lock:
                if self.failed:
                    with self._state.journal.io:
                        self.home.close(self._state.db)
                    try:
                        self._load()
                    except FencedError as error:
                        self._state.journal.failure = error
                        raise

    def _load(self) -> None:
        self._guard.refuse_if_moved()
        self._state = home.load(self.home, self.noise, self._guard, self._make_shard, **self._options)
        self._state.journal.background = self._background
        self.generation += 1
