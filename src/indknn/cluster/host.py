"""A shard host: records and ledgers of some people. It writes nothing to disk and draws no noise.

It knows no names: people and records are numbers that the coordinator gave them. Everything here follows from what the
coordinator sent. So a host that dies can be filled again, and a host that was replaced is ignored.

The messages come first: plain values and arrays that can be pickled.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

import numpy as np
import numpy.typing as npt

from indknn.core.kernels import Kernel
from indknn.core.mechanism import Plan
from indknn.errors import ShardError
from indknn.ledger import MemoryLedger, Scope
from indknn.ledger.promises import PROMISE
from indknn.records.derived import Derived, Rule
from indknn.records.indexes import make_index
from indknn.records.shard import Admitted, Shard
from indknn.types import Cohort, IntArray, Times, Vectors

Debit = tuple[IntArray, IntArray]
"""Slots of owners, and the units that they paid."""
_NOBODY: IntArray = np.zeros(0, dtype=np.int64)
_OF_SHARD, _OF_LEDGER = ("expect", "redate", "bodies_at", "show"), ("set_promises",)
_OWN = ("place", "renew", "drop", "balances", "status", "vote", "count", "settle", "derive", "fill", "add_up")
CALLS = frozenset((*_OF_SHARD, *_OF_LEDGER, *_OWN))
"""What a coordinator may call: methods of the shard here, of its ledger, or of the host."""
SUMS = ("gradient", "tally", "headcount")
Limits = dict[str, Any]
"""What bounds everybody's spending, and the time: the attributes of a ledger that are sent with each call that charges.
"""
_LIMITS = ("budget", "global_budget", "shared_budget", "budgets", "joint", "minute", "fraction")


@dataclass(frozen=True)
class Form:
    """How to make the index of a shard, and the version of the program. Another version may use other messages."""

    version: str

    index: str
    kernel: Kernel
    n_features: int
    options: dict[str, Any]


def limits_of(ledger: MemoryLedger) -> Limits:
    """The limits now."""
    return {name: getattr(ledger, name) for name in _LIMITS}


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


class Host:
    """One shard. `call` is its only entry. It requires the incarnation that the latest coordinator began."""

    def __init__(self) -> None:
        self._incarnation: str | None = None

    def process(self) -> int:
        """The process id."""
        return os.getpid()

    def begin(self, incarnation: str, form: Form, threads: int | None) -> None:
        """Start empty, for a coordinator who from now on is the only one."""
        if form.version != version("indknn"):
            raise ShardError(f"this shard runs indknn {version('indknn')}, its coordinator {form.version}")
        index = make_index(form.index, form.kernel, form.n_features, **{"threads": threads, **form.options})
        self._ledger = MemoryLedger(0)
        self._ledger.log = {}
        self._shard = Shard(index, self._ledger)
        self._admitted: list[Admitted] = []
        self._derived: Derived | None = None
        self._incarnation = incarnation

    def call(self, incarnation: str, name: str, *arguments: Any) -> Any:
        """Run a call of the coordinator. A coordinator that was replaced, or that means another host, is refused."""
        if incarnation != self._incarnation:
            raise ShardError("this shard was started again, and has another coordinator or other records now")
        if name not in CALLS:
            raise ShardError(f"a shard does not know the call {name!r}")
        there = self._shard if name in _OF_SHARD else self._ledger if name in _OF_LEDGER else self
        return getattr(there, name)(*arguments)

    # Records and balances

    def place(
        self,
        vectors: Vectors,
        labels: IntArray,
        owners: IntArray,
        times: Times,
        balances: dict[Scope, IntArray],
        promises: npt.NDArray[np.void] | None,
    ) -> IntArray:
        """Store records and return their slots here.

        `balances` is what the distinct owners, ascending, have spent so far, and `promises` their own promises.
        """
        people = np.unique(owners)
        self._ledger.set_spent(people, None, np.zeros(len(people), dtype=np.int64))
        for scope, units in balances.items():
            self._ledger.set_spent(people, scope, units)
        if promises is not None:
            self._ledger.set_promises(people, promises)
        return self._shard.place(vectors, labels, owners, times)

    def renew(self, terms: Limits) -> None:
        """Everybody's budget starts anew."""
        vars(self._ledger).update(terms)
        self._ledger.close_period()

    def drop(self, slots: IntArray) -> None:
        """Erase records, and the balances of owners who have none left. The coordinator keeps those."""
        gone = np.array(self._shard.drop(np.sort(slots)), dtype=np.int64)
        for scope in self._ledger.scopes:
            self._ledger.set_spent(gone, scope, np.zeros(len(gone), dtype=np.int64))
        self._ledger.set_promises(gone, np.zeros(len(gone), dtype=PROMISE))

    def balances(self) -> dict[Scope, tuple[IntArray, IntArray]]:
        """Who has spent how much, by scope. For a coordinator that missed the end of a batch."""
        self._admitted = []
        self._ledger.log = {}
        people = np.unique(self._shard.owners_of(self._shard.slots()))
        return {scope: (people, self._ledger.spent_by(people, scope)) for scope in self._ledger.scopes}

    def status(self) -> dict[str, int]:
        """The status, for monitoring."""
        return {"records": len(self._shard), "record_bytes": self._shard.index.slots.bytes_per_slot}

    # Answering: counts and sums per query go out, and who paid for them

    def vote(self, terms: Limits, batch: QueryBatch, Ks: list[int]) -> Sums:
        """The votes on each query, if K is known beforehand: scan, admit, settle."""
        self._admit(terms, batch, counted=False)
        return self.settle(Ks, [plan for plan, _ in batch.questions])

    def count(self, terms: Limits, batch: QueryBatch) -> Sums:
        """How many records take part in each query. Their owners are charged for that, in the order of the queries."""
        paid = self._admit(terms, batch, counted=True)
        totals = np.array([admitted.total for admitted in self._admitted], dtype=np.int64)
        return Sums(totals, PackedDebits.of(paid))

    def settle(self, Ks: list[int], plans: list[Plan]) -> Sums:
        """The votes on each counted query, now that every K is known."""
        rows, paid = [], []
        waiting, self._admitted = self._admitted, []
        for admitted, votes in zip(waiting, self._shard.votes(waiting, Ks, plans), strict=True):
            rows.append(votes)
            paid.append(self._paid(admitted.scope))
        return Sums(np.array(rows), PackedDebits.of(paid))

    def _admit(self, terms: Limits, batch: QueryBatch, *, counted: bool) -> list[Debit]:
        """Admit people to each query. Returns what they paid for being counted."""
        vars(self._ledger).update(terms)
        self._admitted, paid = [], []
        for found, (plan, scope) in zip(self._shard.scan(batch.queries, batch.tau), batch.questions, strict=True):
            self._admitted.append(self._shard.admit(found, plan, scope, counted=counted))
            paid.append(self._paid(scope))
        return paid

    # Training

    def derive(self, rule: Rule, cohort: Cohort) -> None:
        """Set the rule and the records for the gradients or the report card that follow."""
        self._derived = self._shard.derived(rule, cohort)

    def fill(self) -> bool:
        """Process some more records. Returns whether there were any left."""
        return self._derived is not None and self._derived.fill()

    def add_up(self, terms: Limits, what: str, arguments: tuple[Any, ...], scope: Scope) -> Sums:
        """A sum over the records here that take part: the gradient, the tally or the headcount of the shard."""
        if what not in SUMS:
            raise ShardError(f"a shard does not know the sum {what!r}")
        vars(self._ledger).update(terms)
        rows = () if what == "headcount" else (self._derived,)
        total = getattr(self._shard, what)(*rows, *arguments, scope)
        return Sums(total, PackedDebits.of([self._paid(scope)]))

    def _paid(self, scope: Scope) -> Debit:
        """Who has paid how much in this scope since the last call, in one step at most."""
        assert self._ledger.log is not None
        charges = self._ledger.log.pop(scope, [])
        assert len(charges) <= 1, "a charge would be lost"
        return charges[0] if charges else (_NOBODY, _NOBODY)
