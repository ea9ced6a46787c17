"""From noisy sums to a number: the counterpart of Algorithm 3's argmax.

The sums are W = Σ κ/4 and S = Σ κ·(y - c) over the people near a query, with noise that is known. Their ratio is drawn
towards the mean of all numbers, as far as noise could explain the difference. That mean is asked of everybody first, in
a few questions that are paid for like any other, until it is known well. It is then the centre c, so that people pay
for how far they are from it, and noise on W matters little. Everything in here is post-processing.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import sqrt

import numpy as np

from indknn.core.mechanism import MASS
from indknn.types import GRID, FloatArray, IntArray

_USUAL, _QUERIES = 0.02, 32.0
"""The variance of the local means around the common one that is expected at first, and how many queries it counts for.
"""
_LEAST = 1e-4
_CHANCE = 2.0  # standard deviations
_PRIOR = 1.0 / 3.0  # the variance of the common mean, before anything is known
FIRST_SHARE, MOST_QUESTIONS = 0.01, 6
"""What the first question to everybody costs somebody whose number is of usual size, as a share of their budget. Each
further question costs twice as much. There are at most so many, which is .63 of the budget in all."""
KNOWN = 1.6e-4
"""Everybody is asked until the variance of the mean is below this. With 2.5e-4, answers to queries of which only noise
is known were below a private mean on held-out training records of made-up linear, correlated and Friedman's tables.
With 1e-4, less was left for the votes of more people."""


@dataclass
class LocalMean:
    """The sums that one analyst was told: S, M = 4·W, S², S·M, M² and the variance of the noise on S."""

    _told: FloatArray = field(default_factory=lambda: np.zeros(6))
    _queries: int = 0
    _everybody: FloatArray = field(default_factory=lambda: np.zeros(3))
    """S, M and 1, each over the variance of the noise, of the questions to everybody."""
    _questions: int = 0
    centre: int = 0
    """What sums are relative to from now on, in units of 1/GRID."""

    def due(self, paced: float = 1.0) -> float | None:
        """The share of a budget that the next question to everybody costs. None if the mean is known well enough.

        `paced` is the share of all budgets that may be used by now.
        """
        share = FIRST_SHARE * 2**self._questions
        known = self._questions >= MOST_QUESTIONS or self._mean()[1] <= KNOWN
        return None if known or 2.0 * share - FIRST_SHARE > paced else share

    def note_everybody(self, sums: IntArray, scale: int) -> None:
        """Note the noisy sums over everybody, in which each person counts once."""
        S, M, *_, noise = _terms(sums, scale).tolist()
        self._everybody, self._questions = self._everybody + np.array([S, M, 1.0]) / noise, self._questions + 1
        self._move(round(self._mean()[0] * GRID))

    def _move(self, units: int) -> None:
        """Move the centre. The sums so far become relative to the new one, with the noise that this adds."""
        moved = (min(max(self.centre + units, -GRID), GRID) - self.centre) / GRID
        self.centre += round(moved * GRID)
        S, M, weight = self._everybody.tolist()
        self._everybody = np.array([S - moved * M, M, weight]) / (1.0 + MASS**2 * moved**2)
        S, M, SS, SM, MM, noise = self._told.tolist()
        SS, SM = SS - 2.0 * moved * SM + moved * moved * MM, SM - moved * MM
        self._told = np.array([S - moved * M, M, SS, SM, MM, noise * (1.0 + MASS**2 * moved**2)])

    def note(self, sums: IntArray, scale: int) -> None:
        """Note the noisy sums of a query, and the scale of their noise."""
        self._told, self._queries = self._told + _terms(sums, scale), self._queries + 1

    def answer(self, sums: IntArray, scale: int) -> float:
        """The number for a query with these sums, which were not noted yet."""
        own = _terms(sums, scale)
        S, M, SS, SM, MM, noise = (self._told + own).tolist()
        n = self._queries + 1
        usual = max(M * M - MASS**2 * noise, 0.0) / (n * n) if M > 0.0 else 0.0  # the square of a usual M
        # The common mean: of everybody, and of what was told about queries, each by what is known about it.
        mean, chance = self._mean()
        here, here_chance = _ratio(S, M, noise)
        here_chance += _USUAL / n
        mean = (mean * here_chance + here * chance) / (chance + here_chance)
        # How much local means vary around it. What noise could explain does not count.
        factor = 1.0 + MASS**2 * mean * mean
        apart = (SS - 2.0 * mean * SM + mean * mean * MM - factor * noise * (1.0 + _CHANCE * sqrt(2.0 / n))) / n
        prior = _QUERIES * usual
        variance = (n * max(apart, 0.0) + prior * _USUAL) / max(n * usual + prior, 1e-300)
        variance = min(max(variance, _LEAST), 1.0)
        # This query.
        S, M, noise = own[0], own[1], own[5]
        near = sqrt(usual)
        M = near + max(usual / (usual + MASS**2 * noise), _LEAST) * (M - near)
        away = (S - mean * M) * max(M, 0.0) / (M * M + factor * noise / variance)
        return float(min(max(self.centre / GRID + mean + away, -1.0), 1.0))

    def _mean(self) -> tuple[float, float]:
        """The mean of all numbers by the questions to everybody, relative to the centre, and its variance."""
        S, M, weight = self._everybody.tolist()
        return _ratio(S / weight, M / weight, 1.0 / weight) if weight else (0.0, _PRIOR)


def _ratio(S: float, M: float, noise: float) -> tuple[float, float]:
    """S/M, drawn towards 0 by its known noise, and its variance. The noise on M is MASS times that on S."""
    M = max(M, 0.0)
    mean = min(max(S * M / (M * M + noise / _PRIOR), -1.0), 1.0)
    factor = 1.0 + MASS**2 * mean * mean
    return mean, 1.0 / (1.0 / _PRIOR + M * M / (factor * noise))


def _terms(sums: IntArray, scale: int) -> FloatArray:
    M, S, noise = MASS * float(sums[0]) / GRID, float(sums[1]) / GRID, scale / GRID
    return np.array([S, M, S * S, S * M, M * M, noise * noise])
