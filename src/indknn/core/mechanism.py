"""Algorithm 3 of the paper (Ind-KNN), with owners who may hold several records. Pure functions over arrays.

One query runs through this file from top to bottom. Line numbers are the paper's; with one record per owner
it is the paper's algorithm to the letter.

    group          who is near, with how many records m_o and which votes F_o
    count          line 4   those who can pay for being counted take part; line 7: what that costs
    noisy_count    line 5   K = Σ m_o + N(0, σ1²)
    settle         line 8   votes clipped to what each can still pay; line 9: what that costs
    noisy_answer   line 11  a = argmax(Σ F_o + N(0, σ2²·K·I))

`count` and `settle` see private data and return only sums and charges; the noisy functions see only sums.
So many shards can run the former apart and one place the latter. Nothing here branches on whether anybody
is near: an empty neighbourhood takes the same path with the same noise (rule 3).

All votes, counts and noise are integers on the grid of `types.GRID`; all charges are integer ledger units,
rounded up, for the noise that is really drawn.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from math import isfinite, isqrt
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from indknn.core.accounting import MAX_UNITS, UNIT
from indknn.core.noise import Noise
from indknn.core.quantise import as_int64, load_native
from indknn.errors import InvalidInputError
from indknn.types import GRID, BoolArray, FloatArray, IntArray

_votes = load_native("indknn.core._votes")
Columns: TypeAlias = tuple[Any, ...]
"""What is left to some people, as the C code reads it (`MemoryLedger.columns`)."""
_CHARGE_SLACK = 1.0 + 2.0**-32
"""Covers the rounding of float64 in sums of squares and in charges, so that a charge is never below the exact one."""

MIN_K = 30
"""The paper's lower limit for the noisy count K (see its appendix). It is applied after the release, so it is free."""


Ballot: TypeAlias = Literal["class", "number", "residual"]
"""What a record adds to the sums of a query. With its kernel value κ: κ in the column of its class; (κ/4, κ·y) for a
number y in [-1, 1]; or κ·r, for what a released model gets wrong about it, r in [-1, 1]."""
COLUMNS = {"number": 2, "residual": 1}
MASS = 4
"""A record's own weight is divided by this in a ballot about numbers. It costs as much as a number of 1/MASS."""

MAX_SIGMA1, MAX_SIGMA2 = 2.0**30, 2.0**20
"""Far larger than useful, and small enough that every draw of noise on the grid fits into 63 bits."""


@dataclass(frozen=True)
class Plan:
    """The public parameters of Algorithm 3, fixed before the first query.

    The noise scales that are drawn are integers on the grid, rounded *up* from the real numbers here. Charges are
    computed from what is drawn. So rounding can cost accuracy but never privacy.

    >>> plan = Plan(tau=0.5, sigma1=2.0, sigma2=0.5, n_classes=3)
    >>> plan.scale1 == 2 * GRID
    True
    """

    tau: float
    sigma1: float
    sigma2: float
    n_classes: int
    max_records_per_query: int | None = None
    contrast: bool = False
    """Charge votes by |P F|, with P = I - 11ᵀ/c. This is valid while only the argmax or P times the noisy votes leaves.
    """
    ballot: Ballot = "class"
    centre: int = 0
    """Ballots with a number are about how far it is from here, in units of 1/GRID. It follows from releases."""

    def __post_init__(self) -> None:
        """Refuse values with which the mechanism would be meaningless."""
        for name in ("tau", "sigma1", "sigma2"):
            value = getattr(self, name)
            if not (isfinite(value) and value > 0):
                raise InvalidInputError(f"{name} must be a positive finite number, got {value!r}")
        for name, most in (("sigma1", MAX_SIGMA1), ("sigma2", MAX_SIGMA2)):
            if getattr(self, name) > most:
                raise InvalidInputError(f"{name} must be at most {most:g}, got {getattr(self, name)!r}")
        if self.tau > 1:
            raise InvalidInputError(f"tau must be in (0, 1], got {self.tau!r}")
        if self.n_classes < 1:
            raise InvalidInputError(f"n_classes must be at least 1, got {self.n_classes!r}")
        if self.n_classes != COLUMNS.get(self.ballot, self.n_classes) or (self.contrast and self.ballot != "class"):
            raise InvalidInputError(f"a ballot of kind {self.ballot!r} has {COLUMNS[self.ballot]} columns, no contrast")
        cap = self.max_records_per_query
        if cap is not None and cap < 1:
            raise InvalidInputError(f"max_records_per_query must be None or at least 1, got {cap!r}")

    @cached_property
    def scale1(self) -> int:
        """σ1 on the grid, rounded up."""
        return ceil_sqrt(*_squared(self.sigma1))

    def scale2(self, K: int) -> int:
        """σ2·sqrt(K) on the grid, rounded up: the noise on the votes, for a released K in grid units."""
        return _scale2(self.sigma2, K)

    def with_sigma2(self, sigma2: float) -> Plan:
        """The same plan with this noise on votes, in a third of the time that `replace` takes."""
        if not 0.0 < sigma2 <= MAX_SIGMA2:
            return replace(self, sigma2=sigma2)  # refuses it
        other = object.__new__(Plan)
        other.__dict__.update(self.__dict__, sigma2=sigma2)
        return other


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
        """The same group without the owners who do not take part."""
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
    """Lines 4 and 7: who takes part, how many records they have together, and the charge of each for being counted."""

    group: Group
    total: int
    charges: IntArray


