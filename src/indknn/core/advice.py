"""What a curator is told who does something that is allowed, but probably not meant: one line each, with what to do.

These lines depend on private records. They go to whoever adds the records, and never to those who query.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterable
from math import sqrt

import numpy as np

from indknn.errors import PrivacyWarning
from indknn.types import FloatArray

_FEWEST = 50
"""Fewer rows say nothing about where they come from."""
_NEAR = 0.1
"""In standard errors. Means of other people's rows differ by about one; only a mean of these very rows is as near."""
_DOMINANT = 0.99


def tell(found: Iterable[Warning]) -> None:
    """Warn of each, where the code outside of this package called."""
    level, frame = 2, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("indknn."):
        level, frame = level + 1, frame.f_back
    for one in found:
        warnings.warn(one, stacklevel=level)


def about_labels() -> list[Warning]:
    """The label set was not given."""
    text = "the label set was taken from the private labels, so a rare label tells of somebody: give classes yourself"
    return [PrivacyWarning(text)]


def about_delta(delta: float, before: int, now: int) -> list[Warning]:
    """Of so many people, when the last of them come.

    >>> [str(one) for one in about_delta(1e-3, 999, 1000)]
    ['delta = 0.001 is at least 1/n for n = 1,000 people: make it much smaller than 0.001']
    """
    if not before * delta < 1.0 <= now * delta:
        return []
    text = f"delta = {delta:g} is at least 1/n for n = {now:,} people: make it much smaller than {1 / now:.2g}"
    return [PrivacyWarning(text)]


def about_copies(copies: int, rows: int) -> list[Warning]:
    """Of rows that were added, so many had been here.

    >>> [str(one) for one in about_copies(12, 50)]
    ['12 of 50 rows are already here, byte for byte; give record ids to replace instead of add']
    """
    text = f"{copies:,} of {rows:,} rows are already here, byte for byte; give record ids to replace instead of add"
    return [UserWarning(text)] if copies else []


class Profile:
    """The mean and the spread of every feature, over rows that come in pieces."""

    def __init__(self) -> None:
        self._rows = 0
        self._sum: FloatArray = np.zeros(0)
        self._squares: FloatArray = np.zeros(0)

    @np.errstate(all="ignore")  # of rows so large that their squares are not numbers nothing is said
    def see(self, X: FloatArray) -> None:
        """Take in some rows; all are of one width and finite."""
        if not self._rows:
            self._sum = self._squares = np.zeros(X.shape[1])
        self._rows += len(X)
        self._sum = self._sum + X.sum(axis=0)
        self._squares = self._squares + np.einsum("ij,ij->j", X, X)

    @np.errstate(all="ignore")
    def advice(self, center: FloatArray | None) -> list[Warning]:
        """What the rows look like, given the center that is subtracted from them."""
        found: list[Warning] = []
        n = self._rows
        mean = self._sum / max(n, 1)
        spread = np.sqrt(np.maximum(self._squares / max(n, 1) - mean * mean, 0.0))
        live = spread > 1e-9 * np.abs(mean)
        if n < _FEWEST or live.sum() < 2:
            return found
        error, mean_ = spread[live] / sqrt(n), mean[live]
        if center is not None and center.any() and _rms((center[live] - mean_) / error) < _NEAR:
            text = "center is the mean of the private rows, which tells of them: use the mean of public rows"
            found.append(PrivacyWarning(text))
        if max(_rms(mean_ / error), _rms((spread[live] - 1.0) * sqrt(2 * n))) < _NEAR:
            text = "the features look standardised by the private rows, which tells of them: scale by public constants"
            found.append(PrivacyWarning(text))
        middle = np.zeros(len(mean)) if center is None else center
        length = (mean - middle) ** 2 + spread**2
        if _DOMINANT < length.max() / length.sum() < 1.0:
            text = f"feature {int(length.argmax())} outweighs all others: scale the features by public constants"
            found.append(UserWarning(text))
        return found


def _rms(values: FloatArray) -> float:
    return sqrt(float((values * values).mean()))
