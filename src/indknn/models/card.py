"""The report card: how often public models are right about the private records, by how sure they are.

Every record is in one cell per model: right or wrong, in one of a few bins of the model's margin. Noisy counts of
the cells are released and paid for as everything else (`statistics.tally`). They tell which source to believe, and
when a model is right so often that nobody needs to be asked.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from indknn.models.neighbours import Neighbours
from indknn.types import FloatArray, Int8Array, IntArray

BINS = 5
SURE = 0.9
"""A model answers alone where its card says that it is right at least this often."""
_POWER = 16.0
_WEIGHT_GRID = float(1 << 30)


@dataclass(frozen=True)
class Linear:
    """A linear model that gives every record the same scores wherever it stands: weights and features are integers."""

    weights: FloatArray
    edges: FloatArray
    n_cells: ClassVar[int] = 2 * BINS

    @staticmethod
    def of(weights: FloatArray, Q: FloatArray) -> Linear:
        """A model with bins of equal size for these queries."""
        top = float(np.abs(weights).max(initial=0.0))
        exact = np.rint(weights * (_WEIGHT_GRID / top)) if top > 0 else np.zeros_like(weights)
        return Linear(exact, edges(Q @ exact))

    def scores(self, values: Int8Array) -> FloatArray:
        """Of records as unit vectors, in units of the weights. Sums of integers below 2^53: exact in any order."""
        wide = values.astype(np.float64)
        root = np.sqrt(np.einsum("ij,ij->i", wide, wide))
        result: FloatArray = (wide @ self.weights) / np.maximum(root, 1.0)[:, None]
        return result

    def cells(self, values: Int8Array, labels: IntArray) -> IntArray:
        """The cell of each record: 2·bin, plus 1 if the model is right."""
        return cells(self.scores(values), labels, self.edges)


@dataclass(frozen=True)
class Local:
    """A linear model moved by what is known of queries nearby."""

    linear: Linear
    size: float
    neighbours: Neighbours
    edges: FloatArray
    n_cells: ClassVar[int] = 2 * BINS

    @staticmethod
    def of(weights: FloatArray, neighbours: Neighbours, Q: FloatArray) -> Local:
        """A model with bins of equal size for these queries."""
        top = float(np.abs(weights).max(initial=0.0))
        return Local(
            Linear.of(weights, Q), top / _WEIGHT_GRID, neighbours, edges(Q @ weights + neighbours.of_queries(Q))
        )

    def cells(self, values: Int8Array, labels: IntArray) -> IntArray:
        """The cell of each record."""
        scores = self.linear.scores(values) * self.size + self.neighbours.of_records(values)
        return cells(scores, labels, self.edges)


def edges(scores: FloatArray) -> FloatArray:
    """Where the bins of the margin end, for scores of public queries: bins of equal size."""
    return np.quantile(margins(scores), np.arange(1, BINS) / BINS) if len(scores) else np.zeros(BINS - 1)


def cells(scores: FloatArray, labels: IntArray, ends: FloatArray) -> IntArray:
    """2·bin, plus 1 where the best class is the label; row by row."""
    place = np.searchsorted(ends, margins(scores), side="right")
    return np.asarray(2 * place + (scores.argmax(axis=1) == labels), dtype=np.int64)


def margins(scores: FloatArray) -> FloatArray:
    """By how much the best class leads, row by row."""
    if scores.shape[1] < 2:
        return np.zeros(len(scores))
    top = np.partition(scores, -2, axis=1)
    result: FloatArray = top[:, -1] - top[:, -2]
    return result


@dataclass(frozen=True)
class Card:
    """What the cells said of one model: how often it is right in every bin and in all, with standard errors."""

    right: FloatArray
    error: FloatArray
    overall: float
    overall_error: float

    @staticmethod
    def read(cells: FloatArray, sigma: float) -> Card:
        """From noisy counts with noise `sigma`. Errors are for as few records as there may well be: where noise is
        all there is, a count of nobody must not look like a crowd.
        """
        counts = cells.reshape(BINS, 2)
        total, everything = counts.sum(axis=1), float(counts.sum())
        least = np.maximum(total - 2.0 * np.sqrt(2.0) * sigma, sigma * 1e-3)
        least_of_all = max(everything - 2.0 * np.sqrt(2.0 * BINS) * sigma, sigma * 1e-3)
        return Card(
            np.clip(counts[:, 1] / np.maximum(total, 1.0), 0.0, 1.0),
            np.minimum(sigma / least, 1.0),
            float(np.clip(counts[:, 1].sum() / max(everything, 1.0), 0.0, 1.0)),
            min(sigma * np.sqrt(BINS) / least_of_all, 1.0),
        )


@dataclass
class Trust:
    """Whom to believe: a share for every source, the first of which may be a prior."""

    shares: FloatArray
    cards: list[Card] = field(default_factory=list)
    wrong: FloatArray = field(default_factory=lambda: np.zeros(0))

    def update(self, cards: list[Card]) -> None:
        """Trust falls with a high power of how often a source is wrong; where that is in doubt, it evens out."""
        doubt = 2.0 * max(card.overall_error for card in cards)
        wrong = np.array([1.0 - card.overall + doubt for card in cards])
        if len(self.wrong) == len(wrong):
            wrong = 0.5 * (wrong + self.wrong)  # earlier cards of much the same models, with noise of their own
        self.cards, self.wrong = cards, wrong
        power = (wrong.min() / wrong) ** _POWER
        self.shares = power / power.sum()

    def surely_right(self) -> FloatArray:
        """How often, at least, the mixture is right in each bin of its margin."""
        if not self.cards:
            return np.zeros(BINS)
        low = [share * (card.right - card.error) for share, card in zip(self.shares, self.cards, strict=True)]
        result: FloatArray = np.sum(low, axis=0)
        return result
