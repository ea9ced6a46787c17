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
from indknn_lab.audits.patches import MUTANTS, Mutant, Replacement, mutant

COUNT, SETTLE = (mechanism, "count"), (mechanism, "settle")
_LONE, _FIVE, _SEEN = ("labels of a lone record",), ("five records",), ("votes until exhaustion", "pooled analysts")


@mutant("empty answers 0", "nobody near is answered 0, without noise", (mechanism, "noisy_answer"), probes=_LONE)
def _empty_is_zero(original: Any, votes: IntArray, *rest: Any) -> Any:
    return original(votes, *rest) if votes.any() else (0, votes)


def _charged_blindly(self: MemoryLedger, slots: IntArray, units: IntArray, scope: Scope, **_: Any) -> None:
    self._in(scope)[slots] += units


_BLIND = ((MemoryLedger, "charge", _charged_blindly),)


@mutant("any budget left", "admits z > 0 instead of z >= the charge", COUNT, also=_BLIND)
def _any_budget_left(_: Any, group: Group, remaining: IntArray, plan: Plan) -> Count:
    part = group.only(remaining > 0)
    return Count(part, int(part.m.sum()), charge_units(part.m.astype(np.float64) ** 2 * GRID**2, plan.scale1))


def _whole(group: Group, charges: IntArray, plan: Plan) -> Settlement:
    """Votes are not reduced, whatever they cost."""
    votes = np.bincount(group.entry_label, weights=group.entry_vote, minlength=plan.n_classes)
    return Settlement(votes.astype(np.int64), charges)


def _squares(group: Group) -> Any:
    return np.bincount(group.entry_owner, group.entry_vote.astype(float) ** 2, minlength=len(group.owners))


@mutant("unclipped votes", "votes are not clipped to what is left", SETTLE, probes=_FIVE)
def _unclipped(_: Any, group: Group, remaining: IntArray, K: int, plan: Plan) -> Settlement:
    return _whole(group, np.minimum(charge_units(_squares(group), plan.scale2(K)), remaining), plan)


@mutant("printed Algorithm 4", "charges the smaller of a cost and a length", SETTLE, probes=_FIVE)
def _algorithm_4(_: Any, group: Group, remaining: IntArray, K: int, plan: Plan) -> Settlement:
    rho = _squares(group) / GRID**2 / (2.0 * plan.sigma2**2 * (K / GRID))
    other = plan.sigma2 * np.sqrt(2.0 * (K / GRID) * (remaining / UNIT))
    units = np.ceil(np.minimum(rho, other) * UNIT).astype(np.int64)
    return _whole(group, np.minimum(units, remaining), plan)


@mutant("private mean", "features are centred by the mean of the private records", (Shard, "scan"))
def _private_mean(_: Any, self: Shard, queries: Vectors, tau: int) -> Iterator[Selection]:
    held = self.slots()
    rows = self.values_of(held).astype(float)
    mean = rows.mean(axis=0) if len(held) else np.zeros(queries.values.shape[1])
    index = make_index("exact", Cosine(), rows.shape[1])
    index.add(quantise(rows - mean + 1e-6))
    centred = quantise(queries.values.astype(float) - mean + 1e-6)
    return (Selection(held[s.slots], s.kappa) for s in index.search(centred, tau))


@mutant("top-k", "the five nearest take part", (Shard, "scan"))
def _top_k(original: Any, self: Shard, queries: Vectors, tau: int) -> Iterator[Selection]:
    for found in original(self, queries, tau):
        top = np.sort(np.argsort(-found.kappa, kind="stable")[:5])
        yield Selection(found.slots[top], found.kappa[top])


def _counted_per_record(group: Group, remaining: IntArray, plan: Plan) -> Count:
    charges = charge_units(group.m.astype(np.float64) * GRID**2, plan.scale1)
    part = group.only(remaining >= charges)
    return Count(part, int(part.m.sum()), charges[remaining >= charges])


@mutant("per-record charge", "an owner's records are charged one by one", SETTLE, also=[(*COUNT, _counted_per_record)])
def _per_record(_: Any, group: Group, remaining: IntArray, K: int, plan: Plan) -> Settlement:
    charges = charge_units(_squares(group) / np.maximum(group.m, 1), plan.scale2(K))
    able = charges <= remaining
    return _whole(group.only(able), charges * able, plan)


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


MUTANTS.append(Mutant("true count", "the noise on votes follows the true count", _true_count))


@mutant("reused noise", "the same noise for every query", (SeededNoise, "draw"), probes=_SEEN)
def _reused_noise(original: Any, self: SeededNoise, scale: Any, size: int) -> IntArray:
    kept = self.__dict__.setdefault("_kept", {})
    if size not in kept:
        kept[size] = original(self, 1 << 30, size) / 2.0**30
    return np.asarray(np.rint(kept[size] * float(scale)), dtype=np.int64)


mutant("half noise", "noise of half the size", (SeededNoise, "draw"))(lambda draw, *rest: draw(*rest) // 2)


@mutant("free votes", "the charge after the count is dropped", (Shard, "settle"))
def _free_votes(_: Any, self: Shard, admitted: Admitted, K: int, plan: Plan) -> IntArray:
    remaining = self.ledger.remaining(admitted.group.owners, admitted.scope)
    return mechanism.settle(admitted.group, remaining, K, plan).votes


mutant("bare count", "the count is released without noise", (mechanism, "noisy_count"))(
    lambda _, total, *rest: max(total, MIN_K) * GRID
)


@mutant("rounded down", "charges are rounded down", (mechanism, "charge_units"))
def _rounded_down(_: Any, squared: Any, scale: int) -> IntArray:
    return np.asarray(np.floor(squared * (UNIT / (2.0 * float(scale) ** 2))), dtype=np.int64)


mutant("wrong norm", "an owner's vote is charged by half its squared length", (mechanism, "_squared_norms"))(
    lambda norms, *arguments: norms(*arguments) / 2.0
)
mutant("uncentred votes", "votes leave whole, with the charge for centred ones", (mechanism, "centred"))(
    lambda _, noisy: len(noisy) * noisy
)


def _foretold_unclipped() -> list[Replacement]:
    admit, settle = Shard.admit, Shard.settle

    def new_admit(self: Shard, selection: Selection, plan: Plan, scope: Scope, *, counted: bool = True) -> Admitted:
        admitted = admit(self, selection, plan, scope, counted=counted)
        return admitted if counted else replace(admitted, total=-1)

    def new_settle(self: Shard, admitted: Admitted, K: int, plan: Plan) -> IntArray:
        votes = settle(self, admitted, K, plan)
        return votes if admitted.total >= 0 else _whole(admitted.group, admitted.group.m, plan).votes

    return [(Shard, "admit", new_admit), (Shard, "settle", new_settle)]


_FORETOLD = "votes are not clipped where K is foretold"
MUTANTS.append(Mutant("foretold, unclipped", _FORETOLD, _foretold_unclipped, ("many records",)))


@mutant("private adviser", "nobody is asked, without noise, where nobody is near", (Predictor, "_noisy_votes"))
def _private_adviser(original: Any, self: Predictor, near: Any, questions: Any, plan: Plan, *rest: Any) -> Any:
    if any(len(getattr(one, "slots", [0])) for one in near):
        return original(self, near, questions, plan, *rest)
    return iter([Votes(MIN_K * GRID, GRID, 0, 0.0, 1.0, np.zeros(plan.n_classes, dtype=np.int64))])


mutant("shared adviser", "analysts share statistics and what was learned", (Predictor, "adviser"))(
    lambda adviser, self, analyst=None: adviser(self, None)
)
