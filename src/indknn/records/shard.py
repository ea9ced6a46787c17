"""A shard owns records, their index, and the ledger of the people to whom they belong.

It answers a query in two calls, `admit` and `settle`. Between them, only a count goes out and the noisy K comes back.
After them, only the sums of votes per class go out. All records of one owner are in one shard, because the owner's
ledger is there.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from indknn.core import mechanism, statistics
from indknn.core.clock import HOUR
from indknn.core.mechanism import Plan
from indknn.core.quantise import _votes, as_int64
from indknn.core.statistics import Contribution
from indknn.core.targets import about_centre
from indknn.ledger import MemoryLedger, Scope
from indknn.records.any_shard import AnyShard
from indknn.records.derived import Arguments, Derived, GradientSlices, Rule
from indknn.records.indexes import ExactIndex, make_index
from indknn.settings import Settings
from indknn.types import EVERYBODY, GRID, Cohort, FloatArray, Int8Array, IntArray, Selection, Times, Vectors


def new_index(settings: Settings) -> ExactIndex:
    """An empty index as these settings say."""
    return make_index(settings.index, settings.kernel_, settings.n_features, **settings.index_options)


@dataclass(frozen=True)
class Admitted:
    """A query between `admit` and `settle`: its participants, who have paid for being counted."""

    total: int
    group: mechanism.Group
    scope: Scope


class Shard(AnyShard):
    """Records of some people, searchable, with what each person has spent."""

    block = 1
    """How many queries are asked before any of them is settled. A cluster takes many at once."""

    def __init__(self, index: ExactIndex, ledger: MemoryLedger):
        super().__init__(ledger, with_scale=index.slots.with_scale)
        self.index = index
        self._residuals: Derived | None = None  # what the shown model gets wrong about records
        self._spare: tuple[Cohort, IntArray] | None = None  # the numbers of records that are too many of one person

    @property
    def used(self) -> int:
        """All slots below this have held a record."""
        return self.index.slots.used

    def values_of(self, slots: IntArray) -> Int8Array:
        """The quantised features of these records."""
        return self.index.slots.values[slots]

    def bodies_at(self, slots: IntArray) -> tuple[Int8Array, FloatArray]:
        """The quantised features of these records, and their scales if the kernel uses them."""
        return self.values_of(slots), self.index.slots.scales(slots)

    def place(self, vectors: Vectors, labels: IntArray, owner_slots: IntArray, times: Times) -> IntArray:
        """Store records of people who have slots already. Returns the slot of each record."""
        slots = self.index.add(vectors)
        self._enter(slots, labels, owner_slots, times)
        return slots

    def drop(self, slots: IntArray) -> list[int]:
        """Remove the records in these slots. Returns the slots of the owners who have none left."""
        self.index.remove(slots)
        return self._leave(slots)

    def restore(
        self, vectors: Vectors, labels: IntArray, owners: IntArray, generations: IntArray, times: Times
    ) -> None:
        """Restore the next records of an earlier process, slot by slot. Owner -1 marks a slot that will be freed."""
        self._enter(self.index.add(vectors), labels, owners, times, generations)

    def expect(self, records: int) -> None:
        """Reserve room for this many records, so that nothing is moved while they are added."""
        self.index.slots.expect(records)
        self._expect(records)

    def free(self, slots: IntArray) -> None:
        """Mark these slots as free. They are the last ones that were restored, or earlier ones."""
        self.index.remove(slots)

    # Answering

    def scan(self, queries: Vectors, tau: int) -> list[Selection]:
        """Which records each query selects. At τ = `EVERYBODY` all are, and each person counts once."""
        return self.index.search(queries, tau) if tau != EVERYBODY else [self._everybody()] * len(queries)

    def _everybody(self) -> Selection:
        """All records that take part, weighted so that those of one person add up to 1."""
        slots = self.slots()
        slots = slots[self.dates.taking_part(slots, self.ledger.minute // HOUR)]
        _, who, m = np.unique(self._owner[slots], return_inverse=True, return_counts=True)
        return Selection(slots, GRID // m[who])

    def admit(self, selection: Selection, plan: Plan, scope: Scope, *, counted: bool = True) -> Admitted:
        """Lines 4 to 7: admit those who can pay for being counted, and charge them.

        If K is known without a count (`counted` False), everybody near is admitted and nobody pays here.
        """
        group = mechanism.group(*self._ballots(selection, plan), plan)
        total = 0
        if counted:
            columns = self.ledger.columns(group.owners, scope)
            count = None if columns is None else mechanism.count_and_charge(group, columns, plan)
            if count is None:  # without C, or the budget is not that simple
                count = mechanism.count(group, self.ledger.remaining(group.owners, scope), plan)
                self.ledger.charge(count.group.owners, count.charges, scope, joining=False)
            elif self.ledger.log is not None:
                self.ledger.charged(count.group.owners, count.charges, scope)
            group, total = count.group, count.total
        return Admitted(total, group, scope)

    def _ballots(self, selection: Selection, plan: Plan) -> tuple[IntArray, IntArray, IntArray]:
        """Whose the records are that take part, what they say, and their kernel values."""
        hour = self.ledger.minute // HOUR
        if _votes is not None and plan.ballot == "class" and self._label.used:
            near = as_int64(selection.slots), as_int64(selection.kappa)
            *parts, n = _votes.ballots(*near, self._owner, *self._label.raw, *self.dates.raw, hour)
            owners, said, kappa = (np.frombuffer(part, np.int64, n) for part in parts)
            return owners, said, kappa
        here = self.dates.taking_part(selection.slots, hour)
        slots, kappa = selection.slots[here], selection.kappa[here]
        if plan.ballot == "residual":  # each record says what the shown model gets wrong about it
            assert self._residuals is not None, "no model was shown"
            said = np.asarray(self._residuals.of(slots), dtype=np.int64)
        else:  # its class, or its number
            said = self._label[slots].astype(np.int64)
            said = said if plan.ballot == "class" else about_centre(said, plan.centre)
        return self._owner[slots].astype(np.int64), said, kappa

    def show(self, rule: Rule) -> None:
        """From now on, ballots about residuals are about the values of this rule. They are computed when needed."""
        self._residuals = Derived(self, rule, Cohort(0, 0))

    def ask(
        self, near: Sequence[Selection], questions: Sequence[tuple[Plan, Scope]], *, counted: bool = True
    ) -> list[Admitted]:
        """Admit the people near each query, in order, before any of these queries is settled."""
        pairs = zip(near, questions, strict=True)
        return [self.admit(found, plan, scope, counted=counted) for found, (plan, scope) in pairs]

    def votes(self, admitted: Sequence[Admitted], Ks: Sequence[int], plans: Sequence[Plan]) -> Iterator[IntArray]:
        """The votes on each query. Everybody pays for a query when its votes are taken."""
        return map(self.settle, admitted, Ks, plans)

    def settle(self, admitted: Admitted, K: int, plan: Plan) -> IntArray:
        """Lines 8 and 9: charge the clipped votes, and return their sums per class."""
        group, scope = admitted.group, admitted.scope
        columns, queries = self.ledger.columns(group.owners, scope), self.ledger.counters
        settled = None if columns is None else mechanism.settle_and_charge(group, columns, queries, K, plan)
        if settled is None:
            settled = mechanism.settle(group, self.ledger.remaining(group.owners, scope), K, plan)
            self.ledger.charge(group.owners, settled.charges, scope)
        elif self.ledger.log is not None:
            self.ledger.charged(group.owners, settled.charges, scope)
        return settled.votes

    # Training

    def derived(self, rule: Rule, cohort: Cohort) -> Derived:
        """The values that a rule gives to each record of a cohort. They are computed once and kept."""
        return Derived(self, rule, cohort)

    def gradient(self, rows: Derived, step: Arguments, scope: Scope) -> IntArray:
        """The gradient of a model over all records of the cohort, charged."""
        slices = self._slices(rows, step, scope)
        rows.slices = None
        return self._pay(slices.contribution(), scope)

    def prepare_gradient(self, rows: Derived, step: Arguments, scope: Scope) -> bool:
        """Compute a part of what `gradient` will need. Nobody pays yet. Returns whether there was more to do."""
        return self._slices(rows, step, scope).more()

    def _slices(self, rows: Derived, step: Arguments, scope: Scope) -> GradientSlices:
        if rows.slices is None or not rows.slices.step.same(step):
            rows.slices = GradientSlices(self, rows, step, self.ledger, scope)
        return rows.slices

    def tally(self, cells: Derived, n_cells: int, scale: int, price: int, scope: Scope) -> IntArray:
        """How many records of the cohort are in each cell. Everybody is charged at most `price`."""
        slots, owners, limits = self._who_pays(cells.cohort, price, scope)
        return self._pay(statistics.tally(cells.of(slots), owners, limits, n_cells, scale), scope)

    def headcount(
        self, cohort: Cohort, n_cells: int, span: int, since: int, scale: int, price: int, scope: Scope
    ) -> IntArray:
        """How many people there are, and how many records they have. Everybody is charged at most `price`.

        People are counted by records that came before `since` rounds of training had begun, then by the others. Both
        counts are by label, `span` labels in a cell, unless there are only two cells. One more cell is about the number
        of records.
        """
        slots, owners, limits = self._who_pays(cohort, price, scope)
        labels = np.minimum(self.labels_of(slots) // span, n_cells // 2 - 1)
        cells = labels + (self.epochs_of(slots) >= since) * (n_cells // 2)
        return self._pay(statistics.headcount(cells, owners, limits, n_cells, scale, cohort.most), scope)

    def _who_pays(self, cohort: Cohort, price: int, scope: Scope) -> tuple[IntArray, IntArray, IntArray]:
        """The slots of all records of a cohort, whose they are, and what each owner may pay."""
        slots = self.taking_part(cohort)
        owners = self.owners_of(slots)
        return slots, owners, np.minimum(self.ledger.remaining(owners, scope), self.ledger.scaled(owners, price))

    def taking_part(self, cohort: Cohort) -> IntArray:
        """The slots of the records that a shared release is about."""
        slots = self.slots()
        slots = slots[(self._epoch[slots] < cohort.before) & self.dates.taking_part(slots, self.hour)]
        if self._spare is None or self._spare[0] != cohort:
            self._spare = cohort, self._too_many(slots, cohort.most)
        spare = self._spare[1]
        return slots[~np.isin(self.ids_at(slots), spare)] if len(spare) else slots

    def _too_many(self, slots: IntArray, most: int) -> IntArray:
        """The numbers of the records beyond the first `most` of each owner.

        The order is that of a hash of the records and their dates. So it depends on nobody else, as the order of slots
        would, and neither does how many are left when some of equal records expire.
        """
        spare: list[IntArray] = []
        owners = self._owner[slots]
        for owner in np.flatnonzero(np.bincount(owners) > most).tolist():
            own = slots[owners == owner]
            seen = zip(self._bodies_at(own), self._epoch[own].tolist(), self.dates.until(own).tolist(), strict=True)
            hashes = [hashlib.blake2b(body + b"%d %d" % tuple(when), digest_size=16).digest() for body, *when in seen]
            spare.append(self.ids_at(own[np.argsort(np.array(hashes), kind="stable")[most:]]))
        return np.concatenate([np.zeros(0, dtype=np.int64), *spare])

    def _pay(self, part: Contribution, scope: Scope) -> IntArray:
        self.ledger.charge(part.owners, part.charges, scope)
        return part.sums
