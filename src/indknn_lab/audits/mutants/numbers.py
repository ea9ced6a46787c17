"""Mutants of stores whose records say numbers: residuals, bounds and intervals."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from indknn.core import mechanism
from indknn.core.mechanism import Group, Plan, Settlement
from indknn.core.targets import MIDDLE, TOP, Number, as_numbers
from indknn.engine import Engine
from indknn.ledger import Scope
from indknn.models.rules import ResidualRule
from indknn.models.shown_numbers import ShownNumbers
from indknn.records import shard
from indknn.records.shard import Shard
from indknn.types import GRID, FloatArray, Int8Array, IntArray
from indknn_lab.audits.mutants.mechanism import IN_NUMPY
from indknn_lab.audits.patches import Mutant, Replacement


def _uncut_residual() -> list[Replacement]:
    original = ResidualRule.__call__

    def call(self: ResidualRule, values: Int8Array, labels: IntArray) -> IntArray:
        if self.ends is not None:
            return original(self, values, labels)
        return np.asarray(labels - MIDDLE - np.rint(self.said(values) * GRID), dtype=np.int64)

    return [(ResidualRule, "__call__", call)]


def _charged_as_cut() -> list[Replacement]:
    """Residuals are cut before they are charged, and voted as they are."""
    original = mechanism.settle

    def settle(group: Group, remaining: IntArray, K: int, plan: Plan) -> Settlement:
        voted = original(group, remaining, K, plan)
        if plan.ballot != "residual":
            return voted
        cut = replace(group, entry_vote=np.clip(group.entry_vote, -GRID // 8, GRID // 8))
        return replace(voted, charges=original(cut, remaining, K, plan).charges)

    return [IN_NUMPY, (mechanism, "settle", settle)]


def _no_bounds() -> list[Replacement]:
    def encode(self: Number, y: Any) -> tuple[IntArray, int]:
        return np.rint((as_numbers(y) - self.low) / (self.high - self.low) * TOP).astype(np.int64), 0

    return [(Number, "encode", encode), (shard, "about_centre", lambda labels, centre: labels - MIDDLE - centre)]


def _unpaid_interval() -> list[Replacement]:
    """Intervals come from counts of the records' own residuals, without noise."""

    def intervals(self: Engine, answers: Any, coverage: float, analyst: Scope = None) -> FloatArray:
        (low, high), shown = self.refuse_coverage(coverage), self.shown_to(analyst)
        assert isinstance(shown, ShownNumbers)
        assert isinstance(self.shard, Shard)
        slots = self.shard.slots()
        above = shown.rule(self.shard.values_of(slots), self.shard.labels_of(slots)) / GRID
        offsets = np.quantile(above, [(1.0 - coverage) / 2.0, (1.0 + coverage) / 2.0])
        return np.asarray(np.clip(answers[:, None] + 0.5 * (high - low) * offsets, low, high), dtype=np.float64)

    return [(Engine, "intervals", intervals)]


MUTANTS = [
    Mutant("residual uncut", "a record votes with all that the model gets wrong about it", _uncut_residual),
    Mutant("residual charged as cut", "residuals are charged as cut and voted whole", _charged_as_cut),
    Mutant("bounds ignored", "numbers beyond the bounds count as they are", _no_bounds),
    Mutant("unpaid interval", "intervals come from counts that nobody paid for", _unpaid_interval),
]
