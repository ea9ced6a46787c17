"""Two threads between the network and the store: one computes, one commits.

Waiting requests share a scan and a sync. The computing thread takes all requests that are there, without waiting for
more. It is the only thread that uses the store. While the other thread waits for the disk, it computes the next batch.
Other work on the store (adding, forgetting, reports) is in the same queue, so nothing overtakes and everything gets its
turn.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any, TypeAlias, TypeVar

import numpy as np

from indknn.answering.requests import Reply, Request
from indknn.answering.trainer import Progress
from indknn.errors import InvalidInputError, StoreError
from indknn.ledger import Scope
from indknn.models import SharedModel
from indknn.server.metrics import Metrics
from indknn.server.problems import Problem, log_error
from indknn.settings import Settings
from indknn.store import Store
from indknn.store.journal import Batch
from indknn.store.reports import answers_by_analyst
from indknn.types import FloatArray, Vectors

_REST = 1.0  # seconds after training has failed
_SOME = 0.01  # seconds that a request may have to wait because of training
LEAST_SECONDS, OPERATIONS = 2.0, 5e8
"""How long after its beginning the model of a round is shown: at least so long, and a second more for this many
operations. A slow machine that also answers queries is several times faster."""
ROWS = 64
"""Queries per batch, unless one request has more. One pass over the records serves this many."""
NO_RECORDS = "the store has never held records, so it cannot answer; add records first"
T = TypeVar("T")
Future: TypeAlias = "asyncio.Future[Any]"


@dataclass(eq=False)
class Job:
    """A prediction request in progress: rows of features, and where the labels go."""

    rows: FloatArray
    analyst: Scope
    request_id: str | None
    most: int | None  # the most answers that the key's holder may be given in all
    future: Future
    likely: bool = False
    queries: Vectors | None = None
    since: float = field(default_factory=time.perf_counter)


@dataclass(eq=False)
class Task:
    """Other work on the store."""

    work: Callable[[], Any]
    future: Future


@dataclass
class Done:
    """What must be sent when a batch is durable."""

    batch: Batch | None
    results: list[tuple[Future, Any]] = field(default_factory=list)
    fresh: int = 0
    repeated: int = 0


class Training:
    """The work of the computing thread when nobody waits. `every` is the seconds between two checks for newcomers."""

    def __init__(self, store: Store, every: float):
        self._store = store
        self._every = every
        self._next = time.monotonic() + every
        self._again = -math.inf  # after a failure, nothing is tried before this
        self._pieces: Iterator[Progress] | None = None
        store.train_in_background()

    def piece(self) -> bool:
        """Do some milliseconds of work, if there is any. Returns whether there was."""
        end = time.monotonic() + _SOME
        if end - _SOME < self._again:
            return False
        try:
            if self._pieces is None:
                self._pieces = self._due()
            while self._pieces is not None and next(self._pieces, None) is not None:
                if time.monotonic() >= end:
                    return True
        except Exception as error:  # the store reads itself again; the release being made is lost, and nobody was told
            log_error(error)
            self._again = time.monotonic() + _REST
        self._pieces = None
        return False

    def overdue(self) -> bool:
        """Whether the moment has come at which the model is shown. Then answers wait until it is."""
        return self._moment() <= time.monotonic() >= self._again

    def pause(self) -> float | None:
        """Seconds until there is work again: a check, a model to show, or what failed. None if there is none."""
        now = time.monotonic()
        soon = self._again if now < self._again else min(self._next, self._moment())
        return None if math.isinf(soon) else max(soon - now, 0.0)

    def _moment(self) -> float:
        """When the model of this round is shown. Not known before the count was released."""
        with suppress(StoreError):  # a store that cannot be read shows nothing
            model = self._model
            if model is not None and model.due() not in {None, "count"} and model.mapped:
                return self._store.engine.predictor.begun + LEAST_SECONDS + model.work / OPERATIONS
        return math.inf

    @property
    def _model(self) -> SharedModel | None:
        return None if self._store.draft else self._store.engine.predictor.model

    def _due(self) -> Iterator[Progress] | None:
        if (model := self._model) is None:
            return None
        if model.due() is not None:
            return self._store.go_on(self.overdue) if self.overdue() or model.due() != "show" else None
        if struck := time.monotonic() >= self._next:
            self._next = time.monotonic() + self._every
        declared = self._store.engine.predictor.public is not None
        return self._store.train(self.overdue) if (struck if model.started else declared) else None


Item: TypeAlias = Job | Task | None


class Worker:
    """Owns the store for all requests. `close` finishes what was begun."""

    def __init__(
        self,
        store: Store,
        metrics: Metrics,
        after_work: Callable[[], None] = lambda: None,
        train_every: float = math.inf,
    ):
        self.store = store
        self._training = Training(store, train_every)
        self.metrics = metrics
        self._after_work = after_work  # called in the computing thread after work other than predictions
        self.waiting = 0  # rows; counted only in the event loop
        self._jobs: SimpleQueue[Item] = SimpleQueue()
        self._commits: SimpleQueue[Done | None] = SimpleQueue()
        self._given = answers_by_analyst(store)
        self._generation = store.generation
        self._threads = [Thread(target=run, daemon=True) for run in (self._compute, self._commit)]
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """Return when everything submitted so far is finished and answered."""
        self._jobs.put(None)
        for thread in self._threads:
            thread.join()

    def predict(
        self, rows: FloatArray, analyst: Scope, request_id: str | None, most: int | None, *, likely: bool = False
    ) -> Future:
        """Queue the rows. The future gives their `Reply` when the charges are durable."""
        job = Job(rows, analyst, request_id, most, asyncio.get_running_loop().create_future(), likely)

        def stop_waiting(_: object) -> None:
            self.waiting -= len(rows)

        self.waiting += len(rows)
        job.future.add_done_callback(stop_waiting)
        self._jobs.put(job)
        return job.future

    def given(self, analyst: Scope) -> int:
        """How many answers this analyst was given, without those that wait. From any thread."""
        return self._given.get(analyst, 0)

    def counted(self) -> dict[Scope, int]:
        """How many answers each analyst was given. In the computing thread."""
        if self.store.generation != self._generation:  # it was read again after a failure
            self.store.flush()  # a batch that is computed but not written yet counts too
            self._given, self._generation = answers_by_analyst(self.store), self.store.generation
        return dict(self._given)

    async def run(self, work: Callable[[], T]) -> T:
        """The result of some other work on the store."""
        future: Future = asyncio.get_running_loop().create_future()
        self._jobs.put(Task(work, future))
        result: T = await future
        return result

    def _next(self) -> Item:
        """The next work. While there is none, the shared model is trained."""
        while True:
            try:
                return self._jobs.get_nowait()
            except Empty:
                if not self._train():
                    with suppress(Exception):  # if this thread died, everybody would wait forever
                        self.store.fold_if_long()
                    with suppress(Empty):
                        return self._jobs.get(timeout=self._training.pause())

    def _train(self) -> bool:
        """Train for some milliseconds.

        Returns whether there was anything to do. The other thread writes the releases.
        """
        busy = self._training.piece()
        with suppress(Exception):
            batch = self.store.compute([])
            if batch.journal.owed:
                self._commits.put(Done(batch))
        return busy

    def _compute(self) -> None:
        item = self._next()
        while item is not None:
            if isinstance(item, Task):
                done = Done(None, [(item.future, _attempt(item.work))])
                with suppress(Exception):
                    self._after_work()
                self._commits.put(done)
                item = self._next()
                continue
            jobs, item = self._waiting(item)
            while self._training.overdue() and self._train():  # whoever asks after the moment is told by the model
                pass
            self._commits.put(self._answer(jobs))  # long debits are folded when they are written
            if item is _NOTHING:
                item = self._next()
            else:
                self._train()  # otherwise training would never end if somebody always waits
        self._commits.put(None)

    def _waiting(self, first: Job) -> tuple[list[Job], Any]:
        """All waiting jobs, up to the size of a batch, and the next work of another kind, if any."""
        jobs, rows = [first], len(first.rows)
        while True:
            try:
                item = self._jobs.get_nowait()
            except Empty:
                return jobs, _NOTHING
            if not isinstance(item, Job) or rows + len(item.rows) > ROWS:
                return jobs, item
            jobs.append(item)
            rows += len(item.rows)

    def _answer(self, jobs: list[Job]) -> Done:
        done, begun, stage = Done(None), time.perf_counter(), self.metrics.stage
        for job in jobs:
            stage["wait"].observe(begun - job.since)
        try:
            ready = self._admitted(jobs, done)
            if ready:
                requests = [
                    Request(j.queries, j.analyst, j.request_id, j.likely) for j in ready if j.queries is not None
                ]
                batch = done.batch = self.store.compute(requests)  # nothing is sent before it is durable
                for job, outcome in zip(ready, batch.outcomes, strict=True):
                    if isinstance(outcome, Reply):
                        self._given[job.analyst] = self._given.get(job.analyst, 0) + outcome.fresh
                        done.fresh += outcome.fresh
                        done.repeated += len(job.rows) - outcome.fresh
                    done.results.append((job.future, outcome))
                self.metrics.batch_queries.observe(sum(len(job.rows) for job in ready))
        except BaseException as error:  # if this thread died, everybody would wait forever
            answered = {id(future) for future, _ in done.results}
            done.results += [(job.future, error) for job in jobs if id(job.future) not in answered]
        stage["compute"].observe(time.perf_counter() - begun)
        return done

    def _admitted(self, jobs: list[Job], done: Done) -> list[Job]:
        """The jobs that are well-formed and within their analyst's number of queries. The others get an error."""
        draft, settings = self.store.draft, self.store.settings
        if draft:
            raise Problem(409, NO_RECORDS, "no_records")
        asked = self.counted()
        ready = []
        for job in _quantised(settings, jobs, done):
            replay = job.request_id is not None and self.store.knows(job.request_id)
            if job.most is not None and not replay:
                total = asked.get(job.analyst, 0) + len(job.rows)
                if total > job.most:
                    left = max(job.most - asked.get(job.analyst, 0), 0)
                    text = (
                        f"{len(job.rows)} queries are more than this key may still ask: {left} of {job.most} are left"
                    )
                    done.results.append((job.future, Problem(403, text, "query_limit")))
                    continue
                asked[job.analyst] = total
            ready.append(job)
        return ready

    def _commit(self) -> None:
        last = False
        while not last:
            group = [self._commits.get()]
            with suppress(Empty):  # everything that was computed meanwhile shares the sync
                while True:
                    group.append(self._commits.get_nowait())
            last = None in group
            self._durable([done for done in group if done is not None])

    def _durable(self, group: list[Done]) -> None:
        failure: StoreError | None = None
        begun, batches = time.perf_counter(), [done for done in group if done.batch is not None]
        try:
            for journal in {id(d.batch.journal): d.batch.journal for d in group if d.batch is not None}.values():
                journal.commit()
        except BaseException as error:
            failure = error if isinstance(error, StoreError) else StoreError(str(error))
        if batches and failure is None:
            self.metrics.stage["commit"].observe(time.perf_counter() - begun)
            self.metrics.answered.inc(sum(done.fresh for done in batches))
            self.metrics.repeated.inc(sum(done.repeated for done in batches))
        results = [
            (future, failure if failure is not None and d.batch is not None else value)
            for d in group
            for future, value in d.results
        ]
        by_loop: dict[Any, list[tuple[Future, Any]]] = {}
        for future, value in results:
            by_loop.setdefault(future.get_loop(), []).append((future, value))
        for loop, outcomes in by_loop.items():
            with suppress(RuntimeError):  # the loop is closed, and nobody is listening
                loop.call_soon_threadsafe(_tell, outcomes)


_NOTHING: Any = object()


def _quantised(settings: Settings, jobs: list[Job], done: Done) -> list[Job]:
    """Quantise the rows of all jobs at once. If one is wrong, each is done separately to find out which."""
    try:
        all_rows = settings.quantise(np.concatenate([job.rows for job in jobs]), "the queries")
    except (InvalidInputError, ValueError):
        good = []
        for job in jobs:
            try:
                job.queries = settings.quantise(job.rows, "the queries")
                good.append(job)
            except InvalidInputError as error:
                done.results.append((job.future, error))
        return good
    start = 0
    for job in jobs:
        job.queries = all_rows[slice(start, start + len(job.rows))]
        start += len(job.rows)
    return jobs


def _attempt(work: Callable[[], Any]) -> Any:
    try:
        return work()
    except BaseException as error:
        return error


def _tell(results: list[tuple[Future, Any]]) -> None:
    for future, value in results:
        if not future.done():
            if isinstance(value, BaseException):
                future.set_exception(value)
            else:
                future.set_result(value)
