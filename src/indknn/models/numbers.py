"""The shared model of a store whose records say numbers: linear regression that people pay for once.

As for classes, people's clipped gradients are released with noise, step by step. The loss is Huber's, so a gradient is
x·ψ(f(x) - y). Numbers are scaled to [-1, 1] by their public bounds.

The gradient of a linear model is almost linear in its weights: n·H·(w - w*), and H, the second moments of x, is known
from public rows. So every release is a measurement of w*, and the weights that follow from all of them are those of a
ridge regression. How strongly it draws towards its start is chosen by the likelihood of what was released, with its
known noise. If nothing stands out from the noise, the weights stay at the start: the mean of all numbers. If public
rows have labels, the weights may also be near those that public rows say alone, if that makes the releases likelier.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from math import ceil, erf, sqrt
from typing import Any

import numpy as np

from indknn.core.calibrate import NUMBER_SIZE
from indknn.core.mechanism import COLUMNS, Plan
from indknn.core.releases import Gradient, TallyRelease, Votes
from indknn.core.targets import CELLS, MIDDLE, SPAN
from indknn.core.training import INTERCEPT, STEP_GRID, Weights, rows_of
from indknn.models.adviser import MOST_WEIGHT, Adviser
from indknn.models.feature_map import LEAST_ROWS, FeatureMap, number_map, shrinkage
from indknn.models.histograms import denoised, moments
from indknn.models.local_mean import LocalMean
from indknn.models.rules import FeatureRule, ResidualRule
from indknn.models.shared_model import Due, SharedModel
from indknn.models.shown_numbers import NumberCard, ShownNumbers
from indknn.types import GRID, FloatArray, Int8Array, IntArray, Vectors

BOUND, MOST_BOUND, MUCH_SIGNAL = 1.0, 2.5, 300.0
"""Where residuals are cut, as a multiple of how much they vary. A small bound lets less noise in. With more signal than
the third number it grows, up to the second, because it weighs large residuals too little. Like all constants here, it
was chosen on held-out training records of Adult (age, hours), Letters (y-bar), Fashion-MNIST with a made-up target,
scikit-learn's diabetes and Friedman's functions."""
MEAN_BOUND, PULLED = 3.0, 0.35
"""The same for steps about the mean alone: there, a small bound would make it a median. Later steps have smaller
bounds, so they may pull the mean by the second number without an effect, as a multiple of how much numbers vary."""
LEAST_SPREAD, MOST_SPREAD = 0.01, 0.6
HISTOGRAM_PRICE, NUMBERS_RESERVE = 0.05, 0.11
"""The most that a person may be charged for the first count, which is a histogram, and what training leaves for all
counts and report cards, as shares of the shared budget."""
MEAN_STEPS, MOST_MEAN_STEPS = 260.0, 8
"""The first steps are about the mean of all numbers alone, as many as make its noise small: the square of the first
number over the signal, but at least one and at most so many."""
LATER = 0.3
"""Step t counts for (t + 1) to this power: later weights are nearer to the best ones."""
DOUBT = 0.3
"""How unsure the size of residuals is before there is a report card: the standard deviation of its logarithm."""
_RATIOS = np.geomspace(1e-4, 1e6, 81)  # of what weights vary by to what noise explains
_OF_RESIDUALS = 0.3  # the least that residuals vary by, as a share of what numbers vary by


@dataclass
class _Space:
    """The second moments of public rows as the model sees them, without their mean."""

    mean: FloatArray
    values: FloatArray
    vectors: FloatArray | None

    @staticmethod
    def of(rows: Int8Array, width: int) -> _Space:
        """From public rows. With too few of them, directions are assumed to be as large as they can be."""
        if len(rows) < LEAST_ROWS:
            return _Space(np.zeros(width), np.ones(width), None)
        whole, lengths = rows_of(rows)
        unit = whole[:, :-1] / lengths[:, None]
        mean = unit.mean(axis=0)
        centred = unit - mean
        moments = centred.T @ centred / len(unit)
        shrink = shrinkage(centred, moments)
        values, vectors = np.linalg.eigh(moments)
        values = np.maximum((1.0 - shrink) * values, 0.0) + shrink * float(np.trace(moments)) / width
        return _Space(mean, values, vectors)

    def turned(self, rows: FloatArray) -> FloatArray:
        """In the directions of the moments."""
        return rows if self.vectors is None else rows @ self.vectors

    def back(self, rows: FloatArray) -> FloatArray:
        """In the directions of the features."""
        return rows if self.vectors is None else self.vectors @ rows


def _likely(
    values: FloatArray,
    inside: FloatArray,
    chance: FloatArray,
    centres: Sequence[FloatArray],
    mean: FloatArray | None = None,
    doubt: float = 0.0,
) -> FloatArray:
    """Weights w that explain `inside` = values·w, measured with variance `chance`, averaged by how likely they are.

    They vary around one of the centres, by as much as the measurement says: all alike, or more in large directions.
    A multiple of `mean` was measured with them, whose factor has the variance `doubt`.
    """
    likely, found = [], []
    mean = np.zeros(len(values)) if mean is None else mean
    for centre, shape in product(centres, (np.ones(len(values)), values / values.max())):
        signal = values * values * shape
        signal = _RATIOS[:, None] * (signal * float((chance / signal).min()))
        total, away = chance + signal, inside - values * centre
        more = 1.0 + doubt * (mean * mean / total).sum(axis=1)
        along = doubt / more * (mean * away / total).sum(axis=1)  # the factor of the mean
        rest = away - along[:, None] * mean
        likely.append(-0.5 * (np.log(total).sum(axis=1) + np.log(more) + (away * rest / total).sum(axis=1)))
        found.append(centre + signal / values / total * rest)
    chances = np.concatenate(likely)
    chances = np.exp(chances - chances.max())
    return np.asarray(chances @ np.concatenate(found) / chances.sum(), dtype=np.float64)


def _told_by_public(rows: Int8Array, y: FloatArray) -> FloatArray:
    """The weights that labelled public rows alone say. They are free."""
    space, n = _Space.of(rows, rows.shape[1]), len(rows)
    whole, lengths = rows_of(rows)
    centred = whole[:, :-1] / lengths[:, None] - space.mean
    inside = space.turned(centred.T @ (y - y.mean()) / n)
    chance = max(float(y.var()), LEAST_SPREAD**2) * space.values / n
    return space.back(_likely(space.values, inside, chance, [np.zeros(len(inside))]))[:, None]


@dataclass
class NumberModel(SharedModel):
    """The model in training. See `SharedModel`."""

    mean: float = 0.0
    """Of all numbers, by the noisy histogram."""
    spread: float = 0.5
    """How much numbers vary."""
    _space: _Space | None = None
    _begun: FloatArray = field(default_factory=lambda: np.zeros(0))
    _measured: FloatArray = field(default_factory=lambda: np.zeros(0))
    _weight: float = 0.0
    _noise: float = 0.0
    _known: float = 0.0
    """The variance of the noise on the mean when steps about features began."""
    _explained: float = 0.0

    @property
    def _kinds(self) -> int:
        return CELLS

    @property
    def span(self) -> int:
        """How many labels share a cell of a count."""
        return SPAN

    @property
    def clip(self) -> float:
        """The longest gradient of a person, which is where residuals are cut."""
        if self._only_mean:
            return min(MEAN_BOUND * self.spread, 1.0)
        much = sqrt(sqrt(max(self._signal, 1.0) / MUCH_SIGNAL))
        return min(BOUND * min(max(much, 1.0), MOST_BOUND) * self._left, 1.0)

    @property
    def _left(self) -> float:
        """How much residuals are expected to vary."""
        return sqrt(max(self.spread**2 - self._explained, (_OF_RESIDUALS * self.spread) ** 2))

    @property
    def _uncut(self) -> float:
        """The share of the residuals that are not cut. The others do not show how far away the weights are."""
        return 1.0 if self._only_mean else erf(self.clip / (self._left * sqrt(2.0)))

    @property
    def _count_price(self) -> float:
        return HISTOGRAM_PRICE

    @property
    def _reserve(self) -> float:
        return NUMBERS_RESERVE

    def make_map(self) -> tuple[FeatureMap, FloatArray | None]:
        """Make the map, and the weights that labelled public rows alone would have."""
        assert self.public is not None
        made = number_map(self.public, self._signal, self.terms.seed, self.terms.numbers, self.terms.widths)
        if self._labels is None or len(self._labels) < LEAST_ROWS:
            return made, None
        return made, _told_by_public(made.apply(self.public), (self._labels - MIDDLE) / MIDDLE)

    def take_map(self, made: FeatureMap, start: FloatArray | None) -> FeatureMap:
        """Use this map from now on. Training starts from the mean of all numbers."""
        assert self.public is not None
        self._map, self._start = made, start
        self._space = _Space.of(made.apply(self.public), made.width)
        self._floats = np.zeros((made.width + 1, 1))
        self._floats[-1] = self.mean / INTERCEPT
        self._set_weights(self._floats)
        return made

    def _set_weights(self, floats: FloatArray) -> None:
        self._floats = floats
        self._weights = Weights.of(floats, self.clip)

    def _take_histogram(self, counts: FloatArray, sigma: float) -> None:
        ends = np.linspace(-1.0, 1.0, CELLS + 1)
        total = max(float(counts.sum()), sigma * sqrt(len(counts)), 1.0)
        shares = denoised(counts, ends, sigma, total)
        if not self.trained:
            self.count = total  # all are newcomers: what was counted of others is noise
        self.mean, spread = moments(shares, ends)
        self.spread = min(max(spread, LEAST_SPREAD), MOST_SPREAD)
        self._explained = 0.0

    @property
    def _only_mean(self) -> bool:
        """Whether the next step is about the mean of all numbers alone. Its gradient is that of an intercept of 1."""
        return self.step < min(max(ceil((MEAN_STEPS / max(self._signal, 1.0)) ** 2), 1), MOST_MEAN_STEPS)

    @property
    def weights(self) -> Weights:
        """The weights on the grid, for the next gradient."""
        return Weights.of(np.array([[self.mean]]), self.clip) if self.follow and self._only_mean else super().weights

    def _absorb_gradient(self, release: Gradient) -> None:
        assert self.map is not None
        sigma, only_mean, uncut = release.scale / STEP_GRID / self.count, self._only_mean, self._uncut
        if release.step == 0:
            self._known = self._weight = self._noise = 0.0
            self._measured = np.zeros((1, 1))
        found, sigma = release.entries.reshape(-1, 1) / (STEP_GRID * self.count * uncut), sigma / uncut
        counts = (release.step + 1.0) ** LATER / (sigma * sigma)
        if only_mean:
            self._add(self.mean - found, counts, sigma)
            self.mean = min(max(float(self._measured[0, 0]) / self._weight, -1.0), 1.0)
        else:
            # A measurement of H·(w* - begun).
            self._add(self._applied(self._floats - self._begun) - found, counts, sigma)
            self._set_weights(self._begun + self._likely_weights())
        self.step, self.follow, self.since = release.step + 1, release.follow, self.before
        if only_mean and not self._only_mean:
            self._begin_features()
        if not self.follow:
            self.rounds, self._card_due = self.rounds + 1, True

    def _add(self, measured: FloatArray, counts: float, sigma: float) -> None:
        """Add a measurement, which counts so much, with this noise on every entry."""
        self._measured = self._measured + counts * measured
        self._weight, self._noise = self._weight + counts, self._noise + (counts * sigma) ** 2

    def _begin_features(self) -> None:
        """From now on, steps are about all weights. The model starts at the mean that was found."""
        assert self._space is not None
        self._known = self._noise / self._weight**2
        begun = self._floats.copy()
        begun[-1] = (self.mean - float(self._space.mean @ begun[:-1, 0])) / INTERCEPT
        self._begun, self._measured, self._weight, self._noise = begun, np.zeros_like(begun), 0.0, 0.0
        self._set_weights(begun)

    def _applied(self, moved: FloatArray) -> FloatArray:
        """H times weights. The last weight belongs to the intercept, and H says that it goes with the mean row."""
        space = self._space
        assert space is not None
        features, mean = moved[:-1, 0], space.mean
        along = float(mean @ features) + INTERCEPT * float(moved[-1, 0])  # the mean of what the weights say
        inside = space.back(space.values * space.turned(features))
        return np.append(inside + mean * along, INTERCEPT * along)[:, None]

    def _likely_weights(self) -> FloatArray:
        """The weights that the measurements so far say, drawn towards zero by their noise."""
        space, n = self._space, max(self.records, self.count)
        assert space is not None
        measured, noise = self._measured[:, 0] / self._weight, self._noise / self._weight**2
        values, mean = space.values, space.turned(space.mean)
        # What the weights say on average is a nuisance here. It was measured before, up to a pull.
        before = self._known + (PULLED * self.spread) ** 2
        doubt = 1.0 / (1.0 / before + INTERCEPT**2 / noise)
        average = doubt * INTERCEPT / noise * float(measured[-1])
        inside = space.turned(measured[:-1])
        chance = noise + self.spread**2 * values / n  # the noise, and that people are a sample
        centres = [np.zeros(len(values))]
        if self._start is not None:
            centres.append(space.turned(self._start[:, 0] - self._begun[:-1, 0]))
        weights = _likely(values, inside - mean * average, chance, centres, mean, doubt)
        self._explained = float(values @ (weights * weights))
        squared = INTERCEPT**2 + float(mean @ mean)
        average = (INTERCEPT * float(measured[-1]) + float(mean @ (inside - values * weights))) / squared
        weights = space.back(weights)
        pull = min(PULLED * self.spread, abs(average))
        average = (average - pull if average > 0.0 else average + pull) * self._known / (self._known + noise / squared)
        return np.append(weights, (average - float(space.mean @ weights)) / INTERCEPT)[:, None]

    # What is known about records

    def n_cells(self, due: Due) -> int:
        """The number of cells of a report card or of a count."""
        return len(self._ends()) - 1 if due == "card" else 2 if self.trained else 2 * CELLS

    def rule(self, due: Due) -> FeatureRule | ResidualRule:
        """The rule by which a gradient or a report card looks at every record."""
        return self._residual_rule(cells=True) if due == "card" else FeatureRule(self.map)

    def _residual_rule(self, *, cells: bool) -> ResidualRule:
        return ResidualRule(self.map, self.weights, tuple(np.rint(self._ends()[1:-1] * GRID)) if cells else None)

    def _ends(self) -> FloatArray:
        """The ends of the cells of a report card: finer near 0."""
        half = np.array([0.1, 0.25, 0.4, 0.6, 0.8, 1.0, 1.3, 1.7, 2.2, 3.0, 4.5]) * self.spread
        return np.concatenate([-half[::-1], [0.0], half])

    def cells(self, values: Int8Array, labels: IntArray) -> IntArray:
        """The cell of each record on a report card."""
        return self._residual_rule(cells=True)(values, labels)

    def _read_card(self, release: TallyRelease) -> NumberCard:
        counts, ends, sigma = release.cells / GRID, self._ends(), release.scale / GRID
        total = max(float(counts.sum()), sigma * sqrt(len(counts)), 1.0)
        shares = denoised(counts, ends, sigma, total, self._left / float(ends[-1] - ends[0]), DOUBT)
        mean, spread = moments(shares, ends)
        return NumberCard(shares, ends, mean * mean + spread * spread)

    def _show(self) -> None:
        self._show_due = False
        assert self.public is not None
        card = self.card if isinstance(self.card, NumberCard) else None
        squared = self.spread**2 if card is None else card.squared
        rule = self._residual_rule(cells=False)
        self.shown = ShownNumbers(self.rounds, self.count, rule, card, self.public, self.mean, squared)

    def _refresh(self) -> None:
        """Nothing depends on the model's scores for the public rows."""


