"""Tuning on public data: a labelled public set plays both the store and the queries, and nobody pays.

If the set is smaller than the store, each of its records plays several people, up to `CROWD` in all. The rest is
scaled. Noise is seeded, because nothing in here has to be private.

From a store of one size to a stand-in of another, which noise and which budget mean the same? A person who is near in a
share s of T queries is charged about s·T·κ²/(2·σ2²·K) for voting, and K = s·n. Over all n people that is

    spent of B        T·κ²/(2·σ2²·n·B)
    noise over votes  σ2·sqrt(K)/(κ·K) = σ2/(κ·sqrt(s·n))

so at equal wear the noise over the votes goes with sqrt(T/B)/n; that on the count, σ1/K with σ1 = sqrt(T/6B), and on
sums over all records, in proportion to 1/(sqrt(B)·n), go the same way. Hence m people under the budget
B' = B·(n/m)², with σ2' = σ2·sqrt(m/n), see the T queries as n people under B do: same wear, same noise, in votes,
counts, gradients and report cards alike. T' instead of T queries under B'·T'/T mean the same to Algorithm 3.

What does not scale is the floor of 30 under K: in a small stand-in it shields those who are left when most are
exhausted, and a σ2 that is too small looks better than it is (by .05 to .1 with 4,000 for 10,000 records).
So a stand-in is first filled up with copies of its records, and scaled only where it would be too large to try.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import ceil, sqrt
from statistics import median
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from indknn.core import accounting
from indknn.core.calibrate import MANY_RECORDS, PLANNED_QUERIES, near_share, sigma2_for, tau_from_queries
from indknn.core.noise import SeededNoise
from indknn.engine import Engine
from indknn.errors import InvalidInputError
from indknn.settings import MAX_FEATURES, Settings
from indknn.types import Accountant, KernelName

LEAST_ROWS = 200
LONGEST = 10_000
"""The most queries that are tried."""
CROWD = 20_000
"""The most people that a trial store has."""
_QUERIES_SHARE = 0.25
_BATCH = 512
_MOST_BUDGET = 400.0  # accounting surely accepts this, and it is far above any promise
USUAL_STORE = 50_000
"""The size of store that the factor of `calibrate.sigma2_for` was fitted for."""
_MANY = 10_000  # queries over which `sigma2_for` is asked: there its bounds do not bind
_LEAST, _MOST = 0.02, 100.0
Progress = Callable[[int, int], None]
Mode: TypeAlias = Literal["votes", "model"]


@dataclass(frozen=True)
class Candidate:
    """A mode with parameters.

    `share` is the share of pairs that sets τ (None: the store chooses from its own queries). `factor` scales σ2.
    """

    mode: Mode
    share: float | None = None
    factor: float = 1.0
    model_share: float | None = None

    def describe(self) -> str:
        """In words.

        >>> Candidate("votes", 0.03, 2.0).describe()
        'Algorithm 3, 3% near, sigma2 x 2'
        """
        near = "" if self.share is None else f", {100 * self.share:g}% near"
        if self.mode == "votes":
            return f"Algorithm 3{near}, sigma2 x {self.factor:g}"
        return f"shared model for {self.model_share or 0.0:.0%} of B{near}"


USUAL = (
    *(Candidate("votes", share, factor) for share in (0.015, 0.03, 0.06) for factor in (0.25, 0.5, 1.0)),
    *(Candidate("model", None, model_share=share) for share in (0.6, 0.9)),
)


@dataclass(frozen=True)
class Target:
    """The planned store: its promise, its size, and its planned number of queries (None: no number)."""

    n: int
    epsilon: float = 1.0
    delta: float = 1e-5
    max_queries: int | None = None
    accountant: Accountant = "gdp"
    kernel: KernelName = "cosine"
    bandwidth: float | None = None

    def __post_init__(self) -> None:
        for name, value in (("n", self.n), ("max_queries", self.max_queries)):
            if value is not None and value < 1:
                raise InvalidInputError(f"{name} must be at least 1, got {value!r}")

    @cached_property
    def budget(self) -> float:
        """B."""
        return accounting.budget(self.epsilon, self.delta, self.accountant)

    @property
    def planned(self) -> int:
        """How many queries to try if no number was given. Enough for the noise to grow."""
        return self.max_queries or PLANNED_QUERIES


@dataclass(frozen=True)
class Trial:
    """The result of a candidate: the share of right answers in each run, and the parameters for a store."""

    candidate: Candidate
    tau: float | None
    sigma2: float | None
    accuracies: tuple[float, ...]

    @property
    def accuracy(self) -> float:
        """The median."""
        return median(self.accuracies)


@dataclass(frozen=True)
class Tuning:
    """All trials, best first, with the numbers of records, people and queries."""

    target: Target
    trials: list[Trial]
    stand_in: int
    people: int
    queries: int
    distinct: int

    @property
    def best(self) -> Trial:
        """The best trial."""
        return self.trials[0]

    @property
    def error(self) -> float:
        """Two standard errors of an accuracy. Smaller differences mean little."""
        p = self.best.accuracy
        return 2.0 * sqrt(max(p * (1.0 - p), 0.01) / (self.distinct * len(self.best.accuracies)))

    def extrapolated(self) -> list[str]:
        """What was not measured under the real conditions, in sentences."""
        t, found = self.target, []
        if self.stand_in < t.n:
            found.append(
                f"{self.stand_in:,} public records stand in for {t.n:,}, each for {t.n / self.stand_in:.3g} people; "
                "real records are all different, some of them nearer: expect the store to do a little better"
            )
        if self.people < t.n:
            found.append(
                f"the stand-in has {self.people:,} people, not {t.n:,}: they were given a budget (n/m)² = "
                f"{(t.n / self.people) ** 2:.3g} times as large, which makes charges and noise the same in proportion"
            )
        if self.queries < t.planned:
            found.append(
                f"{self.queries:,} queries were tried, not {t.planned:,}: for Algorithm 3 the budget was cut in "
                "proportion; of the others the beginning of the stream was seen"
            )
        if self.distinct < self.queries:
            found.append(f"there were {self.distinct:,} queries to ask, so the stream started again from the first")
        return found


def tune(
    X: npt.NDArray[np.float64],
    y: npt.NDArray[Any],
    target: Target,
    candidates: Sequence[Candidate],
    *,
    seeds: int = 3,
    progress: Progress = lambda done, total: None,
) -> Tuning:
    """Try every candidate on seeded splits of the public set. The best by median accuracy comes first."""
    if len(X) < LEAST_ROWS:
        raise InvalidInputError(f"tuning needs at least {LEAST_ROWS} labelled public rows, got {len(X)}")
    asked = min(target.planned, LONGEST)
    distinct = min(asked, int(len(X) * _QUERIES_SHARE))
    m = min(len(X) - distinct, target.n)
    people = min(target.n, max(m, CROWD))
    scores: dict[Candidate, list[float]] = {candidate: [] for candidate in candidates}
    chosen: dict[Candidate, Settings] = {}
    for seed in range(seeds):
        order = np.random.default_rng(seed).permutation(len(X))
        rows, stream = np.resize(order[:m], people), order[len(X) - distinct :][np.arange(asked) % distinct]
        for done, candidate in enumerate(candidates):
            progress(seed * len(candidates) + done, seeds * len(candidates))
            real, stand_in = _settings(candidate, target, X, y, order[-distinct:], people, asked)
            chosen.setdefault(candidate, real)
            engine = Engine(stand_in, SeededNoise(seed))
            engine.add(X[rows], y[rows])
            parts = np.array_split(stream, ceil(asked / _BATCH))
            scores[candidate].append(float(np.concatenate([engine.predict(X[p]) == y[p] for p in parts]).mean()))
    progress(seeds * len(candidates), seeds * len(candidates))
    trials = [Trial(c, chosen[c].tau, chosen[c].sigma2, tuple(a)) for c, a in scores.items()]
    return Tuning(target, sorted(trials, key=lambda t: -t.accuracy), m, people, asked, distinct)


def possible(candidates: Sequence[Candidate], n_features: int, n: int) -> list[Candidate]:
    """The candidates that are possible for a store of n records with this many features.

    In a very large store, a smaller share of the records should be near.
    """
    able = [c for c in candidates if c.model_share is None or n_features <= MAX_FEATURES]
    return [c if c.share is None else replace(c, share=near_share(c.share, n)) for c in able]


def _settings(
    candidate: Candidate, target: Target, X: Any, y: Any, queries: Any, people: int, asked: int
) -> tuple[Settings, Settings]:
    """The settings of the real store, and of the trial store."""
    base = Settings(
        n_features=X.shape[1],
        classes=tuple(np.unique(y).tolist()),
        max_queries=target.planned if candidate.mode == "votes" else target.max_queries,
        **{name: getattr(target, name) for name in ("epsilon", "delta", "kernel", "bandwidth", "accountant")},
        mode="votes" if candidate.model_share is None else "model",
        model_share=candidate.model_share or 0.9,
        free_repeats=False,
        expected_records=target.n if target.n > MANY_RECORDS and candidate.share is None else None,
    )
    tau = None
    if candidate.share is not None:
        tau = tau_from_queries(base.quantise(X[queries], "X"), base.kernel_, candidate.share)
        tau = None if tau is None else round(tau, 4)
    ratio = target.n / people
    stretch, sigma2 = ratio * ratio, None
    if candidate.mode == "votes":
        sigma2 = round(sigma2_for_store(target.budget, target.planned, target.n, candidate.factor), 4)
        stretch *= asked / target.planned
    if target.budget * stretch > _MOST_BUDGET:
        most = int(target.n * sqrt(_MOST_BUDGET / target.budget / stretch))
        raise InvalidInputError(
            f"a public set that plays {people} people is too small for n={target.n}; the largest n is {most}"
        )
    epsilon = accounting.epsilon(target.budget * stretch, target.delta, target.accountant)
    real = replace(base, tau=tau, sigma2=sigma2)
    return real, replace(
        real,
        epsilon=epsilon,
        max_queries=None if real.max_queries is None else asked,
        sigma2=None if sigma2 is None else sigma2 / sqrt(ratio),
    )


def sigma2_for_store(budget: float, max_queries: int, n: int, factor: float = 1.0) -> float:
    """σ2 at which the budgets of n people last for T queries as they do in a store of the usual size.

    >>> round(sigma2_for_store(0.0359, 1000, 50_000) / sigma2_for(0.0359, 1000), 6)
    1.0
    >>> round(sigma2_for_store(0.0359, 1000, 12_500) / sigma2_for(0.0359, 1000), 6)
    2.0
    """
    per_root = sigma2_for(1.0, _MANY) / sqrt(_MANY)
    return min(max(factor * per_root * sqrt(max_queries / budget * USUAL_STORE / n), _LEAST), _MOST)
