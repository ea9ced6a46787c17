"""What is known before anybody is asked, and what becomes of the votes when they come.

One adviser per analyst. It sees the shared model and what was released to that analyst, and decides from that alone
which queries the model answers alone, how much noise votes get, and how they are mixed with what the model says. It
changes its mind only at fixed numbers of answers, so a batch is answered as if its queries had come one at a time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from math import sqrt

import numpy as np

from indknn.core.calibrate import DEFAULT_TAU, NEAR_SHARE, PLANNED_QUERIES, near_share, tau_from_queries
from indknn.core.kernels import Kernel
from indknn.core.quantise import as_vectors
from indknn.core.releases import NoisyVotes, Release, Votes
from indknn.models.density import Density
from indknn.models.probabilities import sharpened
from indknn.models.shared_model import Scores, SharedModel
from indknn.types import GRID, BoolArray, FloatArray, Int8Array, Vectors

LOOK_EVERY = 64
"""After so many answers the adviser may change its mind."""
MISFIT, MOST_WEIGHT = 0.015, 1 / 3
"""The variance of the true class probabilities around the model's; and the weight of votes without noise. Both are from
held-out training records, see `feature_map`: there exact votes of this weight never did harm, larger ones did."""
MOST_NOISE = 0.12
"""Votes with more noise than this, in shares of all votes, would not change what the model says: nobody is asked."""
LATELY = 256
"""How strong votes are is told by so many of the latest."""
_SPREAD = 2.0  # those who are near more often than others shall not run out early
_TAU_SETTLED = 256  # answers: later ones would no longer compare with what was learned
_BELIEF = 5.0  # how firmly votes are taken to be strong, in squared scores that they are compared with


@dataclass(frozen=True)
class Terms:
    """What is public and fixed. `max_queries` None plans for as many questions again as were asked so far.

    `budget` is what a person may spend on votes with this analyst. `expected_records` is how many records the operator
    expects, if they said so.
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
    """What the model says of a block of queries: P(y | q) - 1/c, and whether people must be asked.

    `tau` is how near those who are asked must be.
    """

    scores: FloatArray
    ask: BoolArray
    tau: float


@dataclass(frozen=True)
class Question:
    """How people are asked about a query: the noise on their votes, and whether their count is released.

    `share` is the share of earlier queries that are near, `kappa` how near they are.
    """

    sigma2: float
    share: float
    kappa: float
    counted: bool


