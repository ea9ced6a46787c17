"""Mutants of expiry and holds."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from indknn.core import clock
from indknn.ledger import MemoryLedger
from indknn.records.by_slot import Dates
from indknn.store import change, store
from indknn.store.change import Erased
from indknn.types import BoolArray, IntArray
from indknn_lab.audits.patches import Mutant, Replacement


def _all_take_part() -> list[Replacement]:
    def taking_part(self: Dates, slots: IntArray, hour: int) -> BoolArray:
        return np.ones(len(slots), dtype=bool)

    return [(Dates, "taking_part", taking_part)]


def _held_take_part() -> list[Replacement]:
    def taking_part(self: Dates, slots: IntArray, hour: int) -> BoolArray:
        return self.of(slots) > hour

    return [(Dates, "taking_part", taking_part)]


def _back_in_time() -> list[Replacement]:
    def tick(self: MemoryLedger) -> int:
        self.minute = clock.minute()
        return self.minute

    return [(MemoryLedger, "tick", tick)]


def _refund() -> list[Replacement]:
    original = Erased.from_memory

    def from_memory(state: Any, slots: IntArray, why: str) -> Erased:
        erased = original(state, slots, why)
        if why == "expire":
            empty = {digest: replace(grave, spent={}, queries=0) for digest, grave in erased.tombstones.items()}
            state.engine.ledger.tombstones.update(empty)
        return erased

    return [(Erased, "from_memory", staticmethod(from_memory))]


def _shown() -> list[Replacement]:
    original = change.expire

    def expire(state: Any, most: int) -> int:
        gone = original(state, most)
        if gone and state.engine.settings.advised:
            state.engine.start_round()
        return gone

    return [(store, "expire", expire)]


MUTANTS = [
    Mutant("expired votes", "a record takes part after its date", _all_take_part),
    Mutant("held votes", "a record under a hold takes part", _held_take_part),
    Mutant("back in time", "a clock that is set back revives what has expired", _back_in_time),
    Mutant("expiry refunds", "what somebody spent goes with their last record", _refund),
    Mutant("expiry begins rounds", "a round of training begins when a record expires", _shown),
]
