"""Many requests at the price of one scan and one sync: what a server does with whoever is waiting.

`compute` decides and charges a batch in memory, request by request in order, as if each had come alone; `Batch.commit`
makes it durable. Answers may leave after that (rule 2). In between the next batch may be computed.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

from indknn.errors import InvalidInputError, RequestConflictError, StoreError
from indknn.ledger import Scope
from indknn.store.journal import StoreJournal
from indknn.store.store import request_digest
from indknn.types import IntArray, Vectors

if TYPE_CHECKING:
    from indknn.store.store import Store


@dataclass(frozen=True)
class Request:
    """Queries as the store sees them, whose ledger is charged, and the id that makes it safe to ask again."""

    queries: Vectors
    analyst: Scope = None
    request_id: str | None = None


Outcome: TypeAlias = IntArray | InvalidInputError


@dataclass
class Batch:
    """What came of each request: class numbers, or why not. `fresh` counts the queries that were new."""

    journal: StoreJournal
    outcomes: list[Outcome] = field(default_factory=list)
    fresh: list[int] = field(default_factory=list)

    def commit(self) -> None:
        """Return when all of it is on disk."""
        self.journal.commit()


def compute(store: Store, requests: Sequence[Request]) -> Batch:
    """Answer all, charged and noted but not yet durable. A bad request does not touch the others."""
    with store._lock:
        store._ready()
        batch = Batch(store._journal)
        found: dict[int, Outcome] = {}
        fresh = dict.fromkeys(range(len(requests)), 0)
        first: dict[str, int] = {}  # of several requests with one id, the first does the work
        todo = []
        for i, request in enumerate(requests):
            known = _known(store, request)
            if known is not None:
                found[i] = known
            elif request.request_id is None or first.setdefault(request.request_id, i) == i:
                todo.append(i)
        while todo:
            # Before there is a plan the first queries make it, and may be refused: they come alone.
            now = todo if store._engine.predictor.plan is not None else todo[:1]
            try:
                _compute(store, batch.journal, requests, now, found, fresh)
            except InvalidInputError as error:  # told before anybody was charged
                found.update(dict.fromkeys(now, error))
            todo = todo[len(now) :]
        for i, request in enumerate(requests):
            if i not in found:
                known = _known(store, request)
                found[i] = found[first[str(request.request_id)]] if known is None else known
        batch.outcomes = [found[i] for i in range(len(requests))]
        batch.fresh = [fresh[i] for i in range(len(requests))]
    return batch


def fold_if_long(store: Store) -> None:
    """Fold when debits have grown; answers are paid for already, and folding can wait."""
    if store._journal.failure is None and store._journal.unfolded_bytes > store._fold_bytes:
        with suppress(StoreError):
            store.fold()


def answers_by_analyst(store: Store) -> dict[Scope, int]:
    """How many answers each analyst was given, ever."""
    # A sum over records has no query, and still has none where it was purged.
    query = "SELECT name, count(*) FROM answers JOIN scopes ON scope = id WHERE length(query) > 0 GROUP BY scope"
    with store.reading() as db:
        return {name[1:] or None: int(count) for name, count in db.execute(query)}


def _known(store: Store, request: Request) -> Outcome | None:
    """What is known of this request already: its labels, or that its id is taken."""
    try:
        return store._known(request.request_id, request.queries, request.analyst)
    except RequestConflictError as error:
        return error


def _compute(
    store: Store,
    journal: StoreJournal,
    requests: Sequence[Request],
    numbers: list[int],
    found: dict[int, Outcome],
    fresh: dict[int, int],
) -> None:
    before = journal.answered

    def done(position: int, labels: IntArray) -> None:
        nonlocal before
        i = numbers[position]
        request = requests[i]
        digest = request_digest(request.queries, request.analyst) if request.request_id is not None else b""
        journal.seal(request.request_id, digest, labels)
        found[i], fresh[i], before = labels, journal.answered - before, journal.answered

    try:
        store._engine.predictor.compute_many([(requests[i].queries, requests[i].analyst) for i in numbers], done)
    except InvalidInputError as error:
        if not journal.untouched:  # see Store._compute
            journal.failure = error
        raise
    except BaseException as error:  # memory may know charges that no group holds: see Store._compute
        journal.failure = error
        raise
