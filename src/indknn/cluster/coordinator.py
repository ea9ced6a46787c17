"""The coordinator of a cluster: it has the books of all records, the ledger, and links to the hosts.

It knows who has which slot, what everybody has spent, and where each record is. Hosts keep what is large: features and
labels. They also have a copy of their own people's balances, to decide who can pay. Person p is on host p mod N. The
coordinator adds up the sums of the hosts. It also makes every debit, in the ledger that the journal writes down. So an
answer is as durable and atomic as with one shard, and a host can never cause an overdraft.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from typing import Any

import numpy as np

from indknn.cluster.links import PATIENCE, Links, Process, checked_number
from indknn.cluster.messages import Debit, Form, Limits, QueryBatch, Sums
from indknn.core.mechanism import Plan
from indknn.errors import LedgerError, ShardError
from indknn.ledger import MemoryLedger, Scope
from indknn.records.book import RecordBook
from indknn.records.derived import Rule
from indknn.records.indexes.scan import MAX_QUERIES
from indknn.records.keys import KeyArray
from indknn.records.slices import Arguments
from indknn.records.slots import NO_SCALES, FreeSlots
from indknn.settings import Settings
from indknn.types import Cohort, FloatArray, Int8Array, IntArray, OwnerId, Vectors, joined

_ROWS = 1 << 14
"""How many records are sent in one message."""


class Cluster(Links):
    """Links to hosts. An engine or a store has one coordinator over all of them."""

    def new_shard(self, settings: Settings, ledger: MemoryLedger) -> Coordinator:
        """A coordinator without records. It takes the hosts over when it is first used."""
        form = Form(version("indknn"), settings.index, settings.kernel_, settings.n_features, settings.index_options)
        return Coordinator(self, form, ledger)


def local_cluster(shards: int, *, patience: float = PATIENCE) -> Cluster:
    """A cluster of this many shard processes on this machine, which share its cores. They start when they are needed.

    >>> with local_cluster(2) as cluster:
    ...     len(cluster)
    2
    """
    shards = checked_number(shards)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return Cluster(lambda number: Process(number, patience), shards, threads=max(cores // shards, 1))


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


class Coordinator(RecordBook):
    """The books of a cluster, and the calls of its hosts. See the top of this file."""

    block = MAX_QUERIES

    def __init__(self, links: Links, form: Form, ledger: MemoryLedger):
        super().__init__(ledger, with_scale=form.kernel.uses_lengths)
        self._links, self._form, self._n = links, form, len(links)
        self._incarnation: str | None = None
        self._slots = FreeSlots()
        self._place = np.zeros(0, dtype=np.int32)  # by record slot: its slot on its host
        self._unpaid = 0  # queries that hosts have charged and the ledger here has not
        self._kept: Kept | None = None  # what the hosts keep for a round of training

    def __len__(self) -> int:
        return len(self._slots)

    # Records

    def add(
        self, vectors: Vectors, labels: IntArray, owners: Sequence[OwnerId], keys: KeyArray | None = None
    ) -> IntArray:
        """Store the records on the hosts of their owners, and return their numbers."""
        with self._changing():
            self._settle_up()
            slots = self._slots.take(len(vectors))
            self._enter(slots, labels, self.ledger.enrol(owners), self.epoch)
            self._set_keys(slots, keys)
            self._send_records(slots, vectors, labels)
            return self.ids_at(slots)

    def restore(
        self, vectors: Vectors, labels: IntArray, owners: IntArray, generations: IntArray, epochs: IntArray | int = 0
    ) -> None:
        """Restore the records of an earlier process. The ledger must be read before."""
        slots, used = self._slots.take(len(vectors)), np.flatnonzero(owners >= 0)
        self._enter(slots, labels, owners, epochs, generations)
        self._send_records(slots[used], vectors[used], labels[used])

    def free(self, slots: IntArray) -> None:
        """Mark these slots as free. They are the last ones that were restored, or earlier ones."""
        self._slots.give_back(slots)

    def expect(self, records: int) -> None:
        """Reserve room for this many records, here and on the hosts, which get about equally many."""
        self._expect(records)
        self._reserve({"_place": -1}, records)
        self._hosts("expect", [(records // self._n * 5 // 4 + 1024,)] * self._n)

    def _send_records(self, slots: IntArray, vectors: Vectors, labels: IntArray) -> None:
        self._reserve({"_place": -1}, int(slots.max(initial=-1)) + 1)
        owners = self.owners_of(slots)
        mine = [np.flatnonzero(owners % self._n == k) for k in range(self._n)]
        for start in range(0, max(map(len, mine)), _ROWS):
            parts = [rows[start : start + _ROWS] for rows in mine]
            given = self._hosts("place", [self._records(slots[rows], vectors[rows], labels[rows]) for rows in parts])
            for rows, places in zip(parts, given, strict=True):
                self._place[slots[rows]] = places

    def _records(self, slots: IntArray, vectors: Vectors, labels: IntArray) -> tuple[Any, ...]:
        owners = self.owners_of(slots)
        people, spent = np.unique(owners), {}
        for scope in self.ledger.scopes if len(people) else ():
            if (units := self.ledger.column(scope)[people]).any():
                spent[scope] = units
        return vectors, labels, owners // self._n, self.epochs_of(slots), spent

    def forget(self, slots: IntArray) -> dict[int, OwnerId]:
        """Remove the records in these slots, here and on the hosts. Owners with no record left are forgotten.

        If all records are removed, lost ones no longer matter.
        """
        slots = np.unique(slots)
        if self._cause is not None and len(slots) == len(self):
            self._cause, self._incarnation, self.broken = None, None, False
        with self._changing():
            if self._incarnation is not None and len(slots):
                self._settle_up()
                self._hosts("drop", [(self._place[some],) for some in self._by_host(slots)])
            self._slots.give_back(slots)
            return self._retire(self._leave(slots))

    def bodies_at(self, slots: IntArray) -> tuple[Int8Array, FloatArray]:
        """The quantised features of these records, and their scales, fetched from the hosts."""
        values, scales = np.zeros((len(slots), self._form.n_features), dtype=np.int8), np.ones(len(slots))
        if not len(slots):
            return values, scales
        hosts = self.owners_of(slots) % self._n
        for k, part in enumerate(self._hosts("bodies", [(self._place[some],) for some in self._by_host(slots)])):
            values[hosts == k], scales[hosts == k] = part
        return values, scales if self._with_scale else NO_SCALES

    def _by_host(self, slots: IntArray) -> list[IntArray]:
        hosts = self.owners_of(slots) % self._n
        return [slots[hosts == k] for k in range(self._n)]

    # Answering

    def scan(self, queries: Vectors, tau: int) -> list[Sent]:
        """Nothing is sent yet: hosts scan when they must count or vote."""
        return [Sent(queries[slice(i, i + 1)], tau) for i in range(len(queries))]

    def ask(
        self, near: Sequence[Sent], questions: Sequence[tuple[Plan, Scope]], *, counted: bool = True
    ) -> list[Waiting]:
        """Count the people near all of these queries, in one round trip. Without counts, nothing is sent yet.

        The ledger is charged at once, whatever becomes of the hosts. For the journal, the charge belongs to the answer,
        which comes later.
        """
        waiting = [Waiting(sent, scope) for sent, (_, scope) in zip(near, questions, strict=True)]
        if not counted or not waiting:
            return waiting
        sums = self._charging("count", len(waiting), (Limits.of(self.ledger), _batch(near, questions)))
        totals: list[int] = np.sum([one.rows for one in sums], axis=0).tolist()
        for i, (one, total) in enumerate(zip(waiting, totals, strict=True)):
            paid = self._debits(sums, i)
            self.ledger.charge(*paid, one.scope, joining=False)
            if self.ledger.log is not None:
                paid = self.ledger.log[one.scope].pop()
            waiting[i] = replace(one, total=total, paid=paid)
        return waiting

    def votes(self, admitted: Sequence[Waiting], Ks: Sequence[int], plans: Sequence[Plan]) -> Iterator[IntArray]:
        """The votes on all of these queries, in one round trip. The ledger is charged when the votes are taken."""
        if not admitted:
            return
        if admitted[0].paid is None:
            scopes = [one.scope for one in admitted]
            batch = _batch([one.sent for one in admitted], list(zip(plans, scopes, strict=True)))
            sums = self._charging("vote", len(admitted), (Limits.of(self.ledger), batch, list(Ks)))
        else:
            sums = self._hosts("settle", [(list(Ks), list(plans))] * self._n)
        rows = np.sum([one.rows for one in sums], axis=0)
        for i, one in enumerate(admitted):
            if one.paid is not None and self.ledger.log is not None:
                self.ledger.log.setdefault(one.scope, []).append(one.paid)
            self.ledger.charge(*self._debits(sums, i), one.scope)
            self._unpaid -= 1
            yield rows[i]

    def _debits(self, sums: Sequence[Sums], answer: int) -> tuple[IntArray, IntArray]:
        """Who pays for one answer, in ascending order, and how much."""
        parts = [one.debits[answer] for one in sums]
        if self._n == 1:
            return parts[0]
        slots = np.concatenate([own * self._n + k for k, (own, _) in enumerate(parts)])
        order = np.argsort(slots, kind="stable")  # ascending runs, so this is fast
        return slots[order], np.concatenate([units for _, units in parts])[order]

    # Training

    def derived(self, rule: Rule, cohort: Cohort) -> Kept:
        """The values that a rule gives to each record. The hosts keep them, for one rule at a time."""
        return Kept(self, rule, cohort)

    def fill(self, rows: Kept) -> bool:
        """Let the hosts process some more records. Returns whether there were any left."""
        self._keep(rows)
        return any(self._hosts("fill", [()] * self._n))

    def prepare_gradient(self, rows: Kept, step: Arguments, scope: Scope) -> bool:
        """Nothing to do: hosts compute a gradient when it is requested, beside the thread that answers."""
        return False

    def gradient(self, rows: Kept, step: Arguments, scope: Scope) -> IntArray:
        """The gradient over all records that take part, charged."""
        self._keep(rows)
        return self._pay_sums("gradient", (step, scope), scope)

    def tally(self, cells: Kept, n_cells: int, scale: int, price: int, scope: Scope) -> IntArray:
        """How many records are in each cell, charged."""
        self._keep(cells)
        return self._pay_sums("tally", (n_cells, scale, price, scope), scope)

    def headcount(self, cohort: Cohort, n_cells: int, since: int, scale: int, price: int, scope: Scope) -> IntArray:
        """How many people there are, charged."""
        return self._pay_sums("headcount", (cohort, n_cells, since, scale, price, scope), scope)

    def _keep(self, rows: Kept) -> None:
        if rows is not self._kept:
            self._hosts("derive", [(rows.rule, rows.cohort)] * self._n)
            self._kept = rows

    def _pay_sums(self, name: str, arguments: tuple[Any, ...], scope: Scope) -> IntArray:
        sums = self._charging(name, 1, (Limits.of(self.ledger), *arguments))
        self.ledger.charge(*self._debits(sums, 0), scope)
        self._unpaid = 0
        return np.asarray(np.sum([one.rows for one in sums], axis=0), dtype=np.int64)

    # Hosts

    def _charging(self, name: str, queries: int, arguments: tuple[Any, ...]) -> list[Any]:
        self._settle_up()
        self._unpaid = queries
        return self._hosts(name, [arguments] * self._n)

    def _settle_up(self) -> None:
        """Charge people for the answers of an interrupted batch, although nobody received them. This is not undone.

        Counts are charged when they come. This adds what hosts have charged for votes that were never used. A store
        never comes here: it reads everything again from its file.
        """
        if self._unpaid:
            if self.ledger.log is not None:
                raise LedgerError("a batch was cut short, so memory and the store may differ: it must be read anew")
            for k, columns in enumerate(self._hosts("balances", [()] * self._n)):
                for scope, (people, units) in columns.items():
                    self.ledger.set_spent(people * self._n + k, scope, units)
            self._unpaid = 0

    def _hosts(self, name: str, arguments: Sequence[tuple[Any, ...]]) -> list[Any]:
        self.refuse_if_broken()
        try:
            if self._incarnation is None:
                self._incarnation, self._unpaid = self._links.begin(self._form), 0
            return self._links.ask(self._incarnation, name, arguments)
        except ShardError as error:
            self.broken, self._cause = True, error
            self._why = f"a shard was lost, and its records with it: {error}"
            raise

    def __getstate__(self) -> dict[str, Any]:
        raise TypeError("the shard of a cluster cannot be copied: its records are in other processes")

    def status(self) -> Iterator[dict[str, int]]:
        """The status of each host, for monitoring."""
        yield from self._hosts("status", [()] * self._n)


@dataclass(frozen=True, eq=False)
class Kept:
    """The values that a rule gives to the records of a cluster. The hosts keep them."""

    coordinator: Coordinator
    rule: Rule
    cohort: Cohort

    def fill(self) -> bool:
        """Process some more records. Returns whether there were any left."""
        return self.coordinator.fill(self)


def _batch(sent: Sequence[Sent], questions: Sequence[tuple[Plan, Scope]]) -> QueryBatch:
    (tau,) = {one.tau for one in sent}
    return QueryBatch(joined([one.query for one in sent]), tau, list(questions))
