"""The base of all baselines. It reads records and queries, and keeps a guarantee that cannot be changed later."""

from __future__ import annotations

import warnings
from numbers import Integral, Real
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils._param_validation import Interval
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, check_X_y, validate_data

from indknn.core.advice import about_seed
from indknn.core.inputs import encode_labels
from indknn.core.noise import Noise, noise_from
from indknn.core.quantise import quantise
from indknn.errors import PrivacyError
from indknn.types import FloatArray, IntArray, Vectors

RandomState = int | np.random.Generator | np.random.RandomState | None
COUNT = Interval(Integral, 1, None, closed="left")
POSITIVE = Interval(Real, 0, None, closed="neither")


class PrivateClassifier(ClassifierMixin, BaseEstimator):
    """Base of the baselines. The parameters are those of :class:`indknn.IndKNNClassifier`."""

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        "epsilon": [POSITIVE],
        "delta": [Interval(Real, 0, 1, closed="neither")],
        "random_state": ["random_state", np.random.Generator],
        "classes": ["array-like", None],
        "center": ["array-like", None],
    }
    _not_priced: ClassVar[frozenset[str]] = frozenset({"random_state", "classes", "center"})
    """Parameters that may change between two fits, because the privacy loss does not depend on them."""

    epsilon: float
    delta: float
    center: npt.ArrayLike | None
    random_state: RandomState
    classes: npt.ArrayLike | None
    _terms: dict[str, Any]

    def _read_records(self, X: npt.ArrayLike, y: npt.ArrayLike) -> tuple[Vectors, IntArray, npt.NDArray[Any]]:
        """Integer vectors, encoded labels and the public label set, which is `classes`, or else taken from y."""
        self._validate_params()
        rows, targets = check_X_y(X, y, dtype=np.float64)
        check_classification_targets(targets)
        classes = np.unique(targets if self.classes is None else np.asarray(self.classes))
        return quantise(rows, self._center()), encode_labels(targets, classes), classes

    def _read_queries(self, X: npt.ArrayLike) -> Vectors:
        check_is_fitted(self)
        rows = validate_data(self, X, reset=False, dtype=np.float64)
        return quantise(rows, self._center(), what="the queries")

    def _center(self) -> FloatArray | None:
        return None if self.center is None else np.asarray(self.center, dtype=np.float64)

    def _current_terms(self) -> dict[str, Any]:
        """Every parameter on which the guarantee depends."""
        return {name: value for name, value in self.get_params().items() if name not in self._not_priced}

    def _check_terms(self) -> None:
        """Refuse a fit whose terms differ from those of the first fit."""
        if self._current_terms() != self._terms:
            raise PrivacyError(
                "this object was used under other terms (epsilon, delta, ...): the promise cannot be changed "
                "afterwards. Use a new object for other people."
            )

    def _make_noise(self) -> Noise:
        """Secure noise, or seeded noise. Seeded answers are not private, so the first fit gives a warning."""
        noise = noise_from(self.random_state)
        if not (noise.secure or hasattr(self, "classes_")):
            for warning in about_seed(self.random_state):
                warnings.warn(warning, stacklevel=3)
        return noise

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.non_deterministic = True
        tags.classifier_tags.poor_score = True  # the checks use only a few dozen records
        return tags
