"""Three methods without privacy. They show what accuracy the features allow."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import numpy as np
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression

from indknn.types import IntArray
from indknn_lab.experiments.data import TAU_GRID, KernelNeighbours, NearestLabels
from indknn_lab.experiments.methods.base import Method, share_right
from indknn_lab.experiments.units import Result

_K, _INVERSE_PENALTIES = (5, 10, 20, 50, 100, 200), (1.0, 10.0, 100.0)

Accuracies = Callable[[IntArray], list[float]]


class Plain(Method, kind="plain", methods=("kernel", "knn", "linear")):
    """The kernel vote, the vote of the k nearest, or logistic regression, each tuned on the validation set."""

    def measure(self) -> Result:
        """Answer with the setting that is best on the validation set."""
        kinds = {
            "kernel": (TAU_GRID, self._kernel),
            "knn": (_K, self._knn),
            "linear": (_INVERSE_PENALTIES, self._linear),
        }
        values, accuracies_of = kinds[self.unit.method]
        accuracies = accuracies_of()
        best = int(np.argmax(accuracies(self.sets.validation)))
        return {"accuracies": [accuracies(rows)[best] for rows in self.sets.tests], "chosen": values[best]}

    def _kernel(self) -> Accuracies:
        near = KernelNeighbours(self.data, threads=1)
        return lambda rows: near.plain_accuracy(rows).tolist()

    def _knn(self) -> Accuracies:
        nearest, c, truth = NearestLabels(self.data, max(_K)), self.data.n_classes, self.data.truth

        def accuracy(rows: IntArray, k: int) -> float:
            votes = [np.bincount(labels[:k], minlength=c).argmax() for labels in nearest.labels(rows)]
            return share_right(np.array(votes), truth[rows])

        return lambda rows: [accuracy(rows, k) for k in _K]

    def _linear(self) -> Accuracies:
        X, y, Q, truth = self.data.X, self.data.labels, self.data.Q, self.data.truth
        tried = _INVERSE_PENALTIES[: 1 if self.unit.effort.quick else None]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # the validation set judges the result of 100 steps
            models = [LogisticRegression(C=C, max_iter=100).fit(X, y) for C in tried]
        return lambda rows: [share_right(model.predict(Q[rows]), truth[rows]) for model in models]
