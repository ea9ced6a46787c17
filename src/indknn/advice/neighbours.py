"""What the queries nearby were like: scores are averaged over earlier queries near a new one.

Where classes lie in clumps, a query is most likely what those around it are. Whether they do, the report card
tells. The average is over what was known of earlier queries: the prior's scores, and the noisy votes where somebody
was asked. Everything is on a grid, because the card asks about private records too, and what is said of one of
them must not depend on where it stands among the others.
"""

from __future__ import annotations

import numpy as np

from indknn.types import FloatArray, Int8Array

NEAR = 0.03
"""The share of earlier queries that count as near."""
KEPT = 2048
_UNIT, _KAPPA, _SCORE = 256.0, 1024.0, 4096.0  # grids of coordinates, of κ and of scores
_BLOCK = 2048


class Neighbours:
    """Earlier queries and what was known of them."""

    def __init__(self, Q: FloatArray, scores: FloatArray):
        self._rows = np.rint(Q * _UNIT).astype(np.float32)
        self._scores = np.rint((scores - scores.mean(axis=0)) * _SCORE)
        sample = (self._rows[:256] @ self._rows.T) / (_UNIT * _UNIT)
        self._near = max(float(np.quantile(sample, 1.0 - NEAR)), 1.0 / _KAPPA)

    def of_queries(self, Q: FloatArray) -> FloatArray:
        """What to add to the scores of these unit vectors."""
        return self._average((Q * _UNIT).astype(np.float32), np.full(len(Q), _UNIT))

    def of_records(self, values: Int8Array) -> FloatArray:
        """The same for records, each by itself: products and sums of integers are exact in any order."""
        wide = values.astype(np.float64)
        root = np.sqrt(np.einsum("ij,ij->i", wide, wide))
        return self._average(values.astype(np.float32), np.maximum(root, 1.0))

    def _average(self, rows: np.ndarray[tuple[int, int], np.dtype[np.float32]], roots: FloatArray) -> FloatArray:
        found = np.zeros((len(rows), self._scores.shape[1]))
        for first in range(0, len(rows), _BLOCK):
            here = slice(first, first + _BLOCK)
            dots = (rows[here] @ self._rows.T).astype(np.float64)  # of integers: below 2^24 by Cauchy and Schwarz
            cosine = dots / (roots[here] * _UNIT)[:, None]
            kappa = np.where(cosine >= self._near, np.trunc(cosine * _KAPPA), 0.0)
            total = kappa.sum(axis=1)
            found[here] = (kappa @ self._scores) / (np.maximum(total, 1.0) * _SCORE)[:, None]
        return found
