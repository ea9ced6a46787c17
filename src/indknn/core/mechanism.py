"""Algorithm 3 of the paper (Ind-KNN), with owners who may hold several records. Pure functions over arrays.

One query runs through this file from top to bottom. Line numbers are the paper's; with one record per owner
it is the paper's algorithm to the letter.

    group          who is near, with how many records m_o and which votes F_o
    count          line 4   those who can pay for being counted take part; line 7: what that costs
    noisy_count    line 5   K = Σ m_o + N(0, σ1²)
    settle         line 8   votes clipped to what each can still pay; line 9: what that costs
    noisy_argmax   line 11  a = argmax(Σ F_o + N(0, σ2²·K·I))

`count` and `settle` see private data and return only sums and charges; the noisy functions see only sums.
So many shards can run the former apart and one place the latter. Nothing here branches on whether anybody
is near: an empty neighbourhood takes the same path with the same noise (rule 3).

All votes, counts and noise are integers on the grid of `types.GRID`; all charges are integer ledger units,
rounded up, for the noise that is really drawn.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from indknn.core.accounting import charge_units, largest_squared_shift
from indknn.core.noise import Noise
from indknn.types import GRID, MIN_K, BoolArray, FloatArray, IntArray, Neighbours, Plan


@dataclass(frozen=True)
class Group:
    """The neighbours by owner: m records each, and their votes as (owner, label, Σκ) entries.

    `entry_owner` are positions in `owners`, not owner slots.
    """

    owners: IntArray
    m: IntArray
    entry_owner: IntArray
    entry_label: IntArray
    entry_vote: IntArray

    def only(self, keep: BoolArray) -> Group:
        """The same without the owners that do not take part."""
        if keep.all():
            return self
        position = np.cumsum(keep) - 1
        entries = keep[self.entry_owner]
        return Group(
            self.owners[keep],
            self.m[keep],
            position[self.entry_owner[entries]],
            self.entry_label[entries],
            self.entry_vote[entries],
        )


@dataclass(frozen=True)
class Count:
    """Line 4 and 7: who takes part, how many records that makes, and what being counted costs each."""

    group: Group
    total: int
    charges: IntArray


@dataclass(frozen=True)
class Settlement:
    """Line 8 and 9: the sum of the clipped votes per class, and what voting costs each participant."""

    votes: IntArray
    charges: IntArray


def group(neighbours: Neighbours, plan: Plan) -> Group:
    """Line 5's indicator and line 8's κ·y, gathered by owner."""
    owners, label, kappa = neighbours.owners, neighbours.labels, neighbours.kappa
    if (owners[1:] > owners[:-1]).all():  # one record each, in order already: the usual store
        everyone = np.arange(len(owners))
        return Group(owners, np.ones_like(owners), everyone, label, kappa)
    # Nearest first within an owner, so that a cap on records per query keeps the owner's own top ones.
    order = np.lexsort((label, -kappa, owners))
    owners, label, kappa = owners[order], label[order], kappa[order]
    names, start, m = np.unique(owners, return_index=True, return_counts=True)
    who = np.repeat(np.arange(len(names)), m)
    if plan.max_records_per_query is not None:
        top = np.arange(len(owners)) - start[who] < plan.max_records_per_query
        who, label, kappa = who[top], label[top], kappa[top]
        m = np.minimum(m, plan.max_records_per_query)
    if len(who) == len(names):  # one record each
        return Group(names, m, who, label, kappa)
    cell, entry = np.unique(who * plan.n_classes + label, return_inverse=True)
    vote = np.bincount(entry, weights=kappa, minlength=len(cell))  # exact: integers far below 2^53
    return Group(names, m, cell // plan.n_classes, cell % plan.n_classes, vote.astype(np.int64))


def count(group: Group, remaining: IntArray, plan: Plan) -> Count:
    """Lines 4 and 7: an owner takes part if its budget covers m²/(2σ1²), and is charged just that."""
    shift = group.m.astype(np.float64) * GRID
    charges = charge_units(shift * shift, plan.scale1)
    able = remaining >= charges
    participants = group.only(able)
    return Count(participants, int(participants.m.sum()), charges[able])


def noisy_count(total: int, plan: Plan, noise: Noise) -> int:
    """Line 5: release K, in grid units, then lift it to at least 30, which is post-processing."""
    released = total * GRID + int(noise.draw(plan.scale1, 1)[0])
    return max(released, MIN_K * GRID)


def settle(group: Group, remaining: IntArray, K: int, plan: Plan) -> Settlement:
    """Lines 8 and 9: scale each F_o down to |F_o| <= σ2·sqrt(2·K·z_o), and charge |F_o|²/(2·σ2²·K).

    `remaining` is what the participants have left after they were counted.
    """
    scale = plan.scale2(K)
    whole, limit = group.entry_vote, largest_squared_shift(remaining, scale)
    if plan.contrast:  # rounding votes down can lengthen P F by up to sqrt(c) units of the grid; and c/2 are added
        limit = np.maximum(np.sqrt(limit) - 2.0 * np.sqrt(plan.n_classes), 0.0) ** 2
    vote = _clip(group, whole, _squared_norms(group, whole, plan), limit)
    return _settled(group, vote, charge_units(_squared_norms(group, vote, plan), scale), remaining, plan)


def noisy_votes(votes: IntArray, K: int, plan: Plan, noise: Noise) -> IntArray:
    """Line 11 before the argmax: Σ F_o + N(0, σ2²·K·I)."""
    return votes + noise.draw(plan.scale2(K), plan.n_classes)


def noisy_argmax(votes: IntArray, K: int, plan: Plan, noise: Noise) -> int:
    """Line 11: the label with the largest noisy vote."""
    return int(np.argmax(noisy_votes(votes, K, plan, noise)))


def centred(noisy: IntArray) -> IntArray:
    """P times the noisy votes, in units of 1/(c·GRID), where it is whole: what may leave besides the argmax."""
    return np.asarray(len(noisy) * noisy - noisy.sum(), dtype=np.int64)


def _clip(group: Group, vote: IntArray, squared: FloatArray, limit: FloatArray) -> IntArray:
    """The votes, where their squared size is above the owner's limit scaled down to it."""
    shrink = np.sqrt(np.minimum(1.0, limit / np.maximum(squared, 1.0)))[group.entry_owner]  # sizes are integers
    return np.where(shrink < 1.0, np.floor(vote * shrink), vote).astype(np.int64)