MISFIT = 0.1
"""The share of the residuals' variance that neighbours can explain, as expected before they are asked."""
_PLAIN_VOTE = NUMBER_SIZE**2
"""The expected square of a vote that is not about a residual, as a share of κ²."""


class NumberAdviser(Adviser):
    """Decides about the queries of one analyst, if records say numbers.

    Without a model, people vote with their numbers. With one, they vote with what it gets wrong about them. People whom
    it gets right then pay almost nothing, and the noise is smaller.
    """

    def __init__(self, *terms: Any):
        super().__init__(*terms)
        self._local = LocalMean()

    def twin(self) -> NumberAdviser:
        """The same, for numbers."""
        other = super().twin()
        assert isinstance(other, NumberAdviser)
        other._local = replace(self._local)
        return other

    @property
    def contrast(self) -> float:
        """The expected square of a record's vote, as a share of κ²."""
        return _PLAIN_VOTE if self._shown is None else self._shown.squared

    @property
    def _even(self) -> float:
        return 0.0

    @property
    def _shown(self) -> ShownNumbers | None:
        shown = self.model.shown
        return shown if isinstance(shown, ShownNumbers) else None

    @property
    def _least_sigma2(self) -> float:
        return 0.02 * sqrt(self.contrast)

    @property
    def _most_noise(self) -> float:
        return sqrt(MISFIT * self.contrast) if self._shown is not None else 1.0

    def plan(self, plan: Plan, tau: float) -> Plan:
        """The plan for questions at this τ: about numbers, or about residuals."""
        if self._shown is None:
            return replace(plan, tau=tau)
        return replace(plan, tau=tau, n_classes=COLUMNS["residual"], ballot="residual")

    def mixed(self, scores: FloatArray, votes: Votes) -> FloatArray:
        """The model's number, moved by the votes as far as their noise allows."""
        if len(votes.centred) == COLUMNS["number"]:
            return np.array([self._local.answer(votes.centred, votes.scale)])
        mass, expected = votes.kappa * votes.K, MISFIT * self.contrast
        noise = votes.scale / mass
        weight = MOST_WEIGHT * expected / (expected + noise * noise)
        return np.asarray(scores + weight * votes.centred / mass, dtype=np.float64)

    def _learn(self, query: Vectors, release: Votes) -> None:
        if len(release.centred) == COLUMNS["number"]:
            self._local.note(release.centred, release.scale)

    def _look(self) -> None:
        self._weigh()