@dataclass(frozen=True)
class Settlement:
    """Lines 8 and 9: the sum of the clipped votes per class, and the charge of each participant for voting."""

    votes: IntArray
    charges: IntArray


def group(owners: IntArray, label: IntArray, kappa: IntArray, plan: Plan) -> Group:
    """The selected records by owner: the indicators of line 5 and the κ·y of line 8.

    `label` is the class of each record, or its number or residual in units of 1/GRID.
    """
    names, who, m = owners, np.arange(len(owners)), np.ones_like(owners)
    if not (owners[1:] > owners[:-1]).all():  # otherwise one record each and already in order, as in most stores
        # Nearest first within an owner, so that a cap on records per query keeps each owner's own nearest ones.
        order = np.lexsort((label, -kappa, owners))
        owners, label, kappa = owners[order], label[order], kappa[order]
        names, start, m = np.unique(owners, return_index=True, return_counts=True)
        who = np.repeat(np.arange(len(names)), m)
        if plan.max_records_per_query is not None:
            top = np.arange(len(owners)) - start[who] < plan.max_records_per_query
            who, label, kappa = who[top], label[top], kappa[top]
            m = np.minimum(m, plan.max_records_per_query)
    if plan.ballot != "class":
        return _sums_of_numbers(names, m, who, label, kappa, plan)
    if len(who) == len(names):  # one record each
        return Group(names, m, who, label, kappa)
    cell, entry = np.unique(who * plan.n_classes + label, return_inverse=True)
    vote = np.bincount(entry, weights=kappa, minlength=len(cell))  # exact: integers far below 2^53
    return Group(names, m, cell // plan.n_classes, cell % plan.n_classes, vote.astype(np.int64))


def _sums_of_numbers(names: IntArray, m: IntArray, who: IntArray, y: IntArray, kappa: IntArray, plan: Plan) -> Group:
    """One entry for each owner and column, in the order of the owners. Products are cut towards zero to the grid."""
    parts = [np.trunc(kappa * y / GRID)] if plan.ballot == "residual" else [kappa // MASS, np.trunc(kappa * y / GRID)]
    sums = np.stack([np.bincount(who, weights=part, minlength=len(names)) for part in parts], axis=1)
    everyone, column = np.divmod(np.arange(sums.size), len(parts))
    return Group(names, m, everyone, column, sums.ravel().astype(np.int64))


def count(group: Group, remaining: IntArray, plan: Plan) -> Count:
    """Lines 4 and 7: an owner takes part if their budget covers m²/(2σ1²), and is charged exactly that."""
    if _votes is not None:
        charges, per_square = np.empty_like(remaining), charge_rate(plan.scale1)
        able, total = _votes.count(*map(as_int64, (group.m, remaining)), charges, GRID, per_square, MAX_UNITS)
        if able:
            return Count(group, total, charges)
    shift = group.m.astype(np.float64) * GRID
    charges = charge_units(shift * shift, plan.scale1)
    able = remaining >= charges
    participants = group.only(able)
    return Count(participants, int(participants.m.sum()), charges[able])


def noisy_count(total: int, plan: Plan, noise: Noise) -> int:
    """Line 5: release K, in grid units, then raise it to at least 30, which is post-processing."""
    released = total * GRID + int(noise.draw(plan.scale1, 1)[0])
    return max(released, MIN_K * GRID)


def settle(group: Group, remaining: IntArray, K: int, plan: Plan) -> Settlement:
    """Lines 8 and 9: scale each F_o down to |F_o| <= σ2·sqrt(2·K·z_o), and charge |F_o|²/(2·σ2²·K).

    `remaining` is what the participants have left after they were counted.
    """
    scale = plan.scale2(K)
    if _votes is not None:
        return _settle_in_one_pass(group, remaining, scale, plan)
    whole, limit = group.entry_vote, largest_squared_shift(remaining, scale)
    if plan.contrast:  # rounding votes down can lengthen P F by up to sqrt(c) grid units, and c/2 are added
        limit = np.maximum(np.sqrt(limit) - 2.0 * np.sqrt(plan.n_classes), 0.0) ** 2
    vote = _clip(group, whole, _squared_norms(group, whole, plan), limit)
    return _settled(group, vote, charge_units(_squared_norms(group, vote, plan), scale), remaining, plan)


def noisy_votes(votes: IntArray, K: int, plan: Plan, noise: Noise) -> IntArray:
    """Line 11 before the argmax: Σ F_o + N(0, σ2²·K·I)."""
    return votes + noise.draw(plan.scale2(K), plan.n_classes)


def noisy_answer(votes: IntArray, K: int, plan: Plan, noise: Noise) -> tuple[int, IntArray]:
    """Line 11: the label with the largest noisy vote, and the noisy votes. The charge for |F_o| covers all of them."""
    noisy = noisy_votes(votes, K, plan, noise)
    return int(np.argmax(noisy)), noisy


def centred(noisy: IntArray) -> IntArray:
    """P times the noisy votes, in units of 1/(c·GRID), which makes them whole numbers.

    This may leave besides the argmax.
    """
    return np.asarray(len(noisy) * noisy - noisy.sum(), dtype=np.int64)


def charge_units(squared_shift: FloatArray, scale: int) -> IntArray:
    """ρ = Δ²/2s² in ledger units, rounded up, for shifts and a noise scale in the same grid units.

    `squared_shift` are float64 sums of squares of integers. The slack covers every rounding in them and in
    this function, so the result is never below the exact charge.

    >>> charge_units(np.array([0.0, 1.0]), 1).tolist() == [0, UNIT // 2 + 2**17]
    True
    """
    units = np.ceil(squared_shift * charge_rate(scale))
    return np.minimum(units, float(MAX_UNITS)).astype(np.int64)


def charge_rate(scale: int) -> float:
    """Units of the ledger for a squared shift of 1, with the slack."""
    return UNIT / (2.0 * float(scale) * float(scale)) * _CHARGE_SLACK


def largest_squared_shift(units: IntArray, scale: int) -> FloatArray:
    """The largest Δ² whose charge at noise `scale` is sure to fit into `units`: the clip of line 8.

    >>> B = np.array([UNIT // 7])
    >>> bool(charge_units(largest_squared_shift(B, 1 << 20), 1 << 20)[0] <= B[0])
    True
    """
    room = np.maximum(units - 1, 0).astype(np.float64)  # minus the unit that rounding up may take
    result: FloatArray = room * (2.0 * float(scale) * float(scale) / UNIT) / (_CHARGE_SLACK * _CHARGE_SLACK)
    return result


def _clip(group: Group, vote: IntArray, squared: FloatArray, limit: FloatArray) -> IntArray:
    """The votes. If an owner's squared size is above the limit, their votes are scaled down to it."""
    shrink = np.sqrt(np.minimum(1.0, limit / np.maximum(squared, 1.0)))[group.entry_owner]  # sizes are integers
    return np.where(shrink < 1.0, np.trunc(vote * shrink), vote).astype(np.int64)


def _settled(group: Group, vote: IntArray, charges: IntArray, remaining: IntArray, plan: Plan) -> Settlement:
    # The limit of the clip leaves room for every rounding, so everybody can pay. If that were ever wrong, the vote
    # would be dropped and the limit kept. This depends only on the owner's own ledger.
    able = charges <= remaining
    vote = vote * able[group.entry_owner]
    votes = np.bincount(group.entry_label, weights=vote, minlength=plan.n_classes)
    return Settlement(votes.astype(np.int64), charges * able)


def _squared_norms(group: Group, vote: IntArray, plan: Plan) -> FloatArray:
    """|F_o|², or with the contrast charge |P F_o|² = |F_o|² - (Σ F_o)²/c."""
    squares = vote.astype(np.float64) * vote
    norms, totals = squares, vote.astype(np.float64)
    if len(vote) != len(group.owners):  # otherwise there is one entry each, in the order of the owners
        norms = np.bincount(group.entry_owner, squares, minlength=len(group.owners)).astype(np.float64)
        totals = np.bincount(group.entry_owner, totals, minlength=len(group.owners)).astype(np.float64)
    if not plan.contrast:
        return norms
    # This is a difference of two rounded numbers. The slack of `charge_units` does not cover its error, and norms *
    # 2^-46 does. Also, noise is rounded to the grid before the common part is removed, and the common part can move
    # only by whole units. So the shift is F - t for the best integer t, and its square is at most |P F|² + c/4.
    rounded = (norms > 0.0) * (plan.n_classes // 2)
    return np.maximum(norms - totals * totals / plan.n_classes, 0.0) + norms * 2.0**-46 + rounded


def _settle_in_one_pass(group: Group, remaining: IntArray, scale: int, plan: Plan) -> Settlement:
    """The same result as `settle`, to the bit, computed in C."""
    votes, charges = np.zeros(plan.n_classes, dtype=np.int64), np.zeros(len(remaining), dtype=np.int64)
    who = as_int64(group.entry_owner) if len(group.entry_vote) != len(group.owners) else b""
    arrays = map(as_int64, (group.entry_label, group.entry_vote, remaining))
    _votes.settle(who, *arrays, votes, charges, plan.contrast, *_rates(scale))
    return Settlement(votes, charges)


def _rates(scale: int) -> tuple[float, float, float, int]:
    """What C needs to know about the noise on votes."""
    return charge_rate(scale), 2.0 * float(scale) * float(scale) / UNIT, _CHARGE_SLACK * _CHARGE_SLACK, MAX_UNITS


# The same on the columns of a ledger, in C: what is left is looked up and what is due is charged in the same pass.


def count_and_charge(group: Group, columns: Columns, plan: Plan) -> Count | None:
    """`count`, charged. None if it was not done."""
    if _votes is None:
        return None
    charges, able = np.empty(len(group.owners), dtype=np.int64), np.empty(len(group.owners), dtype=np.bool_)
    prices = GRID, charge_rate(plan.scale1), MAX_UNITS
    done, total, payers = _votes.pay(*columns, as_int64(group.m), charges, able, *prices)
    if not done:
        return None
    return Count(group, total, charges) if payers == len(able) else Count(group.only(able), total, charges[able])


def settle_and_charge(
    group: Group, columns: Columns, queries: npt.NDArray[np.int32], K: int, plan: Plan
) -> Settlement | None:
    """`settle`, charged, where everybody has one entry. `queries` are counted up. None if it was not done."""
    if _votes is None or len(group.entry_vote) != len(group.owners):
        return None
    votes, charges = np.zeros(plan.n_classes, dtype=np.int64), np.empty(len(group.owners), dtype=np.int64)
    entries = as_int64(group.entry_label), as_int64(group.entry_vote)
    done = _votes.vote(*columns, *entries, votes, charges, queries, plan.contrast, *_rates(plan.scale2(K)))
    return Settlement(votes, charges) if done else None


def _squared(sigma: float) -> tuple[int, int]:
    """(σ·GRID)² as an exact fraction. A float is already a fraction."""
    num, den = float(sigma).as_integer_ratio()
    return (num * GRID) ** 2, den**2


@lru_cache(maxsize=64)  # it is needed a few times for each answer
def _scale2(sigma2: float, K: int) -> int:
    num, den = _squared(sigma2)
    return ceil_sqrt(num * K, den * GRID)


def ceil_sqrt(num: int, den: int) -> int:
    """The smallest integer s with s² >= num/den.

    >>> ceil_sqrt(16, 1), ceil_sqrt(17, 1), ceil_sqrt(1, 2)
    (4, 5, 1)
    """
    ceiling = -(-num // den)
    return isqrt(ceiling - 1) + 1 if ceiling > 0 else 0
