"""What records say: one of some classes, or a number between public bounds.

A record's label is one whole number either way. For a class it is the number of the class. For a number it is its place
on a grid between the bounds, from 0 to `TOP`. Scaled to [-1, 1], a number is y = (label - MIDDLE)/MIDDLE, and y in
units of 1/GRID is whole: label - MIDDLE. Answers are labels too, and are decoded where they leave.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from indknn.core.inputs import encode_labels
from indknn.errors import InvalidInputError
from indknn.types import GRID, FloatArray, IntArray

MIDDLE = GRID
TOP = 2 * MIDDLE
"""The label of the upper bound. The lower bound has label 0."""
CELLS = 32
"""A noisy histogram of numbers has this many cells of equal width."""
SPAN = TOP // CELLS


@dataclass(frozen=True)
class Classes:
    """A record says one of some labels, which are sorted."""

    labels: npt.NDArray[Any]

    def encode(self, y: npt.ArrayLike) -> tuple[IntArray, int]:
        """The number of each label, and how many were changed: none."""
        return encode_labels(np.asarray(y), self.labels), 0

    def decode(self, labels: IntArray) -> npt.NDArray[Any]:
        """The labels behind these numbers."""
        return np.asarray(self.labels[labels])

    def answer(self, scores: FloatArray) -> int:
        """The label that these scores say."""
        return int(scores.argmax())


@dataclass(frozen=True)
class Number:
    """A record says a number between two public bounds.

    >>> age = Number(0.0, 120.0)
    >>> labels, cut = age.encode([30.0, 130.0])
    >>> age.decode(labels).tolist(), cut
    ([30.0, 120.0], 1)
    """

    low: float
    high: float

    def encode(self, y: npt.ArrayLike) -> tuple[IntArray, int]:
        """The place of each number on the grid, and how many were outside the bounds. Those are cut to the bounds."""
        numbers = as_numbers(y)
        inside = np.clip(numbers, self.low, self.high)
        labels = np.rint((inside - self.low) / (self.high - self.low) * TOP).astype(np.int64)
        return np.clip(labels, 0, TOP), int((inside != numbers).sum())

    def decode(self, labels: IntArray) -> FloatArray:
        """The numbers at these places."""
        share = np.asarray(labels, dtype=np.float64) / TOP
        return np.asarray(np.clip(self.low + (self.high - self.low) * share, self.low, self.high), dtype=np.float64)

    def answer(self, scores: FloatArray) -> int:
        """The label of the number that is the only score."""
        return label_of(float(scores[0]))


Target: TypeAlias = Classes | Number


def label_of(y: float) -> int:
    """The label of a number in [-1, 1]. What is outside is cut.

    >>> label_of(-1.0), label_of(0.0) == MIDDLE, label_of(2.0) == TOP
    (0, True, True)
    """
    return round(min(max(y, -1.0), 1.0) * MIDDLE) + MIDDLE


def about_centre(labels: IntArray, centre: int) -> IntArray:
    """How far the numbers with these labels are from a public centre, in units of 1/GRID, cut to [-1, 1].

    >>> about_centre(np.array([0, MIDDLE, TOP]), GRID // 4).tolist() == [-GRID, -GRID // 4, 3 * GRID // 4]
    True
    """
    return np.asarray(np.clip(labels - MIDDLE - centre, -GRID, GRID), dtype=np.int64)


def as_bounds(bounds: Any) -> tuple[float, float]:
    """Two finite numbers in order.

    >>> as_bounds([0, 120])
    (0.0, 120.0)
    """
    try:
        low, high = (float(end) for end in bounds)
        right = -np.inf < low < high < np.inf and np.isfinite(high - low)
    except (TypeError, ValueError):
        right = False
    if not right:
        raise InvalidInputError(f"bounds must be two finite numbers, the lower first, got {bounds!r}")
    return low, high


def as_numbers(y: npt.ArrayLike) -> FloatArray:
    """Targets as float64. What is no finite number is refused."""
    try:
        numbers = np.asarray(y, dtype=np.float64)
    except (TypeError, ValueError):
        raise InvalidInputError("y must be numbers, because the target is a number") from None
    if numbers.ndim != 1 or not np.isfinite(numbers).all():
        row = int(np.argmin(np.isfinite(numbers))) if numbers.ndim == 1 else 0
        raise InvalidInputError(f"row {row}: y must be a finite number, got {y!r:.60}")
    return numbers
