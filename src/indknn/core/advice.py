"""Warnings for a curator who does something that is allowed but probably a mistake. Each is one line with advice.

The warnings depend on private records. They go to the person who adds the records, and never to analysts.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterable, Sequence
from math import sqrt
from typing import Any

import numpy as np
import numpy.typing as npt

from indknn.errors import PrivacyWarning
from indknn.types import FloatArray, IntArray

_FEWEST = 50
"""With fewer rows, nothing can be said about where they come from."""
_NEAR = 0.1
"""In standard errors. The means of other people's rows differ by about one. Only the mean of these same rows is this
close."""
_DOMINANT = 0.99
_FEATURES, _MOST = 5, 0.7
"""If there are at least this many features, and this share of their means is that close to zero, it is not by chance.
"""
_ROUNDING, _ENDS = 1e-9, 4
"""A feature with at most this many rows at 0 and at 1 is taken as continuous."""
_LARGE_DELTA = 0.01
_MANY = 200
"""This many equal answers are probably not by chance."""


def tell(found: Iterable[Warning]) -> None:
    """Issue each warning, at the line outside of this package that made the call."""
    level, frame = 2, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("indknn."):
        level, frame = level + 1, frame.f_back
    for one in found:
        warnings.warn(one, stacklevel=level)


def about_labels() -> list[Warning]:
    """A warning that the labels were taken from private records."""
    text = (
        "the label set was taken from the private labels, and a rare label may reveal a person: give classes yourself"
    )
    return [PrivacyWarning(text)]


def about_seed(seed: object) -> list[Warning]:
    """A warning that answers can be reproduced, and so are not private."""
    text = (
        f"random_state={seed!r} makes the noise reproducible: good for experiments, but the answers are not private. "
        "Use random_state=None for secure noise."
    )
    return [PrivacyWarning(text)]


def about_clones() -> list[Warning]:
    """A warning that several copies of an estimator are fitted to the same people."""
    text = (
        "every clone of this estimator starts with new budgets. If several are fitted to the same people, as by "
        "GridSearchCV or cross_val_score, the guarantees add up. Choose parameters on public rows instead: indknn tune"
    )
    return [PrivacyWarning(text)]


def about_parameters(delta: float, classes: Sequence[Any], expected: int | None = None) -> list[Warning]:
    """Warnings about public parameters, before anything is made. `expected` is how many people there will be.

    >>> [str(one) for one in about_parameters(0.5, ["ill"])]  # doctest: +NORMALIZE_WHITESPACE
    ['delta = 0.5 is a probability with which the guarantee may fail: make it much smaller than 1/n for n people',
     "there is one class, 'ill', so every answer is the same"]
    """
    found: list[Warning] = about_delta(delta, 0, expected or 0)
    if delta >= _LARGE_DELTA:
        text = f"delta = {delta:g} is a probability with which the guarantee may fail: make it much smaller than 1/n"
        found = [PrivacyWarning(f"{text} for n people")]
    if len(classes) == 1:
        found.append(UserWarning(f"there is one class, {str(classes[0])!r}, so every answer is the same"))
    return found


def about_delta(delta: float, before: int, now: int) -> list[Warning]:
    """A warning at the moment when the number of people reaches 1/delta.

    >>> [str(one) for one in about_delta(1e-3, 999, 1000)]
    ['delta = 0.001 is at least 1/n for n = 1,000 people: make it much smaller than 0.001']
    """
    if not before * delta < 1.0 <= now * delta:
        return []
    text = f"delta = {delta:g} is at least 1/n for n = {now:,} people: make it much smaller than {1 / now:.2g}"
    return [PrivacyWarning(text)]


def about_copies(copies: int, rows: int) -> list[Warning]:
    """A warning that some of the added rows were already there.

    >>> [str(one) for one in about_copies(12, 50)]
    ['12 of 50 rows are already here, byte for byte; give record ids to replace instead of add']
    """
    text = f"{copies:,} of {rows:,} rows are already here, byte for byte; give record ids to replace instead of add"
    return [UserWarning(text)] if copies else []


def about_bounds(cut: int, rows: int, bounds: tuple[float, float]) -> list[Warning]:
    """Numbers that were outside the bounds."""
    low, high = bounds
    return [PrivacyWarning(f"{cut:,} of {rows:,} numbers were outside the bounds {low:g} to {high:g}, and were cut")]


def about_answers(answers: Sequence[Any] | npt.NDArray[Any]) -> list[Warning]:
    """A warning that all answers are the same. The analyst sees the answers anyway.

    >>> [str(one) for one in about_answers(["no"] * 200)]
    ["all 200 answers are 'no': are the features scaled, are there enough records, and is tau not too high?"]
    """
    if len(answers) < _MANY or any(answer != answers[0] for answer in answers):
        return []
    hint = "are the features scaled, are there enough records, and is tau not too high?"
    return [UserWarning(f"all {len(answers):,} answers are {str(answers[0])!r}: {hint}")]


class Profile:
    """The mean and the spread of every feature, over rows that come in pieces."""

    def __init__(self) -> None:
        self._rows = 0
        self._sum: FloatArray = np.zeros(0)
        self._squares: FloatArray = np.zeros(0)
        self._within = True  # whether all values so far are between 0 and 1
        self._at_ends: IntArray = np.zeros((2, 0), dtype=np.int64)

    @np.errstate(all="ignore")  # rows whose squares overflow cause no warning
    def see(self, X: FloatArray) -> None:
        """Take in some rows. They must be finite and of one width."""
        if not self._rows:
            self._sum = self._squares = np.zeros(X.shape[1])
            self._at_ends = np.zeros((2, X.shape[1]), dtype=np.int64)
        self._rows += len(X)
        self._sum = self._sum + X.sum(axis=0)
        self._squares = self._squares + np.einsum("ij,ij->j", X, X)
        if self._within and len(X):
            ends = np.abs(X - 0.5) - 0.5  # 0 at both ends, and negative between them
            self._within = bool(ends.max() < _ROUNDING)
            if self._within:
                at_ends = np.stack([(X < _ROUNDING).sum(axis=0), (X > 1.0 - _ROUNDING).sum(axis=0)])
                self._at_ends = self._at_ends + at_ends

    @np.errstate(all="ignore")
    def advice(self, center: FloatArray | None) -> list[Warning]:
        """Warnings about these rows, given the center that is subtracted from them."""
        found: list[Warning] = []
        n = self._rows
        mean = self._sum / max(n, 1)
        spread = np.sqrt(np.maximum(self._squares / max(n, 1) - mean * mean, 0.0))
        live = spread > 1e-7 * np.abs(mean)  # the rounding errors of a constant feature are below that
        if n < _FEWEST or live.sum() < 2:
            return found
        error, mean_ = spread[live] / sqrt(n), mean[live]
        if center is not None and center.any() and _rms((center[live] - mean_) / error) < _NEAR:
            text = "center is the mean of the private rows, which leaks: use the mean of public rows"
            found.append(PrivacyWarning(text))
        if max(_rms(mean_ / error), _rms((spread[live] - 1.0) * sqrt(2 * n))) < _NEAR:
            text = "the features look standardised by the private rows, which leaks: scale by public constants"
            found.append(PrivacyWarning(text))
        elif live.sum() >= _FEATURES and np.mean(np.abs(mean_ / error) < _NEAR) > _MOST:
            text = "the features look centred by the private rows, which leaks: use constants from public rows"
            found.append(PrivacyWarning(text))
        elif self._looks_stretched():
            text = "each feature runs from 0 to 1, which leaks if these rows set the bounds: use public bounds"
            found.append(PrivacyWarning(text))
        middle = np.zeros(len(mean)) if center is None else center
        length = (mean - middle) ** 2 + spread**2
        if _DOMINANT < length.max() / length.sum() < 1.0:
            text = f"feature {int(length.argmax())} outweighs all others: scale the features by public constants"
            found.append(UserWarning(text))
        return found

    def _looks_stretched(self) -> bool:
        """Whether every continuous feature has a row at 0 and one at 1, as if it was scaled by its own range."""
        few = self._at_ends.sum(axis=0) <= _ENDS
        return self._within and few.sum() >= 2 and bool((self._at_ends[:, few] > 0).all())


def _rms(values: FloatArray) -> float:
    return sqrt(float((values * values).mean()))
