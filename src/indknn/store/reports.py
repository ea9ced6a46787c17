"""Facts about a store: for its curator, in addition to `indknn.ledger.figures`, and for the forecast of an analyst.

A forecast follows from the transcript of an analyst. It looks at no ledger and no record (rule 8).
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any

import numpy as np

from indknn.core.calibrate import DEFAULT_TAU, PLANNED_QUERIES, pairs_of, tau_from_queries
from indknn.core.kernels import tau_on_grid
from indknn.core.releases import Votes
from indknn.errors import InvalidInputError
from indknn.ledger import SHARED, Scope, checked_analyst, figures
from indknn.models.forecast import Crowd, Stream, advised_stream, price_of_question
from indknn.settings import Settings
from indknn.store.database import read_answers
from indknn.store.store import Store
from indknn.types import GRID, Vectors, joined

_FIRST, _LATELY = 256, 1000


class Figures:
    """A store as it is now. It is copied in some milliseconds and can be read while the store goes on.

    If the caller knows the number of `answers`, the store does not have to count them.
    """

    def __init__(self, store: Store, answers: int | None = None):
        with store.reading():
            engine = store.engine
            self.path, self.settings, self.records = store.path, store.settings, len(engine.shard)
            self.ledger = engine.ledger.copy(names=False)
            self.answers = sum(answers_by_analyst(store).values()) if answers is None else answers
        self.earlier = engine.earlier

    def status(self) -> dict[str, Any]:
        """The curator's view. Not for analysts: it depends on individual budgets."""
        return {
            "store": str(self.path),
            "tau": self.settings.tau,
            "records": self.records,
            "owners": len(self.ledger.taken()),
            "forgotten": len(self.ledger.tombstones),
            "answers": self.answers,
            "analysts": [scope or "" for scope in self.ledger.scopes if scope != SHARED],
            **figures.status(self, self.answers),
        }


def status(store: Store) -> dict[str, Any]:
    """The curator's view of a store as it is now."""
    return Figures(store).status()


def answers_by_analyst(store: Store) -> dict[Scope, int]:
    """How many answers each analyst was ever given. Repeats do not count, and purged answers do.

    This is the meaning of "answers" everywhere: in limits of keys, status, console and metrics.
    """
    # A sum over records has no query, also after a purge.
    query = "SELECT name, count(*) FROM answers JOIN scopes ON scope = id WHERE length(query) > 0 GROUP BY scope, name"
    with store.reading() as db:
        return {name[1:] if name else None: int(count) for name, count in db.execute(query)}


@dataclass(frozen=True)
class Past:
    """The answers given to one analyst.

    How many there were, the first queries, for which ones people were asked, and released counts.
    """

    answered: int
    queries: Vectors | None
    asked: list[bool]
    counts: list[float]


def past(store: Store, analyst: Scope) -> Past:
    """Read the transcript."""
    answered = 0
    first: list[Vectors] = []
    counts: list[float] = []
    asked: deque[bool] = deque(maxlen=_LATELY)
    with store.reading() as db:
        for scope, query, _, release in read_answers(db, store.settings.n_features):
            if scope != analyst or query is None:
                continue
            answered += 1
            if len(first) < _FIRST:
                first.append(query)
            asked.append(release is None or isinstance(release, Votes))
            if isinstance(release, Votes) and release.count:
                counts.append(release.count / GRID)
    return Past(answered, joined(first) if first else None, list(asked), counts)


def stream(store: Store, analyst: Scope = None, records: int | None = None) -> Stream:
    """Everything that a forecast may use. `records` is a *public* number of records, if there is one."""
    if records is not None and records < 1:
        raise InvalidInputError(f"the number of records must be at least 1, got {records!r}")
    checked_analyst(analyst)
    history, settings = past(store, analyst), store.settings.seen_by(analyst)
    adviser = None if store.draft else store.engine.predictor.adviser(analyst)
    if adviser is not None:
        return advised_stream(adviser, np.array(history.asked, dtype=np.float64))
    crowd = None if history.queries is None else crowd_of(settings, history.queries)
    if records is None and crowd is not None and history.counts:
        records = max(round(float(np.mean(history.counts)) / crowd.near), 1)
    price = None
    if crowd is not None and records is not None:
        price = plain_price(settings, crowd, records)
    left = 1.0 if not history.answered else None if price is None else max(1.0 - history.answered * price, 0.0)
    planned = settings.max_queries or PLANNED_QUERIES
    return Stream(history.answered, history.answered, 1.0, left, price, planned)


def plain_price(settings: Settings, crowd: Crowd, records: float) -> float:
    """The cost of a question for an average person with Algorithm 3, as a share of B."""
    return price_of_question(
        crowd,
        budget=settings.budget,
        sigma1=settings.sigma1_,
        sigma2=settings.sigma2_,
        records=records,
    )


def crowd_of(settings: Settings, queries: Vectors) -> Crowd | None:
    """Who would be near, if records are distributed like these queries. None if there are too few queries."""
    kappa = pairs_of(queries, settings.kernel_)
    if kappa is None:
        return None
    tau = settings.tau or tau_from_queries(queries, settings.kernel_, settings.near_share) or DEFAULT_TAU
    near = kappa[kappa >= tau_on_grid(tau)] / GRID
    return Crowd(max(len(near), 1) / len(kappa), float((near * near).mean()) if len(near) else tau * tau)
