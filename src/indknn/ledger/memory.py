"""A ledger in memory. It ends with the process."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from threading import RLock
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from indknn.core import clock
from indknn.core.accounting import MAX_UNITS
from indknn.core.inputs import EACH_ROW_PREFIX, Numbered, number_in
from indknn.core.quantise import as_int64, load_native
from indknn.errors import LedgerError, UnknownOwnerError
from indknn.ledger.promises import PROMISE, Wanted, in_new_period, parts_of, rounded_up
from indknn.types import SHARED, IntArray, OwnerId, Scope

Balance: TypeAlias = tuple[Scope, int, bytes, bytes]
"""What the owners of one block had spent in a scope, and in how many queries they had taken part."""
_votes = load_native("indknn.core._votes")
STEPS = 1000
"""Paced budgets grow in so many steps, of at least a minute each."""
_EARLIER = "\1"  # no analyst has such a name
_FREE, _NUMBER, _EACH_ROW, _NAMED = range(4)  # the kinds of names that a byte can stand for
_PREFIX = {_NUMBER: "", _EACH_ROW: EACH_ROW_PREFIX}
_KINDS = {prefix: kind for kind, prefix in _PREFIX.items()}
_FIRST = "0123456789" + EACH_ROW_PREFIX[0]  # the first letters of such names


def earlier_scope(scope: Scope) -> Scope:
    """The scope that holds what was spent in this one in earlier periods. Nothing limits it."""
    return _EARLIER + ("" if scope is None else "*" if scope == SHARED else f"={scope}")


def is_earlier(scope: Scope) -> bool:
    """Whether this is a scope of earlier periods."""
    return scope is not None and scope.startswith(_EARLIER)


@dataclass(frozen=True)
class Tombstone:
    """What is kept about a forgotten owner: units spent per scope, and in how many queries they took part.

    `promise` is their own promise (`promises.PROMISE`), if they had one. Whoever comes back has it again.
    """

    spent: dict[Scope, int]
    queries: int
    promise: tuple[float, int, int, int, int] | None = None

    @property
    def this_period(self) -> int:
        """The sum over all scopes in this period."""
        return sum(units for scope, units in self.spent.items() if not is_earlier(scope))

    def closed(self, budget: int, shared_budget: int) -> Tombstone:
        """The same after the end of a period."""
        spent = {scope: units for scope, units in self.spent.items() if is_earlier(scope)}
        for scope, units in self.spent.items():
            if not is_earlier(scope):
                name = earlier_scope(scope)
                spent[name] = min(spent.get(name, 0) + units, MAX_UNITS)
        own = self.promise
        if own is not None:
            now = np.array([own], dtype=PROMISE)
            in_new_period(now, budget, shared_budget)
            (own,) = now.tolist()
        return replace(self, spent=spent, promise=own)


@dataclass
class Arrivals:
    """Who came with the last `enrol`, and whose tombstones, by keyed hash, they took up."""

    names: Sequence[OwnerId]
    tombstones: list[bytes]


class MemoryLedger:
    """Budgets in arrays, one per scope, indexed by owner slot.

    >>> ledger = MemoryLedger(budget=100)
    >>> slots = ledger.enrol(["ann", "bob"])
    >>> ledger.charge(slots[:1], np.array([30]), None)
    >>> gone = ledger.retire(slots[:1])             # forget ann ...
    >>> back = ledger.enrol(["ann"])                # ... and meet her again: nothing is refunded
    >>> ledger.remaining(back, None).tolist()
    [70]
    """

    def __init__(
        self, budget: int, global_budget: int | None = None, *, shared_budget: int = 0, key: bytes | None = None
    ):
        self.budget = budget
        self.global_budget = global_budget
        self.shared_budget = shared_budget  # the part of the budget for what every analyst sees
        self.budgets: dict[Scope, int] = {}  # budgets of analysts who were given less
        self.joint = False  # whether all analysts spend from one ledger
        self.used = False  # whether anything was ever released, to anybody; whether anybody had to pay does not matter
        self.minute = 0  # the furthest time that was ever seen, in minutes since 1970
        self.born = 0  # the minute in which everything began
        self.pace = self.renewal = 0  # minutes in which votes may use their part, and after which all starts anew, or 0
        self.period = 0  # how many periods are over
        self.published = 0.0  # the budget, in a period, of a model in memory that was given out to everybody
        self.fraction = 1, 1  # how much of their part votes may use by now
        self.next_number = 0  # above every number that was ever an owner's name
        self._key = secrets.token_bytes(32) if key is None else key
        self.lock = RLock()  # here, because the ledger lives longer than any store of records
        self._roster = Roster()
        self._spent: dict[Scope, IntArray] = {None: np.zeros(0, dtype=np.int64)}
        self._queries = np.zeros(0, dtype=np.int32)
        self._promises = np.zeros(0, dtype=PROMISE)  # by slot, of no length until somebody has a promise of their own
        self._tombstones: dict[bytes, Tombstone] = {}
        # Charges by scope, for the journal that writes them down.
        self.log: dict[Scope, list[tuple[IntArray, IntArray]]] | None = None
        self._arrivals: Arrivals | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "lock"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, lock=RLock())
        self._queries = self._queries.copy()  # may be a read-only map, as the others are
        self._promises = self._promises.copy()
        self._spent = {scope: spent.copy() for scope, spent in self._spent.items()}

    def copy(self, *, names: bool = True) -> MemoryLedger:
        """A copy that can be read while this ledger goes on. Without `names` it is enough for counts over everybody."""
        other = MemoryLedger(self.budget, self.global_budget, shared_budget=self.shared_budget, key=self._key)
        others = {"lock", "log", "_roster", "_arrivals"}
        state = {name: value for name, value in self.__dict__.items() if name not in others}
        other.__setstate__({**state, "budgets": dict(self.budgets), "_tombstones": dict(self._tombstones), "log": None})
        other._roster = self._roster.copy(names=names)
        return other

    def restore(
        self,
        names: Iterable[tuple[int, OwnerId]],
        spent: dict[Scope, IntArray],
        queries: IntArray,
        tombstones: dict[bytes, Tombstone],
        next_number: int,
        promises: npt.NDArray[np.void] | None = None,
    ) -> None:
        """Continue where an earlier process stopped, from slots and names, and arrays over at least these slots."""
        self._roster.restore(names)
        self._spent = {None: np.zeros(0, dtype=np.int64), **dict.fromkeys(spent, np.zeros(0, dtype=np.int64))}
        n = self._roster.capacity
        self._grow(n)
        for scope, units in spent.items():
            self._spent[scope][:n] = units[:n]
        self._queries[:n] = queries[:n]
        if promises is not None:
            self.set_promises(np.arange(n), promises[:n])
        self._tombstones = tombstones
        self.next_number = next_number

    def tick(self) -> int:
        """Look at the clock. Returns the time, in minutes since 1970, which never goes back."""
        self.minute = max(self.minute, int(clock.seconds()) // 60)
        if self.pace:
            self.fraction = self.paced_at(self.minute)
        return self.minute

    def paced_at(self, minute: int) -> tuple[int, int]:
        """How much of their part votes may use by this time, as a fraction."""
        elapsed = max(minute - self.born - self.period * self.renewal, 0)
        steps = min(STEPS, self.pace)
        return min(elapsed * steps // self.pace, steps), steps

    @property
    def periods_due(self) -> int:
        """How many periods have ended that were not closed yet."""
        return max((self.minute - self.born) // self.renewal - self.period, 0) if self.renewal else 0

    def close_period(self, periods: int = 1) -> None:
        """Everybody's budget starts anew. What was spent until now is kept as spent in earlier periods."""
        for scope in self.scopes:
            units = self._spent[scope]
            earlier = self._in(earlier_scope(scope))
            np.minimum(earlier + units, MAX_UNITS, out=earlier)
            units[:] = 0
        for digest, grave in self._tombstones.items():
            self._tombstones[digest] = grave.closed(self.budget, self.shared_budget)
        if len(self._promises):
            in_new_period(self._promises, self.budget, self.shared_budget)
        self.period += periods
        self.tick()

    def column(self, scope: Scope) -> IntArray:
        """What every slot has spent in this scope, by slot. For the code that writes it down."""
        return self._in(scope)[: self._roster.capacity]

    def balances(self, blocks: Iterable[tuple[Scope, int]], size: int) -> list[Balance]:
        """What was spent in these blocks of slots, of this size, as it is written down."""
        found, queries = [], self.participation
        for scope, block in blocks:
            part = slice(block * size, (block + 1) * size)
            spent = self.column(scope)[part].astype("<i8").tobytes()
            found.append((scope, block, spent, queries[part].astype("<i4").tobytes()))
        return found

    def find(self, owners: Sequence[OwnerId]) -> IntArray:
        """The slot of each owner. -1 for owners without one."""
        return self._roster.slots_of(owners)

    def strangers(self, owners: Sequence[OwnerId]) -> Sequence[OwnerId]:
        """The owners without a slot, each once, in order."""
        return self._roster.strangers(owners)

    def new_names(self, n: int, prefix: str = "") -> Sequence[OwnerId]:
        """This many names that nobody ever had."""
        first, self.next_number = self.next_number, self.next_number + n
        if self.next_number < 1 << 63:
            return Numbered(np.arange(first, self.next_number), prefix)
        return [f"{prefix}{number}" for number in range(first, self.next_number)]

    def anything_spent(self) -> bool:
        """Whether anybody, here or forgotten, was ever charged."""
        graves = (units for grave in self._tombstones.values() for units in grave.spent.values())
        return any(column.any() for column in self._spent.values()) or any(graves)

    def name_of(self, slot: int) -> OwnerId:
        """The owner who has this slot."""
        return self._roster.name(slot)

    @property
    def scopes(self) -> list[Scope]:
        """The scopes that have a column."""
        return [scope for scope in self._spent if not is_earlier(scope)]

    @property
    def all_scopes(self) -> list[Scope]:
        """The same, and those of earlier periods. For the code that writes them down."""
        return list(self._spent)

    @property
    def participation(self) -> npt.NDArray[np.int32]:
        """In how many queries every slot took part, by slot."""
        return self._queries[: self._roster.capacity]

    @property
    def tombstones(self) -> dict[bytes, Tombstone]:
        """What forgotten people had spent, by keyed hash."""
        return self._tombstones

    def tombstones_of(self, owners: Iterable[OwnerId]) -> dict[bytes, Tombstone]:
        """The same of these people, who were forgotten."""
        return {digest: self._tombstones[digest] for digest in map(self.digest, owners)}

    def enrol(self, owners: Sequence[OwnerId]) -> IntArray:
        """The slot of each owner, new or returning."""
        newcomers = self._roster.strangers(owners)
        self._arrivals = None if self.log is None else Arrivals(newcomers, [])
        if self._tombstones:  # most stores have none, and hashing a million newcomers takes a second
            for owner in newcomers:
                self._enrol_returning(owner)
        else:
            self._grow(max(self._roster.capacity, len(self._roster) + len(newcomers)))
            self._roster.add_all(newcomers)
        self._pass_numbers(newcomers)
        return self._roster.slots_of(owners)

    def take_arrivals(self) -> Arrivals:
        """Who came with the last `enrol`, for the code that writes them down. They are told once."""
        arrivals, self._arrivals = self._arrivals, None
        return Arrivals([], []) if arrivals is None else arrivals

    def retire(self, slots: IntArray) -> dict[int, OwnerId]:
        """Remove the names, which are returned by slot, and keep what was spent under a keyed hash."""
        # The tombstones come first and the slots are freed last, so that an interruption refunds nobody. People who
        # never spent get one too, because `slots_of` must know that they were here.
        graves = {}
        for slot in slots.tolist():
            spent = {scope: int(units[slot]) for scope, units in self._spent.items() if units[slot]}
            (own,) = self._promises[slot : slot + 1].tolist() or [(0,)]
            kept = own if any(own) else None
            graves[self.digest(self._roster.name(slot))] = Tombstone(spent, int(self._queries[slot]), kept)
        self._tombstones.update(graves)
        gone = {}
        for slot in slots.tolist():
            self._queries[slot] = 0
            self._promises[slot : slot + 1] = 0
            for units in self._spent.values():
                units[slot] = 0
            gone[slot] = self._roster.remove(slot)
        return gone

    def slots_of(self, owners: Sequence[OwnerId]) -> IntArray:
        """The slot of each owner. -1 for forgotten owners."""
        slots = self.find(owners)
        for i in np.flatnonzero(slots < 0).tolist():
            if self.tombstone(owners[i]) is None:
                raise UnknownOwnerError(f"unknown owner {owners[i]!r}: no record of theirs was ever added here")
        return slots

    def owners(self) -> list[OwnerId]:
        """The owners who have slots, by slot."""
        return list(self._roster)

    @property
    def n_owners(self) -> int:
        """How many owners have slots."""
        return len(self._roster)

    def taken(self) -> IntArray:
        """The slots in use. For counts over everybody, which need no names."""
        return self._roster.taken()

    def budget_of(self, scope: Scope) -> int:
        """How much one analyst may learn about a person at most, including the shared part."""
        return min(self.budgets.get(scope, self.budget), self.budget)

    def apart(self, scope: Scope) -> bool:
        """Whether this analyst was given so little that they see nothing of what is shared."""
        return self.budgets.get(scope, self.shared_budget + 1) <= self.shared_budget

    def limit(self, scope: Scope) -> int:
        """How much a person may spend in this scope."""
        if scope == SHARED or self.apart(scope):
            return self.shared_budget if scope == SHARED else self.budget_of(scope)
        return self.budget_of(scope) - self.shared_budget

    def bounds(self, slots: IntArray, scope: Scope, *, in_time: bool = True) -> tuple[IntArray, IntArray, IntArray]:
        """What each may spend in this scope, with this analyst in all, and with all analysts together.

        If votes are paced, the first is what they may use by now, unless `in_time` is False.
        """
        most = MAX_UNITS if self.global_budget is None else self.global_budget
        limit, budget, together = (np.full(len(slots), n) for n in (self.limit(scope), self.budget_of(scope), most))
        if len(self._promises):
            own = self._promises[slots]
            mine, whole = own["whole"] > 0, own["whole"]
            budget = np.where(mine, np.minimum(whole, budget), budget)
            part = own["part"] if scope == SHARED else budget - (0 if self.apart(scope) else own["part"])
            limit = np.where(mine, np.minimum(part, limit), limit)
            if self.global_budget is not None:
                together = np.where(mine, np.minimum(whole, together), together)
        paced, steps = self.fraction
        if in_time and scope != SHARED and paced < steps:
            limit = np.maximum(limit, 0)
            limit = limit // steps * paced + limit % steps * paced // steps
        return limit, budget, together

    def remaining(self, slots: IntArray, scope: Scope) -> IntArray:
        """What each may still spend in this scope, considering all budgets that apply."""
        left = np.empty(len(slots), dtype=np.int64)
        if self._in_one_pass(scope) and _votes.room(*self._columns(slots, scope), left):
            return left
        # An analyst who is kept apart sees nothing that is shared. So neither side may depend on what the other cost.
        apart = self.apart(scope)
        shared, own = self._sum_of([] if apart else [SHARED], slots), self._sum_of([scope], slots)
        limit, budget, together = self.bounds(slots, scope)
        room = limit - own
        if self.joint and not apart:
            # What one analyst was told shapes what all see, now and later. So all together may spend no more than one.
            analysts = self._sum_of(self._analysts, slots)
            room = limit - (shared if scope == SHARED else analysts)
            room = np.minimum(room, budget - shared - analysts)
        elif scope != SHARED:  # what all see must not depend on what one analyst was told
            room = np.minimum(room, budget - shared - own)  # binds only after the budget was lowered
        if self.global_budget is not None:
            room = np.minimum(room, together - self._sum_of(self.scopes, slots))
        result: IntArray = np.maximum(room, 0)  # below zero only if the budget was lowered after it was spent
        return result

    def charge(self, slots: IntArray, units: IntArray, scope: Scope, *, joining: bool = True) -> None:
        """Charge distinct slots, all or none. With `joining`, they took part in one more release."""
        self.used = True
        if self._in_one_pass(scope):
            joined = self._queries if joining else np.zeros(0, dtype=np.int32)
            done = _votes.charge(*self._columns(slots, scope), as_int64(units), joined)
        else:
            done = not ((slots < 0).any() or (units < 0).any() or (units > self.remaining(slots, scope)).any())
            if done:
                self._in(scope)[slots] += units
                self._queries[slots] += joining
        if not done:
            raise LedgerError("a charge does not fit the remaining budget; nothing was charged or released")
        self.charged(slots, units, scope)

    def columns(self, slots: IntArray, scope: Scope) -> tuple[Any, ...] | None:
        """The columns on which C code may charge these slots by itself, if it can. It must tell `charged`."""
        self.used = True
        return self._columns(slots, scope) if self._in_one_pass(scope) else None

    @property
    def counters(self) -> npt.NDArray[np.int32]:
        """In how many queries every slot took part, as long as `columns`."""
        return self._queries

    def charged(self, slots: IntArray, units: IntArray, scope: Scope) -> None:
        """These slots were charged. The journal is told."""
        if self.log is not None:
            self.log.setdefault(scope, []).append((slots, units))

    # Promises of single people

    @property
    def promises(self) -> npt.NDArray[np.void]:
        """The promises of single people, by slot. Of no length if nobody has one."""
        return self._promises[: self._roster.capacity]

    def promise_blocks(self, slots: Iterable[int], size: int) -> dict[int, bytes]:
        """The blocks of promises, of this size, that contain these slots. Nothing if nobody has one."""
        blocks = sorted({int(slot) // size for slot in slots}) if len(self._promises) else ()
        return {block: self.promises[block * size : (block + 1) * size].tobytes() for block in blocks}

    def promises_of(self, owners: Sequence[OwnerId]) -> npt.NDArray[np.void]:
        """The promise of each owner, here or forgotten. Zeros for everybody who has the public default."""
        found, slots = np.zeros(len(owners), dtype=PROMISE), self.find(owners)
        if len(self._promises):
            found[slots >= 0] = self._promises[slots[slots >= 0]]
        for i in np.flatnonzero(slots < 0).tolist() if self._tombstones else ():
            grave = self.tombstone(owners[i])
            if grave is not None and grave.promise is not None:
                found[i] = grave.promise
        return found

    def lower(self, wanted: Wanted) -> IntArray:
        """Give these people smaller promises, from now on. Returns their slots, of which the caller tells the disk.

        What somebody was charged before stays. If it is more than the new budget, nothing more is charged with that
        analyst. What all analysts see must not depend on what one was told. So the part for it leaves room for
        whatever an analyst may have been told about that person, unless nobody was told anything.
        """
        slots = self.find(wanted.names)
        if (slots < 0).any():  # whoever has no record here has no promise either
            wanted, slots = wanted.only(slots >= 0), slots[slots >= 0]
        own = np.zeros(len(slots), dtype=PROMISE) if not len(self._promises) else self._promises[slots]
        budget = np.minimum(wanted.units, self.budget)
        votes = np.where(own["whole"] > 0, np.minimum(own["whole"], self.budget) - own["part"], self.limit(None))
        fresh = wanted.new if self.used else np.ones(len(slots), dtype=bool)
        part = np.where(fresh, parts_of(wanted.units, self.budget, self.shared_budget), budget - votes)
        over = self.observed({scope: self._sum_of([earlier_scope(scope)], slots) for scope in self.scopes})[0]
        own["over"] = np.where(own["whole"] > 0, own["over"], rounded_up(over, self.budget))
        own["epsilon"], own["whole"] = wanted.epsilons, wanted.units
        own["part"] = np.maximum(part, self._sum_of([SHARED], slots))
        own["before"] = self.observed({scope: self._spent[scope].take(slots) for scope in self.scopes})[0]
        self.set_promises(slots, own)
        return slots

    def set_promises(self, slots: IntArray, promises: npt.NDArray[np.void]) -> None:
        """Set the promises of these slots."""
        if not len(self._promises) and promises["whole"].any():
            self._promises = np.zeros(len(self._queries), dtype=PROMISE)
        if len(self._promises):
            self._promises[slots] = promises

    def scaled(self, slots: IntArray, units: int, otherwise: int | None = None) -> IntArray:
        """An amount of the part for what all analysts see, smaller for people who have a smaller part.

        Whoever has the public default gets `otherwise`, or else all of it.
        """
        whole = np.full(len(slots), units if otherwise is None else otherwise)
        if not len(self._promises) or not self.shared_budget:
            return whole
        own = self._promises[slots]
        part = np.floor(own["part"] * (units / self.shared_budget)).astype(np.int64)
        return np.where(own["whole"] > 0, np.minimum(part, units), whole)

    def set_spent(self, slots: IntArray, scope: Scope, units: IntArray) -> None:
        """Set what these slots have spent. Used in a cluster, where the coordinator decides what this ledger says."""
        self._grow(int(slots.max(initial=-1)) + 1)
        self._in(scope)[slots] = units

    def spent_by(self, slots: IntArray, scope: Scope) -> IntArray:
        """What these slots have spent in this scope."""
        return self._in(scope)[slots]

    def spent(self, owners: Sequence[OwnerId], scope: Scope) -> IntArray:
        """What each has spent in this scope."""
        slots = self.slots_of(owners)
        column = self._spent.get(scope) if self._roster.capacity else None  # reading must not create a scope
        spent = np.zeros(len(slots), dtype=np.int64) if column is None else column[slots]
        for i in np.flatnonzero(slots < 0).tolist():
            spent[i] = self._tombstones[self.digest(owners[i])].spent.get(scope, 0)
        return spent

    def spent_in_all(self, owners: Sequence[OwnerId], scope: Scope) -> IntArray:
        """What each has spent in this scope in all periods."""
        both = self.spent(owners, scope) + self.spent(owners, earlier_scope(scope))
        return np.asarray(np.minimum(both, MAX_UNITS), dtype=np.int64)

    def column_in_all(self, scope: Scope) -> IntArray:
        """What everybody has spent in this scope in all periods, here by slot, and then the forgotten."""
        here, graves = self.column(scope), self._tombstones.values()
        both = scope, earlier_scope(scope)
        if both[1] in self._spent:
            here = np.minimum(here + self.column(both[1]), MAX_UNITS)
        buried = [min(sum(grave.spent.get(one, 0) for one in both), MAX_UNITS) for grave in graves]
        return np.concatenate([here, np.array(buried, dtype=np.int64)])

    def spent_by_scope(self, owner: OwnerId) -> dict[Scope, IntArray]:
        """What one owner has spent in this period, by scope."""
        return {scope: self.spent([owner], scope) for scope in self.scopes}

    def total_spent(self, owners: Sequence[OwnerId]) -> IntArray:
        """The sum over all scopes for each owner, including forgotten ones."""
        total = np.zeros(len(owners), dtype=np.int64)
        for scope in self.scopes:
            total = np.minimum(total + self.spent(owners, scope), MAX_UNITS)
        return total

    def observed(self, spent: dict[Scope, IntArray]) -> tuple[IntArray, IntArray]:
        """What counts for one analyst at most, and for all together, if people have spent this much in each scope."""
        nothing = np.zeros_like(next(iter(spent.values())))
        shared, unnamed = spent.get(SHARED, nothing), spent.get(None, nothing)
        named = {scope: units for scope, units in spent.items() if scope not in (None, SHARED)}
        apart = [units for scope, units in named.items() if self.apart(scope)]  # they see nothing that is shared
        seeing = [units for scope, units in named.items() if not self.apart(scope)]
        one = np.max([shared + np.max([unnamed, *seeing], axis=0), *apart], axis=0)
        together = sum_of([shared, unnamed, *named.values()])
        return together if self.joint or self.global_budget is not None else one, together

    def _enrol_returning(self, owner: OwnerId) -> None:
        """Give a slot to an owner who has none and may have been here before."""
        slot = self._roster.next_slot
        self._grow(slot + 1)
        tombstone = self.tombstone(owner)
        if tombstone is not None:  # first resume the spending, then take the name, then remove the tombstone
            self._resume(slot, tombstone)
        self._roster.add(owner)
        if tombstone is not None:
            del self._tombstones[self.digest(owner)]
            if self._arrivals is not None:
                self._arrivals.tombstones.append(self.digest(owner))

    def _pass_numbers(self, names: Sequence[OwnerId]) -> None:
        """Make sure that no name that is made up later is one of these."""
        if isinstance(names, Numbered):
            highest = int(names.numbers.max(initial=-1)) if not names.prefix else -1
        else:
            highest = max((number_in(name) for name in names if name[:1].isdigit()), default=-1)
        self.next_number = max(self.next_number, highest + 1)

    def _grow(self, need: int) -> None:
        if need > len(self._queries):
            size = len(self._queries) + max(64, need // 2, need - len(self._queries))
            self._queries = _longer(self._queries, size)
            for scope, old in self._spent.items():
                self._spent[scope] = _longer(old, size)
            if len(self._promises):
                self._promises = _longer(self._promises, size)

    def _resume(self, slot: int, tombstone: Tombstone) -> None:
        self._queries[slot] = tombstone.queries
        if tombstone.promise is not None:
            own = np.zeros(1, dtype=PROMISE)
            own[0] = tombstone.promise
            self.set_promises(np.array([slot]), own)
        for scope, units in tombstone.spent.items():
            self._in(scope)[slot] = units

    def _in(self, scope: Scope) -> IntArray:
        if scope not in self._spent:
            self._spent[scope] = np.zeros_like(self._spent[None])
        return self._spent[scope]

    def _in_one_pass(self, scope: Scope) -> bool:
        """Whether a charge is bounded only by one column and the shared one, so that the C code can do it."""
        plain = scope != SHARED and not self.joint and self.global_budget is None
        return _votes is not None and plain and scope in self._spent

    def _columns(self, slots: IntArray, scope: Scope) -> tuple[Any, ...]:
        shared = b"" if self.apart(scope) else self._spent.get(SHARED, b"")
        bounds = self.limit(scope), self.budget_of(scope), *self.fraction, self.apart(scope)
        return self._spent[scope], shared, self._promises.view(np.uint8), as_int64(slots), *bounds

    @property
    def _analysts(self) -> list[Scope]:
        """The analysts who see what is shared."""
        return [scope for scope in self.scopes if scope != SHARED and not self.apart(scope)]

    def _sum_of(self, scopes: Iterable[Scope], slots: IntArray) -> IntArray:
        parts = [self._spent[scope].take(slots) for scope in scopes if scope in self._spent]
        return sum_of(parts) if parts else np.zeros(len(slots), np.int64)

    def digest(self, owner: OwnerId) -> bytes:
        """A keyed hash of the name. Without the key, nobody can test whether a given person was here."""
        return self._hashed(b"s" + owner.encode(errors="surrogatepass"))

    def record_keys(self, record_ids: Sequence[str | None]) -> npt.NDArray[np.uint64]:
        """Keyed hashes of record ids, as two numbers each. Zeros if there is no id."""
        texts = (None if name is None else b"r" + name.encode(errors="surrogatepass") for name in record_ids)
        body = b"".join(bytes(16) if text is None else self._hashed(text)[:16] for text in texts)
        return np.frombuffer(body, dtype="<u8").astype(np.uint64).reshape(-1, 2)

    def tombstone(self, owner: OwnerId) -> Tombstone | None:
        """What is kept about an owner who was forgotten. None if nobody with this name was."""
        return self._tombstones.get(self.digest(owner))

    def _hashed(self, body: bytes) -> bytes:
        return hashlib.blake2b(body, key=self._key, digest_size=32).digest()


def sum_of(parts: Sequence[IntArray]) -> IntArray:
    """The sum, without overflow for hundreds of analysts."""
    return reduce(lambda a, b: np.minimum(a + b, MAX_UNITS), parts)


def _longer(old: npt.NDArray[Any], size: int) -> npt.NDArray[Any]:
    """The same array with zeros appended. They take no memory before they are written."""
    new = np.zeros(size, dtype=old.dtype)
    new[: len(old)] = old
    return new


class Roster:
    """A small and fast two-way table of names and slots. Freed slots are used again.

    Many stores number their owners 0, 1, 2, ... as they come. The text of such a number follows from the slot, and so
    does the name that is made for the owner of a row without one. Such names take one byte here, where dict entries and
    a Python str would take two hundred. Other names are kept in two dicts.

    >>> roster = Roster()
    >>> [roster.add(name) for name in ("0", "ann", "2")]
    [0, 1, 2]
    >>> roster.remove(1)
    'ann'
    >>> roster.add("bob"), list(roster), roster.slot("ann")
    (1, ['0', 'bob', '2'], -1)
    """

    def __init__(self) -> None:
        self._taken = bytearray()
        self._free: list[int] = []
        self._slot: dict[OwnerId, int] = {}  # names that do not follow from their slots
        self._name: dict[int, OwnerId] = {}

    def copy(self, *, names: bool = True) -> Roster:
        """A copy. Without `names`, which take longest, it knows only which slots are taken."""
        other = Roster()
        other._taken, other._free = self._taken.copy(), self._free.copy()
        if names:
            other._slot, other._name = self._slot.copy(), self._name.copy()
        return other

    @property
    def capacity(self) -> int:
        """All slots below this have been used."""
        return len(self._taken)

    @property
    def next_slot(self) -> int:
        """The slot that the next name will get."""
        return self._free[-1] if self._free else len(self._taken)

    def __len__(self) -> int:
        return len(self._taken) - len(self._free)

    def __iter__(self) -> Iterator[OwnerId]:
        """The names, by slot."""
        return (self.name(slot) for slot, kind in enumerate(self._taken) if kind)

    def restore(self, names: Iterable[tuple[int, OwnerId]]) -> None:
        """Restore the given slots and their names. The slots between them are free."""
        self._taken, self._slot, self._name = bytearray(), {}, {}
        for slot, name in names:
            if slot >= len(self._taken):
                self._taken.extend(bytes(slot + 1 - len(self._taken)))
            self._name_slot(slot, name)
        self._free = [slot for slot, kind in enumerate(self._taken) if not kind]

    def name(self, slot: int) -> OwnerId:
        """The name of the owner in this slot."""
        kind = self._taken[slot]
        return self._name[slot] if kind == _NAMED else f"{_PREFIX[kind]}{slot}"

    def slot(self, name: OwnerId) -> int:
        """The slot of this name, or -1."""
        found = self._slot.get(name, -1)
        if found >= 0:
            return found
        kind, number = _kind_of(name)
        return number if 0 <= number < len(self._taken) and self._taken[number] == kind else -1

    def slots_of(self, names: Sequence[OwnerId]) -> IntArray:
        """The slot of each name, or -1."""
        known = self._slot.get
        if not isinstance(names, Numbered):
            found = [known(name, -1) for name in names]
            slots = np.array(found, dtype=np.int64)
            rest = [i for i in np.flatnonzero(slots < 0).tolist() if names[i][:1] in _FIRST]
            slots[rest] = [self.slot(names[i]) for i in rest]
            return slots
        numbers, taken = names.numbers, np.frombuffer(self._taken, dtype=np.uint8)
        own = numbers < len(taken)
        if len(taken):
            own &= taken[np.where(own, numbers, 0)] == _KINDS[names.prefix]
        slots = np.where(own, numbers, -1)
        if self._slot and not own.all():
            rest_of = np.flatnonzero(~own)
            slots[rest_of] = [known(name, -1) for name in names[rest_of]]
        return slots

    def strangers(self, names: Sequence[OwnerId]) -> Sequence[OwnerId]:
        """The names without a slot, each once, in order."""
        missing = np.flatnonzero(self.slots_of(names) < 0)
        if not isinstance(names, Numbered):
            return list(dict.fromkeys([names[i] for i in missing.tolist()]))
        new = names[missing]
        if (new.numbers[1:] > new.numbers[:-1]).all():  # usually they are in order, and so all different
            return new
        return new[np.sort(np.unique(new.numbers, return_index=True)[1])]

    def add_all(self, names: Sequence[OwnerId]) -> None:
        """Give a slot to each of these different new names, the same slots that `add` would give one by one."""
        recycled = [self._free.pop() for _ in range(min(len(names), len(self._free)))]
        first, fresh = len(self._taken), len(names) - len(recycled)
        self._taken.extend(bytes(fresh))
        slots = np.append(np.array(recycled, dtype=np.int64), np.arange(first, first + fresh))
        if isinstance(names, Numbered):
            own = names.numbers == slots
            np.frombuffer(self._taken, dtype=np.uint8)[slots[own]] = _KINDS[names.prefix]
            slots, names = slots[~own], names[np.flatnonzero(~own)]
        for slot, name in zip(slots.tolist(), names, strict=True):
            self._name_slot(slot, name)

    def taken(self) -> IntArray:
        """The slots in use, in ascending order."""
        return np.flatnonzero(np.frombuffer(bytes(self._taken), dtype=np.uint8))

    def add(self, name: OwnerId) -> int:
        """Give a slot to a new name."""
        slot = self._free.pop() if self._free else len(self._taken)
        if slot == len(self._taken):
            self._taken.append(_FREE)
        self._set(slot, name)
        return slot

    def remove(self, slot: int) -> OwnerId:
        """Free the slot, and return the name that had it."""
        if not (0 <= slot < len(self._taken) and self._taken[slot]):
            raise KeyError(slot)
        name = self.name(slot)
        self._name.pop(slot, None)
        self._slot.pop(name, None)
        self._taken[slot] = _FREE
        self._free.append(slot)
        if not len(self):  # start over, so that a refilled store numbers its owners in order
            self._taken.clear()
            self._free.clear()
        return name

    def _name_slot(self, slot: int, name: OwnerId) -> None:
        if name[:1] in _FIRST:
            self._set(slot, name)
        else:  # the usual case, in half the time
            self._taken[slot], self._slot[name], self._name[slot] = _NAMED, slot, name

    def _set(self, slot: int, name: OwnerId) -> None:
        kind, number = _kind_of(name)
        if number == slot:
            self._taken[slot] = kind
        else:
            self._taken[slot] = _NAMED
            self._slot[name], self._name[slot] = slot, name


def _kind_of(name: OwnerId) -> tuple[int, int]:
    """The kind and the slot of a name that follows from its slot. The slot is -1 for all other names."""
    if name.startswith(EACH_ROW_PREFIX):
        return _EACH_ROW, number_in(name.removeprefix(EACH_ROW_PREFIX))
    return _NUMBER, number_in(name)
