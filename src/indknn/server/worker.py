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
from indknn.core import clock
from indknn.errors import InvalidInputError, StoreError
from indknn.ledger import Scope
from indknn.models import SharedModel
from indknn.records.derived import PORTION
from indknn.server.problems import Problem, log_error
from indknn.server.telemetry import Log, Metrics
from indknn.settings import Settings
from indknn.store import Store
from indknn.store.journal import Batch
from indknn.store.reports import answers_by_analyst
from indknn.types import FloatArray, Vectors

_REST = 1.0  # seconds after training has failed
PIECE = 128
"""How many expired records are erased at a time while people ask."""
_PAUSE, _QUIET = 0.4, 0.5  # seconds between two pieces, and after which nobody is likely to wait
_LONG_REST = 60.0  # seconds after erasing has failed
_SOME = 0.01  # seconds that a request may have to wait because of training
_PATIENCE = 0.02  # seconds without a request, after which training need not wait for one
_SPREAD = 0.75  # of the time until a model is shown: its steps are spread over this much of it
_FIRST = 0.3  # of that time: for the first step, which also computes the features of every record
_LOOK = 0.1  # seconds between two looks whether there is anything to do, or the map of the features is made
CLOCK_SECONDS = 10.0
"""How often a server looks at the clock if budgets are renewed. A machine that slept, or whose clock was set, is
noticed so late at most."""
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

    def __init__(self, store: Store, every: float, log: Log):
        self._store = store
        self._log, self._logged = log, ""
        self._every = every
        self._next = time.monotonic() + every
        self._again = -math.inf  # after a failure, nothing is tried before this
        self._latest = -math.inf  # when the latest piece ended
        self._pieces: Iterator[Progress] | None = None
        self._made = 0  # pieces of the first step
        store.train_in_background()

    @property
    def under_way(self) -> bool:
        """Whether there is work that was begun and can go on."""
        return self._pieces is not None

    def piece(self) -> bool:
        """Do some milliseconds of work, if there is any. Returns whether there was."""
        now, store = time.monotonic(), self._store
        end = now + _SOME
        if now < self._again:
            return False
        try:
            if store.renew_if_due():  # the clock decides, and nobody's query (rule 17)
                self._pieces = None
            model = None if self.under_way or store.draft else store.engine.predictor.model
            if model is not None and (due := model.due()) is not None:
                self._pieces = store.go_on(self.overdue) if due != "show" or self.overdue() else None
            elif model is not None:
                if struck := now >= self._next:
                    self._next = now + self._every
                if struck if model.started else store.engine.predictor.public is not None:
                    self._pieces = store.train(self.overdue)
            while self._pieces is not None and (done := next(self._pieces, None)) is not None:
                self._made = 0 if done.made or not done.follow else self._made + 1
                if time.monotonic() >= end:
                    return True
        except Exception as error:  # the store reads itself again; the release being made is lost, and nobody was told
            log_error(error)
            self._again = time.monotonic() + _REST
        finally:
            self._latest = time.monotonic()
        self._pieces = None
        return False

    def ahead(self) -> bool:
        """Whether whoever asks comes first, because the steps so far are enough for the time that has passed.

        A model is not shown before its moment, so there is no use in an early end. This follows from what was released,
        from the clock and from how much was done (rule 17).
        """
        with suppress(StoreError):
            model, now = self._model, time.monotonic()
            if model is None or model.due() != "step":
                return False
            if not model.mapped:
                self._made = 0
                return now < self._latest + _LOOK
            begun = self._store.engine.predictor.begun
            passed = (now - begun) / (_SPREAD * (self._moment() - begun))
            steps = model.step / (model.step + model.follow)
            first = min(self._made * PORTION / (2.0 * model.records + PORTION), 1.0)
            return _FIRST * (first if model.step == 0 else 1.0) + (1.0 - _FIRST) * steps > passed
        return False

    def log(self) -> None:
        """Log which release of the shared model is due, if that has changed."""
        if self._log.on and (model := self._model) is not None:
            due = model.due() or ("none" if model.trained else "not begun")
            if due != self._logged:
                self._logged = due
                self._log.event("training", due=due, step=model.step)

    def begin(self) -> None:
        """Begin a round at the operator's word, or count newcomers to see whether one is needed (rule 17)."""
        if self._store.draft:
            raise Problem(409, NO_RECORDS, "no_records")
        if self._model is None:
            raise Problem(409, "there is no shared model to train: this store has mode='votes'", "no_model")
        with self._store.computing() as state:
            state.engine.start_round()

    def overdue(self, ahead: float = 0.0) -> bool:
        """Whether the moment has come at which the model is shown, or comes within some seconds.

        Answers wait from that moment until the model is shown.
        """
        return self._moment() <= time.monotonic() + ahead and time.monotonic() >= self._again

    def pause(self) -> float | None:
        """Seconds until there is work again: a check, a model to show, or what failed. None if there is none."""
        now = time.monotonic()
        renewal = self._store.renewal_in()
        renewal = renewal if math.isinf(renewal) else min(renewal, CLOCK_SECONDS)  # a clock may be set while we sleep
        soon = min(self._next, self._moment(), now + renewal)
        soon = self._again if now < self._again else soon
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


