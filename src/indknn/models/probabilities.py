"""The probability of each class, computed from releases, and labels from probabilities.

Labels may be weighed, where they are not equally common, or left open. All of this is post-processing of what was
released. It costs nobody anything, and charges are the same as without it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import sqrt
from numbers import Real
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from indknn.core.releases import NoisyVotes
from indknn.errors import InvalidInputError
from indknn.types import FloatArray

ClassWeight: TypeAlias = Mapping[Any, float] | str | None
_LEAST_SHARE = 0.01
"""A label is counted as at least this common, compared with equally common labels: below that, counts are noise."""
LEAST = 1e-3
"""The smallest probability that a class can get, as a share of 1/c."""
_FLATTEST = 0.01
_USUAL_MISS = 0.05
"""By how much the mean of a model's largest probabilities usually misses its accuracy. A card with a larger error says
less than that."""
_BLURRED = 0.5
"""Votes smaller than this many standard deviations of their noise are treated almost as zero. Like the powers in
`from_votes`, it was chosen on held-out training records of seven sets (`benchmarks/calibration.py`)."""


def from_votes(votes: NoisyVotes, n_classes: int) -> FloatArray:
    """Probabilities from the noisy votes of Algorithm 3, in the same order.

    The shares of kernel votes are flatter than the true probabilities, because records of many other classes are a
    little near. So shares are raised to a power. It is 1 for two classes and grows with their number. It is smaller if
    noise could explain how the votes differ, so that noise alone makes no class look likely.

    >>> sure, unsure = (NoisyVotes(scale, np.array([900, 50, 50])) for scale in (10, 500))
    >>> from_votes(sure, 3).round(2).tolist(), from_votes(unsure, 3).round(2).tolist()
    ([0.94, 0.03, 0.03], [0.34, 0.33, 0.33])
    """
    v, noise = votes.votes.astype(np.float64), max(float(votes.scale), 1.0)
    differ = float(((v - v.mean()) ** 2).sum()) / max(n_classes - 1, 1)
    real = max(1.0 - noise * noise / max(differ, 1.0), 0.0)
    power = sqrt(n_classes / 2.0) * max(real**0.25, _FLATTEST)
    blur = _BLURRED * noise
    length = np.hypot(v, blur)
    positive = np.where(v > 0, v + length, blur * blur / (length + np.abs(v)))  # v + length, without cancellation
    return proper(scaled((positive / positive.max()) ** power))


def proper(scores: FloatArray) -> FloatArray:
    """Scores, which may be negative, as probabilities in the same order."""
    return scaled(np.maximum(scores, LEAST / scores.shape[-1]))


def sharpened(probabilities: FloatArray, power: float) -> FloatArray:
    """Probabilities raised to a power and scaled, in the same order. Above 1 they become surer, below 1 less sure."""
    return scaled(proper(probabilities) ** power)


def fitting_power(probabilities: FloatArray, right: float, error: float) -> float:
    """The power at which the largest probability of a row is `right` on average, as far as its error allows.

    >>> unsure = np.array([[0.6, 0.4]])
    >>> [round(fitting_power(unsure, 0.9, error), 1) for error in (0.0, 0.05, 1.0)]
    [5.4, 2.7, 1.0]
    """
    own = float(proper(probabilities).max(axis=-1).mean())
    right = own + (right - own) * _USUAL_MISS**2 / (_USUAL_MISS**2 + error * error)
    low, high = 0.1, 10.0
    for _ in range(30):
        middle = float(np.sqrt(low * high))
        sure = float(sharpened(probabilities, middle).max(axis=-1).mean())
        low, high = (middle, high) if sure < right else (low, middle)
    return float(np.sqrt(low * high))


def scaled(positive: FloatArray) -> FloatArray:
    """Scale each row so that it sums to 1."""
    return np.asarray(positive / positive.sum(axis=-1, keepdims=True), dtype=np.float64)


@dataclass(frozen=True)
class Decision:
    """How labels follow from probabilities.

    `class_weight` is "balanced", or a weight for each label. "balanced" divides by how common each label is, by the
    noisy counts that people paid for. Below `min_confidence` there is no label.
    """

    min_confidence: float | None = None
    class_weight: ClassWeight = None

    def __post_init__(self) -> None:
        """Check both values."""
        least, weight = self.min_confidence, self.class_weight
        number = isinstance(least, Real) and not isinstance(least, bool)
        if least is not None and not (number and 0.0 <= least <= 1.0):
            raise InvalidInputError(f"min_confidence must be from 0 to 1, got {least!r}")
        if not (weight is None or weight == "balanced" or isinstance(weight, Mapping)):
            raise InvalidInputError(f"class_weight must be 'balanced', or weights by label, got {weight!r}")

    @property
    def plain(self) -> bool:
        """Whether labels are as they were released."""
        return self.min_confidence is None and self.class_weight is None

    @property
    def balanced(self) -> bool:
        """Whether weights follow from released counts."""
        return self.class_weight == "balanced"

    def refuse_unfit(self, classes: npt.NDArray[Any], advised: bool) -> None:
        """Refuse what cannot be decided, before anybody is charged. `advised` says whether there is a shared model."""
        if isinstance(self.class_weight, Mapping):
            _given(self.class_weight, classes)
        if self.balanced and not advised:
            raise InvalidInputError("class_weight='balanced' needs the counts of a shared model, and there is none")

    def weighed(self, likely: FloatArray, classes: npt.NDArray[Any], shares: FloatArray | None) -> FloatArray:
        """Probabilities, as if labels were as common as the weights say. `shares` are needed to balance."""
        if self.class_weight is None:
            return likely
        if isinstance(self.class_weight, Mapping):
            weights = _given(self.class_weight, classes)
        else:
            assert shares is not None
            weights = 1.0 / np.maximum(shares, _LEAST_SHARE / len(classes))
        return scaled(likely * weights)

    def labels(
        self, released: npt.NDArray[Any], likely: FloatArray, classes: npt.NDArray[Any], shares: FloatArray | None
    ) -> npt.NDArray[Any]:
        """The labels. With `min_confidence` an array of objects, which has None where no label is likely enough.

        `released` are the labels that were answered. Only weights can change them.
        """
        likely = self.weighed(likely, classes, shares)
        chosen = np.searchsorted(classes, released) if self.class_weight is None else likely.argmax(axis=1)
        labels = classes[chosen]
        if self.min_confidence is None:
            return np.asarray(labels)
        unsure = likely[np.arange(len(chosen)), chosen] < self.min_confidence
        found = np.empty(len(labels), dtype=object)
        found[:] = labels.tolist()
        found[unsure] = None
        return found


PLAIN = Decision()
"""Labels as they were released."""


def _given(weights: Mapping[Any, float], classes: npt.NDArray[Any]) -> FloatArray:
    """The weight of each class. A label that is not named has weight 1."""
    named = {str(label): label for label in classes.tolist()}
    for label, weight in weights.items():
        if str(label) not in named:
            raise InvalidInputError(f"class_weight must name labels of {list(named)}, got {label!r}")
        if not (isinstance(weight, int | float) and 0.0 < weight < np.inf):
            raise InvalidInputError(f"class_weight of {label!r} must be a positive number, got {weight!r}")
    by_name = {str(label): float(weight) for label, weight in weights.items()}
    return np.array([by_name.get(name, 1.0) for name in named])
