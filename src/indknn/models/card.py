"""The report card of the shared model: how often it is right about the private records, by how sure it is.

Every record is in one cell: a bin of the model's margin, whether the model is right, and whether the model smoothed
over public rows nearby is right. Noisy counts of the cells are released and paid for as everything else
(`statistics.tally`). They tell whether to smooth, and where the model is right so often that nobody needs to be asked.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from indknn.types import FloatArray, IntArray

BINS = 5
CELLS = 4 * BINS
SURE = 0.9
"""The model answers alone where its card says that it is right at least this often."""
HOPE, DOUBT = 0.01, 0.02
"""What smoothing gains before any card has told, and how far that may be wrong. It decides where a card is noise."""
OPTIMISM, OF_ERRORS = 0.003, 0.03
"""By how much a card flatters the plain model, which has learned from the very records that the card is about: the
smaller of this and of this share of its errors. All are from held-out training records, see `feature_map`."""


def edges(scores: FloatArray) -> FloatArray:
    """Where the bins of the margin end, for scores of public rows: bins of equal size. Without rows, of equal width."""
    return np.quantile(margins(scores), np.arange(1, BINS) / BINS) if len(scores) else np.arange(1, BINS) / BINS


def cells(plain: FloatArray, smooth: FloatArray, labels: IntArray, ends: FloatArray) -> IntArray:
    """4·bin, plus 2 where the model is right, plus 1 where the smoothed model is; row by row."""
    right = 2 * (plain.argmax(axis=1) == labels) + (smooth.argmax(axis=1) == labels)
    return np.asarray(4 * bins(plain, ends) + right, dtype=np.int64)


def bins(plain: FloatArray, ends: FloatArray) -> IntArray:
    """In which bin of the margin each row is."""
    return np.asarray(np.searchsorted(ends, margins(plain), side="right"), dtype=np.int64)


def margins(scores: FloatArray) -> FloatArray:
    """By how much the best class leads, row by row."""
    if scores.shape[1] < 2:
        return np.zeros(len(scores))
    top = np.partition(scores, -2, axis=1)
    result: FloatArray = top[:, -1] - top[:, -2]
    return result


@dataclass(frozen=True)
class Card:
    """What the cells said: whether to smooth, how often what is then said is right, in every bin and in all."""

    smooth: bool
    right: FloatArray
    error: FloatArray
    overall: float
    overall_error: float

    @staticmethod
    def read(cells: FloatArray, sigma: float, *, smoothable: bool) -> Card:
        """From noisy counts with noise `sigma`; `smoothable` where public rows made the bins.

        Errors are for as few records as there may well be: where noise is all there is, a count of nobody must not look
        like a crowd.
        """
        counts = cells.reshape(BINS, 2, 2)  # by bin, model right, smoothed model right
        total, everything = counts.sum(axis=(1, 2)), max(float(counts.sum()), 1.0)
        least = np.maximum(total - 4.0 * sigma, sigma * 1e-3)
        least_of_all = max(everything - 2.0 * np.sqrt(CELLS) * sigma, sigma * 1e-3)
        gain = float((counts[:, 0, 1] - counts[:, 1, 0]).sum()) / everything
        doubt = min(sigma * np.sqrt(2.0 * BINS) / least_of_all, 1e3)
        errors = float(np.clip(counts[:, 0, :].sum() / everything, 0.0, 1.0))
        flattered = min(OPTIMISM, OF_ERRORS * errors)
        smooth = smoothable and (gain + flattered) / doubt**2 + HOPE / DOUBT**2 > 0.0
        right = counts[:, :, 1].sum(axis=1) if smooth else counts[:, 1, :].sum(axis=1)
        share = np.clip(right / np.maximum(total, 1.0), 0.0, 1.0)
        return Card(
            smooth,
            share,
            np.minimum(sigma * np.sqrt(2.0) / least, 1.0),
            # Bins made by public rows are of equal size for queries; of records that were learned, more are sure.
            float(share.mean() if smoothable else np.clip(right.sum() / everything, 0.0, 1.0)),
            float(min(sigma * np.sqrt(2.0 * BINS) / least_of_all, 1.0)),
        )

    def surely_right(self) -> FloatArray:
        """How often, at least, the answer is right in each bin of the margin."""
        return self.right - self.error
