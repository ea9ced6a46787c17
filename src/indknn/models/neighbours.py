"""What the queries nearby were like: scores are averaged over earlier queries near a new one.

Where classes lie in clumps, a query is most likely what those around it are. Whether they do, the report card
tells. The average is over what was known of earlier queries: the prior's scores, and the noisy votes where somebody
was asked. Everything is on a grid, because the card asks about private records too, and what is said of one of
them must not depend on where it stands among the others.
"""

from __future__ import annotations

import numpy as np

from indknn.core.quantise import whole_product
from indknn.types import Float32Array, FloatArray, Int8Array

NEAR = 0.03
"""The share of earlier queries that count as near."""
KEPT = 2048
_UNIT, _KAPPA, _SCORE = 256.0, 31.0, 255.0  # steps of a unit vector's coordinates, of κ and of the largest score
_BLOCK = 512  # rows at a time, which stay in the cache


class Neighbours:
    """Earlier queries and what was known of them."""

    def __init__(self, Q: FloatArray, scores: FloatArray):
        self._rows = np.rint(Q * _UNIT).astype(np.float32)
        centred = scores - scores.mean(axis=0)
        self._size = max(float(np.abs(centred).max(initial=0.0)), 1e-12) / _SCORE
        self._scores = np.rint(centred / self._size).astype(np.float32)
        sample = whole_product(self._rows[:256], self._rows.T) / (_UNIT * _UNIT)
        self._near = max(float(np.quantile(sample, 1.0 - NEAR)), 1.0 / _KAPPA)

    def of_queries(self, Q: FloatArray) -> FloatArray:
        """What to add to the scores of these unit vectors."""
        return self._average((Q * _UNIT).astype(np.float32), np.full(len(Q), _UNIT))

    def of_records(self, values: Int8Array) -> FloatArray:
        """The same for records, each by itself: products and sums of integers are exact in any order."""
        wide = values.astype(np.float64)
        root = np.sqrt(np.einsum("ij,ij->i", wide, wide))
        return self._average(values.astype(np.float32), np.maximum(root, 1.0))

    def _average(self, rows: Float32Array, roots: FloatArray) -> FloatArray:
        """Σ κ·score / Σ κ over those near. All sums are of integers below 2^24, where float32 is exact."""
        found = np.zeros((len(rows), self._scores.shape[1]))
        for first in range(0, len(rows), _BLOCK):
            here = slice(first, first + _BLOCK)
            kappa = whole_product(rows[here], self._rows.T)  # below 2^24 by Cauchy and Schwarz
            kappa *= (_KAPPA / (roots[here] * _UNIT)).astype(np.float32)[:, None]
            kappa *= kappa >= np.float32(self._near * _KAPPA)
            np.trunc(kappa, out=kappa)
            total = np.maximum(kappa.sum(axis=1, dtype=np.float64), 1.0)
            found[here] = whole_product(kappa, self._scores).astype(np.float64) * (self._size / total)[:, None]
        return found
