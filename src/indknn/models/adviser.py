"""What is known before anybody is asked, and what becomes of the votes when they come.

One adviser per analyst. It sees what was released to that analyst, and decides when statistics are due, which queries
its models answer alone, how much noise votes get, and how they are mixed with what the models say. It changes its
mind only at fixed numbers of answers, so a batch is answered as if its queries had come one at a time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import sqrt
from typing import Literal, TypeAlias

import numpy as np

from indknn.core.calibrate import PLANNED_QUERIES
from indknn.core.kernels import Kernel
from indknn.core.releases import MomentsRelease, Release, TallyRelease, Votes
from indknn.errors import StoreError
from indknn.models.card import BINS, SURE, Card, Linear, Local, Trust, edges, margins
from indknn.models.density import Density
from indknn.models.lessons import Lessons
from indknn.models.neighbours import Neighbours
from indknn.models.prior import Moments, weights
from indknn.models.student import RidgeStudent
from indknn.types import GRID, ROW, BoolArray, FloatArray, Vectors

Due: TypeAlias = Literal["moments", "fresh", "card"]

FIRST_LESSONS = (64, 256, 512, 1024)
FIRST_CARD, CARDS_GROW = 64, 4
FRESH_EVERY = 1024
FRESH_SHARE = 0.1
"""Fresh records are added to the statistics when they are this many, in terms of those already in."""
CARD_PRICE, FRESH_PRICE = 0.03, 0.002
"""What a person may be charged for one report card, or for being counted as fresh, as a share of B."""
_STEP = 512  # answers at least between lessons, each of which costs two eigenproblems
_SPREAD = 2.0  # those who are near more often than others shall not run out early
_USUAL_MISFIT = 0.02  # the variance of shares of votes around the models' scores, before it is known
_ENOUGH = 50  # answers to learn from
_TAU_SETTLED = 256  # answers: later ones would no longer compare with what was learned
DEFAULT_TAU = 0.5


@dataclass(frozen=True)
class Terms:
    """What is public and fixed. `max_queries` None plans for as many questions again as were asked so far."""

    n_features: int
    n_classes: int
    budget: float
    max_queries: int | None
    prior_share: float | None  # None without a prior
    sigma2: float | None
    tau: float | None = None


@dataclass(frozen=True)
class Advice:
    """What the models say of a block of queries: scores like P(y | q) - 1/c, and whether people must be asked.

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
        student: RidgeStudent | None,
        choose_tau: Callable[[Vectors], float | None] = lambda queries: None,
    ):
        self.terms = terms
        self.tau = terms.tau
        self._choose_tau = choose_tau
        self.student = student
        self.density = Density(kernel, terms.n_features)
        self.lessons = Lessons(terms.n_features, terms.n_classes)
        self.answered = self.asked = 0
        self.left = 1.0  # of the budget of an average person, by what releases must have cost
        self.moments: Moments | None = None
        self.since = 0
        self.misfit = _USUAL_MISFIT
        self.trust = Trust(np.ones(1))
        self.neighbours: Neighbours | None = None
        self._scatter, self._m = np.zeros((terms.n_features, terms.n_features)), 0
        self._block: list[FloatArray] = []
        self._prior = np.zeros((terms.n_features, terms.n_classes))
        self._edges = np.zeros(BINS - 1)
        self._fresh_at = self._next_lesson = 0
        self._fresh_due = self._taught = False
        self._next_card = FIRST_CARD

    # What is due, and what came of it

    def due(self) -> Due | None:
        """A release to be made before the next answer. Depends on nothing but what was released."""
        if self.terms.prior_share is not None:
            if self.moments is None or self._fresh_due:
                return "moments"
            if self.answered >= self._fresh_at + FRESH_EVERY:
                return "fresh"
        if self.answered >= self._next_card and self.models():
            return "card"
        return None

    def until_change(self) -> int:
        """How many answers may come before the adviser may change its mind."""
        self._catch_up()  # or the next lesson is not known yet
        coming = [self._next_lesson, self._next_card, self._fresh_at + FRESH_EVERY]
        return min((at - self.answered for at in coming if at > self.answered), default=1)

    def price(self, due: Due) -> float:
        """What a person may be charged for it at most, ρ."""
        share = {"moments": self.terms.prior_share or 0.0, "card": CARD_PRICE, "fresh": FRESH_PRICE}[due]
        return share * self.terms.budget

    def models(self) -> list[Linear | Local]:
        """The models that a report card is about: the prior, the student, and the neighbours."""
        self._catch_up()
        found: list[Linear | Local] = []
        Q = self.lessons.recent()
        if self.moments is not None:
            found.append(Linear.of(self._prior, Q))
        if self.student is not None and self.student.weights is not None:
            found.append(Linear.of(self._prior + self.student.weights, Q))
        if self.neighbours is not None:
            found.append(Local.of(self._prior, self.neighbours, Q))
        return found

    @property
    def answers(self) -> float:
        """How far votes are believed, from 0 to 1: as far as those who learned from votes and queries nearby."""
        if self.moments is None:
            return 1.0
        return float(1.0 - self.trust.shares[0]) if self.trust.cards and len(self.trust.cards) > 1 else 0.25

    def absorb(self, release: Release) -> None:
        """A sum over records was released."""
        if isinstance(release, MomentsRelease):
            self._absorb_moments(release)
        elif isinstance(release, TallyRelease) and release.tables:
            sigma = release.scale / GRID
            cells = release.cells.reshape(release.tables, -1) / GRID
            self.trust.update([Card.read(row, sigma) for row in cells])
            self.left -= CARD_PRICE
            while self._next_card <= self.answered:
                self._next_card *= CARDS_GROW
        elif isinstance(release, TallyRelease):
            self._fresh_at = self.answered - self.answered % FRESH_EVERY
            fresh, sigma = float(release.cells[0]) / GRID, release.scale / GRID
            held = self.moments.n if self.moments is not None else 1.0
            self._fresh_due = fresh > max(FRESH_SHARE * held, 4.0 * sigma)
        else:
            raise StoreError(f"a release of kind {release.kind!r} is not a sum")

    def _absorb_moments(self, release: MomentsRelease) -> None:
        d, c = self.terms.n_features, self.terms.n_classes
        A = np.zeros((d, d))
        A[np.triu_indices(d)] = release.upper / float(ROW * ROW)
        A = A + np.triu(A, 1).T
        b, sigma_a, sigma_b = release.b.reshape(d, c) / float(ROW * c), release.scale_a, release.scale_b
        found = Moments(A, b, sigma_a / (ROW * ROW), sigma_b / (ROW * c))
        self.left -= (self.terms.prior_share or 0.0) if self.moments is None else 0.0
        self.moments = found if self.moments is None else self.moments.plus(found)
        self.density.known = self.moments.n
        self.since, self._fresh_due, self._next_lesson = release.epoch, False, self.answered

    # A query

    def advise(self, queries: Vectors) -> Advice:
        """What is known of these queries. At most `until_change` of them at a time."""
        self._catch_up()
        if self.tau is None:
            self.tau = self._choose_tau(queries) or DEFAULT_TAU
        Q = unit(queries)
        scores = self._mixture(Q)
        sure = self.trust.surely_right()[np.searchsorted(self._edges, margins(scores), side="right")]
        return Advice(scores, sure < SURE, self.tau)

    def question(self, query: Vectors, tau: int) -> Question:
        """How people will be asked about this query. All of it is public."""
        sigma2, counted = self.sigma2(), self.density.count_due
        share, kappa = self.density.look(query, tau)
        return Question(sigma2, share, kappa, counted)

    def sigma2(self) -> float:
        """The noise on votes: an average person shall spend half of what they have left on the questions to come."""
        if self.terms.sigma2 is not None:
            return self.terms.sigma2
        if self.terms.max_queries is None:
            horizon = max(float(self.asked), PLANNED_QUERIES)
        else:
            rate = (self.asked + 20.0) / (self.answered + 20.0)
            horizon = max((self.terms.max_queries - self.answered) * rate, 50.0)
        contrast = 1.0 - 1.0 / max(self.terms.n_classes, 2)
        kappa = self.lessons.kappa
        cost = horizon * kappa * kappa * contrast * _SPREAD / self.density.records
        return float(np.clip(sqrt(cost / (2.0 * max(self.left, 0.01) * self.terms.budget)), 0.02, 1000.0))

    def decide(self, scores: FloatArray, votes: Votes) -> int:
        """The label: what the models say, moved towards the votes as far as the noise of the votes allows."""
        shares, noise = self._shares(votes)
        weight = self.answers * self.misfit / (self.misfit + noise * noise)
        return int(np.argmax(scores + weight * (shares - scores)))

    def note(self, query: Vectors, release: Release | None) -> None:
        """An answer was given."""
        q = unit(query)[0]
        self._block.append(q)
        self.answered += 1
        if isinstance(release, Votes):
            shares, noise = self._shares(release)
            self.lessons.add(q, shares, noise, release.kappa)
            self.asked += 1
            if not release.count:  # else it was noted as soon as it was released
                self.density.add_count(release.share, 0)
            scale, K = release.scale / GRID, release.K / GRID
            contrast = 1.0 - 1.0 / max(self.terms.n_classes, 2)
            cost = contrast * release.kappa**2 / (2.0 * scale * scale)
            self.left -= min(K / self.density.records, 1.0) * cost / self.terms.budget
        else:
            self.lessons.seen(q)
        self.density.add(query)

    def _shares(self, votes: Votes) -> tuple[FloatArray, float]:
        """Votes as shares of all votes expected, less 1/c; and the standard deviation of their noise."""
        mass = votes.kappa * votes.K
        centred = votes.centred / float(self.terms.n_classes)
        return np.asarray(centred / mass, dtype=np.float64), votes.scale / mass

    # Learning

    def _catch_up(self) -> None:
        """Learn from all answers so far, if it is time to."""
        if self.answered < self._next_lesson:
            return
        now = self.answered
        self._next_lesson = next((at for at in FIRST_LESSONS if at > now), max(now + now // 8, now + _STEP))
        if self._block:
            Q = np.array(self._block)
            self._scatter = (self._scatter * self._m + Q.T @ Q) / (self._m + len(Q))
            self._m, self._block = self._m + len(Q), []
        if self.terms.tau is None and now and (now <= _TAU_SETTLED or self.tau is None):  # None: read back from a file
            self.tau = self._choose_tau(self.density.queries()) or self.tau
        if self.moments is not None:
            self._prior = weights(self.moments, self._scatter, self._m)
        if self.lessons.asked >= _ENOUGH:
            Q, shares, noise = self.lessons.all()
            prior = Q @ self._prior
            rest = ((shares - prior) ** 2).mean(axis=1) - noise * noise
            self.misfit = max(float(rest.mean()), 1e-4)
            if self.student is not None:
                self.student.learn(Q, shares, noise, prior)
                self._taught = True
        Q = self.lessons.recent()
        if self.student is not None and len(Q) >= FIRST_LESSONS[0]:
            prior = Q @ self._prior
            self.neighbours = Neighbours(Q, self.lessons.believed(prior, self.misfit))
        self._spread_trust()
        if len(Q):
            self._edges = edges(self._mixture(Q))

    def _spread_trust(self) -> None:
        """Before the first card, and when there is a new source, trust is even."""
        sources = (self.moments is not None) + self._taught + (self.neighbours is not None)
        if len(self.trust.shares) != sources:
            self.trust = Trust(np.full(max(sources, 1), 1.0 / max(sources, 1)))

    def _mixture(self, Q: FloatArray) -> FloatArray:
        """The scores of all sources, each trusted by its share: the prior moved by what the others say."""
        prior = Q @ self._prior
        shares = self.trust.shares.tolist()[int(self.moments is not None) :]
        scores = prior.copy()
        if self._taught and shares:
            scores += shares.pop(0) * self.student.correction(Q, prior)  # type: ignore[union-attr]
        if self.neighbours is not None and shares:
            scores += shares.pop(0) * self.neighbours.of_queries(Q)
        return scores


def unit(queries: Vectors) -> FloatArray:
    """As vectors of length 1."""
    return np.asarray(queries.values / np.maximum(queries.root_norm, 1.0)[:, None], dtype=np.float64)
