"""Add and replace records in one transaction.

A replaced record is one that goes and one that comes, all of it or nothing. The new ones are added first, so that an
owner who replaces their only record is never gone, and no ledger is touched.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import apsw
import numpy as np

from indknn.core.inputs import as_owner_list
from indknn.errors import InvalidInputError
from indknn.store import chain, database
from indknn.store.space import truncate_log
from indknn.types import FloatArray, IntArray, OwnerId

if TYPE_CHECKING:
    from indknn.store.store import Store


@dataclass(frozen=True)
class Item:
    """What goes with a row of features: its label, whose it is, and the id of the record that it replaces.

    Without an owner the record is a new person's, or stays with the owner of the record that it replaces.
    """

    label: Any
    owner: OwnerId | None = None
    id: int | None = None


def put_items(store: Store, X: FloatArray, items: Sequence[Item]) -> IntArray:
    """The new ids, in order; nothing is changed if anything is wrong."""
    y = _labels(items)
    with store._settled():
        gone = [item.id for item in items if item.id is not None]
        if len(set(gone)) < len(gone):
            raise InvalidInputError("a record id must not be given twice")
        slots = store._engine.shard.slots_of_records(gone)
        owners = _owners(store, items)
        prepared = None if store._draft else store._engine.settings.prepare(X, y)
        with store._change() as db:
            if prepared is None:
                store._complete(db, X, y)
                prepared = store._engine.settings.prepare(X, y)
            ids = store._put(db, *prepared, owners)
            store._count_added(db, len(ids))
            if gone:
                erase(store, db, gone, slots)
        if gone and truncate_log(store._db, store.path, store._ballast):
            store._fill_ballast()
    store._keep_ballast()
    return ids


def erase(store: Store, db: apsw.Connection, ids: list[int], slots: IntArray) -> None:
    """Remove these records, and whoever has none left, inside the transaction of a change."""
    shard, ledger = store._engine.shard, store._engine.ledger
    concerned = {slot: ledger.name_of(slot) for slot in np.unique(shard.owners_of(slots)).tolist()}
    count = shard.forget_records(ids)
    left = {slot: name for slot, name in concerned.items() if ledger.slots_of([name])[0] < 0}
    database.clear_records(db, shard, slots, store.settings.n_features)
    database.blank_owners(db, left)
    for digest in map(ledger.digest, left.values()):
        database.write_tombstone(db, digest, ledger.tombstones[digest])
    store._touch(left)
    store._fold(db)
    chain.append(db, "forget", records=count, owners=len(left))


def _owners(store: Store, items: Sequence[Item]) -> list[OwnerId]:
    """Whose each row is. Those without a name get numbers that were nobody's and are not given here."""
    shard, ledger = store._engine.shard, store._engine.ledger
    named = as_owner_list([item.owner for item in items if item.owner is not None])
    number = max([ledger.next_number, *(name + 1 for name in named if isinstance(name, int))])
    owners, rest = [], iter(named)
    for item in items:
        if item.owner is not None:
            owners.append(next(rest))
        elif item.id is not None:
            (slot,) = shard.owners_of(shard.slots_of_records([item.id])).tolist()
            owners.append(ledger.name_of(slot))
        else:
            owners.append(number)
            number += 1
    return owners


def _labels(items: Sequence[Item]) -> Any:
    kinds = sorted({type(item.label).__name__ for item in items})
    if len(kinds) > 1:
        raise InvalidInputError(f"all labels must be of one type, got {kinds}")
    for item in items:
        if isinstance(item.label, int) and not -(1 << 63) <= item.label < 1 << 63:
            raise InvalidInputError(f"a label must be below 2^63, got {item.label}")
    return np.array([item.label for item in items])
