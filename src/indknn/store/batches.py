"""Many requests with one scan and one sync, each answered as if it had come alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from indknn.answering.predictor import Predictor
from indknn.answering.requests import Reply, Request
from indknn.errors import InvalidInputError, RequestConflictError
from indknn.store.journal import StoreJournal

Outcome: TypeAlias = Reply | InvalidInputError


@dataclass(frozen=True)
class Batch:
    """The result of each request: an answer, or an error. Nothing may leave before `commit`."""

    journal: StoreJournal
    outcomes: list[Outcome]

    def commit(self) -> None:
        """Return when everything is on disk."""
        self.journal.commit()


def answered(requests: Sequence[Request], predictor: Predictor, journal: StoreJournal) -> Batch:
    """Answer new requests and repeat known ones. A request id that was used for other queries is an error."""
    new, names = [], set()
    for i, request in enumerate(requests):
        name = request.request_id
        if name is None or (journal.request(name) is None and name not in names):
            new.append(i)  # of several requests with one id, the first does the work
            names.add(name)
    replies = predictor.compute([requests[i] for i in new]) if new else []
    fresh = dict(zip(new, replies, strict=True))
    return Batch(journal, [fresh[i] if i in fresh else _known(r, predictor, journal) for i, r in enumerate(requests)])


def _known(request: Request, predictor: Predictor, journal: StoreJournal) -> Outcome:
    try:
        reply = journal.repeated(request)
    except RequestConflictError as error:
        return error
    if request.likely and reply.likely is None:  # the first request with this id did not ask for them
        return replace(reply, likely=predictor.probabilities(request.queries, request.analyst))
    return reply
