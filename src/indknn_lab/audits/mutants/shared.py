"""Mutants of the shared model: its gradients and counts, who pays for them, what they depend on, and what is kept."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from indknn.answering.predictor import Predictor
from indknn.answering.requests import Request
from indknn.core import statistics, training
from indknn.core.mechanism import charge_units, largest_squared_shift
from indknn.core.noise import Noise
from indknn.core.statistics import Contribution
from indknn.core.training import STEP_GRID, Weights, rows_of
from indknn.ledger import SHARED, MemoryLedger, Scope
from indknn.models import feature_map
from indknn.models.feature_map import FeatureMap
from indknn.records.shard import Shard
from indknn.store.journal import StoreJournal
from indknn.types import GRID, Int8Array, IntArray
from indknn_lab.audits.patches import Mutant, Replacement

_NO_CLIP, _ENDLESS = 1e6, 1 << 61


def _gradient(change: Callable[..., Contribution]) -> Callable[[], list[Replacement]]:
    """A mutant whose gradient comes from `change`, which gets the correct function and its arguments."""

    def replacements() -> list[Replacement]:
        original = training.gradient
        return [(training, "gradient", lambda *arguments: change(original, *arguments))]

    return replacements


def _unclipped(original: Any, values: Any, labels: Any, owners: Any, limits: Any, *rest: Any) -> Contribution:
    weights, _, scale, *_ = rest
    given: Contribution = original(values, labels, owners, limits, *rest)
    with np.errstate(over="ignore"):  # it overflows for a person whom the model gets right
        whole = original(values, labels, owners, _ENDLESS + 0 * limits, weights, _NO_CLIP, scale)
    return replace(given, sums=whole.sums)


def _over_budget(original: Any, values: Any, labels: Any, owners: Any, limits: Any, *rest: Any) -> Contribution:
    """The gradient is not clipped to the remaining budget, but nobody is charged more than that budget."""
    given: Contribution = original(values, labels, owners, _ENDLESS + 0 * limits, *rest)
    _, first = np.unique(owners, return_index=True)
    return replace(given, charges=np.minimum(given.charges, limits[first]))


def _charged_in_part(original: Any, *arguments: Any) -> Contribution:
    given: Contribution = original(*arguments)
    return replace(given, charges=given.charges // 2)


def _record_by_record(original: Any, values: Any, labels: Any, owners: Any, limits: Any, *rest: Any) -> Contribution:
    """Each record is clipped and charged as if it were a person."""
    names, who = np.unique(owners, return_inverse=True)
    share = limits // np.bincount(who, minlength=len(names))[who]
    alone: Contribution = original(values, labels, np.arange(len(owners)), share, *rest)
    charges = np.bincount(who, weights=alone.charges, minlength=len(names)).astype(np.int64)
    return Contribution(alone.sums, names, charges)


def _in_floats(
    original: Any,
    values: Int8Array,
    labels: Any,
    owners: Any,
    limits: Any,
    weights: Weights,
    clip: float,
    scale: int,
    threads: int = 1,
) -> Contribution:
    """Softmax, gradient, clip and sum in floating point, as in a linear algebra library. Only the sum is rounded."""
    rows, lengths = rows_of(values)
    unit = (rows / lengths[:, None]).astype(np.float32)
    scores = unit @ (weights.whole * weights.unit).astype(np.float32)
    parts = np.exp(scores - scores.max(axis=1, keepdims=True, initial=-1e30))
    wrong = parts / parts.sum(axis=1, keepdims=True) - np.eye(scores.shape[1], dtype=np.float32)[labels]
    names, who = np.unique(owners, return_inverse=True)
    each = np.zeros((len(names), unit.shape[1] * wrong.shape[1]), dtype=np.float32)
    np.add.at(each, who, np.einsum("ni,nk->nik", unit, wrong).reshape(len(unit), each.shape[1]))
    limit = np.zeros(len(names), dtype=np.int64)
    limit[who] = limits
    most = np.minimum(np.sqrt(largest_squared_shift(limit, scale)) / STEP_GRID * (1 - 1e-5), clip)
    size = np.linalg.norm(each, axis=1)
    each *= np.minimum(most / np.maximum(size, 1e-12), 1.0).astype(np.float32)[:, None]
    squared = (each.astype(np.float64) ** 2).sum(axis=1) * float(STEP_GRID) ** 2
    total = np.rint(each.sum(axis=0).astype(np.float64) * STEP_GRID).astype(np.int64)
    return Contribution(total.reshape(weights.whole.shape), names, np.minimum(charge_units(squared, scale), limit))


def _thin_noise() -> list[Replacement]:
    original = training.noisy_gradient
    return [(training, "noisy_gradient", lambda total, scale, noise: original(total, scale // 2, noise))]


def _reused_noise() -> list[Replacement]:
    kept: dict[int, IntArray] = {}

    def noisy_gradient(total: IntArray, scale: int, noise: Noise) -> IntArray:
        return total + kept.setdefault(total.size, noise.draw(scale, total.size)).reshape(total.shape)

    return [(training, "noisy_gradient", noisy_gradient)]


def _reused_card() -> list[Replacement]:
    kept: dict[int, IntArray] = {}

    def noisy_tally(counts: IntArray, scale: int, source: Noise) -> IntArray:
        return counts + kept.setdefault(len(counts), source.draw(scale, len(counts)))

    return [(statistics, "noisy_tally", noisy_tally)]


def _bare_card() -> list[Replacement]:
    return [(statistics, "noisy_tally", lambda counts, scale, source: counts)]


def _cells_once() -> list[Replacement]:
    original = statistics.tally

    def tally(cells: IntArray, owners: IntArray, *rest: Any, **of: Any) -> Contribution:
        given = original(cells, owners, *rest, **of)
        return replace(given, sums=np.bincount(cells, minlength=len(given.sums)) * GRID)

    return [(statistics, "tally", tally)]


def _to_the_analyst() -> list[Replacement]:
    """A shared release is charged in the ledger of one analyst only, although all analysts see it."""
    pay = Shard._pay
    return [(Shard, "_pay", lambda self, given, scope: pay(self, given, None))]


def _free_training() -> list[Replacement]:
    return [(Shard, "_pay", lambda self, given, scope: given.sums)]


def _whole_budget_each() -> list[Replacement]:
    original = MemoryLedger.limit

    def limit(self: MemoryLedger, scope: Scope) -> int:
        return original(self, scope) if scope == SHARED else self.budget

    return [(MemoryLedger, "limit", limit)]


def _house_ignored() -> list[Replacement]:
    original = MemoryLedger.remaining

    def remaining(self: MemoryLedger, slots: IntArray, scope: Scope) -> IntArray:
        told, self.joint = self.joint, False
        try:
            return original(self, slots, scope)
        finally:
            self.joint = told

    return [(MemoryLedger, "remaining", remaining)]


def _named_queries() -> list[Replacement]:
    original = Predictor._train_if_due

    def train_if_due(self: Predictor, requests: Sequence[Request]) -> None:
        original(self, requests)
        if requests[0].analyst is not None and self.model is not None and self.model.due() is None:
            values = requests[0].queries.values
            rows = 2 * len(self.model.public) if self.model.public is not None else 1  # enough for them to be used
            self.start_round(np.resize(values, (max(rows, 1), values.shape[1])))
            for _ in self.training():
                pass

    return [(Predictor, "_train_if_due", train_if_due)]


def _private_centre() -> list[Replacement]:
    original = feature_map._expanded

    def apply(self: FeatureMap, values: Int8Array) -> Int8Array:
        rows = original(values, self.frequencies, self.phases)
        rows -= rows.mean(axis=0) if len(rows) > 1 else 0.0
        largest = np.maximum(np.abs(rows).max(axis=1, initial=0.0), 1.0)
        return np.asarray(np.rint(rows / largest[:, None] * 127.0), dtype=np.int8)

    return [(FeatureMap, "apply", apply)]


def _replayed_free() -> list[Replacement]:
    """A step is written without its charges, so after a crash everybody has the budget that they had before it."""
    original = StoreJournal.note

    def note(self: StoreJournal, analyst: Scope, *rest: Any) -> None:
        if analyst == SHARED and self.ledger.log is not None:
            self.ledger.log.pop(SHARED, None)
        original(self, analyst, *rest)

    return [(StoreJournal, "note", note)]


def _repeated_steps() -> list[Replacement]:
    """A restart forgets the steps that were done, and does them again."""
    original = Predictor.remember

    def remember(self: Predictor, analyst: Scope, *rest: Any) -> None:
        if analyst != SHARED:
            original(self, analyst, *rest)

    return [(Predictor, "remember", remember)]


def _unsecured() -> list[Replacement]:
    return [(StoreJournal, "secure", lambda self: None)]


_MANY = ("many records",)
MUTANTS = [
    Mutant("gradient unclipped", "gradients are charged as clipped but added whole", _gradient(_unclipped), _MANY),
    Mutant("half a gradient charged", "the charge is for less than is added", _gradient(_charged_in_part)),
    Mutant("gradient over budget", "gradients are not clipped to what is left", _gradient(_over_budget)),
    Mutant("gradient per record", "records of one owner are clipped one by one", _gradient(_record_by_record)),
    Mutant("gradient in floats", "sums are rounded together, so bits depend on others", _gradient(_in_floats)),
    Mutant("thin gradient noise", "gradients get half the noise that they are charged for", _thin_noise),
    Mutant("reused gradient noise", "the same noise in every step", _reused_noise),
    Mutant("reused card", "the same noise on every report card", _reused_card),
    Mutant("bare card", "counts and cards are released without noise", _bare_card),
    Mutant("cells whole", "records are counted whole whatever their owner paid", _cells_once),
    Mutant("analyst pays for all", "training is charged to one analyst's ledger", _to_the_analyst),
    Mutant("free training", "training is not charged", _free_training),
    Mutant("whole budget each", "analysts have all of B beside the shared model", _whole_budget_each),
    Mutant("house ignored", "what shaped the model is not counted for those who see it", _house_ignored),
    Mutant("named queries", "a named analyst's queries shape the shared model", _named_queries),
    Mutant("private centre", "the model's features are centred by the mean of the records", _private_centre),
    Mutant("replayed for nothing", "steps are written down without their charges", _replayed_free),
    Mutant("steps repeated", "a restart forgets the steps that were made", _repeated_steps),
    Mutant(
        "steps before the file",
        "training goes on before a step is durable",
        lambda: [(StoreJournal, "secure", lambda self: None)],
    ),
]