class Adviser:
    """The public side of an endless stream of answers."""

    def __init__(
        self,
        terms: Terms,
        kernel: Kernel,
        model: SharedModel,
    ):
        self.terms = terms
        self.model = model
        self.tau = terms.tau
        self._kernel = kernel
        self.density = Density(kernel, terms.n_features)
        self.answered = self.asked = 0
        self.left = 1.0  # of the budget of an average person, by what releases must have cost
        self.strength = 1.0  # of votes: by how much the shares of a label rise with what the model says of it
        self.first_strength = 1.0  # the same when everybody could vote
        self.kappa_sum = 0.0
        self.worth_asking = True
        self._looked_at, self._weighed = 0, -1
        self._lately: deque[tuple[Int8Array, FloatArray]] = deque(maxlen=LATELY)

    def twin(self) -> Adviser:
        """The same as it is now, to try out what the next answers will be."""
        other = copy(self)
        other.density, other._lately = self.density.twin(), deque(maxlen=LATELY)
        return other

    def until_change(self) -> int:
        """How many answers may come before the adviser may change its mind."""
        return LOOK_EVERY - self.answered % LOOK_EVERY

    # A query

    def advise(self, queries: Vectors, known: Scores | None = None) -> Advice:
        """What is known of these queries. At most `until_change` of them at a time.

        `known` is what the model says of them, where somebody has looked already.
        """
        self._choose(queries)
        tau, n = self.tau or DEFAULT_TAU, len(queries)
        if not self.model.ready:
            return Advice(np.zeros((n, self.terms.n_classes)), np.ones(n, dtype=bool), tau)
        scores, sure = self.model.scores(queries.values) if known is None else known
        if self._weighed != self.model.rounds:
            self._weigh()
        return Advice(scores - 1.0 / self.terms.n_classes, ~sure & self.worth_asking, tau)

    def foresee(self, n: int, known: Scores | None) -> tuple[BoolArray, float]:
        """About which of n queries people will probably be asked, and how near they must be. Changes nothing."""
        asked = np.ones(n, dtype=bool) if known is None or not self.model.ready else ~known[1] & self.worth_asking
        return asked, self.tau or DEFAULT_TAU

    def _weigh(self) -> None:
        """Whether the votes on a usual query would stand above their noise."""
        self._weighed = self.model.rounds
        self.density.known = self.model.count or None
        K = self.density.records * self.density.usual_share * self.voting
        self.worth_asking = self.sigma2() <= MOST_NOISE * self.kappa * sqrt(K)

    @property
    def voting(self) -> float:
        """The share of those near a query who can still vote, by how strong votes are."""
        return min(self.strength / self.first_strength, 1.0)

    def _choose(self, queries: Vectors) -> None:
        """τ, from public rows or else from the first queries. In a very large store fewer shall be near."""
        look = 0 < self.answered <= _TAU_SETTLED and self.answered % LOOK_EVERY == 0  # all pairs: some milliseconds
        if self.terms.tau is None and (self.tau is None or look):
            public = self.model.public
            rows = self.density.queries() if self.answered else queries
            if public is not None and len(public) >= len(rows):
                rows = as_vectors(public)
            records = self.terms.expected_records or self.model.count or self.density.records
            share = near_share(NEAR_SHARE, records)
            tau = tau_from_queries(rows, self._kernel, share)
            if tau is not None:
                self.tau, self.density.usual_share = tau, share

    def question(self, query: Vectors, tau: int) -> Question:
        """How people will be asked about this query. All of it is public."""
        counted = self.density.count_due
        share, kappa = self.density.look(query, tau)
        return Question(self.sigma2(), share, kappa, counted)

    def expected(self, share: float) -> int:
        """The K that is foretold for this query: those who are near and can still vote."""
        return self.density.expected(share * self.voting)

    def sigma2(self) -> float:
        """The noise on votes: an average person shall spend half of what they have left on the questions to come."""
        if self.terms.sigma2 is not None:
            return self.terms.sigma2
        if self.terms.max_queries is None:
            horizon = max(float(self.asked), PLANNED_QUERIES)
        else:
            rate = (self.asked + 20.0) / (self.answered + 20.0)
            horizon = max((self.terms.max_queries - self.answered) * rate, 50.0)
        cost = horizon * self.kappa * self.kappa * self._contrast * _SPREAD / self.density.records
        return float(np.clip(sqrt(cost / (2.0 * max(self.left, 0.01) * self.terms.budget)), 0.02, 1000.0))

    def mixed(self, scores: FloatArray, votes: Votes) -> FloatArray:
        """What the model says, moved towards the votes as far as their noise allows."""
        mass = votes.kappa * votes.K * max(self.first_strength, 1.0)  # people may have several records each
        shares, noise = votes.centred / (self.terms.n_classes * mass), votes.scale / mass
        weight = MOST_WEIGHT * MISFIT / (MISFIT + noise * noise) if self.model.ready else 1.0
        return np.asarray(scores + weight * (shares - scores), dtype=np.float64)

    def probabilities(self, queries: Vectors, votes: Sequence[Votes | NoisyVotes | None]) -> FloatArray:
        """How likely each class is for these queries, given the votes on them where there were any."""
        c = self.terms.n_classes
        model = self.model.scores(queries.values)[0] if self.model.ready else np.full((len(queries), c), 1.0 / c)
        scores = model - 1.0 / c
        for i, released in enumerate(votes):
            if isinstance(released, Votes):
                scores[i] = self.mixed(scores[i], released)
        return self.likely(scores)

    def likely(self, scores: FloatArray) -> FloatArray:
        """Scores as probabilities that are as sure as the report card says that the model may be, in the same order."""
        return sharpened(scores + 1.0 / self.terms.n_classes, self.model.power)

    def note(self, query: Vectors, release: Release | None) -> None:
        """An answer was given."""
        self.answered += 1
        self.density.known = self.model.count or None
        if isinstance(release, Votes):
            self.asked += 1
            self.kappa_sum += release.kappa
            full = release.kappa * self.density.expected(release.share)  # if everybody could vote
            self._lately.append((query.values[0], release.centred / (self.terms.n_classes * full)))
            if not release.count:  # else it was noted as soon as it was released
                self.density.add_count(release.share, 0)
            scale, K = release.scale / GRID, release.K / GRID
            cost = self._contrast * release.kappa**2 / (2.0 * scale * scale)
            self.left -= min(K / self.density.records, 1.0) * cost / self.terms.budget
        self.density.add(query)
        if self.answered % LOOK_EVERY == 0:
            self._look()

    def _look(self) -> None:
        """How strong votes were lately."""
        if self.model.ready and self.asked > self._looked_at:
            self._looked_at = self.asked
            values, shares = (np.array(column) for column in zip(*self._lately, strict=True))
            scores = self.model.scores(values)[0] - 1.0 / self.terms.n_classes
            agreed, expected = float((shares * scores).sum()), float((scores * scores).sum())
            self.strength = float(np.clip((agreed + _BELIEF) / (expected + _BELIEF), 0.02, 50.0))
            if self.asked <= LATELY:
                self.first_strength = self.strength
        self._weigh()

    @property
    def kappa(self) -> float:
        """How near a record that votes is on average, by the queries."""
        return self.kappa_sum / self.asked if self.asked else 0.5

    @property
    def _contrast(self) -> float:
        return 1.0 - 1.0 / max(self.terms.n_classes, 2)
