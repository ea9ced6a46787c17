"""Facts about a store: for its curator, in addition to `indknn.ledger.figures`, and for the forecast of an analyst.

A forecast follows from the transcript of an analyst. It looks at no ledger and no record (rule 8).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from indknn.answering.requests import checked_analyst
from indknn.core.calibrate import DEFAULT_TAU, PLANNED_QUERIES, pairs_of, tau_from_queries
from indknn.core.clock import DAY, HOUR
from indknn.core.releases import Renewed, Votes
from indknn.errors import InvalidInputError
from indknn.ledger import SHARED, Scope, figures
from indknn.models.forecast import Nearness, Stream, Times, advised_stream, price_of_question
from indknn.settings import Settings
from indknn.store.database import read_answers
from indknn.store.keyfile import ASKING, Key
from indknn.store.store import Store
from indknn.types import GRID, Vectors, joined, tau_on_grid

_FIRST, _LATELY = 256, 1000


class Figures:
    """A store as it is now. It is copied in some milliseconds and can be read while the store goes on.

    If the caller knows the number of `answers` of each analyst, the store does not have to count them.
    """

    def __init__(self, store: Store, answers: dict[Scope, int] | None = None):
        with store.reading():
            engine = store.engine
            self.path, self.settings, self.records = store.path, store.settings, len(engine.shard)
            self.ledger = engine.ledger.copy(names=False)
            self.answers = answers_by_analyst(store) if answers is None else answers
            ahead = engine.shard.dates.ahead(engine.shard.slots(), engine.ledger.tick() // HOUR)
            self.retention = {"keep_days": store.settings.keep_days, "held": len(engine.shard.holds)}
            self.retention |= {step: about(count) for step, count in ahead.items()}
        self.earlier = engine.earlier

    def status(self) -> dict[str, Any]:
        """The curator's view. Not for analysts: it depends on individual budgets."""
        answers, asking = sum(self.answers.values()), {scope for scope in self.ledger.scopes if scope != SHARED}
        return {
            "store": str(self.path),
            "tau": self.settings.tau,
            "records": self.records,
            "owners": len(self.ledger.taken()),
            "forgotten": len(self.ledger.tombstones),
            "retention": self.retention,
            "answers": answers,
            "analysts": sorted(scope or "" for scope in asking | self.answers.keys()),
            **figures.status(self, answers),
        }


def about(count: int) -> int:
    """A count with two digits, and at least 10 if it is not 0.

    >>> about(0), about(3), about(17), about(1234)
    (0, 10, 17, 1200)
    """
    return count and max(10, round(count, 2 - len(str(count))))


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


def analysts_in_use(
    settings: Settings, answers: dict[Scope, int], keys: Iterable[Key], declared: Iterable[str]
) -> list[dict[str, Any]]:
    """What each analyst has used, and how many queries their keys still allow. None: there is no limit.

    Keys of one name share its answers, and the most generous key counts. Without a key nothing limits the number of
    queries: the analyst asks on the command line or in Python.
    """
    asking = [key for key in keys if key.role in ASKING and key.revoked is None]
    names = sorted({key.name for key in asking} | {name for name in answers if name is not None} | set(declared))
    everybody: list[str | None] = [*([None] if None in answers else []), *names]
    return [_use(settings, name, answers.get(name, 0), [k for k in asking if k.name == name]) for name in everybody]


def _use(settings: Settings, name: str | None, answers: int, keys: list[Key]) -> dict[str, Any]:
    limits = [key.max_queries for key in keys]
    most = max((limit for limit in limits if limit is not None), default=None) if None not in limits else None
    left = None if most is None else max(most - answers, 0)
    facts = {"name": name, "answers": answers, "keys": len(keys), "max_queries": most, "queries_left": left}
    return {**facts, "epsilon": figures.guarantee(settings, name)["epsilon"]}


@dataclass(frozen=True)
class Past:
    """The answers given to one analyst.

    How many there were, and in this period; the first queries, for which ones people were asked, and released counts.
    """

    answered: int
    lately: int
    queries: Vectors | None
    asked: list[bool]
    counts: list[float]


def past(store: Store, analyst: Scope) -> Past:
    """Read the transcript."""
    answered = answers_by_analyst(store).get(analyst, 0)  # after a purge too: what was answered was paid for
    first: list[Vectors] = []
    counts: list[float] = []
    asked: deque[bool] = deque(maxlen=_LATELY)
    seen = earlier = 0
    with store.reading() as db:
        for scope, query, _, release in read_answers(db, store.settings.n_features):
            if isinstance(release, Renewed):
                earlier = seen
            if scope != analyst or query is None:
                continue
            seen += 1
            if len(first) < _FIRST:
                first.append(query)
            asked.append(release is None or isinstance(release, Votes))
            if isinstance(release, Votes) and release.count:
                counts.append(release.count / GRID)
    return Past(answered, answered - earlier, joined(first) if first else None, list(asked), counts)


def stream(store: Store, analyst: Scope = None, records: int | None = None) -> Stream:
    """Everything that a forecast may use. `records` is a *public* number of records, if there is one."""
    if records is not None and records < 1:
        raise InvalidInputError(f"the number of records must be at least 1, got {records!r}")
    checked_analyst(analyst)
    store.renew_if_due()  # so that it does not show whether anybody came or asked since the last period
    history, settings = past(store, analyst), store.settings.seen_by(analyst)
    adviser = None if store.draft else store.engine.predictor.adviser(analyst)
    if adviser is not None:
        found = advised_stream(adviser, np.array(history.asked, dtype=np.float64))
        return replace(found, answered=history.answered, times=_times(store))
    crowd = None if history.queries is None else crowd_of(settings, history.queries)
    if records is None and crowd is not None and history.counts:
        records = max(round(float(np.mean(history.counts)) / crowd.near), 1)
    price = None
    if crowd is not None and records is not None:
        scales = {"sigma1": settings.sigma1_, "sigma2": settings.sigma2_}
        price = price_of_question(crowd, budget=settings.budget, **scales, records=records)
    times = _times(store)
    left = None if price is None else max(1.0 - history.lately * price, 1.0 - times.paced)  # votes cannot be faster
    left = left if history.lately else 1.0
    planned = settings.max_queries or PLANNED_QUERIES
    return Stream(history.answered, history.answered, 1.0, left, price, planned, times=times)


def _times(store: Store) -> Times:
    """How budgets and records depend on the clock."""
    settings, ledger = store.settings, store.engine.ledger
    elapsed = max(ledger.tick() - ledger.born - ledger.period * ledger.renewal, 0) / (DAY * HOUR)
    return Times(settings.pace_days, elapsed, settings.renew_days, ledger.period + 1, settings.keep_days)


def crowd_of(settings: Settings, queries: Vectors) -> Nearness | None:
    """Who would be near, if records are distributed like these queries. None if there are too few queries."""
    kappa = pairs_of(queries, settings.kernel_)
    if kappa is None:
        return None
    tau = settings.tau or tau_from_queries(queries, settings.kernel_, settings.near_share) or DEFAULT_TAU
    near = kappa[kappa >= tau_on_grid(tau)] / GRID
    return Nearness(max(len(near), 1) / len(kappa), float((near * near).mean()) if len(near) else tau * tau)
