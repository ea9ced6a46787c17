"""One transaction on records and people, in memory and in the file together: adding, erasing, folding.

There is one way to erase. `Store.forget`, `Store.upsert` and `Store.replace_all` all take it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from indknn.core.noise import Noise
from indknn.errors import InvalidInputError
from indknn.settings import RECEIPT
from indknn.store import chain, database
from indknn.store.codec import BLOCK
from indknn.store.opening import State, journaled_engine
from indknn.types import IntArray, OwnerId, Vectors


@dataclass(frozen=True)
class Change:
    """What may be done inside the transaction. If it fails, memory is thrown away and read anew from the file."""

    state: State
    noise: Noise

    def complete(self, X: npt.NDArray[Any], classes: npt.NDArray[Any]) -> None:
        """The first records of a draft settle what it left open."""
        state, settings = self.state, self.state.engine.settings
        if X.ndim != 2:
            raise InvalidInputError(f"X must be a table of shape (rows, features), got shape {X.shape}")
        labels = settings.classes or tuple(np.unique(classes).tolist())
        settings = replace(settings, n_features=X.shape[1], classes=labels)
        database.set_meta(state.db, "settings", json.dumps(settings.stored()))
        chain.append(state.db, "settings", n_features=settings.n_features, classes=list(labels))
        state.engine = journaled_engine(settings, self.noise, state.journal)
        state.draft = False

    def put(self, vectors: Vectors, labels: IntArray, owners: list[OwnerId] | None) -> IntArray:
        """Add records; their ids. Whoever comes back resumes what they had spent."""
        db, engine = self.state.db, self.state.engine
        ledger, shard = engine.ledger, engine.shard
        newcomers = ledger.strangers(owners if owners is not None else ())
        back = [digest for digest in map(ledger.digest, newcomers) if digest in ledger.tombstones]
        first = ledger.next_number
        ids = engine.put(vectors, labels, owners)
        if owners is None:
            newcomers = list(range(first, ledger.next_number))
        database.write_records(db, shard, ids & 0xFFFFFFFF, vectors, labels)
        slots = ledger.slots_of(newcomers).tolist()
        database.write_owners(db, zip(slots, newcomers, strict=True))
        if back:  # what they had spent moves from the tombstones into the balances
            db.executemany("DELETE FROM tombstones WHERE digest = ?", ((digest,) for digest in back))
            self._touch(slots)
            self.fold()
        return ids

    def note_added(self, records: int) -> None:
        """Write into the audit trail that so many records came."""
        db = self.state.db
        database.set_meta(db, "next_number", str(self.state.engine.ledger.next_number))  # may exceed 63 bits
        chain.append(db, "add", records=records)

    def erase(self, slots: IntArray) -> dict[int, OwnerId]:
        """Erase the records in these slots, and whoever has none left; the names of those, by owner slot."""
        db, engine = self.state.db, self.state.engine
        shard, ledger = engine.shard, engine.ledger
        gone = shard.forget(slots)
        database.clear_records(db, shard, slots, engine.settings.n_features)
        database.blank_owners(db, gone)
        for digest in map(ledger.digest, gone.values()):
            database.write_tombstone(db, digest, ledger.tombstones[digest])
        self._touch(gone)
        self.fold()
        chain.append(db, "forget", records=len(slots), owners=len(gone))
        return gone

    def purge(self) -> None:
        """Drop all that was released: answers, statistics, and what was learned from them."""
        state = self.state
        database.purge_answers(state.db)
        database.set_meta(state.db, "epoch", state.engine.shard.epoch)  # no release tells it any more
        chain.append(state.db, "purge", upto=state.journal.last_noted)
        state.journal.forget_requests()
        state.engine.predictor.purge()

    def fold(self) -> None:
        """Write balances in the place of debits."""
        journal, blocks = self.state.journal, sorted(self.state.journal.touched, key=str)
        balances = database.snapshot(self.state.engine.ledger, blocks)
        database.write_balances(self.state.db, balances, journal.last_noted)
        journal.touched.clear()
        journal.unfolded_bytes = 0

    def _touch(self, owner_slots: Iterable[int]) -> None:
        blocks = {slot // BLOCK for slot in owner_slots}
        self.state.journal.touched |= {(scope, b) for scope in self.state.engine.ledger.scopes for b in blocks}


def receipt_of(state: State, entry: chain.Entry, records: int, owners: int, purged: bool) -> dict[str, Any]:
    """What a person gets who asked to be forgotten."""
    return {
        "receipt": "erasure",
        "store": state.store_id,
        "at": entry.at,
        "records": records,
        "owners_forgotten": owners,
        "kept": "what was spent, under a keyed hash of the owner's name",
        "derived": RECEIPT["purge" if purged else "keep"],
        "audit_position": entry.position,
        "audit_hash": entry.hash.hex(),
    }
