"""Detects whether people ask about other things than before, from queries alone, which are public.

When new classes of records arrive, queries about them usually arrive too. So this is a good moment to look for
newcomers among the records. Finding it out costs nobody anything.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt

import numpy as np

from indknn.core.quantise import root_norms
from indknn.types import Float32Array, FloatArray, Int8Array

LATEST = 256
"""How many of the latest queries are compared with those before."""
_CHANCE = 5.0  # standard deviations
_UNLIKE = 2.0  # times as much as blocks of earlier queries differ from each other


@dataclass(frozen=True)
class Earlier:
    """The mean of earlier queries, and the squared distance from it that a later mean can have by chance."""

    mean: FloatArray
    limit: float

    @staticmethod
    def of(queries: Int8Array) -> Earlier:
        """From some blocks of `LATEST` queries, in the order in which they came.

        The squared distance between the means of m and of n rows is tr(S)·(1/m + 1/n) on average, with a relative
        standard deviation of sqrt(2·tr(S²))/tr(S). S is the covariance of the rows. Queries that come in clumps differ
        by more than that, so the blocks are compared with each other as well.
        """
        rows = unit_rows(queries)
        blocks = rows.reshape(-1, LATEST, rows.shape[1]).mean(axis=1, dtype=np.float64)
        mean, n = blocks.mean(axis=0), len(rows)
        centred = rows - mean.astype(np.float32)
        products = centred @ centred.T
        trace, own = float(np.trace(products)) / n, float((np.diag(products) ** 2).sum())
        trace_of_square = max(float((products * products).sum()) - own, 0.0) / (n * (n - 1))
        deviation = sqrt(2.0 * trace_of_square) / max(trace, 1e-12)
        others = (blocks.sum(axis=0) - blocks) / (len(blocks) - 1)
        apart = float(((blocks - others) ** 2).sum(axis=1).max())
        chance = (1.0 + _CHANCE * deviation) * trace * (1.0 / LATEST + 1.0 / n)
        return Earlier(mean, max(chance, _UNLIKE * apart))

    def unlike(self, latest: Int8Array) -> bool:
        """Whether these queries differ from the earlier ones by more than chance explains."""
        moved = unit_rows(latest).mean(axis=0, dtype=np.float64) - self.mean
        return float((moved * moved).sum()) > self.limit


def unit_rows(values: Int8Array) -> Float32Array:
    """Rows of length 1. The model only sees directions."""
    return np.asarray(values / np.maximum(root_norms(values), 1.0)[:, None], dtype=np.float32)
