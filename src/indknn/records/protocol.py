"""What an engine, a store and a predictor use of a shard. The records may be in this process or in a cluster."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from threading import RLock
from typing import Any, Protocol, Self, TypeAlias, TypeVar

from indknn.core.mechanism import Plan
from indknn.ledger import MemoryLedger, Scope
from indknn.records.derived import Rule
from indknn.records.keys import KeyArray, Match, RecordIds, RecordKeys
from indknn.records.slices import Arguments
from indknn.types import Cohort, IntArray, OwnerId, Vectors


class Near(Protocol):
    """Who is near one query. Only the shard that made it knows them."""

    def within(self, tau: int) -> Self:
        """Those who are also near at this larger τ."""
        ...


class Asked(Protocol):
    """A query between `ask` and `votes`. `total` is how many records were counted."""

    @property
    def total(self) -> int:
        """The count before noise."""
        ...


class Filled(Protocol):
    """Values that follow from each record alone, kept while a round of training needs them."""

    def fill(self) -> bool:
        """Process some more records. Returns whether there were any left."""
        ...


N = TypeVar("N", bound=Near)
A = TypeVar("A", bound=Asked)
F = TypeVar("F", bound=Filled)


class ShardOf(Protocol[N, A, F]):
    """Records of some people, and the ledger of what each person has spent.

    A query is answered by `scan`, `ask` and `votes`. Between the last two, only counts go out and the noisy K come
    back. After them, only sums of votes per class go out. Whoever calls holds the lock.
    """

    ledger: MemoryLedger
    keys: RecordKeys
    broken: bool
    epoch: int
    """How many rounds of training have begun."""

    @property
    def block(self) -> int:
        """How many queries are asked before any of them is settled."""
        ...

    @property
    def lock(self) -> RLock:
        """The lock that every change here holds, and the predictor during a whole query."""
        ...

    def refuse_if_broken(self) -> None:
        """Refuse to continue after a change that was interrupted."""
        ...

    # Records

    def __len__(self) -> int:
        """How many records there are."""
        ...

    def match(
        self, vectors: Vectors, labels: IntArray, owners: Sequence[OwnerId], record_ids: RecordIds = None
    ) -> Match:
        """Which of these rows are here already: by their record id, or else byte for byte."""
        ...

    def add(
        self, vectors: Vectors, labels: IntArray, owners: Sequence[OwnerId], keys: KeyArray | None = None
    ) -> IntArray:
        """Store the records and return their numbers. The caller has validated everything."""
        ...

    def forget(self, slots: IntArray) -> dict[int, OwnerId]:
        """Remove the records in these slots. Returns the owners with no record left, by slot."""
        ...

    def expect(self, records: int) -> None:
        """Reserve room for this many records."""
        ...

    def restore(
        self, vectors: Vectors, labels: IntArray, owners: IntArray, generations: IntArray, epochs: IntArray | int = 0
    ) -> None:
        """Restore the next records of an earlier process, slot by slot. Owner -1 marks a slot that will be freed."""
        ...

    def free(self, slots: IntArray) -> None:
        """Mark these slots as free. They are the last ones that were restored, or earlier ones."""
        ...

    def slots(self, low: int = 0, high: int | None = None) -> IntArray:
        """The slots of all records, or of those in the slots from `low` up to `high`."""
        ...

    def slots_of_owners(self, owners: Sequence[OwnerId]) -> IntArray:
        """The slots of all records of these owners."""
        ...

    def slots_of_records(self, ids: Sequence[int]) -> IntArray:
        """The slots of the records with these numbers."""
        ...

    def record_ids(self) -> IntArray:
        """The numbers of all records, by slot."""
        ...

    def owners_of(self, slots: IntArray) -> IntArray:
        """The owner slot of each record slot."""
        ...

    def generations(self, slots: IntArray) -> IntArray:
        """How often each slot was used before."""
        ...

    def epochs_of(self, slots: IntArray) -> IntArray:
        """How many rounds of training had begun when each of these records came."""
        ...

    # Answering

    def scan(self, queries: Vectors, tau: int) -> Sequence[N]:
        """Who is near each query."""
        ...

    def ask(self, near: Sequence[N], questions: Sequence[tuple[Plan, Scope]], *, counted: bool = True) -> list[A]:
        """Admit the people near each query. Those who are counted pay for it."""
        ...

    def votes(self, admitted: Sequence[A], Ks: Sequence[int], plans: Sequence[Plan]) -> Iterator[IntArray]:
        """The votes on each query, per class. Everybody pays for a query when its votes are taken."""
        ...

    # Training

    def derived(self, rule: Rule, cohort: Cohort) -> F:
        """The values that a rule gives to each record of a cohort."""
        ...

    def prepare_gradient(self, rows: F, step: Arguments, scope: Scope) -> bool:
        """Compute a part of what `gradient` will need. Nobody pays yet. Returns whether there was more to do."""
        ...

    def gradient(self, rows: F, step: Arguments, scope: Scope) -> IntArray:
        """The gradient of a model over all records of the cohort, charged."""
        ...

    def tally(self, cells: F, n_cells: int, scale: int, price: int, scope: Scope) -> IntArray:
        """How many records of the cohort are in each cell. Everybody is charged at most `price`."""
        ...

    def headcount(self, cohort: Cohort, n_cells: int, since: int, scale: int, price: int, scope: Scope) -> IntArray:
        """How many people there are, and how many records they have. Everybody is charged at most `price`."""
        ...


AnyShard: TypeAlias = ShardOf[Any, Any, Any]
