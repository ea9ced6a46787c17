"""Mutants of the computation: noise, counts, votes, who takes part, sums over records, and models made from sums."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from indknn.answering.predictor import Predictor
from indknn.core import mechanism
from indknn.core.accounting import UNIT
from indknn.core.kernels import Cosine
from indknn.core.mechanism import MIN_K, Count, Group, Plan, Settlement, charge_units
from indknn.core.noise import SeededNoise
from indknn.core.quantise import quantise
from indknn.core.releases import Votes
from indknn.ledger import MemoryLedger, Scope
from indknn.records.indexes import make_index
from indknn.records.shard import Admitted, Shard
from indknn.types import GRID, IntArray, Selection, Vectors
from indknn_lab.audits.patches import Mutant, Replacement

IN_NUMPY: Replacement = (mechanism, "_votes", None)
"""Switches off the C code, for mutants inside functions that C does in one pass."""


def _empty_is_zero() -> list[Replacement]:
    original = mechanism.noisy_answer
    return [(mechanism, "noisy_answer", lambda votes, *rest: original(votes, *rest) if votes.any() else (0, votes))]


def _any_budget_left() -> list[Replacement]:
    def count(group: Group, remaining: IntArray, plan: Plan) -> Count:
        part = group.only(remaining > 0)
        return Count(part, int(part.m.sum()), charge_units(part.m.astype(np.float64) ** 2 * GRID**2, plan.scale1))

    def charge(self: MemoryLedger, slots: IntArray, units: IntArray, scope: Scope, **_: Any) -> None:
        self._in(scope)[slots] += units

    return [IN_NUMPY, (mechanism, "count", count), (MemoryLedger, "charge", charge)]


def _whole(group: Group, charges: IntArray, plan: Plan) -> Settlement:
    """Votes are not reduced, whatever they cost."""
    votes = np.bincount(group.entry_label, weights=group.entry_vote, minlength=plan.n_classes)
    return Settlement(votes.astype(np.int64), charges)


def _squares(group: Group) -> Any:
    return np.bincount(group.entry_owner, group.entry_vote.astype(float) ** 2, minlength=len(group.owners))


def _unclipped() -> list[Replacement]:
    def settle(group: Group, remaining: IntArray, K: int, plan: Plan) -> Settlement:
        return _whole(group, np.minimum(charge_units(_squares(group), plan.scale2(K)), remaining), plan)

    return [IN_NUMPY, (mechanism, "settle", settle)]


def _algorithm_4() -> list[Replacement]:
    def settle(group: Group, remaining: IntArray, K: int, plan: Plan) -> Settlement:
        rho = _squares(group) / GRID**2 / (2.0 * plan.sigma2**2 * (K / GRID))
        other = plan.sigma2 * np.sqrt(2.0 * (K / GRID) * (remaining / UNIT))
        units = np.ceil(np.minimum(rho, other) * UNIT).astype(np.int64)
        return _whole(group, np.minimum(units, remaining), plan)

    return [IN_NUMPY, (mechanism, "settle", settle)]


def _private_mean() -> list[Replacement]:
    def scan(self: Shard, queries: Vectors, tau: int) -> Iterator[Selection]:
        held = self.slots()
        rows = self.values_of(held).astype(float)
        mean = rows.mean(axis=0) if len(held) else np.zeros(queries.values.shape[1])
        index = make_index("exact", Cosine(), rows.shape[1])
        index.add(quantise(rows - mean + 1e-6))
        centred = quantise(queries.values.astype(float) - mean + 1e-6)
        return (Selection(held[s.slots], s.kappa) for s in index.search(centred, tau))

    return [(Shard, "scan", scan)]


def _top_k() -> list[Replacement]:
    original = Shard.scan

    def scan(self: Shard, queries: Vectors, tau: int) -> Iterator[Selection]:
        for found in original(self, queries, tau):
            top = np.sort(np.argsort(-found.kappa, kind="stable")[:5])
            yield Selection(found.slots[top], found.kappa[top])

    return [(Shard, "scan", scan)]


def _per_record() -> list[Replacement]:
    def count(group: Group, remaining: IntArray, plan: Plan) -> Count:
        charges = charge_units(group.m.astype(np.float64) * GRID**2, plan.scale1)
        part = group.only(remaining >= charges)
        return Count(part, int(part.m.sum()), charges[remaining >= charges])

    def settle(group: Group, remaining: IntArray, K: int, plan: Plan) -> Settlement:
        charges = charge_units(_squares(group) / np.maximum(group.m, 1), plan.scale2(K))
        able = charges <= remaining
        return _whole(group.only(able), charges * able, plan)

    return [IN_NUMPY, (mechanism, "count", count), (mechanism, "settle", settle)]


def _true_count() -> list[Replacement]:
    noisy_count, noisy_answer = mechanism.noisy_count, mechanism.noisy_answer
    true = [0]

    def count(total: int, *rest: Any) -> int:
        true[0] = max(total, MIN_K) * GRID
        return noisy_count(total, *rest)

    return [
        (mechanism, "noisy_count", count),
        (mechanism, "noisy_answer", lambda votes, K, *rest: noisy_answer(votes, true[0], *rest)),
    ]


def _reused_noise() -> list[Replacement]:
    original = SeededNoise.draw

    def draw(self: SeededNoise, scale: Any, size: int) -> IntArray:
        kept = self.__dict__.setdefault("_kept", {})
        if size not in kept:
            kept[size] = original(self, 1 << 30, size) / 2.0**30
        return np.asarray(np.rint(kept[size] * float(scale)), dtype=np.int64)

    return [(SeededNoise, "draw", draw)]


def _half_noise() -> list[Replacement]:
    original = SeededNoise.draw
    return [(SeededNoise, "draw", lambda self, scale, size: original(self, scale, size) // 2)]


def _free_votes() -> list[Replacement]:
    def settle(self: Shard, admitted: Admitted, K: int, plan: Plan) -> IntArray:
        remaining = self.ledger.remaining(admitted.group.owners, admitted.scope)
        return mechanism.settle(admitted.group, remaining, K, plan).votes

    return [(Shard, "settle", settle)]


def _bare_count() -> list[Replacement]:
    return [(mechanism, "noisy_count", lambda total, plan, noise: max(total, MIN_K) * GRID)]


def _rounded_down() -> list[Replacement]:
    def charge_down(squared: Any, scale: int) -> IntArray:
        return np.asarray(np.floor(squared * (UNIT / (2.0 * float(scale) ** 2))), dtype=np.int64)

    return [(mechanism, "charge_units", charge_down), IN_NUMPY]


def _wrong_norm() -> list[Replacement]:
    original = mechanism._squared_norms
    return [(mechanism, "_squared_norms", lambda *arguments: original(*arguments) / 2.0), IN_NUMPY]


def _uncentred() -> list[Replacement]:
    return [(mechanism, "centred", lambda noisy: len(noisy) * noisy)]


def _foretold_unclipped() -> list[Replacement]:
    admit, settle = Shard.admit, Shard.settle

    def new_admit(self: Shard, selection: Selection, plan: Plan, scope: Scope, *, counted: bool = True) -> Admitted:
        admitted = admit(self, selection, plan, scope, counted=counted)
        return admitted if counted else replace(admitted, total=-1)

    def new_settle(self: Shard, admitted: Admitted, K: int, plan: Plan) -> IntArray:
        votes = settle(self, admitted, K, plan)
        return votes if admitted.total >= 0 else _whole(admitted.group, admitted.group.m, plan).votes

    return [(Shard, "admit", new_admit), (Shard, "settle", new_settle)]


def _private_adviser() -> list[Replacement]:
    original = Predictor._noisy_votes

    def noisy_votes(self: Predictor, near: Any, questions: Any, plan: Plan, *rest: Any) -> Iterator[Votes]:
        if any(len(getattr(one, "slots", [0])) for one in near):
            return original(self, near, questions, plan, *rest)
        return iter([Votes(MIN_K * GRID, GRID, 0, 0.0, 1.0, np.zeros(plan.n_classes, dtype=np.int64))])

    return [(Predictor, "_noisy_votes", noisy_votes)]


def _shared_adviser() -> list[Replacement]:
    original = Predictor.adviser
    return [(Predictor, "adviser", lambda self, analyst=None: original(self, None))]


_SEEN = ("votes until exhaustion", "pooled analysts")
MUTANTS = [
    Mutant("empty answers 0", "nobody near is answered 0, without noise", _empty_is_zero, ("labels of a lone record",)),
    Mutant("any budget left", "admits z > 0 instead of z >= the charge", _any_budget_left),
    Mutant("unclipped votes", "votes are not clipped to what is left", _unclipped, ("five records",)),
    Mutant("printed Algorithm 4", "charges the smaller of a cost and a length", _algorithm_4, ("five records",)),
    Mutant("private mean", "features are centred by the mean of the private records", _private_mean),
    Mutant("top-k", "the five nearest take part", _top_k),
    Mutant("per-record charge", "an owner's records are charged one by one", _per_record),
    Mutant("true count", "the noise on votes follows the true count", _true_count),
    Mutant("reused noise", "the same noise for every query", _reused_noise, _SEEN),
    Mutant("half noise", "noise of half the size", _half_noise),
    Mutant("free votes", "the charge after the count is dropped", _free_votes),
    Mutant("bare count", "the count is released without noise", _bare_count),
    Mutant("rounded down", "charges are rounded down", _rounded_down),
    Mutant("wrong norm", "an owner's vote is charged by half its squared length", _wrong_norm),
    Mutant("uncentred votes", "votes leave whole, with the charge for centred ones", _uncentred),
    Mutant("foretold, unclipped", "votes are not clipped where K is foretold", _foretold_unclipped, ("many records",)),
    Mutant("private adviser", "nobody is asked, without noise, where nobody is near", _private_adviser),
    Mutant("shared adviser", "analysts share statistics and what was learned", _shared_adviser),
]
