"""The report card of the shared model: how often it is right about the private records, by how sure it is.

Every record is in one cell. A cell is a bin of the model's margin, whether the model is right, and whether another
model is right: the same one averaged over the public rows nearby, or the one that labelled public rows make alone.
Noisy counts of the cells are released and paid for like everything else (`statistics.tally`). They decide which of the
two answers, and where it is right so often that nobody needs to vote.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

import numpy as np

from indknn.types import FloatArray, IntArray

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
