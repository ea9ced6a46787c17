"""The shared model that answers with numbers, and the report card about its residuals."""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt

import numpy as np

from indknn.models.histograms import quantile
from indknn.models.rules import ResidualRule
from indknn.types import BoolArray, FloatArray, Int8Array


@dataclass(frozen=True)
class NumberCard:
    """What noisy counts of residuals showed: how they are distributed, in units of [-1, 1]."""

    shares: FloatArray
    ends: FloatArray
    squared: float
    """Their mean square."""

    @property
    def error(self) -> float:
        """The root of their mean square."""
        return sqrt(self.squared)

    def offsets(self, coverage: float) -> tuple[float, float]:
        """How far below and above an answer the number is, in this share of the cases. The answer is always between."""
        beyond = (1.0 - coverage) / 2.0
        ends = [quantile(self.shares, self.ends, share) for share in (beyond, 1.0 - beyond)]
        return min(ends[0], 0.0), max(ends[1], 0.0)


@dataclass(frozen=True)
class ShownNumbers:
    """The model with which queries are answered. It changes only at the end of a round, all at once."""

    rounds: int
    count: float
    rule: ResidualRule
    card: NumberCard | None
    public: Int8Array
    mean: float
    """Of all numbers."""
    squared: float
    """The mean square of residuals, by the report card."""

    def scores(self, values: Int8Array) -> tuple[FloatArray, BoolArray]:
        """What the model says about each row, in [-1, 1]. People may be asked about every row."""
        found = np.clip(self.rule.said(values), -1.0, 1.0)
        return found[:, None], np.zeros(len(values), dtype=bool)
