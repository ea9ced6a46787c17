"""The coordinator of a cluster: it calls the hosts, adds up what they send, and makes every debit.

It has the ledger and the links. Hosts have a copy of their own people's balances, to decide who can pay. Person p is on
host p mod N. All debits are made in the ledger here, which the journal writes down. So an answer is as durable and
atomic as with one shard, and a host can never cause an overdraft.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from indknn.cluster.host import Debit, Form, QueryBatch, Sums, limits_of
from indknn.cluster.links import Links
from indknn.core.mechanism import Plan
from indknn.errors import LedgerError, ShardError
from indknn.ledger import MemoryLedger, Scope
from indknn.records.derived import Rule
from indknn.types import Cohort, IntArray, Vectors, joined


@dataclass(frozen=True)
class Sent:
    """A query for the hosts. They know what is near it, so nothing is selected here."""

    query: Vectors
    tau: int

    def within(self, tau: int) -> Sent:
        """The same query with a larger τ."""
        return Sent(self.query, tau)


@dataclass(frozen=True)
class Waiting:
    """A query between `ask` and `votes`. `paid` is who has paid how much for the count. None if there is no count."""

    sent: Sent
    scope: Scope
    total: int = 0
    paid: Debit | None = None


@dataclass(frozen=True, eq=False)
class Kept:
    """The values that a rule gives to the records of a cluster. The hosts keep them, for one rule at a time."""

    coordinator: Coordinator
    rule: Rule
    cohort: Cohort

    def fill(self) -> bool:
        """Process some more records. Returns whether there were any left."""
        self.coordinator.keep(self)
        return any(self.coordinator.call_all("fill"))


class Coordinator:
    """Calls the hosts, and charges the ledger for what they answer. It takes the hosts over when it is first used."""

    def __init__(self, links: Links, form: Form, ledger: MemoryLedger):
        self._links, self._form, self.n, self.ledger = links, form, len(links), ledger
        self.lost: ShardError | None = None  # why a host is gone, and its records with it
        self._incarnation: str | None = None
        self._unpaid = 0  # queries that hosts have charged and the ledger here has not
        self._kept: Kept | None = None  # what the hosts keep for a round of training
        self._shown: Rule | None = None  # the rule of ballots about residuals
        self._told: str | None = None  # the incarnation of the hosts that have it

    @property
    def begun(self) -> bool:
        """Whether the hosts were taken over."""
        return self._incarnation is not None

    def begin_anew(self) -> None:
        """Take over empty hosts at the next call, because no record matters that was on those before."""
        self.lost, self._incarnation = None, None

    def refuse_if_lost(self) -> None:
        """Refuse to continue without a host, whose records are missing."""
        if self.lost is not None:
            raise LedgerError(f"a shard was lost, and its records with it: {self.lost}") from self.lost

    def call(self, name: str, arguments: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Make this call to every host, each with its own arguments. Returns all results."""
        self.refuse_if_lost()
        try:
            if self._incarnation is None:
                self._incarnation, self._unpaid = self._links.begin(self._form), 0
            return self._links.ask(self._incarnation, name, arguments)
        except ShardError as error:
            self.lost = error
            raise

    def call_all(self, name: str, *arguments: Any) -> list[Any]:
        """Make this call to every host, with the same arguments."""
        return self.call(name, [arguments] * self.n)

    # Answering

    def count(self, near: Sequence[Sent], questions: Sequence[tuple[Plan, Scope]]) -> list[Waiting]:
        """Count the people near all of these queries, in one round trip.

        The ledger is charged at once, whatever becomes of the hosts. For the journal, the charge belongs to the answer,
        which comes later.
        """
        sums = self._charging("count", len(near), limits_of(self.ledger), _batch(near, questions))
        totals: list[int] = np.sum([part.rows for part in sums], axis=0).tolist()
        waiting = [Waiting(sent, scope) for sent, (_, scope) in zip(near, questions, strict=True)]
        for i, (query, total) in enumerate(zip(waiting, totals, strict=True)):
            paid = self._debits(sums, i)
            self.ledger.charge(*paid, query.scope, joining=False)
            if self.ledger.log is not None:
                paid = self.ledger.log[query.scope].pop()
            waiting[i] = replace(query, total=total, paid=paid)
        return waiting

    def show(self, rule: Rule) -> None:
        """Set the rule of ballots about residuals. Hosts get it with the next query."""
        self._shown, self._told = rule, None

    def votes(self, waiting: Sequence[Waiting], Ks: Sequence[int], plans: Sequence[Plan]) -> Iterator[IntArray]:
        """The votes on all of these queries, in one round trip. The ledger is charged when the votes are taken."""
        if waiting[0].paid is None:
            scopes = [query.scope for query in waiting]
            batch = _batch([query.sent for query in waiting], list(zip(plans, scopes, strict=True)))
            sums = self._charging("vote", len(waiting), limits_of(self.ledger), batch, list(Ks))
        else:
            sums = self.call_all("settle", list(Ks), list(plans))
        rows = np.sum([part.rows for part in sums], axis=0)
        for i, query in enumerate(waiting):
            if query.paid is not None and self.ledger.log is not None:
                self.ledger.log.setdefault(query.scope, []).append(query.paid)
            self.ledger.charge(*self._debits(sums, i), query.scope)
            self._unpaid -= 1
            yield rows[i]

    # Training

    def keep(self, rows: Kept) -> None:
        """Let the hosts keep these values, instead of those before."""
        if rows is not self._kept:
            self.call_all("derive", rows.rule, rows.cohort)
            self._kept = rows

    def add_up(self, what: str, arguments: tuple[Any, ...], scope: Scope) -> IntArray:
        """A sum over the records of all hosts, charged."""
        sums = self._charging("add_up", 1, limits_of(self.ledger), what, arguments, scope)
        self.ledger.charge(*self._debits(sums, 0), scope)
        self._unpaid = 0
        return np.asarray(np.sum([part.rows for part in sums], axis=0), dtype=np.int64)

    # Charges

    def _charging(self, name: str, queries: int, *arguments: Any) -> list[Any]:
        self.settle_up()
        if self._shown is not None and (self._told is None or self._told != self._incarnation):
            self.call_all("show", self._shown)
            self._told = self._incarnation
        self._unpaid = queries
        return self.call_all(name, *arguments)

    def settle_up(self) -> None:
        """Charge people for the answers of an interrupted batch, although nobody received them. This is not undone.

        Counts are charged when they come. This adds what hosts have charged for votes that were never used. A store
        never comes here: it reads everything again from its file.
        """
        if self._unpaid:
            if self.ledger.log is not None:
                raise LedgerError("a batch was cut short, so memory and the store may differ: it must be read anew")
            for k, columns in enumerate(self.call_all("balances")):
                for scope, (people, units) in columns.items():
                    self.ledger.set_spent(people * self.n + k, scope, units)
            self._unpaid = 0

    def _debits(self, sums: Sequence[Sums], answer: int) -> tuple[IntArray, IntArray]:
        """Who pays for one answer, in ascending order, and how much."""
        parts = [part.debits[answer] for part in sums]
        if self.n == 1:
            return parts[0]
        slots = np.concatenate([own * self.n + k for k, (own, _) in enumerate(parts)])
        order = np.argsort(slots, kind="stable")  # ascending runs, so this is fast
        return slots[order], np.concatenate([units for _, units in parts])[order]


def _batch(sent: Sequence[Sent], questions: Sequence[tuple[Plan, Scope]]) -> QueryBatch:
    (tau,) = {query.tau for query in sent}
    return QueryBatch(joined([query.query for query in sent]), tau, list(questions))