class Erasing:
    """Erases records that have expired, between answers, in pieces so small that nobody waits long for one.

    How much has expired is private. So there is no piece shortly before a model's moment and until it is shown: whoever
    asks then is answered at a time that is public (rule 17).
    """

    def __init__(self, store: Store, training: Training):
        self._store, self._training = store, training
        self._finished = -1  # the hour of which nothing is left to erase
        self._again = 0.0  # nothing is erased before this
        self.asked = 0.0  # when somebody last asked

    def piece(self) -> bool:
        """Erase a piece, if it is time. Returns whether to go on at once, because nobody has asked for a while."""
        now, hour = time.monotonic(), clock.minute() // clock.HOUR
        if hour == self._finished or now < self._again:
            return False
        if self._training.overdue(_PAUSE):
            self._again = now + _PAUSE
            return False
        quiet = now - self.asked > _QUIET
        try:
            more = bool(self._store.expire_piece(PIECE))
        except Exception as error:  # the store reads itself again
            log_error(error)
            self._again = now + _LONG_REST
            return False
        self._again = now if quiet else time.monotonic() + _PAUSE
        if not more:
            self._finished = hour
        return more and quiet

    def pause(self) -> float:
        """Seconds until there may be more to erase."""
        now = clock.seconds()
        if int(now) // 3600 == self._finished:
            return 3600.0 - now % 3600.0 + 1.0
        return max(self._again - time.monotonic(), 0.0)


Item: TypeAlias = Job | Task | None


class Worker:
    """Owns the store for all requests. `close` finishes what was begun."""

    def __init__(
        self,
        store: Store,
        metrics: Metrics,
        after_work: Callable[[], None] = lambda: None,
        train_every: float = math.inf,
        log: Log | None = None,
    ):
        self.store = store
        self._log = log or Log()
        self._training = Training(store, train_every, self._log)
        self._erasing = Erasing(store, self._training)
        self._chores_done = -math.inf  # when that was
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

    async def train(self) -> None:
        """Begin a round of training, if none is running. It goes on when nobody waits."""
        await self.run(self._training.begin)

    async def run(self, work: Callable[[], T]) -> T:
        """The result of some other work on the store."""
        future: Future = asyncio.get_running_loop().create_future()
        self._jobs.put(Task(work, future))
        result: T = await future
        return result

    def _next(self) -> Item:
        """The next work. While there is none, the shared model is trained and expired records are erased."""
        patience = _PATIENCE if self._chores_can_wait() else 0.0
        while True:
            try:
                return self._jobs.get(timeout=patience) if patience else self._jobs.get_nowait()
            except Empty:
                patience = 0.0
                if not self._do_chores():
                    with suppress(Exception):  # if this thread died, everybody would wait forever
                        self.store.fold_if_long()
                    pause, erasing = self._training.pause(), self._erasing.pause()
                    with suppress(Empty):
                        return self._jobs.get(timeout=erasing if pause is None else min(pause, erasing))

    def _chores_can_wait(self) -> bool:
        """Whether whoever asks comes first: training is ahead of its time, or nothing was to be done just now."""
        if self._training.under_way:
            return self._training.ahead()
        return time.monotonic() < self._chores_done + _LOOK

    def _do_chores(self, *, erase: bool = True) -> bool:
        """Train for some milliseconds, and erase some records that have expired. Returns whether there is more to do.

        The other thread writes it.
        """
        more = self._training.piece()
        if erase:
            more = self._erasing.piece() or more
            self._chores_done = time.monotonic()
        with suppress(Exception):
            self._training.log()
            batch = self.store.compute([])
            if batch.journal.owed:
                self._commits.put(Done(batch))
        return more

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
            self._erasing.asked = time.monotonic()
            while self._training.overdue() and self._do_chores(erase=False):
                pass  # whoever asks after the moment is told by the model
            self._commits.put(self._answer(jobs))  # long debits are folded when they are written
            if item is _NOTHING:
                item = self._next()
            elif not self._chores_can_wait():
                self._do_chores()  # otherwise they would never end if somebody always waits
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
                    text = f"{len(job.rows)} queries are more than this key may still ask: "
                    problem = Problem(403, f"{text}{left} of {job.most} are left", "query_limit")
                    done.results.append((job.future, problem))
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
        seconds = time.perf_counter() - begun
        fresh, repeated = sum(done.fresh for done in batches), sum(done.repeated for done in batches)
        if batches and failure is None:
            self.metrics.stage["commit"].observe(seconds)
            self.metrics.answered.inc(fresh)
            self.metrics.repeated.inc(repeated)
        if batches and self._log.on:
            facts = {"batches": len(batches), "answers": fresh, "repeated": repeated, "seconds": round(seconds, 6)}
            self._log.event("commit", outcome="done" if failure is None else "failed", **facts)
        by_loop: dict[Any, list[tuple[Future, Any]]] = {}
        for done in group:
            for future, value in done.results:
                outcome = value if failure is None or done.batch is None else failure
                by_loop.setdefault(future.get_loop(), []).append((future, outcome))
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
    if len(jobs) == 1:
        jobs[0].queries = all_rows
        return jobs
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
