"""Measuring a store by validation queries that are charged like all others, at a price told before.

One evaluation under the plan in force, not a race of candidates: a plan is fixed with its store, and a few hundred
queries split among candidates would tell them apart only by luck, at a price that is not. Candidates are compared on
public data, for nothing; this says whether the choice holds on the real one. The answers stay in the transcript and are
reused as all answers are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from indknn.answering.transcript import keys_of
from indknn.core.mechanism import MIN_K
from indknn.core.releases import ModelOnly
from indknn.ledger import Scope
from indknn.models.forecast import coming_sums
from indknn.store import Store
from indknn.store.outlook import crowd_of, past, plain_price, stream
from indknn.types import Vectors


@dataclass(frozen=True)
class Cost:
    """What validation is expected to cost an average person, by public quantities. Nobody ever pays more than B."""

    queries: int
    fresh: int
    """Queries that were not asked before: the others are free."""
    near: float | None
    share: float
    """Of B; with `most`, at most so much."""
    rho: float
    most: bool
    sums: float
    """The part of `share` that pays for statistics and report cards."""


@dataclass(frozen=True)
class Score:
    """How many of so many answers were right, with Wilson's 95% interval."""

    right: int
    of: int

    @property
    def accuracy(self) -> float:
        """The share."""
        return self.right / max(self.of, 1)

    @property
    def interval(self) -> tuple[float, float]:
        """Wilson's.

        >>> [round(x, 3) for x in Score(90, 100).interval]
        [0.826, 0.945]
        """
        if not self.of:
            return 0.0, 1.0
        from scipy.stats import binomtest  # noqa: PLC0415  (takes half a second to load)

        found = binomtest(self.right, self.of).proportion_ci(method="wilson")
        return float(found.low), float(found.high)


def expected_cost(store: Store, X: npt.ArrayLike, analyst: Scope = None, records: int | None = None) -> Cost:
    """The price of these queries before they are asked. Looks at nobody's ledger."""
    settings, B = store.settings, store.settings.budget
    queries = settings.quantise(X, "the queries")
    fresh = _fresh(store, queries, analyst)
    crowd = crowd_of(settings, queries)
    known = stream(store, analyst, records)
    adviser = store.engine.predictor.adviser(analyst)
    price, most, sums = known.price, False, 0.0
    if adviser is not None:
        sums = coming_sums(adviser, fresh)
        most = True  # models may answer some of them alone, and noise grows on the way
    elif price is None and crowd is not None and records is not None:
        price = plain_price(settings, crowd, records)
    if price is None and crowd is not None:
        price, most = plain_price(settings, crowd, MIN_K / crowd.near), True  # K is never below its floor
    share = 1.0 if price is None else min(sums + fresh * price, 1.0)
    share, most = (share, most) if fresh else (0.0, False)
    return Cost(
        len(queries), fresh, None if crowd is None else crowd.near, share, share * B, most or price is None, sums
    )


def validate(
    store: Store,
    batches: Iterable[tuple[str, npt.NDArray[np.float64], npt.NDArray[Any]]],
    analyst: Scope = None,
    progress: Callable[[int], None] = lambda done: None,
) -> dict[str, Score]:
    """Ask (request id, queries, labels) batch by batch, charged; the scores of all, of those asked and alone.

    A rerun after a crash asks under the same ids and pays nothing twice.
    """
    right: list[bool] = []
    keys: list[bytes] = []
    for request, X, y in batches:
        right += (store.predict(X, analyst, request_id=request) == y).tolist()
        queries = store.settings.quantise(X, "the queries")
        keys += keys_of(queries)
        progress(len(right))
    releases = past(store, analyst).releases
    alone = np.array([isinstance(releases.get(key), ModelOnly) for key in keys], dtype=bool)
    hits = np.array(right, dtype=bool)
    return {
        "all": Score(int(hits.sum()), len(hits)),
        "asked": Score(int(hits[~alone].sum()), int((~alone).sum())),
        "alone": Score(int(hits[alone].sum()), int(alone.sum())),
    }


def _fresh(store: Store, queries: Vectors, analyst: Scope) -> int:
    keys = keys_of(queries)
    if not store.settings.free_repeats:
        return len(keys)
    return len(set(keys) - set(past(store, analyst).releases))
