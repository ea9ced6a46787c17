"""Decides for one analyst which queries the model answers alone, and how votes are combined with the model.

Each analyst has an adviser. It sees the shared model and what was released to that analyst, and nothing else. From that
it decides which queries need votes, how much noise the votes get, and how they are combined with the model's scores. It
changes its decisions only at fixed numbers of answers. So a batch is answered as if its queries had come one at a time.

Queries are public, so they tell two more things for free. Where queries are dense, records are dense too: `Density`
estimates K, the number of records near a query, as the share of earlier queries within τ of it, times a number of
records that follows from released counts. K only sets the scale of the noise, so a wrong estimate costs accuracy, never
privacy. And when new classes of records arrive, queries about them usually arrive too: `Earlier` says whether people
ask about other things than before, which is a good moment to look for newcomers among the records.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import lru_cache
from math import ceil, sqrt

import numpy as np

from indknn.core.calibrate import (
    COUNT_EVERY,
    DEFAULT_TAU,
    NEAR_SHARE,
    PLANNED_QUERIES,
    near_share,
    tau_from_queries,
)
from indknn.core.kernels import Kernel
from indknn.core.mechanism import MIN_K, Plan
from indknn.core.quantise import as_vectors, integer_dots, unit_rows
from indknn.core.releases import NoisyVotes, Release, Votes
from indknn.models.probabilities import sharpened
from indknn.models.shared_model import Scores, SharedModel, ShownModel
from indknn.types import GRID, BoolArray, FloatArray, Int8Array, Vectors

LOOK_EVERY = 64
"""The adviser may change its decisions after this many answers."""
MISFIT, MOST_WEIGHT = 0.015, 1 / 3
"""The variance of the true class probabilities around the model's, and the weight of votes without noise. Both were
chosen on held-out training records, see `feature_map`. There, exact votes with this weight never did harm, and larger
weights did."""
MOST_NOISE = 0.12
"""Votes with more noise than this, in shares of all votes, would not change the model's answer. Then nobody is asked.
"""
LATELY = 256
"""The strength of votes is estimated from this many of the latest ones."""
_SPREAD = 2.0  # so that people who are near more often than others do not run out early
_TAU_SETTLED = 256  # answers; a later change of τ would not fit what was learned before
_BELIEF = 5.0  # how firmly votes are assumed to be strong, in squared scores that they are compared with
LATEST = 256
"""How many of the latest queries are compared with those before."""
_CHANCE = 5.0  # standard deviations
_UNLIKE = 2.0  # times as much as blocks of earlier queries differ from each other
_KEPT = 1024
_COMPARE_EVERY = 64  # queries
_FIRST_COUNTS = 16
_USUAL_EXCESS = 1.15


@dataclass(frozen=True)
class AdviserTerms:
    """Public and fixed terms. With `max_queries` None, the plan is for as many more questions as were asked so far.

    `budget` is what a person may spend on votes with this analyst. `expected_records` is the number of records that the
    operator expects, if given.
    """

    n_features: int
    n_classes: int
    budget: float
    max_queries: int | None
    sigma2: float | None
    tau: float | None = None
    expected_records: int | None = None


@dataclass(frozen=True)
class Advice:
    """The model's scores for a block of queries, P(y | q) - 1/c, and which queries need votes.

    `tau` is the similarity that records need to vote.
    """

    scores: FloatArray
    ask: BoolArray
    tau: float


@dataclass(frozen=True)
class Question:
    """How people are asked about one query: the noise on their votes, and whether their count is released.

    `share` is the share of earlier queries that are near this one, and `kappa` their mean similarity. `K` is what is
    expected before a count.
    """

    sigma2: float
    share: float
    kappa: float
    K: int
    counted: bool


class Adviser:
    """Decides about the queries of one analyst, from public information alone."""

    def __init__(
        self,
        terms: AdviserTerms,
        kernel: Kernel,
        model: SharedModel,
    ):
        self.terms = terms
        self.model = model
        self.tau = terms.tau
        self._kernel = kernel
        self.density = Density(kernel, terms.n_features)
        self.answered = self.asked = 0
        self.paced = 1.0  # the share of the budget that votes may use by now
        self.left = 1.0  # of an average person's budget, estimated from what the releases must have cost
        self.strength = 1.0  # of votes: how much the share of a label rises with the model's score for it
        self.first_strength = 1.0  # the same at the time when everybody could vote
        self.kappa_sum = 0.0
        self.worth_asking = True
        self._looked_at, self._weighed = 0, -1
        self._lately: deque[tuple[Int8Array, FloatArray]] = deque(maxlen=LATELY)

    def twin(self) -> Adviser:
        """A copy, used to find out the next decisions without changing this adviser."""
        other = copy(self)
        other.density, other._lately = self.density.twin(), deque(maxlen=LATELY)
        return other

    def until_change(self) -> int:
        """How many answers can be given before the adviser may change its decisions."""
        return LOOK_EVERY - self.answered % LOOK_EVERY

    # A query

    def advise(self, queries: Vectors, known: Scores | None = None) -> Advice:
        """What the model says about these queries, and which of them need votes. At most `until_change` at a time.

        `known` has the model's scores, if they were computed already.
        """
        self._choose(queries)
        tau, n = self.tau or DEFAULT_TAU, len(queries.values)
        shown = self.model.shown
        if shown is None:
            return Advice(np.zeros((n, self.terms.n_classes)), np.ones(n, dtype=bool), tau)
        scores, sure = shown.scores(queries.values) if known is None else known
        self.weigh_if_new()
        return Advice(scores - self._even, ~sure & self.worth_asking, tau)

    def foresee(self, n: int, known: Scores | None) -> tuple[BoolArray, float]:
        """Which of n queries will probably need votes, and at which τ. Changes nothing."""
        asked = np.ones(n, dtype=bool) if known is None or not self.model.ready else ~known[1] & self.worth_asking
        return asked, self.tau or DEFAULT_TAU

    def weigh_if_new(self) -> None:
        """Decide whether to ask people if another model is shown than before."""
        if self.model.shown is not None and self._weighed != self.model.shown.rounds:
            self._weigh()

    def _weigh(self) -> None:
        """Decide whether the votes on a usual query would stand out above their noise."""
        self._weighed = 0 if self.model.shown is None else self.model.shown.rounds
        self.density.known = self._people
        K = self.density.records * self.density.usual_share * self.voting
        self.worth_asking = self.sigma2() <= self._most_noise * self.kappa * sqrt(K)

    @property
    def voting(self) -> float:
        """The share of the people near a query who can still vote, estimated from the strength of votes."""
        return min(self.strength / self.first_strength, 1.0)

    def _choose(self, queries: Vectors) -> None:
        """Choose τ from public rows, or else from the first queries. A very large store gets a larger τ."""
        look = 0 < self.answered <= _TAU_SETTLED and self.answered % LOOK_EVERY == 0  # all pairs: some milliseconds
        if self.terms.tau is None and (self.tau is None or look):
            public = self.model.public if self.model.shown is None else self.model.shown.public
            rows = self.density.queries() if self.answered else queries
            if public is not None and len(public) >= len(rows):
                rows = as_vectors(public)
            records = self.terms.expected_records or self._people or self.density.records
            share = near_share(NEAR_SHARE, records)
            tau = tau_from_queries(rows, self._kernel, share)
            if tau is not None:
                self.tau, self.density.usual_share = tau, share

    def question(self, query: Vectors, tau: int) -> Question:
        """How people will be asked about this query. All of this is public."""
        counted = self.density.count_due
        share, kappa = self.density.look(query, tau)
        return Question(self.sigma2(), share, kappa, self.expected(share), counted)

    def expected(self, share: float) -> int:
        """The K that is estimated for this query: the people near it who can still vote."""
        return self.density.expected(share * self.voting)

    @property
    def left_now(self) -> float:
        """The share of an average person's budget that is left by now."""
        return self.left if self.paced >= 1.0 else min(self.left, self.paced - 1.0 + self.left)

    def renew(self) -> None:
        """Everybody's budget has started anew."""
        self.left, self.strength = 1.0, self.first_strength

    def sigma2(self) -> float:
        """The noise on votes, so that an average person spends half of what they have left on the questions to come."""
        if self.terms.sigma2 is not None:
            return self.terms.sigma2
        if self.terms.max_queries is None:
            horizon = max(float(self.asked), PLANNED_QUERIES)
        else:
            rate = (self.asked + 20.0) / (self.answered + 20.0)
            horizon = max((self.terms.max_queries - self.answered) * rate, 50.0)
        cost = horizon * self.kappa * self.kappa * self.contrast * _SPREAD / self.density.records
        wanted = sqrt(cost / (2.0 * max(self.left_now, 0.01) * self.terms.budget))
        return min(max(wanted, self._least_sigma2), 1000.0)

    def mixed(self, scores: FloatArray, votes: Votes) -> FloatArray:
        """The model's scores, moved towards the votes as far as their noise allows."""
        mass = votes.kappa * votes.K * max(self.first_strength, 1.0)  # people may have several records each
        shares, noise = votes.centred / (self.terms.n_classes * mass), votes.scale / mass
        weight = MOST_WEIGHT * MISFIT / (MISFIT + noise * noise) if self.model.ready else 1.0
        return np.asarray(scores + weight * (shares - scores), dtype=np.float64)

    def probabilities(self, queries: Vectors, votes: Sequence[Votes | NoisyVotes | None]) -> FloatArray:
        """The probability of each class for these queries, given the votes on them if there were any."""
        c, shown = self.terms.n_classes, self.model.shown
        model = np.full((len(queries), c), 1.0 / c) if shown is None else shown.scores(queries.values)[0]
        scores = model - 1.0 / c
        for i, released in enumerate(votes):
            if isinstance(released, Votes):
                scores[i] = self.mixed(scores[i], released)
        return self.likely(scores)

    def likely(self, scores: FloatArray) -> FloatArray:
        """Scores as probabilities in the same order. They are scaled to the accuracy that the report card shows."""
        power = self.model.shown.power if isinstance(self.model.shown, ShownModel) else 1.0
        return sharpened(scores + 1.0 / self.terms.n_classes, power)

    def note(self, query: Vectors, release: Release | None) -> None:
        """Note an answer that was given."""
        self.answered += 1
        self.density.known = self._people
        if isinstance(release, Votes):
            self.asked += 1
            self.kappa_sum += release.kappa
            self._learn(query, release)
            if not release.count:  # otherwise the count was noted when it was released
                self.density.add_count(release.share, 0)
            scale, K = release.scale / GRID, release.K / GRID
            cost = self.contrast * release.kappa**2 / (2.0 * scale * scale)
            self.left -= min(K / self.density.records, 1.0) * cost / self.terms.budget
        self.density.add(query)
        if self.answered % LOOK_EVERY == 0:
            self._look()

    def _learn(self, query: Vectors, release: Votes) -> None:
        """Keep what the votes on a query say about the strength of votes."""
        full = release.kappa * self.density.expected(release.share)  # the sum if everybody could vote
        self._lately.append((query.values[0], release.centred / (self.terms.n_classes * full)))

    def _look(self) -> None:
        """Estimate how strong votes were lately."""
        if self.model.shown is not None and self.asked > self._looked_at:
            self._looked_at = self.asked
            values, shares = (np.array(column) for column in zip(*self._lately, strict=True))
            scores = self.model.shown.scores(values)[0] - 1.0 / self.terms.n_classes
            agreed, expected = float((shares * scores).sum()), float((scores * scores).sum())
            self.strength = float(np.clip((agreed + _BELIEF) / (expected + _BELIEF), 0.02, 50.0))
            if self.asked <= LATELY:
                self.first_strength = self.strength
        self._weigh()

    @property
    def _people(self) -> float | None:
        """About how many people there are, as far as that was shown."""
        return self.model.shown.count if self.model.shown is not None else None

    @property
    def kappa(self) -> float:
        """The mean similarity of a record that votes, estimated from the queries."""
        return self.kappa_sum / self.asked if self.asked else 0.5

    @property
    def _least_sigma2(self) -> float:
        return 0.02

    @property
    def _most_noise(self) -> float:
        return MOST_NOISE

    @property
    def contrast(self) -> float:
        """The expected square of a record's vote, as a share of κ²."""
        return 1.0 - 1.0 / max(self.terms.n_classes, 2)

    @property
    def _even(self) -> float:
        """What scores say if all classes are equally likely."""
        return 1.0 / self.terms.n_classes

    def plan(self, plan: Plan, tau: float) -> Plan:
        """The plan for questions at this τ."""
        return _plan_at(plan, tau)


