"""What naive private kNN and Private-kNN share: T noisy votes of k neighbours, and not one more."""

from __future__ import annotations

import warnings
from abc import abstractmethod
from collections.abc import Iterator
from math import ceil
from numbers import Integral, Real
from threading import Lock
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils._param_validation import Interval
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, check_X_y, validate_data

from indknn.core.inputs import encode_labels
from indknn.core.noise import Noise, noise_from
from indknn.core.quantise import quantise
from indknn.errors import PrivacyError, PrivacyWarning
from indknn.types import GRID, FloatArray, IntArray, Vectors
from indknn_lab.baselines.topk import SENSITIVITY, similarities

RandomState = int | np.random.Generator | np.random.RandomState | None

PRIVATE_CLASSIFIER: dict[str, list[Any]] = {
    "epsilon": [Interval(Real, 0, None, closed="neither")],
    "delta": [Interval(Real, 0, 1, closed="neither")],
    "random_state": ["random_state", np.random.Generator],
    "classes": ["array-like", None],
    "center": ["array-like", None],
}
COUNT = Interval(Integral, 1, None, closed="left")


class Meter:
    """Counts answers, and refuses to count past the limit. Safe to share between threads."""

    def __init__(self, limit: int):
        self.limit = limit
        self.answered = 0
        self._lock = Lock()

    def take(self, n: int, promise: str) -> None:
        """Count n answers before they are given; all or none of them."""
        with self._lock:
            left = self.limit - self.answered
            if n > left:
                raise PrivacyError(
                    f"{promise} covers {left} more quer{'y' if left == 1 else 'ies'}, got {n}: "
                    "none of them was answered"
                )
            self.answered += n

    def __getstate__(self) -> tuple[int, int]:
        return self.limit, self.answered

    def __setstate__(self, state: tuple[int, int]) -> None:
        self.limit, self.answered = state
        self._lock = Lock()


class TopKVote(ClassifierMixin, BaseEstimator):
    """Base of the two: subclasses say whom a query asks and how much noise that needs."""

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        **PRIVATE_CLASSIFIER,
        "max_queries": [COUNT],
        "k": [COUNT],
    }

    epsilon: float
    delta: float
    max_queries: int
    k: int
    center: npt.ArrayLike | None
    random_state: RandomState
    classes: npt.ArrayLike | None
    _noise: Noise
    _records: Vectors
    _labels: IntArray
    _priced: dict[str, Any]
    _meter: Meter

    @abstractmethod
    def _noise_multiplier(self) -> float:
        """The least σ/Δ for which all T answers together are (epsilon, delta)-DP."""

    @abstractmethod
    def _votes(self, queries: Vectors) -> Iterator[IntArray]:
        """The noiseless vote of each query. Never leaves this class."""

    @abstractmethod
    def epsilon_after(self, queries: int) -> float:
        """The ε, at this delta, of a number of answers that was fixed beforehand."""

    def fit(self, X: npt.ArrayLike, y: npt.ArrayLike) -> Self:
        """Hold these records. Each is protected by itself: a person with several has as many times the cost.

        Fitting the same object again replaces the records but not the number of answers given: the people may
        be the same. Use a new object for other people.
        """
        self._validate_params()
        rows, targets, classes = check_records(self, X, y)
        vectors, labels = quantise(rows, center_of(self)), encode_labels(targets, classes)
        price, meter = self._price(), getattr(self, "_meter", None)
        if meter is None or not meter.answered:
            meter = Meter(self.max_queries)
        elif price != self._priced:
            raise PrivacyError(
                f"{meter.answered} queries were answered under other terms (max_queries, epsilon, ...): "
                "the promise cannot be changed afterwards. Use a new object for other people."
            )
        noise_multiplier, noise = self._noise_multiplier(), noise_from(self.random_state)
        warn_if_seeded(self, noise)
        validate_data(self, X, reset=True, skip_check_array=True)
        self._priced, self._meter, self._noise = price, meter, noise
        self._records, self._labels = vectors, labels
        self.classes_ = classes
        self.noise_multiplier_ = noise_multiplier
        self.epsilon_, self.delta_ = float(self.epsilon), float(self.delta)
        self._scale = ceil(noise_multiplier * SENSITIVITY * (1.0 + 1e-12) * GRID)
        self.sigma_ = self._scale / GRID
        return self

    def predict(self, X: npt.ArrayLike) -> npt.NDArray[Any]:
        """Answer each row of X. All of them are refused if they are more than are left of `max_queries`."""
        check_is_fitted(self)
        rows = validate_data(self, X, reset=False, dtype=np.float64)
        queries = quantise(rows, center_of(self), what="the queries")
        self._meter.take(len(queries), f"(epsilon={self.epsilon_}, delta={self.delta_})")
        votes = np.array(list(self._votes(queries)), dtype=np.int64).reshape(len(queries), -1)
        noise = self._noise.draw(self._scale, votes.size).reshape(votes.shape)
        return np.asarray(self.classes_[np.argmax(votes * GRID + noise, axis=1)])

    @property
    def queries_answered_(self) -> int:
        """How many queries were answered, by this object in all its fits."""
        check_is_fitted(self)
        return self._meter.answered

    @property
    def max_queries_left(self) -> int:
        """How many more queries will be answered."""
        check_is_fitted(self)
        return self._meter.limit - self._meter.answered

    def __getstate__(self) -> dict[str, Any]:
        if hasattr(self, "_noise") and self._noise.secure:
            raise PrivacyError(
                f"a fitted {type(self).__name__} with secure noise cannot be pickled or copied: each copy "
                "would answer max_queries anew. Share the one object, or give random_state for experiments."
            )
        state: dict[str, Any] = super().__getstate__()
        return state

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.non_deterministic = True
        tags.classifier_tags.poor_score = True  # by design on the few dozen records of the checks
        return tags

    def _price(self) -> dict[str, Any]:
        """Every parameter on which the promise depends: not k, and nothing else about the vote."""
        irrelevant = {"k", "random_state", "classes", "center"}
        return {name: value for name, value in self.get_params().items() if name not in irrelevant}

    def _similarities(self, queries: Vectors) -> Iterator[FloatArray]:
        return similarities(queries, self._records)


def check_records(
    estimator: Any, X: npt.ArrayLike, y: npt.ArrayLike
) -> tuple[FloatArray, npt.NDArray[Any], npt.NDArray[Any]]:
    """Rows, labels and the label set, which is public: `classes` if given, else what occurs in y."""
    rows, targets = check_X_y(X, y, dtype=np.float64)
    check_classification_targets(targets)
    classes = np.unique(targets if estimator.classes is None else np.asarray(estimator.classes))
    return rows, targets, classes


def center_of(estimator: Any) -> FloatArray | None:
    """The public vector to subtract, or None."""
    return None if estimator.center is None else np.asarray(estimator.center, dtype=np.float64)


def warn_if_seeded(estimator: Any, noise: Noise) -> None:
    """Say once per object that a seed makes the answers reproducible, hence not private."""
    if not (noise.secure or hasattr(estimator, "classes_")):
        warnings.warn(
            f"random_state={estimator.random_state!r} makes the noise reproducible: good for experiments, "
            "but the answers are not private. Use random_state=None for secure noise.",
            PrivacyWarning,
            stacklevel=3,
        )
