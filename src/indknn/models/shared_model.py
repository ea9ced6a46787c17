"""The shared model: softmax regression that people pay for once and all analysts may use.

The code in here is post-processing. It sees public rows and noisy sums, decides from them which sum is due next, and
costs nobody anything. The sums come from `core/training.py` (gradients) and `core/statistics.py` (counts), and are
charged to the shared ledger. The model follows from the releases alone, so it is the same after it was read back from a
file.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import erfc, exp, fsum, hypot, log, pi, sqrt
from typing import Literal, TypeAlias

import numpy as np

from indknn.core.releases import Gradient, ModelShown, PublicRows, Release, TallyRelease
from indknn.core.training import INTERCEPT, STEP_GRID, Weights, probabilities, rows_of, step_scale
from indknn.errors import StoreError
from indknn.models.feature_map import LEAST_ROWS, FeatureMap, Spans, Widths, feature_map
from indknn.models.probabilities import fitting_power, sharpened
from indknn.models.rules import (
    BINS,
    CELLS,
    HOPE,
    SURE,
    Card,
    CardRule,
    FeatureRule,
    Neighbours,
    ResidualRule,
    bins,
    edges,
)
from indknn.models.shown_numbers import NumberCard, ShownNumbers
from indknn.types import GRID, BoolArray, Cohort, Float32Array, FloatArray, Int8Array, IntArray

Scores: TypeAlias = tuple[FloatArray, BoolArray]
"""P(y | q) of some rows, and for each row whether the model may answer alone."""
Due: TypeAlias = Literal["count", "step", "card", "show"]

STEPS = 32
CLIP, MOMENTUM = 0.25, 0.5
MOST_CLIP, MUCH_SIGNAL = 0.5, 6000.0
"""With more signal per class than this, the clip grows, up to the most. A small clip lets less noise in, but it weighs
large errors too little, which matters once there is little noise."""
MOST_ROWS = 1024
"""How many public rows are kept."""
RESERVE = 0.055
"""The share of the shared budget that training leaves for counts and report cards: enough for the first round and
another one. Where there are many classes almost everybody pays for all steps, and what is held back is missed: on
made-up rows of 120 and 150 classes, .05 instead of .08 gave up to .007."""
COUNT_PRICE, RECOUNT_PRICE, CARD_PRICE = 0.02, 0.003, 0.015
"""The most that a person may be charged for the first count, for a later count, and for one report card, as shares of
the shared budget."""
MANY_NEW, MOSTLY_NEW = 0.1, 2.0
"""How many newcomers, as a share of the people who trained the model, cause another round, and how many cause a new
start."""
ENOUGH_SIGNAL = 8.0
"""If the records' signal per class, compared with the noise, is below this, the model stays closer to the most common
label."""
LEAST_RATE, MOST_RATE = 0.5, 1.0
"""The learning rate of later rounds, as a share of the first: if nothing has changed, and if everything has."""
CLUMPED, NOISE_CLUMPS = 0.88, 0.3
"""If public rows agree with the rows near them at least this often beyond chance, an average over them should help.
With little signal per class s, less agreement is enough, by the second number over sqrt(s). Both were chosen on
held-out training records, see `feature_map`."""
RARE = 0.4
"""If less than this share of the records, compared with equally common classes, is outside the commonest class, only
that share tells anything, and the map and the learning rate are made for less signal."""
EVEN = 3.0
"""The map of labelled public rows is made for this much more signal than they are worth: a regression on them needs no
help against noise."""
TAIL, STEADY = 8, 1000.0
"""The weights of a round are the mean of its last steps, if it began at labelled public rows or with so much signal per
class: then it has arrived, and single steps swing around what they should find."""
_LARGEST_RATE = 2000.0
STRENGTHS = (1e-2, 3e-3, 1e-3, 3e-4, 1e-4, 1e-5)
"""How strongly weights are held back, as the factor of their mean square, times their number, beside the mean loss."""
_REGRESSION_STEPS = 100
_WHOLE = float(1 << 30)
_TURNS = 12  # of the search for the largest eigenvalue
_LEAST = 1e-12


@dataclass(frozen=True)
class Terms:
    """Public and fixed terms. `budget` is the shared budget, as ρ. `seed` is the seed of the Fourier features.

    At most `most_records` records of one person take part in a round. `numbers` are the numeric columns of a table,
    and `widths` those of their pieces.
    """

    n_features: int
    n_classes: int
    budget: float
    seed: int = 0
    most_records: int = 256
    numbers: Spans = ()
    widths: Widths = ()


@dataclass(frozen=True)
class ShownModel:
    """The model with which queries are answered. It changes only at the end of a round, all at once.

    `count` is about how many people there are. `power` is the power to which probabilities are raised, so that they
    agree with the accuracy in the card.
    """

    rounds: int
    count: float
    rule: CardRule
    card: Card | None
    public: Int8Array
    shares: FloatArray
    """How common each label is, by the noisy counts that people paid for."""
    power: float = 1.0

    @property
    def averaged(self) -> bool:
        """Whether answers are averaged over public rows nearby."""
        return self.card is not None and self.card.other and self.rule.start is None

    @property
    def answering_weights(self) -> Weights:
        """The weights behind answers: of the model, or of labelled public rows alone where these are better."""
        public = self.card is not None and self.card.other and self.rule.start is not None
        return self.rule.start if public and self.rule.start is not None else self.rule.weights

    def probabilities(self, values: Int8Array) -> FloatArray:
        """The probability of each class that the model alone gives, as `predict_proba` without votes."""
        return sharpened(self.scores(values)[0], self.power)

    def scores(self, values: Int8Array) -> Scores:
        """P(y | q) of each row, and whether the report card says that this is right often enough to ask nobody."""
        plain = self.rule.plain(values)
        if self.card is None:
            return plain, np.zeros(len(values), dtype=bool)
        sure = (self.card.surely_right() >= SURE)[bins(plain, self.rule.edges)]
        return (self.rule.other(plain, values) if self.card.other else plain), sure


@dataclass
class SharedModel:
    """The model in training: public rows, weights, and how reliable they are.

    A round begins with public rows, which may be none. Then come a count, some gradients, and a report card. At its end
    the model is shown. Until then, queries are answered with the one that was shown before.
    """

    terms: Terms
    shown: ShownModel | ShownNumbers | None = None
    public: Int8Array | None = None
    count: float = 0.0
    """About how many people there are. 0 before the first count."""
    records: float = 0.0
    """About how many records take part in this round."""
    before: int = 0
    """Records of this epoch and later came after the round began."""
    since: int = 0
    """Records of this epoch and later took part in no round yet."""
    step: int = 0
    """How many gradients were made in this round."""
    follow: int = 0
    """How many gradients are still due in this round."""
    rounds: int = 0
    card: Card | NumberCard | None = None
    _map: FeatureMap | None = None
    _labels: IntArray | None = None
    _start: FloatArray | None = None
    _floats: FloatArray = field(default_factory=lambda: np.zeros(0))
    _common: FloatArray = field(default_factory=lambda: np.zeros(0))
    _velocity: FloatArray = field(default_factory=lambda: np.zeros(0))
    _sum: FloatArray = field(default_factory=lambda: np.zeros(0))
    _tail: FloatArray = field(default_factory=lambda: np.zeros(0))
    _weights: Weights | None = None
    _neighbours: Neighbours | None = None
    _edges: FloatArray = field(default_factory=lambda: np.arange(1, BINS) / BINS)
    _offered: PublicRows | None = None
    _counting: bool = False
    _card_due: bool = False
    _show_due: bool = False

    # What is due, and what releases change

    def due(self) -> Due | None:
        """The release that must be made next in this round. It depends only on earlier releases."""
        if self._counting:
            return "count"
        return "step" if self.follow else "card" if self._card_due else "show" if self._show_due else None

    @property
    def started(self) -> bool:
        """Whether the first round has begun."""
        return self.public is not None

    @property
    def ready(self) -> bool:
        """Whether there is a model to answer with. True from the end of the first round on."""
        return self.shown is not None

    @property
    def trained(self) -> bool:
        """Whether all steps of a round were made with this model."""
        return self.rounds > 0

    @property
    def cohort(self) -> Cohort:
        """Whose records take part in this round."""
        return Cohort(self.before, self.terms.most_records)

    @property
    def work(self) -> float:
        """About how many operations the steps of this round take. It follows from what was released."""
        return self.records * STEPS * (self.map.width + 1) * (self.terms.n_classes + 8) if self.mapped else 0.0

    @property
    def span(self) -> int:
        """How many labels share a cell of a count."""
        return 1

    def price(self, due: Due) -> float:
        """The most that a person may be charged for a count or a card, as ρ."""
        count = RECOUNT_PRICE if self.trained else self._count_price
        return (count if due == "count" else CARD_PRICE) * self.terms.budget

    @property
    def _count_price(self) -> float:
        return COUNT_PRICE

    @property
    def _reserve(self) -> float:
        return RESERVE

    @property
    def reserve(self) -> float:
        """How much of the shared budget training must leave to each person, as ρ."""
        return self._reserve * self.terms.budget

    @property
    def scale(self) -> int:
        """The noise on gradients."""
        return step_scale(self.clip, STEPS, (1.0 - self._reserve) * self.terms.budget)

    @property
    def clip(self) -> float:
        """The longest gradient of a person. It follows from the count of this round."""
        much = self._signal / (MUCH_SIGNAL * self.terms.n_classes)
        return CLIP * min(max(much, 1.0), MOST_CLIP / CLIP)

    @property
    def map(self) -> FeatureMap:
        """The map from the features of records to those of the model."""
        return self._map or self.take_map(*self.make_map())

    @property
    def mapped(self) -> bool:
        """Whether the map was made."""
        return self._map is not None

    def make_map(self) -> tuple[FeatureMap, FloatArray | None]:
        """Make the map, and the weights that labelled public rows alone would have.

        This is slow with many features. It changes nothing, so any thread may do it.
        """
        assert self.public is not None
        signal = hypot(self._signal, EVEN * self._worth) * self._telling
        made = feature_map(self.public, self.terms.n_classes, signal, self.terms.seed, self.terms.numbers)
        if not self._worth or self._labels is None or made.stretch is None:
            return made, None
        return made, fitted(made.apply(self.public), self._labels, self.terms.n_classes, made.stretch)

    def take_map(self, made: FeatureMap, start: FloatArray | None) -> FeatureMap:
        """Use this map from now on. Training starts from labelled public rows, or from how common each label is."""
        self._map, self._start = made, start
        self._floats = np.zeros((made.width + 1, self.terms.n_classes))
        self._floats[-1] = self._common / INTERCEPT
        if start is not None:
            self._floats = start
        self._weights = Weights.of(self._floats)
        return made

    @property
    def weights(self) -> Weights:
        """The weights on the grid, for the next gradient."""
        assert self.map is not None  # the map creates the first weights
        assert self._weights is not None
        return self._weights

    def absorb(self, release: Release) -> None:
        """Take in a release, made now or by an earlier process. One that is not due is refused (rule 18)."""
        self._refuse_unless_due(release)
        if isinstance(release, PublicRows):
            self._begin(release)
        elif isinstance(release, TallyRelease) and not release.tables:
            self._absorb_count(release)
        elif isinstance(release, Gradient):
            self._absorb_gradient(release)
        elif isinstance(release, TallyRelease):
            self._card_due, self._show_due = False, True
            self.card = self._read_card(release)
        else:
            self._show()

    def _refuse_unless_due(self, release: Release) -> None:
        """A public event may begin a round at any time. Everything else follows from the releases before it."""
        if isinstance(release, PublicRows):
            return
        if isinstance(release, TallyRelease):
            expected = "card" if release.tables else "count"
        elif isinstance(release, Gradient | ModelShown):
            expected = "show" if isinstance(release, ModelShown) else "step"
        else:
            raise StoreError(f"a release of kind {release.kind!r} is not one of the shared model")
        due = self.due()
        next_one = not isinstance(release, Gradient) or (release.step, release.follow) == (self.step, self.follow - 1)
        if due != expected or not next_one:
            raise StoreError(f"a release of kind {release.kind!r} came when {due or 'nothing'} was due")

    def _begin(self, release: PublicRows) -> None:
        """Begin a round, instead of one that was not finished if there is any."""
        self._counting, self.before, self._offered = True, release.epoch, release
        self.step, self.follow, self._card_due = 0, 0, False
        if self.public is None or len(release.values) >= max(2 * len(self.public), 1):
            self._take_rows(release)  # new rows need a new card: only if there are many more, or in a new round

    def _show(self) -> None:
        self._show_due = False
        assert self.public is not None
        card = self.card if isinstance(self.card, Card) else None
        shown = ShownModel(self.rounds, self.count, self._card_rule, card, self.public, np.exp(self._common))
        if self._neighbours is not None and card is not None:
            right = card.overall, card.overall_error
            shown = replace(shown, power=fitting_power(shown.scores(self.public)[0], *right))
        self.shown = shown

    def _absorb_count(self, release: TallyRelease) -> None:
        sigma, counts = release.scale / GRID, release.cells / GRID
        cells = counts[:-1].reshape(2, -1)
        known, new = cells.sum(axis=1).tolist()
        self.records = max(float(counts[-1]) * self.terms.most_records, known + new, 0.0)
        sigma *= sqrt(cells.shape[1])
        self._counting = False
        if not self.trained or new > max(MOSTLY_NEW * known, 4.0 * sigma):  # start again from zero
            self.rounds, self._map, self.card = 0, None, None
        elif new <= max(MANY_NEW * known, 4.0 * sigma):
            return
        self.count, self.step, self.follow = max(known, 0.0) + max(new, sigma, 1.0), 0, STEPS
        if cells.shape[1] == self._kinds:
            self._take_histogram(cells[1], release.scale / GRID)
        if self._offered is not None and len(self._offered.values):
            self._take_rows(self._offered)

    @property
    def _kinds(self) -> int:
        """How many cells of newcomers the first count has."""
        return self.terms.n_classes

    def _take_histogram(self, counts: FloatArray, sigma: float) -> None:
        self._common = _log_shares(counts, sigma)

    def _read_card(self, release: TallyRelease) -> Card | NumberCard:
        sigma, counts = release.scale / GRID, release.cells / GRID
        free = self.map.width * (self.terms.n_classes - 1.0)
        return Card.read(counts, sigma, hope=self._hope, parameters=free)

    def _take_rows(self, given: PublicRows) -> None:
        self.public, self._card_due = given.values[:MOST_ROWS], self.trained
        self._labels = None if given.labels is None else given.labels[:MOST_ROWS]
        self._refresh()

    def _absorb_gradient(self, release: Gradient) -> None:
        shape = (self.map.width + 1, self.terms.n_classes)
        if release.step == 0:
            self._velocity, self._sum = np.zeros(shape), np.zeros(shape)
        slope = release.entries.reshape(shape) / float(STEP_GRID)
        self._velocity, self._sum = MOMENTUM * self._velocity + slope / self.count, self._sum + slope
        self._floats = self._floats - self._rate(release.scale / STEP_GRID) * self._velocity
        if release.follow < TAIL and self._arrives:
            self._tail = self._floats + (self._tail if release.follow < TAIL - 1 else 0.0)
            self._floats = self._floats if release.follow else self._tail / TAIL
        self._weights = Weights.of(self._floats)
        self.step, self.follow, self.since = release.step + 1, release.follow, self.before
        if not self.follow:
            self.rounds, self._card_due = self.rounds + 1, True
            self._refresh()

    @property
    def _signal(self) -> float:
        """How strong the records are compared with the noise of training."""
        return self.count * sqrt(2.0 * (1.0 - self._reserve) * self.terms.budget)

    @property
    def _telling(self) -> float:
        """The share of the signal that is left if almost all records have the same label."""
        if self.terms.n_classes < 2 or not len(self._common):
            return 1.0
        others = (1.0 - float(np.exp(self._common.max()))) * self.terms.n_classes / (self.terms.n_classes - 1.0)
        return min(max(others, 0.0) / RARE, 1.0)

    @property
    def _arrives(self) -> bool:
        """Whether the last steps of a round are near what they should find. With rare labels they still climb."""
        steady = self._start is not None or self._signal >= STEADY * self.terms.n_classes
        return steady and self._telling >= 1.0

    @property
    def _worth(self) -> float:
        """The signal of what labelled public rows say. 0 without labels."""
        rows = 0 if self._labels is None else len(self._labels)
        return worth(rows, self.terms.n_features, CLIP) if rows >= LEAST_ROWS else 0.0

    def _rate(self, sigma: float) -> FloatArray:
        """The learning rate for each class. It is larger with more signal, and with more classes.

        More classes are further away from 1/c at the start. In later rounds, a class moves more if the sum of its
        gradients in the round stands out more from their known noise.
        """
        rate = (1.0 - MOMENTUM) * min(self._signal / (self.clip * STEPS), _LARGEST_RATE)
        rate *= float(np.clip(sqrt(self.terms.n_classes / 10.0), 0.8, 2.0))
        rate *= min(self._signal / (ENOUGH_SIGNAL * self.terms.n_classes), 1.0) * sqrt(sqrt(self._telling))
        if not self.rounds:
            return np.full(self.terms.n_classes, rate * told(self._signal, self._worth))
        steps, size = self.step + 1, len(self._sum)
        noise = steps * sigma * sigma * (size + 2.0 * sqrt(2.0 * size))  # plus two standard deviations
        above = np.maximum(1.0 - noise / np.maximum((self._sum * self._sum).sum(axis=0), 1e-300), 0.0)
        return np.asarray(rate * (LEAST_RATE + (MOST_RATE - LEAST_RATE) * np.sqrt(above)), dtype=np.float64)

    def _refresh(self) -> None:
        """Update what depends on the model's scores for the public rows."""
        if self.trained and self.public is not None:
            enough = len(self.public) >= LEAST_ROWS  # otherwise a bin of equal size would be almost empty
            plain = self._card_rule.plain(self.public if enough else self.public[:0])
            self._edges = edges(plain)
            self._neighbours = Neighbours(self.public, plain) if enough else None

    # What is known about records

    def n_cells(self, due: Due) -> int:
        """The number of cells of a report card or of a count.

        A count has cells for known people and newcomers. The first count has them by label.
        """
        return CELLS if due == "card" else 2 if self.trained else 2 * self.terms.n_classes

    def cells(self, values: Int8Array, labels: IntArray) -> IntArray:
        """The cell of each record on a report card. Each record is computed separately."""
        return self._card_rule(values, labels)

    def rule(self, due: Due) -> FeatureRule | CardRule | ResidualRule:
        """The rule by which a gradient or a report card looks at every record."""
        return self._card_rule if due == "card" else FeatureRule(self.map)

    @property
    def _card_rule(self) -> CardRule:
        start = Weights.of(self._start) if self._start is not None and self._signal < self._worth else None
        return CardRule(self.map, self.weights, self._neighbours, self._edges, start)

    @property
    def _hope(self) -> float | None:
        """The gain that is expected from the other model of the card. None if there is no other."""
        if self._neighbours is None:
            return None
        least = CLUMPED - NOISE_CLUMPS / sqrt(max(self._signal / self.terms.n_classes, 1.0))
        public = self._card_rule.start is not None  # the other model is the public rows' alone
        return HOPE if not public and self._neighbours.agreement() >= least else -HOPE


