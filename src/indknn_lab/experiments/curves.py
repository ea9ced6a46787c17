"""From results to curves, and from curves to words."""

from __future__ import annotations

from collections.abc import Sequence
from math import exp, log
from statistics import median

from indknn_lab.experiments.outcome import Series
from indknn_lab.experiments.results import Results
from indknn_lab.experiments.units import Unit

LABELS = {
    "indknn": "Ind-KNN, cosine",
    "indknn_rbf": "Ind-KNN, RBF",
    "indknn_gdp": "Ind-KNN, cosine, gdp filter",
    "indknn_reuse": "Ind-KNN with reuse",
    "private_knn": "Private-kNN",
    "private_knn_one": "Private-kNN, sensitivity 1",
    "noisy_sgd": "Linear NoisySGD",
}


def series(
    role: str,
    x: Sequence[float],
    units: Sequence[Unit],
    results: Results,
    *,
    label: str | None = None,
    key: str = "accuracies",
) -> Series:
    """The medians of these units over x, with their spread."""
    runs = [results[unit][key] for unit in units]
    name = LABELS.get(role, role) if label is None else label
    return Series(
        name,
        list(x),
        [median(r) for r in runs],
        [min(r) for r in runs],
        [max(r) for r in runs],
        role,
    )


def first_reaching(x: Sequence[float], y: Sequence[float], level: float) -> float | None:
    """The x at which y, taken as rising, first reaches the level: by a straight line in log x. None if never.

    Below the first x nothing was measured, so a level that is reached there gives that x: an upper bound.

    >>> round(first_reaching([1, 2, 4], [0.5, 0.6, 0.7], 0.65), 4), first_reaching([1, 2], [0.5, 0.6], 0.7)
    (2.8284, None)
    """
    best, left = -1.0, None
    for right, value in zip(x, y, strict=True):
        if value >= level:
            if left is None or value == best:
                return float(right)
            share = (level - best) / (value - best)
            return exp(log(left) + share * (log(right) - log(left)))
        if value >= best:
            best, left = value, right
    return None


def spread(values: Sequence[float]) -> str:
    """Median, least and greatest, as text.

    >>> spread([0.7, 0.8, 0.75])
    '.750 (.700 to .800)'
    """
    low, middle, high = min(values), median(values), max(values)
    return f"{points(middle)} ({points(low)} to {points(high)})"


def points(value: float) -> str:
    """Three digits of an accuracy."""
    return f"{value:.3f}".removeprefix("0") if value < 1 else f"{value:.3f}"


def differences(a: Sequence[float], b: Sequence[float]) -> float:
    """The median difference between two methods on the same test sets."""
    return median([left - right for left, right in zip(a, b, strict=True)])
