"""Mutants of budgets that are one person's own, or that depend on time."""

from __future__ import annotations

from typing import Any

import numpy as np

from indknn.ledger import SHARED, MemoryLedger, Scope
from indknn.ledger.memory import is_earlier
from indknn.ledger.promises import Wanted
from indknn.records.shard import Shard
from indknn.types import IntArray
from indknn_lab.audits.patches import Mutant, Replacement


def _same_for_all() -> list[Replacement]:
    """A promise is written down and printed, and limits nothing."""
    original = MemoryLedger.bounds

    def bounds(self: MemoryLedger, slots: IntArray, scope: Scope, **options: Any) -> Any:
        own, self._promises = self._promises, self._promises[:0]
        try:
            return original(self, slots, scope, **options)
        finally:
            self._promises = own

    return [(MemoryLedger, "bounds", bounds), (MemoryLedger, "_in_one_pass", lambda *_: False)]


def _same_in_training() -> list[Replacement]:
    """A promise limits votes, counts and cards, and not the gradients of training."""
    original = Shard.gradient

    def gradient(self: Shard, rows: Any, step: Any, scope: Scope) -> IntArray:
        own, self.ledger._promises = self.ledger._promises, self.ledger._promises[:0]
        try:
            return original(self, rows, step, scope)
        finally:
            self.ledger._promises = own

    return [(Shard, "gradient", gradient)]


def _what_is_left() -> list[Replacement]:
    """Whoever lowers their promise leaves to all analysts what one analyst did not use."""
    original = MemoryLedger.lower

    def lower(self: MemoryLedger, wanted: Wanted) -> IntArray:
        slots = original(self, wanted)
        told = np.max([self._spent[s][slots] for s in self.scopes if s != SHARED], axis=0, initial=0)
        part = np.minimum(wanted.units, self.budget) - told
        self._promises["part"][slots] = np.maximum(part, self._promises["part"][slots])
        return slots

    return [(MemoryLedger, "lower", lower)]


def _all_at_once() -> list[Replacement]:
    """What is paced is there at once."""
    original = MemoryLedger.tick

    def tick(self: MemoryLedger) -> int:
        now = original(self)
        self.fraction = 1, 1
        return now

    return [(MemoryLedger, "tick", tick)]


def _clean_slate() -> list[Replacement]:
    """After a renewal nobody knows what was spent before."""
    original = MemoryLedger.close_period

    def close_period(self: MemoryLedger, periods: int = 1) -> None:
        original(self, periods)
        for scope in self.all_scopes:
            if is_earlier(scope):
                self._spent[scope][:] = 0

    return [(MemoryLedger, "close_period", close_period)]


MUTANTS = [
    Mutant("promise ignored", "somebody was promised less, and pays as much as everybody", _same_for_all),
    Mutant("promise untrained", "training uses more than somebody was promised", _same_in_training),
    Mutant("lowering tells all", "what all see depends on what one analyst was told", _what_is_left),
    Mutant("pace ignored", "votes use their part before its time", _all_at_once),
    Mutant("periods forgotten", "what was spent in earlier periods does not count", _clean_slate),
]