@lru_cache(maxsize=64)  # a copy is checked anew, and takes as long as a draw of noise
def _plan_at(plan: Plan, tau: float) -> Plan:
    return replace(plan, tau=tau)


class Density:
    """How the queries so far are distributed."""

    def __init__(self, kernel: Kernel, n_features: int):
        self._kernel = kernel
        self._pool = Vectors(np.zeros((0, n_features), dtype=np.int8), np.zeros(0), np.zeros(0))
        self._seen = 0
        self._shares = 0.0
        self._counts = 0.0
        self._asked = 0
        self.usual_share = NEAR_SHARE  # the share that τ was chosen for
        self.known: float | None = None  # how many records there are, if a count was released
        self._marked: Int8Array | None = None
        self._earlier: Earlier | None = None
        self._compared = (0, False)

    def twin(self) -> Density:
        """A copy."""
        other, pool = copy(self), self._pool
        other._pool = Vectors(pool.values.copy(), pool.root_norm.copy(), pool.scale.copy())
        return other

    def add(self, query: Vectors) -> None:
        """Add a query that was asked. The latest thousand are kept."""
        at = self._seen % _KEPT
        if at == len(self._pool.values):
            self._pool = _longer(self._pool)
        self._pool.values[at], self._pool.root_norm[at] = query.values[0], query.root_norm[0]
        self._pool.scale[at] = query.scale[0]
        self._seen += 1

    def queries(self) -> Vectors:
        """The queries that are kept."""
        return self._pool[slice(0, min(self._seen, _KEPT))]

    def mark(self) -> None:
        """From now on, compare later queries with the queries so far."""
        self._marked = self._latest(_KEPT, self._seen) if self._seen >= _KEPT else None
        self._earlier, self._compared = None, (self._seen // _COMPARE_EVERY, False)

    def unlike_marked(self) -> bool:
        """Whether the latest queries are unlike those before the mark. Compared at fixed numbers of queries."""
        turn = self._seen // _COMPARE_EVERY
        if self._marked is not None and turn != self._compared[0]:
            self._earlier = self._earlier or Earlier.of(self._marked)
            self._compared = turn, self._earlier.unlike(self._latest(LATEST, turn * _COMPARE_EVERY))
        return self._compared[1]

    def _latest(self, n: int, end: int) -> Int8Array:
        """The n queries before this number, oldest first."""
        rows: Int8Array = self._pool.values[np.arange(end - n, end) % _KEPT]
        return rows

    def look(self, query: Vectors, tau: int) -> tuple[float, float]:
        """The share of earlier queries near this one (never quite zero), and their mean κ."""
        m, pool = min(self._seen, _KEPT), self._pool
        if not m:
            return self.usual_share, min(1.0, tau / GRID * _USUAL_EXCESS)
        dots = integer_dots(query.values, pool.values[:m])[0]
        root, scale = float(query.root_norm[0]), float(query.scale[0])
        every = self._kernel.values(dots, pool.root_norm[:m], pool.scale[:m], root, scale)
        near = every[every >= tau]
        kappa = (float(near.sum()) + min(GRID, tau * _USUAL_EXCESS)) / (len(near) + 1) / GRID
        return (len(near) + 1.0) / (m + 1.0 / self.usual_share), kappa

    @property
    def count_due(self) -> bool:
        """Whether the next answer should release its count. The first answers do, and later one in every few."""
        return self.known is None and (self._asked < _FIRST_COUNTS or self._asked % COUNT_EVERY == 0)

    def add_count(self, share: float, count: int) -> None:
        """Note that people were asked. `count` is their noisy count in grid units, 0 if none was released."""
        self._asked += 1
        if count:
            self._shares, self._counts = self._shares + share, self._counts + count / GRID

    @property
    def records(self) -> float:
        """An estimate of the number of records, at least a few."""
        told = self._counts / self._shares if self._shares else 0.0
        return max(told if self.known is None else self.known, MIN_K)

    def expected(self, share: float) -> int:
        """The estimate of K, in grid units."""
        return ceil(max(self.records * share, MIN_K) * GRID)


def _longer(pool: Vectors) -> Vectors:
    """The same rows, with room for as many again."""
    room = max(64, len(pool.values))
    values = np.concatenate([pool.values, np.zeros((room, pool.values.shape[1]), dtype=np.int8)])
    return Vectors(values, np.append(pool.root_norm, np.ones(room)), np.append(pool.scale, np.ones(room)))


@dataclass(frozen=True)
class Earlier:
    """The mean of earlier queries, and the squared distance from it that a later mean can have by chance."""

    mean: FloatArray
    limit: float

    @staticmethod
    def of(queries: Int8Array) -> Earlier:
        """From some blocks of `LATEST` queries, in the order in which they came.

        The squared distance between the means of m and of n rows is tr(S)·(1/m + 1/n) on average, with a relative
        standard deviation of sqrt(2·tr(S²))/tr(S). S is the covariance of the rows. Queries that come in clumps differ
        by more than that, so the blocks are compared with each other as well.
        """
        rows = unit_rows(queries)
        blocks = rows.reshape(-1, LATEST, rows.shape[1]).mean(axis=1, dtype=np.float64)
        mean, n = blocks.mean(axis=0), len(rows)
        centred = rows - mean.astype(np.float32)
        products = centred @ centred.T
        trace, own = float(np.trace(products)) / n, float((np.diag(products) ** 2).sum())
        trace_of_square = max(float((products * products).sum()) - own, 0.0) / (n * (n - 1))
        deviation = sqrt(2.0 * trace_of_square) / max(trace, 1e-12)
        others = (blocks.sum(axis=0) - blocks) / (len(blocks) - 1)
        apart = float(((blocks - others) ** 2).sum(axis=1).max())
        chance = (1.0 + _CHANCE * deviation) * trace * (1.0 / LATEST + 1.0 / n)
        return Earlier(mean, max(chance, _UNLIKE * apart))

    def unlike(self, latest: Int8Array) -> bool:
        """Whether these queries differ from the earlier ones by more than chance explains."""
        moved = unit_rows(latest).mean(axis=0, dtype=np.float64) - self.mean
        return float((moved * moved).sum()) > self.limit
