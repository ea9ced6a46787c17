"""The interface of a ledger.

An owner is a person (or whatever the promise is made to), named by a text (rule 13). While an owner has records, they
have a slot, a small integer. What an owner has spent is kept per scope. Each analyst is a scope. `None` is the analyst
without a name, and `SHARED` is for what every analyst sees. If there is a *global* budget, it bounds all scopes
together, and every charge counts against it too.

The law: what an owner has spent in a scope never falls and never exceeds the budget, whatever happens to their records
(rule 4). All amounts are integers in the units of `accounting`.
"""

from __future__ import annotations

from collections.abc import Sequence
from threading import RLock
from typing import Final, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from indknn.errors import InvalidInputError
from indknn.types import IntArray, OwnerId

Scope: TypeAlias = str | None

SHARED: Final = "\0shared"
"""The scope of releases that every analyst sees. No analyst can have this name."""


def checked_analyst(name: Scope) -> Scope:
    """Refuse what cannot be the name of an analyst. None is the analyst without a name, so an empty text is refused.

    >>> checked_analyst("alice"), checked_analyst(None)
    ('alice', None)
    """
    if not (name is None or isinstance(name, str)):
        raise InvalidInputError(f"analyst must be a str or None, got {name!r}")
    if name in {"", SHARED}:
        raise InvalidInputError(f"no analyst can be called {name!r}; leave the name out to ask without one")
    return name


class Ledger(Protocol):
    """Who has spent how much, in integers.

    Hold `lock` to change people or records, or to answer a query. `house` means that all analysts spend from one
    ledger, because the queries of the unnamed analyst shaped what all of them see. `budgets` are those of analysts who
    were given less than `budget`.
    """

    budget: int
    budgets: dict[Scope, int]
    house: bool
    counts_only: bool
    global_budget: int | None
    lock: RLock

    @property
    def scopes(self) -> list[Scope]:
        """All scopes in which anybody ever had to pay, and None."""
        ...

    def find(self, owners: Sequence[OwnerId]) -> IntArray:
        """The slot of each owner. -1 for owners without records, known or not."""
        ...

    def new_names(self, n: int, prefix: str = "") -> Sequence[OwnerId]:
        """This many names that nobody ever had, for people without a name: the prefix and a number."""
        ...

    def record_keys(self, record_ids: Sequence[str | None]) -> npt.NDArray[np.uint64]:
        """Keyed hashes of the record ids that callers choose, as two numbers each. Zeros if there is no id."""
        ...

    def enrol(self, owners: Sequence[OwnerId]) -> IntArray:
        """The slot of each owner. Newcomers get a new slot. Owners who return start with what they had spent."""
        ...

    def retire(self, slots: IntArray) -> None:
        """Remove these owners' names and slots. What they spent is kept under a keyed hash of the name."""
        ...

    def slots_of(self, owners: Sequence[OwnerId]) -> IntArray:
        """The slot of each owner. -1 for owners without records. UnknownOwnerError for an owner who was never here."""
        ...

    def name_of(self, slot: int) -> OwnerId:
        """The owner who has this slot."""
        ...

    def owners(self) -> list[OwnerId]:
        """The owners that have slots, by slot. This is the order of arrival until slots are freed."""
        ...

    def remaining(self, slots: IntArray, scope: Scope) -> IntArray:
        """What each may still spend in this scope, considering all budgets that apply."""
        ...

    def charge(self, slots: IntArray, units: IntArray, scope: Scope, *, joining: bool = True) -> None:
        """Charge each of these distinct slots, all or none. LedgerError if anybody cannot pay.

        With `joining`, they took part in one more release, which `queries` counts.
        """
        ...

    def queries(self, owners: Sequence[OwnerId]) -> IntArray:
        """In how many queries each owner has taken part, forgotten or not."""
        ...

    def spent(self, owners: Sequence[OwnerId], scope: Scope) -> IntArray:
        """What each owner has spent in this scope, forgotten or not.

        UnknownOwnerError for an owner who was never here.
        """
        ...

    def total_spent(self, owners: Sequence[OwnerId]) -> IntArray:
        """The sum over all scopes for each owner: what analysts who share their answers could have learned."""
        ...