def distinct(values: Int8Array) -> IntArray:
    """The positions of the public rows that are kept: the first of equal ones, at most `MOST_ROWS`."""
    _, first = np.unique(values, axis=0, return_index=True)
    return np.sort(first)[:MOST_ROWS]


def _log_shares(counts: FloatArray, sigma: float) -> FloatArray:
    """How common each label is. Noisy counts are moved towards their mean if noise could explain how they differ.

    What is left of the noise may have made a count too small, so a label is as common as it is on average over all
    counts above zero that could have been shown so. Otherwise noise could make a label impossible.
    """
    mean, others = max(float(counts.mean()), sigma / sqrt(len(counts)), 1.0), max(len(counts) - 1, 1)
    spread, noise = float(((counts - mean) ** 2).sum()) / others, sigma * sigma * (1.0 + sqrt(2.0 / others))
    real = max(1.0 - noise / max(spread, 1e-300), 0.0)
    likely = _above_zero(mean + real * (counts - mean), sigma * sqrt(real))
    shares = np.maximum(likely, 0.02 * mean)
    return np.asarray(np.log(shares / shares.sum()), dtype=np.float64)


def _above_zero(middle: FloatArray, spread: float) -> FloatArray:
    """The means of what is above zero of normal curves around these numbers."""
    far = [max(number / max(spread, 1e-300), -8.0) for number in middle.tolist()]
    added = [exp(-0.5 * z * z) / (sqrt(pi / 2.0) * erfc(-z / sqrt(2.0))) for z in far]
    return np.asarray(middle + spread * np.array(added), dtype=np.float64)


