"""Many transcripts at once, for bounds that need a million trials.

The target is alone. Admission uses the mechanism's own `count`. Settling is written again here, because K differs in
every trial, and `settle` of the mechanism handles one query at a time. `tests/lab/audits` runs both with the same
noise. It checks that charges and labels are exactly the same, and losses the same up to rounding.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.special import log_ndtr

from indknn.core import mechanism
from indknn.core.accounting import UNIT, to_units
from indknn.core.mechanism import MIN_K
from indknn.settings import Settings
from indknn.types import GRID, FloatArray, IntArray

_SLACK = 1.0 + 2.0**-32  # as in charge_units

Draw = Callable[[FloatArray, int], IntArray]
"""A function that draws rounded normals of shape (trials, size), with one scale per trial."""


@dataclass(frozen=True)
class Shot:
    """One query: how many of the target's records it selects, and their votes in grid units."""

    m: int
    votes: tuple[int, ...]


@dataclass(frozen=True)
class Run:
    """The transcripts: losses if votes are seen, losses if only labels are seen, labels, and what was spent."""

    votes_loss: FloatArray
    labels_loss: FloatArray
    labels: IntArray
    spent: IntArray


def simulate(settings: Settings, shots: list[Shot], present: bool, trials: int, draw: Draw) -> Run:
    """Run Algorithm 3 with a lone target and two labels, `trials` times in parallel."""
    assert settings.tau is not None
    plan, budget = settings.plan(settings.tau), to_units(settings.budget)
    spent = np.zeros(trials, dtype=np.int64)
    votes_loss, labels_loss, labels = np.zeros(trials), np.zeros(trials), np.zeros((trials, len(shots)), dtype=np.int64)
    everyone = np.arange(trials)
    scale1 = np.full(trials, float(plan.scale1))
    for t, shot in enumerate(shots):
        who = mechanism.Group(everyone, np.full(trials, shot.m), everyone[:0], everyone[:0], everyone[:0])
        counted = mechanism.count(who, budget - spent, plan)
        m = np.zeros(trials, dtype=np.int64)
        m[counted.group.owners] = shot.m * GRID
        spent[counted.group.owners] += counted.charges
        raw = present * m + draw(scale1, 1)[:, 0]
        K = np.maximum(raw, MIN_K * GRID)
        scale2 = _scale2(plan.sigma2, K)
        vote = np.where(m[:, None] > 0, np.array(shot.votes), 0)
        vote, charges = _settle(vote, budget - spent, scale2)
        spent += charges
        scores = present * vote + draw(scale2, plan.n_classes)
        labels[:, t] = np.argmax(scores, axis=1)
        counts_loss = _loss(raw[:, None], m[:, None], scale1)
        votes_loss += counts_loss + _loss(scores, vote, scale2)
        gap = (vote[:, 1] - vote[:, 0]) / (scale2 * np.sqrt(2.0)) * (2 * labels[:, t] - 1)
        labels_loss += counts_loss + log_ndtr(gap) - np.log(0.5)
    return Run(votes_loss, labels_loss, labels, spent)


def random_draw(rng: np.random.Generator) -> Draw:
    """Ordinary seeded noise."""
    return lambda scale, size: np.rint(rng.standard_normal((len(scale), size)) * scale[:, None]).astype(np.int64)


def _scale2(sigma2: float, K: IntArray) -> FloatArray:
    """`Plan.scale2` for many K: the square root, rounded up."""
    square = (sigma2 * sigma2) * GRID * K.astype(np.float64)
    root = np.floor(np.sqrt(square))
    result: FloatArray = np.where(root * root >= square, root, root + 1.0)
    return result


def _settle(vote: IntArray, remaining: IntArray, scale: FloatArray) -> tuple[IntArray, IntArray]:
    """`mechanism.settle` for many trials, each with its own scale."""
    squared = (vote.astype(np.float64) * vote).sum(axis=1)
    double = 2.0 * scale * scale
    limit = np.maximum(remaining - 1, 0).astype(np.float64) * (double / UNIT) / (_SLACK * _SLACK)
    shrink = np.sqrt(np.minimum(1.0, limit / np.maximum(squared, 1.0)))[:, None]
    vote = np.where(shrink < 1.0, np.floor(vote * shrink), vote).astype(np.int64)
    squared = (vote.astype(np.float64) * vote).sum(axis=1)
    return vote, np.ceil(squared * (UNIT / double * _SLACK)).astype(np.int64)


def _loss(x: IntArray, shift: IntArray, scale: FloatArray) -> FloatArray:
    a, d = x / scale[:, None], shift / scale[:, None]
    result: FloatArray = (a * d - d * d / 2.0).sum(axis=1)
    return result
