"""What a release needs to know about every record, as plain data that can be sent to where the records are."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from indknn.core.training import Weights, predicted
from indknn.models.card import cells
from indknn.models.feature_map import FeatureMap
from indknn.models.neighbours import Neighbours
from indknn.types import FloatArray, Int8Array, IntArray


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

    The other one is the model averaged over public rows nearby, or the one that labelled public rows make alone.
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
        return np.asarray(0.5 * (plain + self.neighbours.average(values)), dtype=np.float64)
