"""How a release looks at every record, as plain data that can be sent to where the records are; and the report card.

A report card says how often the shared model is right about the private records, by how sure it is. Every record is in
one cell. A cell is a bin of the model's margin, whether the model is right, and whether another model is right: the
same one averaged over the public rows nearby, or, where labelled public rows tell more than the records, the one that
they make alone. Noisy counts of the cells are released and paid for like everything else (`statistics.tally`). They
decide which of the two answers, and where it is right so often that nobody needs to vote.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import Any

import numpy as np

from indknn.core.quantise import whole_product
from indknn.core.targets import MIDDLE
from indknn.core.training import Weights, predicted
from indknn.models.feature_map import FeatureMap
from indknn.types import GRID, FloatArray, Int8Array, IntArray

BINS = 5
CELLS = 4 * BINS
SURE = 0.9
"""The model answers alone where its card says that it is right at least this often."""
HOPE, DOUBT = 0.005, 0.005
"""How much better or worse the other model is expected to be before there is a card, and the uncertainty of that. They
decide when a card is mostly noise."""
OPTIMISM, OF_ERRORS, ENOUGH_PARAMETERS = 0.002, 0.03, 0.05
"""How much a card flatters the plain model, which was trained on the same records: the smaller of this number and this
share of its errors, for a model with so many parameters per record; less for a smaller model, which can fit less of
the chance in its records. They were chosen on held-out training records, see `feature_map`."""
NEAR = 0.04
"""The share of public rows that count as near."""
WEIGHT = 1 / 3
"""The weight of the average beside the row itself. On held-out training records of thirteen sets, with the average
always on, a quarter cost at most .003 and a half up to .010. A third, tried on six, has most of what a half gives."""
_UNIT, _KAPPA, _SCORE = 256.0, 31.0, 255.0  # steps of a unit vector's coordinates, of κ and of the largest score
_BLOCK = 512  # rows at a time, which stay in the cache


@dataclass(frozen=True)
class FeatureRule:
    """For gradients: the features that the model sees."""

    map: FeatureMap

    def __call__(self, values: Int8Array, labels: IntArray) -> Int8Array:
        """The features of each record. Each record is computed separately."""
        return self.map.apply(values)


@dataclass(frozen=True)
class CardRule:
    """For a report card: the cell of each record. It compares the model with another.

    The other one is the model averaged over public rows nearby, or, where labelled public rows tell more than the
    records, the one that they make alone.
    """

    map: FeatureMap
    weights: Weights
    neighbours: Neighbours | None
    edges: FloatArray
    start: Weights | None = None

    def __call__(self, values: Int8Array, labels: IntArray) -> IntArray:
        """The cell of each record. Each record is computed separately."""
        plain = self.plain(values)
        return cells(plain, self.other(plain, values), labels, self.edges)

    def plain(self, values: Int8Array) -> FloatArray:
        """The model's probabilities for each row."""
        return predicted(self.map.apply(values), self.weights)

    def other(self, plain: FloatArray, values: Int8Array) -> FloatArray:
        """The probabilities of the other model. `plain` are the model's own."""
        if self.start is not None:
            return predicted(self.map.apply(values), self.start)
        if self.neighbours is None:
            return plain
        return np.asarray(plain + WEIGHT * (self.neighbours.average(values) - plain), dtype=np.float64)


@dataclass(frozen=True)
class ResidualRule:
    """For votes about numbers: by how much each record is above what the model says, in units of 1/GRID.

    With `ends`, for a report card: the cell of that, between these ends.
    """

    map: FeatureMap
    weights: Weights
    ends: tuple[float, ...] | None = None

    def __call__(self, values: Int8Array, labels: IntArray) -> IntArray:
        """The residual or the cell of each record. Each record is computed separately."""
        above = np.clip(labels - MIDDLE - np.rint(self.said(values) * GRID), -GRID, GRID).astype(np.int64)
        if self.ends is None:
            return above
        return np.asarray(np.searchsorted(np.array(self.ends), above, side="right"), dtype=np.int64)

    def said(self, values: Int8Array) -> FloatArray:
        """What the model says about each row, in [-1, 1] or a little outside."""
        return predicted(self.map.apply(values), self.weights)[:, 0]


def edges(scores: FloatArray) -> FloatArray:
    """The ends of the bins of the margin. With public rows the bins have equal size, without them equal width."""
    return np.quantile(margins(scores), np.arange(1, BINS) / BINS) if len(scores) else np.arange(1, BINS) / BINS


def cells(plain: FloatArray, other: FloatArray, labels: IntArray, ends: FloatArray) -> IntArray:
    """The cell of each row: 4·bin, plus 2 if the model is right, plus 1 if the other model is right."""
    right = 2 * (plain.argmax(axis=1) == labels) + (other.argmax(axis=1) == labels)
    return np.asarray(4 * bins(plain, ends) + right, dtype=np.int64)


def bins(plain: FloatArray, ends: FloatArray) -> IntArray:
    """The bin of the margin for each row."""
    return np.asarray(np.searchsorted(ends, margins(plain), side="right"), dtype=np.int64)


def margins(scores: FloatArray) -> FloatArray:
    """The lead of the best class over the second, for each row."""
    if scores.shape[1] < 2:
        return np.zeros(len(scores))
    top = np.partition(scores, -2, axis=1)
    result: FloatArray = top[:, -1] - top[:, -2]
    return result


