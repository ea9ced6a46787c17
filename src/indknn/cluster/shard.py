"""A cluster, and the shard that it is to an engine or a store: the register is here, and the features on hosts.

The register says who has which slot, and where each record is. Hosts keep what is large: features and labels. What they
are asked, and who pays for it, is the business of the coordinator.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib.metadata import version
from typing import Any

import numpy as np

from indknn.cluster.coordinator import Coordinator, Kept, Sent, Waiting
from indknn.cluster.host import Form, limits_of
from indknn.cluster.links import PATIENCE, Links, Process, checked_number
from indknn.core.mechanism import Plan
from indknn.ledger import MemoryLedger, Scope
from indknn.ledger.promises import Wanted
from indknn.records.any_shard import AnyShard
from indknn.records.derived import Arguments, Rule
from indknn.records.indexes.scan import MAX_QUERIES, NO_SCALES, FreeSlots, cores
from indknn.settings import Settings
from indknn.types import Cohort, FloatArray, Int8Array, IntArray, OwnerId, Times, Vectors

_ROWS = 1 << 14
"""How many records are sent in one message."""


class Cluster(Links):
    """Links to hosts. An engine or a store has one shard over all of them."""

    def new_shard(self, settings: Settings, ledger: MemoryLedger) -> ClusterShard:
        """A shard without records. It takes the hosts over when it is first used."""
        form = Form(version("indknn"), settings.index, settings.kernel_, settings.n_features, settings.index_options)
        return ClusterShard(Coordinator(self, form, ledger), form)


def local_cluster(shards: int) -> Cluster:
    """A cluster of this many shard processes on this machine, which share its cores. They start when they are needed.

    >>> with local_cluster(2) as cluster:
    ...     len(cluster)
    2
    """
    shards = checked_number(shards)
    return Cluster(lambda number: Process(number, PATIENCE), shards, threads=max(cores() // shards, 1))


class ClusterShard(AnyShard):
    """The register of all records of a cluster. `coordinator` calls the hosts that have the features."""

    block = MAX_QUERIES

    def __init__(self, coordinator: Coordinator, form: Form):
        super().__init__(coordinator.ledger, with_scale=form.kernel.uses_lengths)
        self._coordinator, self._n, self._n_features = coordinator, coordinator.n, form.n_features
        self._slots = FreeSlots()
        self._place = np.zeros(0, dtype=np.int32)  # by record slot: its slot on its host

    @property
    def broken(self) -> bool:
        """Whether a change was interrupted, or a host was lost."""
        return self._interrupted or self._coordinator.lost is not None

    @broken.setter
    def broken(self, interrupted: bool) -> None:
        self._interrupted = interrupted

    def refuse_if_broken(self) -> None:
        """Refuse to continue after a host was lost, or a change was interrupted."""
        self._coordinator.refuse_if_lost()
        super().refuse_if_broken()

    # Records

    def place(self, vectors: Vectors, labels: IntArray, owner_slots: IntArray, times: Times) -> IntArray:
        """Store the records on the hosts of their owners. Returns the slot of each record."""
        self._coordinator.settle_up()
        slots = self._slots.take(len(vectors))
        self._enter(slots, labels, owner_slots, times)
        self._send_records(slots, vectors, labels)
        return slots

    def restore(
        self, vectors: Vectors, labels: IntArray, owners: IntArray, generations: IntArray, times: Times
    ) -> None:
        """Restore the records of an earlier process. The ledger must be read before."""
        slots, used = self._slots.take(len(vectors)), np.flatnonzero(owners >= 0)
        self._enter(slots, labels, owners, times, generations)
        self._send_records(slots[used], vectors[used], labels[used])

    def free(self, slots: IntArray) -> None:
        """Mark these slots as free. They are the last ones that were restored, or earlier ones."""
        self._slots.give_back(slots)

    def expect(self, records: int) -> None:
        """Reserve room for this many records, here and on the hosts, which get about equally many."""
        self._expect(records)
        self._reserve({"_place": -1}, records)
        self._coordinator.call_all("expect", records // self._n * 5 // 4 + 1024)

    def _send_records(self, slots: IntArray, vectors: Vectors, labels: IntArray) -> None:
        self._reserve({"_place": -1}, int(slots.max(initial=-1)) + 1)
        owners = self.owners_of(slots)
        mine = [np.flatnonzero(owners % self._n == k) for k in range(self._n)]
        for start in range(0, max(map(len, mine)), _ROWS):
            parts = [rows[start : start + _ROWS] for rows in mine]
            records = [self._records(slots[rows], vectors[rows], labels[rows]) for rows in parts]
            placed = self._coordinator.call("place", records)
            for rows, places in zip(parts, placed, strict=True):
                self._place[slots[rows]] = places

    def _records(self, slots: IntArray, vectors: Vectors, labels: IntArray) -> tuple[Any, ...]:
        owners = self.owners_of(slots)
        people, spent = np.unique(owners), {}
        promises = self.ledger.promises[people] if len(self.ledger.promises) else None
        for scope in self.ledger.scopes if len(people) else ():
            if (units := self.ledger.column(scope)[people]).any():
                spent[scope] = units
        times = self.epochs_of(slots), self.dates.until(slots)
        return vectors, labels, owners // self._n, times, spent, promises

    def _dated(self, slots: IntArray) -> None:
        if len(slots):
            hosts = self._by_host(slots)
            dates = [(self._place[own], self.dates.until(own), self.epochs_of(own)) for own in hosts]
            self._coordinator.call("redate", dates)

    def renew(self) -> None:
        """Everybody's budget starts anew, here and on the hosts."""
        self._coordinator.settle_up()
        super().renew()
        self._coordinator.call_all("renew", limits_of(self.ledger))

    def lower(self, wanted: Wanted) -> IntArray:
        """Give these people smaller promises, here and on their hosts. Returns their owner slots."""
        self._coordinator.settle_up()
        slots = super().lower(wanted)
        mine = [slots[slots % self._n == k] for k in range(self._n)]
        self._coordinator.call("set_promises", [(people // self._n, self.ledger.promises[people]) for people in mine])
        return slots

    def forget(self, slots: IntArray) -> dict[int, OwnerId]:
        """Remove the records in these slots. If all are removed, lost ones no longer matter."""
        if self._coordinator.lost is not None and len(np.unique(slots)) == len(self):
            self._coordinator.begin_anew()
            self.broken = False
        return super().forget(slots)

    def drop(self, slots: IntArray) -> list[int]:
        """Remove the records in these slots, here and on the hosts. Returns the owners who have none left."""
        if self._coordinator.begun and len(slots):
            self._coordinator.settle_up()
            self._coordinator.call("drop", [(self._place[own],) for own in self._by_host(slots)])
        self._slots.give_back(slots)
        return self._leave(slots)

    def bodies_at(self, slots: IntArray) -> tuple[Int8Array, FloatArray]:
        """The quantised features of these records, and their scales, fetched from the hosts."""
        values, scales = np.zeros((len(slots), self._n_features), dtype=np.int8), np.ones(len(slots))
        if not len(slots):
            return values, scales
        hosts = self.owners_of(slots) % self._n
        parts = self._coordinator.call("bodies_at", [(self._place[own],) for own in self._by_host(slots)])
        for k, part in enumerate(parts):
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
        """Count the people near all of these queries, in one round trip. Without counts, nothing is sent yet."""
        if counted and near:
            return self._coordinator.count(near, questions)
        return [Waiting(sent, scope) for sent, (_, scope) in zip(near, questions, strict=True)]

    def votes(self, admitted: Sequence[Waiting], Ks: Sequence[int], plans: Sequence[Plan]) -> Iterator[IntArray]:
        """The votes on all of these queries, in one round trip. The ledger is charged when the votes are taken."""
        return self._coordinator.votes(admitted, Ks, plans) if admitted else iter(())

    def show(self, rule: Rule) -> None:
        """From now on, ballots about residuals are about the values of this rule."""
        self._coordinator.show(rule)

    # Training

    def derived(self, rule: Rule, cohort: Cohort) -> Kept:
        """The values that a rule gives to each record, which the hosts keep."""
        return Kept(self._coordinator, rule, cohort)

    def prepare_gradient(self, rows: Kept, step: Arguments, scope: Scope) -> bool:
        """Nothing to do: hosts compute a gradient when it is requested, beside the thread that answers."""
        return False

    def gradient(self, rows: Kept, step: Arguments, scope: Scope) -> IntArray:
        """The gradient over all records that take part, charged."""
        self._coordinator.keep(rows)
        return self._coordinator.add_up("gradient", (step,), scope)

    def tally(self, cells: Kept, n_cells: int, scale: int, price: int, scope: Scope) -> IntArray:
        """How many records are in each cell, charged."""
        self._coordinator.keep(cells)
        return self._coordinator.add_up("tally", (n_cells, scale, price), scope)

    def headcount(
        self, cohort: Cohort, n_cells: int, span: int, since: int, scale: int, price: int, scope: Scope
    ) -> IntArray:
        """How many people there are, charged."""
        return self._coordinator.add_up("headcount", (cohort, n_cells, span, since, scale, price), scope)

    def status(self) -> list[dict[str, int]]:
        """The status of each host, for monitoring."""
        return self._coordinator.call_all("status")

    def __getstate__(self) -> dict[str, Any]:
        raise TypeError("the shard of a cluster cannot be copied: its records are in other processes")
