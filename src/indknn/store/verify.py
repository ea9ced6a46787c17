"""Checks a store: the chain, the answers, the budgets, and that memory agrees with the disk."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import apsw
import numpy as np
import numpy.typing as npt

from indknn.core.accounting import budget, to_units
from indknn.engine import new_ledger
from indknn.errors import StoreError
from indknn.ledger import SHARED, MemoryLedger
from indknn.ledger.promises import PROMISE
from indknn.proof import breaks
from indknn.records.any_shard import AnyShard
from indknn.records.shard import Shard, new_index
from indknn.settings import Settings
from indknn.store import chain, database
from indknn.store.chain import Books, StoreConnection
from indknn.store.home import Home
from indknn.store.journal import Debits, read_ledger
from indknn.store.keyfile import read_key_file
from indknn.store.store import Store
from indknn.types import SLOT, IntArray


@dataclass(frozen=True)
class Memory:
    """The state of a store in memory at one moment."""

    settings: Settings
    ledger: MemoryLedger
    ids: IntArray
    owners: IntArray
    """The owner slot of each record."""
    keys: dict[int, bytes]
    dates: IntArray
    holds: set[int]

    @staticmethod
    def of(settings: Settings, ledger: MemoryLedger, shard: AnyShard) -> Memory:
        """The state now."""
        ids = shard.record_ids()
        slots = ids & SLOT
        # A block without any key may be in memory and not in the file: it came with keys of later slots.
        keys = {block: body for block, body in shard.keys.blocks_of(slots).items() if any(body)}
        return Memory(settings, ledger, ids, shard.owners_of(slots), keys, shard.dates.of(slots), set(shard.holds))


class Snapshot:
    """A copy of a store at one moment, made in pieces with answers in between, and checked beside them.

    Changes during the copy go into the copy too (`Home.copy`).
    """

    def __init__(self, store: Store):
        self._store, self._generation = store, store.generation
        with store.reading() as db:  # another thread may be committing
            self._steps = store.home.copy(db)
        self._copy: StoreConnection | None = None

    def copy_some(self) -> bool:
        """Copy some pages, in about a millisecond. Returns whether that was all."""
        store = self._store
        with store.reading():
            if store.generation != self._generation:
                raise StoreError("the store was read again during the check; check it again")
            store.flush()
            self._copy = next(self._steps)
            if self._copy is not None:
                self._memory = Memory.of(store.settings, store.engine.ledger.copy(), store.engine.shard)
        return self._copy is not None

    def problems(self) -> tuple[list[str], int]:
        """What is wrong, and the length of the audit trail. In any thread."""
        assert self._copy is not None
        with closing(self._copy) as db:
            found = list(_all(self._store.home, db, self._memory))
            return found, chain.last(db).position


def problems(store: Store) -> Iterator[str]:
    """Everything that is wrong, in words. Nothing if all is well."""
    with store.reading() as db:
        store.flush()
        memory = Memory.of(store.settings, store.engine.ledger, store.engine.shard)
        found = list(_all(store.home, db, memory))
    yield from found


def _all(home: Home, db: StoreConnection, memory: Memory) -> Iterator[str]:
    try:
        yield from _each(home, db, memory)
    except (apsw.Error, StoreError, ArithmeticError, LookupError, TypeError, ValueError) as error:
        yield f"file: it cannot be read to the end: {error!r}"


def _each(home: Home, db: StoreConnection, memory: Memory) -> Iterator[str]:
    yield from home.defects(db)
    yield from _keys(home)
    yield from breaks(chain.entries(db))
    if Books(database.get_meta(db, "key")).read(db) != chain.last(db).facts.get("books"):
        yield "rows of the file are not as the audit trail has them"
    yield from _answers(db)
    yield from _records(db, memory)
    yield from _limits(db, memory)
    yield from _budgets(db, memory)
    yield from _memory(db, memory)


def _keys(home: Home) -> Iterator[str]:
    """The file of keys can be read, if there is one."""
    try:
        read_key_file(home.keys)
    except StoreError as error:
        yield str(error)


def _answers(db: StoreConnection) -> Iterator[str]:
    """Every answer is in the audit trail and was paid for."""
    covered = 0
    for entry in chain.entries(db):
        if entry.kind == "answers":
            facts = entry.facts
            rows = list(db.execute("SELECT * FROM answers WHERE seq BETWEEN ? AND ?", (facts["first"], facts["last"])))
            covered += len(rows)
            if len(rows) != facts["count"]:
                yield f"answers {facts['first']} to {facts['last']} are not as the audit trail has them"
            if sum(int(row[-2]) for row in rows) != int(facts["charged"]):
                yield f"answers {facts['first']} to {facts['last']} were not charged what the audit trail says"
    if covered != db.execute("SELECT count(*) FROM answers").get:
        yield "there are answers that the audit trail does not know"
    folded = int(database.get_meta(db, "folded") or 0)
    for seq, charged, body in db.execute(
        "SELECT seq, charged, body FROM answers LEFT JOIN debits USING (seq) WHERE seq > ?", (folded,)
    ):
        if body is None:
            yield f"answer {seq} has no debits"
        elif Debits.decode(body).total != int(charged):
            yield f"the debits of answer {seq} are not what it was charged"


def _records(db: StoreConnection, memory: Memory) -> Iterator[str]:
    """The number of records is what was added minus what was forgotten, and each belongs to an owner who is here."""
    came = {"add": 1, "forget": -1, "expire": -1}
    count = sum(came[entry.kind] * int(entry.facts["records"]) for entry in chain.entries(db) if entry.kind in came)
    if count != len(memory.ids):
        yield f"there are {len(memory.ids)} records, but {count} by the audit trail"
    if not np.array_equal(np.unique(memory.owners), np.sort(memory.ledger.slots_of(memory.ledger.owners()))):
        yield "there are records of nobody, or people without records"


def _limits(db: StoreConnection, memory: Memory) -> Iterator[str]:
    """Analysts have the ε that they were given, in the audit trail, in the file and in memory."""
    limits: list[float] = []
    for entry in chain.entries(db):
        if entry.kind == "budget":
            limits += [entry.facts["epsilon"]]
            if entry.facts["was"] is not None:
                limits.remove(entry.facts["was"])
    stored = json.loads(database.get_meta(db, "settings"))["analysts"]
    if sorted(stored.values()) != sorted(limits):
        yield "what analysts were given is not as the audit trail has it"
    if stored != memory.settings.analysts or new_ledger(memory.settings).budgets != memory.ledger.budgets:
        yield "memory and disk disagree about what analysts were given"
    declared = sum(entry.kind == "analyst" for entry in chain.entries(db))
    if len(database.read_analysts(db)) != declared:
        yield "who may ask is not as the audit trail has it"


def _budgets(db: StoreConnection, memory: Memory) -> Iterator[str]:
    """Nobody is above their budget, and what people have spent equals what answers were charged."""
    ledger, settings = memory.ledger, memory.settings
    columns = {scope: ledger.column(scope) for scope in ledger.scopes}
    closed = [ledger.column(scope) for scope in ledger.all_scopes if scope not in columns]
    graves = ledger.tombstones.values()
    yield from _promises(settings, ledger)
    for scope, column in columns.items():
        spent = [0, *(t.spent.get(scope, 0) for t in graves)]
        if min(column.min(initial=0), *spent) < 0:
            yield f"what somebody has spent with analyst {scope!r} is below zero"
        most = ledger.shared_budget
        if scope != SHARED:
            view = settings.seen_by(scope)
            most = to_units(view.budget) - (ledger.shared_budget if view.advised else 0)
            paced, steps = ledger.fraction
            most = most // steps * paced + most % steps * paced // steps
        if max(column.max(initial=0), *spent) > most:
            yield f"somebody has spent more than their budget with analyst {scope!r}"
    if ledger.global_budget is not None:
        together = np.sum(list(columns.values()), axis=0)
        if max(together.max(initial=0), *(t.this_period for t in graves), 0) > ledger.global_budget:
            yield "somebody has spent more than the global budget"
    total = sum(sum(column.tolist()) for column in [*columns.values(), *closed]) + sum(
        sum(t.spent.values()) for t in graves
    )
    charged = sum(int(c) for (c,) in db.execute("SELECT charged FROM answers"))
    if total != charged:
        yield f"people have spent {total} units in all, but answers were charged {charged}"


def _promises(settings: Settings, ledger: MemoryLedger) -> Iterator[str]:
    """Nobody who was promised less has spent more than that, or than they had spent when it was promised."""
    here = ledger.promises if len(ledger.promises) else np.zeros(len(ledger.participation), dtype=PROMISE)
    slots, scopes = np.flatnonzero(here["whole"]), ledger.scopes
    gone = [grave for grave in ledger.tombstones.values() if grave.promise is not None]
    promises = np.concatenate([here[slots], np.array([grave.promise for grave in gone], dtype=here.dtype)])
    sizes = {epsilon: to_units(budget(epsilon, settings.delta, settings.accountant)) for epsilon in promises["epsilon"]}
    if [sizes[epsilon] for epsilon in promises["epsilon"]] != promises["whole"].tolist():
        yield "the budget of somebody who was promised less is not that of their epsilon"
    buried = {scope: np.array([grave.spent.get(scope, 0) for grave in gone], dtype=np.int64) for scope in scopes}
    spent = {scope: np.concatenate([ledger.column(scope)[slots], buried[scope]]) for scope in scopes}
    if SHARED in spent and (spent[SHARED] > promises["part"]).any():
        yield "somebody who was promised less has spent more on what all analysts see"
    if (ledger.observed(spent)[0] > np.maximum(promises["whole"], promises["before"])).any():
        yield "somebody has spent more with one analyst than they were promised"


def _memory(db: StoreConnection, memory: Memory) -> Iterator[str]:
    """Memory agrees with the file, to the bit."""
    settings, live = memory.settings, memory.ledger
    ledger = new_ledger(settings, key=database.get_meta(db, "key"))
    read_ledger(db, ledger)
    if ledger.owners() != live.owners():
        yield "memory and disk disagree about who is here"
        return
    for scope in live.all_scopes:
        if not _same(ledger.column(scope), live.column(scope)):
            yield f"memory and disk disagree about what was spent with analyst {scope!r}"
    if not _same(ledger.participation, live.participation):
        yield "memory and disk disagree about who took part how often"
    if not _same(*(each.promises["whole"] for each in (ledger, live))):
        yield "memory and disk disagree about what single people were promised"
    if ledger.tombstones != live.tombstones:
        yield "memory and disk disagree about the forgotten"
    shard = Shard(new_index(settings), ledger)
    database.read_records(db, settings.n_features, shard)
    disk = Memory.of(settings, ledger, shard)
    if not np.array_equal(disk.ids, memory.ids):
        yield "memory and disk disagree about which records there are"
    elif not np.array_equal(disk.owners, memory.owners):
        yield "memory and disk disagree about whose records they are"
    elif not np.array_equal(disk.dates, memory.dates) or disk.holds != memory.holds:
        yield "memory and disk disagree about when records expire, or about holds"
    if disk.keys != memory.keys:
        yield "memory and disk disagree about the ids of records"


def _same(one: npt.NDArray[Any], other: npt.NDArray[Any]) -> bool:
    """Equal, apart from freed slots at the end."""
    n = min(len(one), len(other))
    return np.array_equal(one[:n], other[:n]) and not one[n:].any() and not other[n:].any()
