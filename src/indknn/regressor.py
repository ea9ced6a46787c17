"""Ind-KNN as a scikit-learn estimator of numbers."""

from __future__ import annotations

from typing import Any, Self, Unpack

import numpy.typing as npt
from sklearn.base import RegressorMixin
from sklearn.utils.validation import check_X_y

from indknn.estimator import NUMBERS, IndKNN
from indknn.estimator_parameters import RegressorParameters, declared
from indknn.types import FloatArray, Given


class IndKNNRegressor(RegressorMixin, IndKNN):
    """Private nearest-neighbour regression with a privacy budget for every person.

    The target is a number between public ``bounds``. By default the first query trains a shared model, privately and
    once for all analysts: a linear regression with Huber's loss. Everybody pays for their own gradient, at most
    ``model_share`` of the budget. Then records near a query vote with what the model gets wrong about them, if that can
    stand out from the noise. ``mode="votes"`` has no model: the answer is the mean of the numbers near the query, from
    noisy sums. Privacy is as with `IndKNNClassifier`.

    Parameters
    ----------
    {parameters}
    random_state, store, public, schema, shards, analysts, verbose
        As in `IndKNNClassifier`.

    Examples
    --------
    >>> import numpy as np
    >>> from indknn import IndKNNRegressor
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(4000, 8))
    >>> y = 50 + 10 * X[:, 0] + rng.normal(size=4000)
    >>> model = IndKNNRegressor(bounds=(0, 100)).fit(X, y)
    >>> answers = model.predict(X[:100])                     # trains the shared model: everybody pays
    >>> bool(np.corrcoef(answers, y[:100])[0, 1] > 0.5)
    True
    """

    _target = "number"

    def __init__(self, epsilon: float = 1.0, delta: float = 1e-5, **named: Unpack[RegressorParameters]):
        self._keep(epsilon=epsilon, delta=delta, **named)

    def partial_fit(self, X: Any, y: Any = None, owners: Any = None, record_ids: Any = None, **more: Any) -> Self:
        """Add records. See `IndKNNClassifier.partial_fit`; `more` may be `expires` and `epsilons`."""
        return self._take((), Given(X, y, owners, record_ids, **more))

    def predict_interval(self, X: Any, coverage: float = 0.9, analyst: str | None = None) -> FloatArray:
        """An interval for each row of X, lower and upper end, that holds the number in about this share of the cases.

        It is computed from the answer and from noisy counts of how far the shared model was off about the records. So
        it spends the same as `predict`, and nothing for rows that were asked before.
        """
        answers = self.predict(X, analyst)
        return self._memory.intervals(answers, coverage, analyst)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.regressor_tags.poor_score = True
        return tags

    def _checked(self, X: npt.ArrayLike, y: npt.ArrayLike) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        """Rows and numbers."""
        rows, targets = check_X_y(X, y, dtype=NUMBERS, ensure_all_finite=False, y_numeric=True)
        return rows, targets

    def _label_set(self, targets: npt.NDArray[Any]) -> tuple[Any, ...]:
        return ()


declared(IndKNNRegressor, RegressorParameters, "target", "classes")
