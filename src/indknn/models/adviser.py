"""Decides for one analyst which queries the model answers alone, and how votes are combined with the model.

Each analyst has an adviser. It sees the shared model and what was released to that analyst, and nothing else. From that
it decides which queries need votes, how much noise the votes get, and how they are combined with the model's scores. It
changes its decisions only at fixed numbers of answers. So a batch is answered as if its queries had come one at a time.
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


@dataclass(frozen=True)
class Terms:
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
        if self._weighed != shown.rounds:
            self._weigh()
        return Advice(scores - 1.0 / self.terms.n_classes, ~sure & self.worth_asking, tau)

    def foresee(self, n: int, known: Scores | None) -> tuple[BoolArray, float]:
        """Which of n queries will probably need votes, and at which τ. Changes nothing."""
        asked = np.ones(n, dtype=bool) if known is None or not self.model.ready else ~known[1] & self.worth_asking
        return asked, self.tau or DEFAULT_TAU

    def _weigh(self) -> None:
        """Decide whether the votes on a usual query would stand out above their noise."""
        self._weighed = 0 if self.model.shown is None else self.model.shown.rounds
        self.density.known = self._people
        K = self.density.records * self.density.usual_share * self.voting
        self.worth_asking = self.sigma2() <= MOST_NOISE * self.kappa * sqrt(K)

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

    def sigma2(self) -> float:
        """The noise on votes, so that an average person spends half of what they have left on the questions to come."""
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
        power = 1.0 if self.model.shown is None else self.model.shown.power
        return sharpened(scores + 1.0 / self.terms.n_classes, power)

    def note(self, query: Vectors, release: Release | None) -> None:
        """Note an answer that was given."""
        self.answered += 1
        self.density.known = self._people
        if isinstance(release, Votes):
            self.asked += 1
            self.kappa_sum += release.kappa
            full = release.kappa * self.density.expected(release.share)  # the sum if everybody could vote
            self._lately.append((query.values[0], release.centred / (self.terms.n_classes * full)))
            if not release.count:  # otherwise the count was noted when it was released
                self.density.add_count(release.share, 0)
            scale, K = release.scale / GRID, release.K / GRID
            cost = self._contrast * release.kappa**2 / (2.0 * scale * scale)
            self.left -= min(K / self.density.records, 1.0) * cost / self.terms.budget
        self.density.add(query)
        if self.answered % LOOK_EVERY == 0:
            self._look()

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
    def _contrast(self) -> float:
        return 1.0 - 1.0 / max(self.terms.n_classes, 2)
