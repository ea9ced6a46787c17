"""Deliberately broken variants of the mechanism. Patches for the length of a `with`, never product code.

Most are mistakes that were really made: in the paper's text, in its authors' code, or in known libraries.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from indknn.answering import roads
from indknn.answering.predictor import Predictor
from indknn.answering.transcript import Transcript
from indknn.core import mechanism, statistics
from indknn.core.accounting import UNIT
from indknn.core.kernels import Cosine
from indknn.core.mechanism import MIN_K, Count, Group, Plan, Settlement, charge_units
from indknn.core.noise import Noise, SeededNoise
from indknn.core.quantise import quantise
from indknn.core.releases import Votes
from indknn.core.statistics import Contribution, MomentNoise
from indknn.engine import Engine
from indknn.ledger import MemoryLedger, Scope
from indknn.records.indexes import make_index
from indknn.records.shard import Pending, Shard
from indknn.types import GRID, FloatArray, Int8Array, IntArray, OwnerId, Selection, Vectors

Replacement = tuple[object, str, Callable[..., Any]]


@dataclass(frozen=True)
class Mutant:
    """A broken variant: what it is called, what is wrong with it, and how to put it in place.

    `sums` where it takes statistics to notice.
    """

    name: str
    wrong: str
    replacements: Callable[[], Sequence[Replacement]]
    sums: bool = False

    def __call__(self) -> AbstractContextManager[None]:
        """In place within the `with`, gone after it."""
        return _patched(self.replacements())


@contextmanager
def _patched(replacements: Sequence[Replacement]) -> Iterator[None]:
    with ExitStack() as undo:
        for where, name, new in replacements:
            undo.callback(setattr, where, name, getattr(where, name))
            setattr(where, name, new)
        yield


def _empty_is_zero() -> Sequence[Replacement]:
    original = mechanism.noisy_argmax

    def noisy_argmax(votes: IntArray, K: int, plan: Plan, noise: Noise) -> int:
        return original(votes, K, plan, noise) if votes.any() else 0

    return [(mechanism, "noisy_argmax", noisy_argmax)]


def _unchecked_charge(self: MemoryLedger, slots: IntArray, units: IntArray, scope: Scope) -> None:
    self._in(scope)[slots] += units


def _any_budget_left() -> Sequence[Replacement]:
    def count(group: Group, remaining: IntArray, plan: Plan) -> Count:
        able = remaining > 0
        part = group.only(able)
        return Count(part, int(part.m.sum()), charge_units(part.m.astype(np.float64) ** 2 * GRID * GRID, plan.scale1))

    return [(mechanism, "count", count), (MemoryLedger, "charge", _unchecked_charge)]


def _whole(group: Group, charges: IntArray, plan: Plan) -> Settlement:
    """Votes as they are, whatever they cost."""
    votes = np.bincount(group.entry_label, weights=group.entry_vote, minlength=plan.n_classes)
    return Settlement(votes.astype(np.int64), charges)


def _squares(group: Group) -> Any:
    return np.bincount(group.entry_owner, group.entry_vote.astype(float) ** 2, minlength=len(group.owners))


def _unclipped() -> Sequence[Replacement]:
    def settle(group: Group, remaining: IntArray, K: int, plan: Plan) -> Settlement:
        return _whole(group, np.minimum(charge_units(_squares(group), plan.scale2(K)), remaining), plan)

    return [(mechanism, "settle", settle)]


def _algorithm_4() -> Sequence[Replacement]:
    def settle(group: Group, remaining: IntArray, K: int, plan: Plan) -> Settlement:
        rho = _squares(group) / GRID**2 / (2.0 * plan.sigma2**2 * (K / GRID))
        other = plan.sigma2 * np.sqrt(2.0 * (K / GRID) * (remaining / UNIT))
        units = np.ceil(np.minimum(rho, other) * UNIT).astype(np.int64)
        return _whole(group, np.minimum(units, remaining), plan)

    return [(mechanism, "settle", settle)]


def _private_mean() -> Sequence[Replacement]:
    def scan(self: Shard, queries: Vectors, tau: int) -> Iterator[Selection]:
        held = np.flatnonzero(self._owner >= 0)
        rows = self.index.slots.values[held].astype(float)
        mean = rows.mean(axis=0) if len(held) else np.zeros(queries.values.shape[1])
        index = make_index("exact", Cosine(), rows.shape[1])
        index.add(quantise(rows - mean + 1e-6))
        centred = quantise(queries.values.astype(float) - mean + 1e-6)
        return (Selection(held[s.slots], s.kappa) for s in index.select(centred, tau))

    return [(Shard, "scan", scan)]


def _top_k() -> Sequence[Replacement]:
    original = Shard.scan

    def scan(self: Shard, queries: Vectors, tau: int) -> Iterator[Selection]:
        for found in original(self, queries, tau):
            top = np.sort(np.argsort(-found.kappa, kind="stable")[:5])
            yield Selection(found.slots[top], found.kappa[top])

    return [(Shard, "scan", scan)]


def _refund() -> Sequence[Replacement]:
    return [(MemoryLedger, "_resume", lambda self, slot, tombstone: None)]


def _per_record() -> Sequence[Replacement]:
    def count(group: Group, remaining: IntArray, plan: Plan) -> Count:
        charges = charge_units(group.m.astype(float) * GRID * GRID, plan.scale1)
        able = remaining >= charges
        part = group.only(able)
        return Count(part, int(part.m.sum()), charges[able])

    def settle(group: Group, remaining: IntArray, K: int, plan: Plan) -> Settlement:
        charges = charge_units(_squares(group) / np.maximum(group.m, 1), plan.scale2(K))
        able = charges <= remaining
        fits = group.only(able)
        return Settlement(_whole(fits, charges[able], plan).votes, charges * able)

    return [(mechanism, "count", count), (mechanism, "settle", settle)]


def _float32_ledger() -> Sequence[Replacement]:
    def charge(self: MemoryLedger, slots: IntArray, units: IntArray, scope: Scope) -> None:
        spent = self._in(scope)
        spent[slots] = (spent[slots].astype(np.float32) + units.astype(np.float32)).astype(np.int64)

    return [(MemoryLedger, "charge", charge)]


def _true_count() -> Sequence[Replacement]:
    noisy_count, noisy_argmax = mechanism.noisy_count, mechanism.noisy_argmax
    true = [0]

    def count(total: int, plan: Plan, noise: Noise) -> int:
        true[0] = max(total, MIN_K) * GRID
        return noisy_count(total, plan, noise)

    def argmax(votes: IntArray, K: int, plan: Plan, noise: Noise) -> int:
        return noisy_argmax(votes, true[0], plan, noise)

    return [(mechanism, "noisy_count", count), (mechanism, "noisy_argmax", argmax)]


def _reused_noise() -> Sequence[Replacement]:
    original = SeededNoise.draw

    def draw(self: SeededNoise, scale: Any, size: int) -> IntArray:
        kept = self.__dict__.setdefault("_kept", {})
        if size not in kept:
            kept[size] = original(self, 1 << 30, size) / 2.0**30
        return np.asarray(np.rint(kept[size] * float(scale)), dtype=np.int64)

    return [(SeededNoise, "draw", draw)]


def _half_noise() -> Sequence[Replacement]:
    original = SeededNoise.draw
    return [(SeededNoise, "draw", lambda self, scale, size: original(self, scale, size) // 2)]


def _free_votes() -> Sequence[Replacement]:
    def settle(self: Shard, pending: Pending, K: int, plan: Plan) -> IntArray:
        remaining = self.ledger.remaining(pending.group.owners, pending.scope)
        return mechanism.settle(pending.group, remaining, K, plan).votes

    return [(Shard, "settle", settle)]


def _shared_pool() -> Sequence[Replacement]:
    original = Predictor._transcript

    def transcript(self: Predictor, analyst: Scope) -> Transcript:
        return original(self, None)

    return [(Predictor, "_transcript", transcript)]


def _fresh_repeats() -> Sequence[Replacement]:
    put, forget = Engine.put, Engine.forget_owners

    def new_put(self: Engine, *arguments: Any) -> IntArray:
        self.predictor._transcripts.clear()
        return put(self, *arguments)

    def new_forget(self: Engine, owners: list[OwnerId]) -> int:
        self.predictor._transcripts.clear()
        return forget(self, owners)

    return [(Engine, "put", new_put), (Engine, "forget_owners", new_forget)]


def _answer_first() -> Sequence[Replacement]:
    return [(Predictor, "predict", Predictor.compute)]


def _bare_count() -> Sequence[Replacement]:
    return [(mechanism, "noisy_count", lambda total, plan, noise: max(total, MIN_K) * GRID)]


def _no_global() -> Sequence[Replacement]:
    def remaining(self: MemoryLedger, slots: IntArray, scope: Scope) -> IntArray:
        return np.maximum(self.budget - self._in(scope)[slots], 0)

    return [(MemoryLedger, "remaining", remaining)]


def _rounded_down() -> Sequence[Replacement]:
    def floor(squared: Any, scale: int) -> IntArray:
        return np.asarray(np.floor(squared * (UNIT / (2.0 * float(scale) ** 2))), dtype=np.int64)

    return [(mechanism, "charge_units", floor)]


def _wrong_norm() -> Sequence[Replacement]:
    original = mechanism._squared_norms

    def halved(group: Group, vote: IntArray, plan: Plan) -> Any:
        return original(group, vote, plan) / 2.0

    return [(mechanism, "_squared_norms", halved)]


def _free_b() -> Sequence[Replacement]:
    def charge(a: FloatArray, b: FloatArray, noise: MomentNoise) -> IntArray:
        return charge_units(np.asarray(a), noise.scale_a)

    return [(statistics, "_charge", charge)]


def _thin_off_diagonal() -> Sequence[Replacement]:
    def noisy_moments(A: IntArray, b: IntArray, noise: MomentNoise, source: Noise) -> tuple[IntArray, IntArray]:
        upper, half = np.triu_indices(len(A), 1), np.zeros_like(A)
        half[upper] = A[upper] + source.draw(noise.scale_a // 2, len(upper[0]))
        diagonal = np.diag(A) + source.draw(noise.scale_a, len(A))
        return half + half.T + np.diag(diagonal), b + source.draw(noise.scale_b, b.size).reshape(b.shape)

    return [(statistics, "noisy_moments", noisy_moments)]


def _moments_per_record() -> Sequence[Replacement]:
    def shifts(rows: Any, labels: IntArray, c: int) -> tuple[float, float]:
        squared = statistics._lengths(rows)
        return float((squared * squared).sum()), float(squared.sum()) * c * (c - 1)

    return [(statistics, "_owner_shifts", shifts)]


def _sums_unclipped() -> Sequence[Replacement]:
    clip_singles, clip_owner = statistics._clip_singles, statistics._clip_owner
    return [
        (statistics, "_clip_singles", lambda rows, *rest: (rows, clip_singles(rows.copy(), *rest)[1])),
        (statistics, "_clip_owner", lambda rows, *rest: (rows, clip_owner(rows.copy(), *rest)[1])),
    ]


def _one_table() -> Sequence[Replacement]:
    original = statistics.tally

    def tally(cells: IntArray, *rest: Any) -> Contribution:
        given = original(cells, *rest)
        return replace(given, charges=given.charges // max(cells.shape[1], 1))

    return [(statistics, "tally", tally)]


def _reused_card() -> Sequence[Replacement]:
    kept: dict[int, IntArray] = {}

    def noisy_tally(counts: IntArray, scale: int, source: Noise) -> IntArray:
        return counts + kept.setdefault(len(counts), source.draw(scale, len(counts)))

    return [(statistics, "noisy_tally", noisy_tally)]


def _stale_epochs() -> Sequence[Replacement]:
    original = Shard.moments

    def moments(self: Shard, since: int, *rest: Any) -> Contribution:
        budget = {scope: self.ledger.column(scope).copy() for scope in self.ledger.scopes}  # type: ignore[attr-defined]
        everybody = original(self, 0, *rest)
        if since:
            for scope, spent in budget.items():
                self.ledger.column(scope)[:] = spent  # type: ignore[attr-defined]
            original(self, since, *rest)
        return everybody

    return [(Shard, "moments", moments)]


def _free_after_forget() -> Sequence[Replacement]:
    forget, pay = Engine.forget_owners, Shard._pay

    def new_forget(self: Engine, owners: list[OwnerId]) -> int:
        for adviser in self.predictor._advisers.values():
            adviser.moments, adviser.since = None, 0
        self.shard.__dict__["_again"] = True
        return forget(self, owners)

    def new_pay(self: Shard, given: Contribution, scope: Scope) -> Contribution:
        return given if len(given.sums) == 2 and "_again" in self.__dict__ else pay(self, given, scope)

    return [(Engine, "forget_owners", new_forget), (Shard, "_pay", new_pay)]


def _private_centre() -> Sequence[Replacement]:
    original = statistics.unit_rows

    def unit_rows(values: Int8Array) -> Any:
        mean = values.mean(axis=0) if len(values) > 1 else 0.0
        return original(np.clip(np.rint(values - mean), -127, 127).astype(np.int8))

    return [(statistics, "unit_rows", unit_rows)]


def _uncentred() -> Sequence[Replacement]:
    return [(mechanism, "centred", lambda noisy: len(noisy) * noisy)]


def _foretold_unclipped() -> Sequence[Replacement]:
    select, settle = Shard.select, Shard.settle

    def new_select(self: Shard, selection: Selection, plan: Plan, scope: Scope, *, counted: bool = True) -> Pending:
        pending = select(self, selection, plan, scope, counted=counted)
        return pending if counted else replace(pending, total=-1)

    def new_settle(self: Shard, pending: Pending, K: int, plan: Plan) -> IntArray:
        if pending.total >= 0:
            return settle(self, pending, K, plan)
        settle(self, pending, K, plan)
        return _whole(pending.group, pending.group.m, plan).votes

    return [(Shard, "select", new_select), (Shard, "settle", new_settle)]


def _range_for_gauss() -> Sequence[Replacement]:
    def argmax(votes: IntArray, K: int, plan: Plan, noise: Noise) -> int:
        return int(np.argmax(votes + noise.draw(plan.scale2(K), plan.n_classes)))

    return [(mechanism, "exponential_argmax", argmax)]


def _voted_range() -> Sequence[Replacement]:
    def settle(group: Group, remaining: IntArray, K: int, plan: Plan) -> Settlement:
        top = np.zeros(len(group.owners), dtype=np.int64)
        least = np.full(len(group.owners), np.iinfo(np.int64).max)
        np.maximum.at(top, group.entry_owner, group.entry_vote)
        np.minimum.at(least, group.entry_owner, group.entry_vote)
        charges = charge_units((top - least).astype(float) ** 2, 2 * plan.scale2(K))
        return _whole(group, np.minimum(charges, remaining), plan)

    return [(mechanism, "settle_range", settle)]


def _private_adviser() -> Sequence[Replacement]:
    original = roads._asked

    def asked(query: Vectors, near: tuple[Selection, ...], plan: Plan, *rest: Any) -> Votes:
        if any(len(one.slots) for one in near):
            return original(query, near, plan, *rest)
        return Votes(MIN_K * GRID, GRID, 0, 0.0, 1.0, np.zeros(plan.n_classes, dtype=np.int64))

    return [(roads, "_asked", asked)]


def _shared_adviser() -> Sequence[Replacement]:
    original = Predictor.adviser
    return [(Predictor, "adviser", lambda self, analyst=None: original(self, None))]


MUTANTS: list[Mutant] = [
    Mutant("empty answers 0", "an empty neighbourhood is answered 0 without noise", _empty_is_zero),
    Mutant("any budget left", "admits z > 0 instead of z >= the charge", _any_budget_left),
    Mutant("unclipped votes", "votes are not clipped to what is left", _unclipped),
    Mutant("printed Algorithm 4", "charges the smaller of a cost and a length, votes unclipped", _algorithm_4),
    Mutant("private mean", "features are centred by the mean of the private records", _private_mean),
    Mutant("top-k", "the five nearest take part", _top_k),
    Mutant("refund on return", "coming back starts a new budget", _refund),
    Mutant("per-record charge", "an owner's records are charged one by one", _per_record),
    Mutant("float32 ledger", "small charges are swallowed", _float32_ledger),
    Mutant("true count", "the noise on votes follows the true count", _true_count),
    Mutant("reused noise", "the same noise for every query", _reused_noise),
    Mutant("half noise", "noise of half the size", _half_noise),
    Mutant("free votes", "the charge after the count is dropped", _free_votes),
    Mutant("shared pool", "analysts share what was released", _shared_pool),
    Mutant("fresh repeats", "a repeat is answered anew after the records changed", _fresh_repeats),
    Mutant("answer first", "answers leave before their charges are durable", _answer_first),
    Mutant("bare count", "the count is released without noise", _bare_count),
    Mutant("no global budget", "the common ledger is ignored", _no_global),
    Mutant("rounded down", "charges are rounded down", _rounded_down),
    Mutant("wrong norm", "an owner's vote is charged by half its squared length", _wrong_norm),
    Mutant("free labels in sums", "statistics are charged for A alone, not for b", _free_b, sums=True),
    Mutant(
        "thin off the diagonal", "noise beside the diagonal of A is too small by sqrt(2)", _thin_off_diagonal, sums=True
    ),
    Mutant(
        "sums per record", "an owner's records are charged one by one in statistics", _moments_per_record, sums=True
    ),
    Mutant("sums unclipped", "records are charged as clipped but added whole", _sums_unclipped, sums=True),
    Mutant("one table", "a report card of two models is charged as one", _one_table, sums=True),
    Mutant("reused card", "the same noise on every report card", _reused_card, sums=True),
    Mutant(
        "stale epochs", "old records are in later statistics again, and only fresh ones pay", _stale_epochs, sums=True
    ),
    Mutant("free after forget", "forgetting has statistics released again, for nothing", _free_after_forget, sums=True),
    Mutant("private centre", "statistics are centred by the mean of the records", _private_centre, sums=True),
    Mutant("uncentred votes", "votes leave whole, with the charge for centred ones", _uncentred),
    Mutant("foretold, unclipped", "votes are not clipped where K is foretold", _foretold_unclipped, sums=True),
    Mutant("range for Gauss", "the charge of the exponential vote, with Gaussian noise", _range_for_gauss),
    Mutant("range of the voted", "the range is taken over the classes that have votes", _voted_range),
    Mutant("private adviser", "nobody is asked, without noise, where nobody is near", _private_adviser),
    Mutant("shared adviser", "analysts share statistics and what was learned", _shared_adviser, sums=True),
]
