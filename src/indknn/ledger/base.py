"""What a ledger must do.

An owner is a person (or whoever the promise is made to), named by a text (rule 13). While the owner has records it
has a slot, a small integer. What it spent is kept per scope: one scope per analyst, `None` for those who do not say
who they are, and `SHARED` for what every analyst sees. A *global* budget, if there is one, stands behind all scopes,
and every charge is made there as well.

The law: what an owner has spent in a scope never falls and never exceeds the budget, whatever happens to its
records in between (rule 4). All amounts are integers in the units of `accounting`.
"""

from __future__ import annotations

from collections.abc import Sequence
from threading import RLock
from typing import Final, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from indknn.types import IntArray, OwnerId

Scope: TypeAlias = str | None

SHARED: Final = "\0shared"
"""The scope of releases that every analyst sees. No analyst can have this name."""


class Ledger(Protocol):
    """Who has spent how much, in integers.

    `lock` is held by whoever changes people or records, or answers a query. `house` says that all analysts spend
    from one ledger, because the queries of the unnamed one shaped what all of them see. `budgets` are those of
    analysts who were given less than the `budget`.
    """

    budget: int
    budgets: dict[Scope, int]
    house: bool
    counts_only: bool
    global_budget: int | None
    lock: RLock

    @property
    def scopes(self) -> list[Scope]:
        """Those in which anybody was ever asked to pay, and None."""
        ...

    def find(self, owners: Sequence[OwnerId]) -> IntArray:
        """The slot of each, -1 for owners without records, ever seen or not."""
        ...

    def new_names(self, n: int, prefix: str = "") -> Sequence[OwnerId]:
        """So many names that were never anybody's, for people who come without: the prefix and a number."""
        ...

    def record_keys(self, record_ids: Sequence[str | None]) -> npt.NDArray[np.uint64]:
        """Keyed hashes of the record ids that callers choose, as two numbers each; zeros where there is none."""
        ...

    def enrol(self, owners: Sequence[OwnerId]) -> IntArray:
        """The slot of each owner; newcomers get one, and those who return resume what they had spent."""
        ...

    def retire(self, slots: IntArray) -> None:
        """Drop these owners' names and slots; what they spent stays under a keyed hash of the name."""
        ...

    def slots_of(self, owners: Sequence[OwnerId]) -> IntArray:
        """The slot of each, -1 for owners without records. UnknownOwnerError for one never seen."""
        ...

    def name_of(self, slot: int) -> OwnerId:
        """The owner who has this slot."""
        ...

    def owners(self) -> list[OwnerId]:
        """The owners that have slots, by slot: in the order in which they came, until slots are freed."""
        ...

    def remaining(self, slots: IntArray, scope: Scope) -> IntArray:
        """What each may still spend in this scope, with whatever else bounds it."""
        ...

    def charge(self, slots: IntArray, units: IntArray, scope: Scope, *, joining: bool = True) -> None:
        """Charge each of these distinct slots, all or none. LedgerError if anyone cannot pay.

        With `joining` they took part in one more release, which `queries` counts.
        """
        ...

    def queries(self, owners: Sequence[OwnerId]) -> IntArray:
        """In how many queries each has taken part, forgotten or not."""
        ...

    def spent(self, owners: Sequence[OwnerId], scope: Scope) -> IntArray:
        """What each has spent in this scope, forgotten or not. UnknownOwnerError for one never seen."""
        ...

    def total_spent(self, owners: Sequence[OwnerId]) -> IntArray:
        """The sums over all scopes: what analysts who pool their answers could have learned."""
        ...
