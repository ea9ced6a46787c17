"""The messages between a coordinator and its shards: plain values and arrays that can be pickled."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from indknn.core.kernels import Kernel
from indknn.core.mechanism import Plan
from indknn.ledger import MemoryLedger, Scope
from indknn.types import IntArray, Vectors

Debit = tuple[IntArray, IntArray]
"""Slots of owners, and the units that they paid."""


@dataclass(frozen=True)
class Form:
    """How to make the index of a shard, and the version of the program. Another version may use other messages."""

    version: str

    index: str
    kernel: Kernel
    n_features: int
    options: dict[str, Any]


@dataclass(frozen=True)
class Limits:
    """The limits of everybody's spending. They are sent with every call that charges."""

    budget: int
    global_budget: int | None
    shared_budget: int
    budgets: dict[Scope, int]
    house: bool

    @staticmethod
    def of(ledger: MemoryLedger) -> Limits:
        """The limits now."""
        return Limits(ledger.budget, ledger.global_budget, ledger.shared_budget, dict(ledger.budgets), ledger.house)

    def hold_in(self, ledger: MemoryLedger) -> None:
        """Use these limits in this ledger from now on."""
        ledger.budget, ledger.global_budget, ledger.shared_budget = self.budget, self.global_budget, self.shared_budget
        ledger.budgets, ledger.house = self.budgets, self.house


@dataclass(frozen=True)
class QueryBatch:
    """Queries that are asked together, with one scan and one round trip: the plan of each, and whose ledger pays."""

    queries: Vectors
    tau: int
    questions: list[tuple[Plan, Scope]]


@dataclass(frozen=True)
class PackedDebits:
    """Who pays how much for each of some answers. `ends` says where the owners of each answer end."""

    ends: IntArray
    slots: npt.NDArray[np.uint32]
    units: IntArray

    @staticmethod
    def of(answers: list[Debit]) -> PackedDebits:
        """Pack them."""
        slots = np.concatenate([np.zeros(0, dtype=np.int64), *(slots for slots, _ in answers)])
        units = np.concatenate([np.zeros(0, dtype=np.int64), *(units for _, units in answers)])
        return PackedDebits(np.cumsum([len(slots) for slots, _ in answers]), slots.astype(np.uint32), units)

    def __getitem__(self, answer: int) -> Debit:
        first, end = int(self.ends[answer - 1]) if answer else 0, int(self.ends[answer])
        return self.slots[first:end].astype(np.int64), self.units[first:end]


@dataclass(frozen=True)
class Sums:
    """The result of a shard: sums over its people, one row per answer, and what they pay."""

    rows: IntArray
    debits: PackedDebits