@dataclass(frozen=True)
class Card:
    """What the counts showed: whether the other model answers, and how often the answer is right, by bin and in all."""

    other: bool
    right: FloatArray
    error: FloatArray
    overall: float
    overall_error: float

    @staticmethod
    def read(cells: FloatArray, sigma: float, *, hope: float | None, parameters: float = inf) -> Card:
        """Read noisy counts with noise `sigma`. Without public rows there is no other model, and `hope` is None.

        `hope` is the gain from the other model that is expected before the card, and `parameters` is the number of free
        parameters of the model.

        Errors are computed for the smallest number of records that is plausible. Otherwise a bin with only noise in it
        could look like a bin with many records.
        """
        counts = cells.reshape(BINS, 2, 2)  # by bin, model right, other model right
        total, everything = counts.sum(axis=(1, 2)), max(float(counts.sum()), 1.0)
        least = np.maximum(total - 4.0 * sigma, sigma * 1e-3)
        least_of_all = max(everything - 2.0 * np.sqrt(CELLS) * sigma, sigma * 1e-3)
        gain = float((counts[:, 0, 1] - counts[:, 1, 0]).sum()) / everything
        doubt = min(sigma * np.sqrt(2.0 * BINS) / least_of_all, 1e3)
        errors = float(np.clip(counts[:, 0, :].sum() / everything, 0.0, 1.0))
        flattered = min(OPTIMISM, OF_ERRORS * errors) * min(parameters / (ENOUGH_PARAMETERS * everything), 1.0)
        other = hope is not None and (gain + flattered) / doubt**2 + hope / DOUBT**2 > 0.0
        right = counts[:, :, 1].sum(axis=1) if other else counts[:, 1, :].sum(axis=1)
        share = np.clip(right / np.maximum(total, 1.0), 0.0, 1.0)
        return Card(
            other,
            share,
            np.minimum(sigma * np.sqrt(2.0) / least, 1.0),
            # Bins from public rows have equal size for queries. The model is sure of more of the records, because it
            # has learned them.
            float(share.mean() if hope is not None else np.clip(right.sum() / everything, 0.0, 1.0)),
            float(min(sigma * np.sqrt(2.0 * BINS) / least_of_all, 1.0)),
        )

    def surely_right(self) -> FloatArray:
        """A lower bound on how often the answer is right, for each bin of the margin."""
        return self.right - self.error


class Neighbours:
    """The model's probabilities, averaged over the public rows near a record or a query.

    If classes lie in clumps, a query probably has the class of the rows around it, and an average is less noisy than a
    single row. The report card shows whether this helps. All numbers are on a grid, because the card also asks about
    private records. The result for one record must not depend on its place among the others.
    """

    def __init__(self, values: Int8Array, scores: FloatArray):
        self._rows = np.rint(values * (_UNIT / _roots(values))[:, None]).astype(np.float32)
        self._mean = scores.mean(axis=0)
        centred = scores - self._mean
        self._size = max(float(np.abs(centred).max(initial=0.0)), 1e-12) / _SCORE
        self._scores = np.rint(centred / self._size).astype(np.float32)
        sample = whole_product(self._rows[:256], self._rows[:256].T) / (_UNIT * _UNIT)
        pairs = sample[np.triu_indices(len(sample), 1)]
        self._near = max(float(np.quantile(pairs, 1.0 - NEAR)), 1.0 / _KAPPA)

    def agreement(self) -> float:
        """How often a public row has the likeliest class of the rows near it, beyond chance: 1 means always.

        Where it is low, neighbours have other classes, and an average over them blurs. It costs nothing to know.
        """
        kappa = whole_product(self._rows, self._rows.T) / (_UNIT * _UNIT)
        kappa *= kappa >= self._near
        np.fill_diagonal(kappa, 0.0)
        total, centred = kappa.sum(axis=1, dtype=np.float64), self._scores * self._size
        averages = (kappa @ centred) / np.maximum(total, 1e-12)[:, None]
        own, around = ((self._mean + scores).argmax(axis=1)[total > 0.0] for scores in (centred, averages))
        shares = [np.bincount(classes, minlength=len(self._mean)) / max(len(own), 1) for classes in (own, around)]
        alike, chance = float((own == around).sum()) / max(len(own), 1), float(shares[0] @ shares[1])
        return (alike - chance) / (1.0 - chance) if chance < 1.0 else 0.0

    def plain(self) -> dict[str, Any]:
        """What `average` uses, as lists and numbers."""
        whole = {"rows": self._rows.astype(int).tolist(), "scores": self._scores.astype(int).tolist()}
        near = float(np.float32(self._near * _KAPPA))
        sizes = {"unit": _UNIT, "kappa": _KAPPA, "near": near, "size": self._size, "weight": WEIGHT}
        return {**whole, **sizes, "mean": self._mean.tolist()}

    def average(self, values: Int8Array) -> FloatArray:
        """Σ κ·score / Σ κ over the public rows near each row, or over all public rows if none is near.

        All sums are of integers below 2^24, which float32 adds exactly in any order.
        """
        found = np.zeros((len(values), self._scores.shape[1]))
        for first in range(0, len(values), _BLOCK):
            here = slice(first, first + _BLOCK)
            rows, roots = values[here].astype(np.float32), _roots(values[here])
            kappa = whole_product(rows, self._rows.T)  # below 2^24 by the Cauchy-Schwarz inequality
            kappa *= (_KAPPA / (roots * _UNIT)).astype(np.float32)[:, None]
            kappa *= kappa >= np.float32(self._near * _KAPPA)
            np.trunc(kappa, out=kappa)
            total = np.maximum(kappa.sum(axis=1, dtype=np.float64), 1.0)
            found[here] = whole_product(kappa, self._scores).astype(np.float64) * (self._size / total)[:, None]
        return np.asarray(self._mean + found, dtype=np.float64)


def _roots(values: Int8Array) -> FloatArray:
    wide = values.astype(np.float64)
    result: FloatArray = np.maximum(np.sqrt(np.einsum("ij,ij->i", wide, wide)), 1.0)
    return result
