"""Mutants of the shared model: its gradients and counts, who pays for them, what they depend on, and what is kept."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from indknn.answering.predictor import Predictor
from indknn.answering.requests import Request
from indknn.core import statistics, training
from indknn.core.mechanism import charge_units, largest_squared_shift
from indknn.core.noise import Noise
from indknn.core.statistics import Contribution
from indknn.core.training import STEP_GRID, rows_of
from indknn.ledger import SHARED, MemoryLedger, Scope
from indknn.models import feature_map
from indknn.models.feature_map import FeatureMap
from indknn.records.shard import Shard
from indknn.store.journal import StoreJournal
from indknn.types import GRID, Int8Array, IntArray
from indknn_lab.audits.patches import MUTANTS, Mutant, Replacement, mutant, patched

_NO_CLIP, _ENDLESS = 1e6, 1 << 61


GRADIENT = (training, "gradient")


@mutant("gradient unclipped", "gradients are charged as clipped but added whole", GRADIENT, probes=("many records",))
def _unclipped(original: Any, values: Any, labels: Any, owners: Any, limits: Any, *rest: Any) -> Contribution:
    weights, _, scale, *_ = rest
    given: Contribution = original(values, labels, owners, limits, *rest)
    with np.errstate(over="ignore"):  # it overflows for a person whom the model gets right
        whole = original(values, labels, owners, _ENDLESS + 0 * limits, weights, _NO_CLIP, scale)
    return replace(given, sums=whole.sums)


@mutant("half a gradient charged", "the charge is for less than is added", GRADIENT)
def _charged_in_part(original: Any, *arguments: Any) -> Contribution:
    given: Contribution = original(*arguments)
    return replace(given, charges=given.charges // 2)


@mutant("gradient over budget", "gradients are not clipped to what is left", GRADIENT)
def _over_budget(original: Any, values: Any, labels: Any, owners: Any, limits: Any, *rest: Any) -> Contribution:
    """Nobody is charged more than what is left all the same."""
    given: Contribution = original(values, labels, owners, _ENDLESS + 0 * limits, *rest)
    _, first = np.unique(owners, return_index=True)
    return replace(given, charges=np.minimum(given.charges, limits[first]))


@mutant("gradient per record", "records of one owner are clipped one by one", GRADIENT)
def _record_by_record(original: Any, values: Any, labels: Any, owners: Any, limits: Any, *rest: Any) -> Contribution:
    names, who = np.unique(owners, return_inverse=True)
    share = limits // np.bincount(who, minlength=len(names))[who]
    alone: Contribution = original(values, labels, np.arange(len(owners)), share, *rest)
    charges = np.bincount(who, weights=alone.charges, minlength=len(names)).astype(np.int64)
    return Contribution(alone.sums, names, charges)


@mutant("gradient in floats", "sums are rounded together, so bits depend on others", GRADIENT)
def _in_floats(_: Any, values: Int8Array, labels: Any, owners: Any, limits: Any, *rest: Any) -> Contribution:
    """Softmax, gradient, clip and sum in floating point, as in a linear algebra library. Only the sum is rounded."""
    weights, clip, scale, *_ = rest
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


mutant("thin gradient noise", "gradients get half the noise that they are charged for", (training, "noisy_gradient"))(
    lambda noisy, total, scale, noise: noisy(total, scale // 2, noise)
)


def _reused(where: Any, name: str) -> list[Replacement]:
    """The noise is drawn once for each number of values."""
    kept: dict[int, IntArray] = {}

    def noisy(total: IntArray, scale: int, noise: Noise) -> IntArray:
        return total + kept.setdefault(total.size, noise.draw(scale, total.size)).reshape(total.shape)

    return [(where, name, noisy)]


MUTANTS += [
    Mutant("reused gradient noise", "the same noise in every step", partial(_reused, training, "noisy_gradient")),
    Mutant("reused card", "the same noise on every report card", partial(_reused, statistics, "noisy_tally")),
]
mutant("bare card", "counts and cards are released without noise", (statistics, "noisy_tally"))(
    lambda _, counts, *rest: counts
)


@mutant("cells whole", "records are counted whole whatever their owner paid", (statistics, "tally"))
def _cells_once(original: Any, cells: IntArray, owners: IntArray, *rest: Any, **of: Any) -> Contribution:
    given: Contribution = original(cells, owners, *rest, **of)
    return replace(given, sums=np.bincount(cells, minlength=len(given.sums)) * GRID)


# All analysts see a shared release, and it is charged in the ledger of one of them, or in none.
mutant("analyst pays for all", "training is charged to one analyst's ledger", (Shard, "_pay"))(
    lambda pay, self, given, scope: pay(self, given, None)
)
mutant("free training", "training is not charged", (Shard, "_pay"))(lambda _, self, given, scope: given.sums)
mutant("whole budget each", "analysts have all of B beside the shared model", (MemoryLedger, "limit"))(
    lambda limit, self, scope: limit(self, scope) if scope == SHARED else self.budget
)


@mutant("house ignored", "what shaped the model is not counted for those who see it", (MemoryLedger, "remaining"))
def _house_ignored(original: Any, self: MemoryLedger, slots: IntArray, scope: Scope) -> Any:
    with patched([(self, "joint", False)]):
        return original(self, slots, scope)


@mutant("named queries", "a named analyst's queries shape the shared model", (Predictor, "_train_if_due"))
def _named_queries(original: Any, self: Predictor, requests: Sequence[Request]) -> None:
    original(self, requests)
    if requests[0].analyst is not None and self.model is not None and self.model.due() is None:
        values = requests[0].queries.values
        rows = 2 * len(self.model.public) if self.model.public is not None else 1  # enough for them to be used
        self.start_round(np.resize(values, (max(rows, 1), values.shape[1])))
        for _ in self.training():
            pass


@mutant("private centre", "the model's features are centred by the mean of the records", (FeatureMap, "apply"))
def _private_centre(_: Any, self: FeatureMap, values: Int8Array) -> Int8Array:
    rows = feature_map._expanded(values, self.frequencies, self.phases)
    rows -= rows.mean(axis=0) if len(rows) > 1 else 0.0
    largest = np.maximum(np.abs(rows).max(axis=1, initial=0.0), 1.0)
    return np.asarray(np.rint(rows / largest[:, None] * 127.0), dtype=np.int8)


@mutant("replayed for nothing", "steps are written down without their charges", (StoreJournal, "note"))
def _replayed_free(original: Any, self: StoreJournal, analyst: Scope, *rest: Any) -> None:
    """After a crash everybody has the budget that they had before the step."""
    if analyst == SHARED and self.ledger.log is not None:
        self.ledger.log.pop(SHARED, None)
    original(self, analyst, *rest)


@mutant("steps repeated", "a restart forgets the steps that were made", (Predictor, "remember"))
def _repeated_steps(original: Any, self: Predictor, analyst: Scope, *rest: Any) -> None:
    if analyst != SHARED:
        original(self, analyst, *rest)


mutant("steps before the file", "training goes on before a step is durable", (StoreJournal, "secure"))(lambda *_: None)
