"""A ledger that lives as long as the process."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Sequence
from typing import Any

import numpy as np

from indknn.errors import LedgerError, UnknownOwnerError
from indknn.ledgers.base import Scope
from indknn.ledgers.roster import Roster
from indknn.types import IntArray, OwnerId


class MemoryLedger:
    """Budgets in arrays, one per scope, indexed by owner slot.

    >>> ledger = MemoryLedger(budget=100)
    >>> slots = ledger.enrol(["ann", "bob"])
    >>> ledger.charge(slots[:1], np.array([30]), None)
    >>> ledger.retire(slots[:1])                    # forget ann ...
    >>> back = ledger.enrol(["ann"])                # ... and meet her again: nothing is refunded
    >>> ledger.remaining(back, None).tolist()
    [70]
    """

    def __init__(self, budget: int, global_budget: int | None = None, *, key: bytes | None = None):
        self.budget = budget
        self.global_budget = global_budget
        self.next_number = 0
        self._key = secrets.token_bytes(32) if key is None else key
        self._roster = Roster()
        self._spent: dict[Scope, IntArray] = {None: np.zeros(0, dtype=np.int64)}
        self._tombstones: dict[bytes, dict[Scope, int]] = {}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._spent = {scope: spent.copy() for scope, spent in self._spent.items()}  # may be a read-only map

    def enrol(self, owners: Sequence[OwnerId]) -> IntArray:
        """The slot of each owner, new or returning."""
        return np.array([self._slot_for(owner) for owner in owners], dtype=np.int64)

    def retire(self, slots: IntArray) -> None:
        """Drop the names; keep what was spent under a keyed hash."""
        for slot in slots.tolist():
            owner = self._roster.remove(slot)
            # also for one who never spent: that the owner was here is what `slots_of` must still know
            self._tombstones[self._digest(owner)] = {s: int(a[slot]) for s, a in self._spent.items()}
            for spent in self._spent.values():
                spent[slot] = 0

    def slots_of(self, owners: Sequence[OwnerId]) -> IntArray:
        """The slot of each, -1 for the forgotten."""
        slots = np.array([self._roster.slot(owner) for owner in owners], dtype=np.int64)
        for i in np.flatnonzero(slots < 0).tolist():
            if self._digest(owners[i]) not in self._tombstones:
                raise UnknownOwnerError(
                    f"unknown owner {owners[i]!r}: no record of theirs was ever added here"
                )
        return slots

    def owners(self) -> list[OwnerId]:
        """Those who have slots, by slot."""
        return list(self._roster)

    def remaining(self, slots: IntArray, scope: Scope) -> IntArray:
        """What each may still spend in this scope, the global budget included."""
        room = self.budget - self._in(scope)[slots]
        if self.global_budget is not None:
            room = np.minimum(room, self.global_budget - self._everywhere(slots))
        return np.maximum(room, 0)  # below zero only if the budget was lowered after it was spent

    def charge(self, slots: IntArray, units: IntArray, scope: Scope) -> None:
        """Charge distinct slots, all or none."""
        if (units < 0).any() or (units > self.remaining(slots, scope)).any():
            raise LedgerError("a charge does not fit the remaining budget; nothing was charged or released")
        self._in(scope)[slots] += units

    def spent(self, owners: Sequence[OwnerId], scope: Scope) -> IntArray:
        """What each has spent in this scope."""
        slots = self.slots_of(owners)
        spent = self._in(scope)[slots] if self._roster.capacity else np.zeros(len(slots), dtype=np.int64)
        for i in np.flatnonzero(slots < 0).tolist():
            spent[i] = self._tombstones[self._digest(owners[i])].get(scope, 0)
        return spent

    def total_spent(self, owners: Sequence[OwnerId]) -> IntArray:
        """The sums over all scopes, those of the forgotten included."""
        total = np.zeros(len(owners), dtype=np.int64)
        for scope in list(self._spent):
            total += self.spent(owners, scope)
        return total

    def _slot_for(self, owner: OwnerId) -> int:
        slot = self._roster.slot(owner)
        if slot >= 0:
            return slot
        slot = self._roster.add(owner)
        self._grow()
        if self._tombstones:  # most stores have none, and hashing a million newcomers takes a second
            for scope, units in self._tombstones.pop(self._digest(owner), {}).items():
                self._in(scope)[slot] = units
        if isinstance(owner, int):
            self.next_number = max(self.next_number, owner + 1)
        return slot

    def _grow(self) -> None:
        need = self._roster.capacity
        if need > len(self._spent[None]):
            for scope, old in self._spent.items():
                self._spent[scope] = np.concatenate([old, np.zeros(max(64, need // 2), dtype=np.int64)])

    def _in(self, scope: Scope) -> IntArray:
        if scope not in self._spent:
            self._spent[scope] = np.zeros_like(self._spent[None])
        return self._spent[scope]

    def _everywhere(self, slots: IntArray) -> IntArray:
        total = np.zeros(len(slots), dtype=np.int64)
        for spent in self._spent.values():
            total += spent[slots]
        return total

    def _digest(self, owner: OwnerId) -> bytes:
        """A keyed hash: without the key nobody can test whether a given person was here."""
        kind = type(owner).__name__[:1].encode()  # 5, "5" and b"5" are three owners
        text = owner if isinstance(owner, bytes) else str(owner).encode(errors="surrogatepass")
        return hashlib.blake2b(kind + text, key=self._key, digest_size=32).digest()
