"""The model's probabilities, averaged over the public rows near a record or a query.

If classes lie in clumps, a query probably has the class of the rows around it, and an average is less noisy than a
single row. The report card shows whether this helps. All numbers are on a grid, because the card also asks about
private records. The result for one record must not depend on its place among the others.
"""

from __future__ import annotations

import numpy as np

from indknn.core.quantise import whole_product
from indknn.types import FloatArray, Int8Array

NEAR = 0.04
"""The share of public rows that count as near."""
_UNIT, _KAPPA, _SCORE = 256.0, 31.0, 255.0  # steps of a unit vector's coordinates, of κ and of the largest score
_BLOCK = 512  # rows at a time, which stay in the cache


class Neighbours:
    """Public rows, and the model's scores for them."""

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