def fitted(values: Int8Array, labels: IntArray, n_classes: int, stretch: Float32Array) -> FloatArray:
    """The weights of a softmax regression on labelled public rows, one column per class.

    They are free, so this costs nobody anything. `stretch` is the matrix of whole numbers that stretched the rows.
    Weights are held back as weights of the features before they were stretched: what noise of training asks for is not
    what a thousand rows ask for. How strongly is chosen on the last quarter of the rows. A store that is opened again
    must find the same weights to the bit, so products are of whole numbers, whose sums are exact in any order, and
    everything else is one operation per entry.
    """
    rows, lengths = rows_of(values)
    wide = stretch.astype(np.float64)
    held = wide.T @ wide  # exact: no column is longer than 2^11
    kept = len(rows) - max(len(rows) // 4, 1)
    best, lowest = STRENGTHS[0], np.inf
    common = np.zeros((rows.shape[1], n_classes))
    counts = np.bincount(labels, minlength=n_classes) + 0.5
    common[-1] = [log(share) / INTERCEPT for share in (counts / counts.sum()).tolist()]
    weights = common
    for strength in STRENGTHS:  # each starts where the one before ended
        weights = _minimised(rows[:kept], lengths[:kept], labels[:kept], weights, held, strength)
        found = probabilities(rows[kept:], lengths[kept:], Weights.of(weights))
        likely = found[np.arange(len(found)), labels[kept:]]
        loss = -fsum(log(max(p, _LEAST)) for p in likely.tolist())
        if loss < lowest:
            best, lowest = strength, loss
    return _minimised(rows, lengths, labels, common, held, best)


def worth(n_public: int, width: int, clip: float) -> float:
    """The signal of private records that would tell as much as these labelled public rows.

    With it, the noise of training and the error of a mean over the public rows are equal in every weight: the entries
    of a gradient differ between rows by about 0.3/sqrt(width), and the noise on their mean is clip/signal.
    """
    return clip / 0.3 * sqrt(n_public * width)


def told(signal: float, public: float) -> float:
    """How far records move a model that starts from public rows of this worth, as a share of how far they would alone.

    With little signal it follows the variances. With much, less than that was better on held-out training records of
    nine sets: what public rows say and noise hides is kept.

    >>> [round(told(signal, 100.0), 2) for signal in (10.0, 100.0, 1000.0)], told(5.0, 0.0)
    ([0.01, 0.5, 0.91], 1.0)
    """
    return min(signal / (signal + public), signal**2 / (signal**2 + public**2))


def _minimised(
    rows: FloatArray, lengths: FloatArray, labels: IntArray, start: FloatArray, held: FloatArray, strength: float
) -> FloatArray:
    """Nesterov's method, with the step that the largest curvature of the loss allows.

    How common each label is, is not held back: a rare one would seem far too likely.
    """
    strength /= max(float(np.trace(held)) / len(held), 1.0)  # whole numbers, so their sum is exact
    step = 1.0 / (0.5 * _largest_eigenvalue(rows, lengths) + strength * 1.1 * float(1 << 22))
    at, before = np.arange(len(rows)), start
    weights = ahead = start
    for t in range(_REGRESSION_STEPS):
        grid = Weights.of(ahead)
        wrong = probabilities(rows, lengths, grid)
        wrong[at, labels] -= 1.0
        slope = rows.T @ np.rint(wrong * (_WHOLE / lengths)[:, None]) / (_WHOLE * len(rows))
        slope[:-1] += held @ grid.whole[:-1] * (strength * grid.unit)
        before, weights = weights, ahead - step * slope
        ahead = weights + t / (t + 3.0) * (weights - before)
    return weights


def _largest_eigenvalue(rows: FloatArray, lengths: FloatArray) -> float:
    """About the largest eigenvalue of the mean of x·xᵀ over unit rows x."""
    direction, size = np.ones(rows.shape[1]), 1.0
    for _ in range(_TURNS):
        along = np.rint((rows @ np.rint(direction * (1 << 20))) / (lengths * lengths))
        direction = rows.T @ along / (float(1 << 20) * len(rows))
        size = float(np.abs(direction).max(initial=_LEAST))
        direction = direction / size
    return max(size, _LEAST) * 1.1
