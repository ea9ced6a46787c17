"""The three methods without privacy: what the features allow."""

from __future__ import annotations

import warnings

import numpy as np
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression

from indknn.types import FloatArray, IntArray
from indknn_lab.experiments.fields import TAU_GRID, Data, Field, Orders
from indknn_lab.experiments.queries import QuerySets
from indknn_lab.experiments.units import Result, Unit

_K = (5, 10, 20, 50, 100, 200)
_INVERSE_PENALTIES = (1.0, 10.0, 100.0)


def measure(unit: Unit, data: Data, sets: QuerySets) -> Result:
    """The kernel vote, the vote of the k nearest, a linear model; each tuned on the validation set."""
    if unit.method == "linear":
        right = _linear(data, sets, 1 if unit.effort.quick else len(_INVERSE_PENALTIES))
    elif unit.method == "knn":
        right = _nearest(data, sets)
    else:
        right = _kernel(data, sets)
    chosen = int(np.argmax(right[0]))
    settings = {"linear": _INVERSE_PENALTIES, "knn": _K, "kernel": TAU_GRID}[unit.method]
    return {"accuracies": [float(r[chosen]) for r in right[1:]], "chosen": settings[chosen]}


def _kernel(data: Data, sets: QuerySets) -> list[FloatArray]:
    field = Field(data, threads=1)
    return [field.plain_accuracy(rows) for rows in (sets.validation, *sets.tests)]


def _nearest(data: Data, sets: QuerySets) -> list[FloatArray]:
    orders = Orders(data, max(_K))
    return [np.array([_vote(orders, rows, k) for k in _K]) for rows in (sets.validation, *sets.tests)]


def _vote(orders: Orders, rows: IntArray, k: int) -> float:
    c, truth = orders.data.n_classes, orders.data.truth[rows]
    answers = [int(np.bincount(labels[:k], minlength=c).argmax()) for labels in orders.labels(rows)]
    return float((np.array(answers) == truth).mean())


def _linear(data: Data, sets: QuerySets, tries: int) -> list[FloatArray]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # whatever 100 steps reach is judged by validation
        models = [LogisticRegression(C=C, max_iter=100).fit(data.X, data.labels) for C in _INVERSE_PENALTIES[:tries]]
    asked = (sets.validation, *sets.tests)
    return [np.array([float((m.predict(data.Q[r]) == data.truth[r]).mean()) for m in models]) for r in asked]