def _settled(group: Group, vote: IntArray, charges: IntArray, remaining: IntArray, plan: Plan) -> Settlement:
    # The limit of the clip leaves room for every rounding, so all can pay. Were that ever wrong, the
    # vote would go, not the limit: it depends on this owner's own ledger only.
    able = charges <= remaining
    vote = vote * able[group.entry_owner]
    votes = np.bincount(group.entry_label, weights=vote, minlength=plan.n_classes)
    return Settlement(votes.astype(np.int64), charges * able)


def _squared_norms(group: Group, vote: IntArray, plan: Plan) -> FloatArray:
    """|F_o|², or with the contrast charge |P F_o|² = |F_o|² - (Σ F_o)²/c."""
    squares = vote.astype(np.float64) * vote
    norms, totals = squares, vote.astype(np.float64)
    if len(vote) != len(group.owners):  # else one entry each, in the order of the owners
        norms = np.bincount(group.entry_owner, squares, minlength=len(group.owners)).astype(np.float64)
        totals = np.bincount(group.entry_owner, totals, minlength=len(group.owners)).astype(np.float64)
    if not plan.contrast:
        return norms
    # The difference of two rounded numbers: the slack of `charge_units` does not cover that, norms * 2^-46 does.
    # And noise is rounded to the grid before the common part goes, which is free to move by whole units only: the
    # shift is F - t for the best integer t, |P F|² and up to c/4 long.
    rounded = (norms > 0.0) * (plan.n_classes // 2)
    return np.maximum(norms - totals * totals / plan.n_classes, 0.0) + norms * 2.0**-46 + rounded
