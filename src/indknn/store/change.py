"""One transaction on records and people, in memory and in the file together: adding, erasing, folding.

There is one way to add and one way to erase, whoever calls.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from indknn.core.advice import about_labels
from indknn.core.inputs import EACH_ROW_PREFIX, as_classes, as_labels
from indknn.core.releases import PublicRows
from indknn.errors import InvalidInputError
from indknn.records.keys import KeyArray
from indknn.settings import Settings
from indknn.store import chain, database
from indknn.store.intake import Ready
from indknn.store.journal import Upload, today
from indknn.store.keyfile import forget_names
from indknn.store.opening import State
from indknn.tables.schema import Schema, to_plain
from indknn.types import IntArray, OwnerId, Vectors

_SLOT = 0xFFFFFFFF
_DATED = ("requests", "additions")


@dataclass
class Change:
    """What can be done in the transaction. If it fails, memory is discarded and read again from the file."""

    state: State
    added: int = 0
    erased: int = 0
    copies: int = 0
    """How many rows their owner already had."""
    slots: list[IntArray] = field(default_factory=list)
    """The slots of the records that were added."""
    advice: list[Warning] = field(default_factory=list)
    """Warnings for the person who adds the records."""

    def complete(self, X: npt.NDArray[Any], y: npt.ArrayLike, classes: npt.ArrayLike | None = None) -> None:
        """Fix what a draft left open, from its first records.

        This is the number of features, and the classes if they were not given.
        """
        state, settings = self.state, self.state.engine.settings
        if X.ndim != 2:
            raise InvalidInputError(f"X must be a table of shape (rows, features), got shape {X.shape}")
        if not settings.classes and classes is None:
            self.advice += about_labels()
        labels = settings.classes or tuple(as_classes(as_labels(y if classes is None else classes)).tolist())
        settings = replace(settings, n_features=X.shape[1], classes=labels)
        database.set_meta(state.db, "settings", json.dumps(settings.stored()))
        chain.append(state.db, "settings", n_features=settings.n_features, classes=list(labels))
        public = database.read_public(state.db)
        if public is not None and public.values.shape[1] != settings.n_features:
            wanted = f"{public.values.shape[1]} features, as the public rows have"
            raise InvalidInputError(f"X must have {wanted}, got {X.shape[1]}")
        state.begin_with(settings, public)
        state.draft = False

    def adopt(self, schema: Schema) -> None:
        """Give a schema to a draft. It fixes the number of features, and the classes if it names them."""
        state, settings = self.state, self.state.engine.settings
        if not state.draft or settings.schema is not None:
            raise InvalidInputError("a store takes a schema once, before its first records")
        if database.get_meta(state.db, "public") is not None:
            raise InvalidInputError("this store has public rows, which were declared as vectors without a schema")
        classes, width = settings.classes or schema.classes, schema.n_features
        settings = replace(settings, n_features=width, classes=classes, schema=to_plain(schema))
        state.draft, state.schema = not classes, schema
        database.set_meta(state.db, "settings", json.dumps(settings.stored(draft=state.draft)))
        chain.append(state.db, "settings", n_features=width, classes=list(classes), schema=True)
        state.begin_with(settings)

    def limit_analyst(self, settings: Settings, analyst: str) -> None:
        """Use these settings from now on. They give this analyst a smaller ε (`analysts.py`)."""
        state, epsilon = self.state, settings.analysts[analyst]
        stored = json.loads(database.get_meta(state.db, "settings"))  # τ may be open there, and chosen in memory
        database.set_meta(state.db, "settings", json.dumps({**stored, "analysts": settings.analysts}))
        chain.append(state.db, "budget", epsilon=epsilon, was=state.engine.settings.analysts.get(analyst))
        state.engine.limit_analyst(settings, analyst)

    def declare_public(self, public: PublicRows) -> None:
        """Keep public rows, and write their digest into the audit trail. Only before the first answer."""
        state = self.state
        if database.get_meta(state.db, "public") is not None or state.journal.last_noted:
            raise InvalidInputError("public rows are declared once, before the first answer")
        database.set_meta(state.db, "public", public.body())
        rows, features = public.values.shape
        labels = b"" if public.labels is None else public.labels.tobytes()
        digest = hashlib.sha256(public.values.tobytes() + labels).hexdigest()
        chain.append(state.db, "public", rows=rows, features=features, sha256=digest)
        if not state.draft:
            state.engine.predictor.public = public

    def put(self, ready: Ready) -> IntArray:
        """Add records and return their numbers. People who come back start with what they had spent.

        Without owners, each row is a new person. Rows replace the records that have their record ids, and those in the
        `replaced` slots. New records are added first, so that nobody is without records in between.
        """
        engine, vectors, labels = self.state.engine, ready.vectors, ready.labels
        names = engine.ledger.new_names(len(labels), EACH_ROW_PREFIX) if ready.owners is None else ready.owners
        match = ready.match or engine.match(vectors, labels, names, ready.record_ids)
        kept = match.ids[match.ids >= 0] & _SLOT
        if len(held := np.union1d(kept, match.stale)) and np.isin(held, np.concatenate([held[:0], *self.slots])).any():
            raise InvalidInputError("a record id must not be given twice")
        if len(fresh := match.fresh):
            match.ids[fresh] = self._add(*match.pick(vectors, labels, names))
        stale = np.setdiff1d(np.union1d(match.stale, ready.replaced), kept) if len(ready.replaced) else match.stale
        if len(stale):
            self.erase(stale)
        self.copies += match.copies
        self.slots.append(match.ids & _SLOT)
        return match.ids

    def _add(self, vectors: Vectors, labels: IntArray, owners: Sequence[OwnerId], keys: KeyArray) -> IntArray:
        db, shard, ledger = self.state.db, self.state.engine.shard, self.state.engine.ledger
        ids = shard.add(vectors, labels, owners, keys)
        newcomers = ledger.take_arrivals()
        slots = ledger.find(newcomers.names).tolist()
        database.write_records(db, shard, ids & _SLOT, vectors, labels)
        database.write_record_keys(db, shard, ids & _SLOT)
        database.write_owners(db, zip(slots, newcomers.names, strict=True))
        if newcomers.tombstones:  # what they had spent moves from the tombstones to the balances
            db.delete("tombstones", ((digest,) for digest in newcomers.tombstones))
            self.fold(slots)
        self.added += len(ids)
        return ids

    def note_added(self, upload: Upload | None = None, numbers: IntArray | None = None) -> None:
        """Write how many records were added, if any, into the audit trail. Remember an upload that may be repeated."""
        db = self.state.db
        if upload is not None and numbers is not None:
            upload.note(db, numbers)
        if self.added or upload is not None:
            db.upsert("meta", [("next_number", str(self.state.engine.ledger.next_number))])  # may exceed 63 bits
            chain.append(db, "add", records=self.added)

    def erase(self, slots: IntArray, staying: Iterable[OwnerId] = ()) -> dict[int, OwnerId]:
        """Erase the records in these slots, and forget owners who have none left. Returns their names, by owner slot.

        Their keys are revoked. Owners in `staying` get other records in this transaction and keep their keys.
        """
        db, engine = self.state.db, self.state.engine
        shard, ledger = engine.shard, engine.ledger
        gone = shard.forget(slots)
        database.clear_records(db, shard, slots, engine.settings.n_features)
        database.write_record_keys(db, shard, slots)
        database.blank_owners(db, gone)
        database.write_tombstones(db, {d: ledger.tombstones[d] for d in map(ledger.digest, gone.values())})
        self.fold(gone)
        self.erased += len(slots)
        chain.append(db, "forget", records=len(slots), owners=len(gone))
        forget_names(self.state.home.keys, set(gone.values()).difference(staying))
        return gone

    def purge(self) -> None:
        """Delete everything that was released: answers, the shared model, and what was learned from them."""
        state = self.state
        database.purge_answers(state.db)
        database.set_meta(state.db, "epoch", state.engine.shard.epoch)  # after this, no release has it any more
        database.set_meta(state.db, "house", int(state.engine.ledger.house))  # the same
        chain.append(state.db, "purge", upto=state.journal.last_noted)
        state.journal.forget_requests()
        self._write_beginning(state.engine.predictor.purge())

    def prune(self, days: int, day: int | None = None) -> int:
        """Delete requests and uploads that are older than this many days. Returns how many.

        Only time decides, never what was asked or answered.
        """
        db, before = self.state.db, ((today() if day is None else day) - days,)
        old = {table: list(db.execute(f"SELECT id FROM {table} WHERE day < ?", before)) for table in _DATED}
        count = sum(map(len, old.values()))
        if count:
            for table, names in old.items():
                db.delete(table, names)
            chain.append(db, "prune", requests=count)
            self.state.journal.forget_requests(name for (name,) in old["requests"])
        return count

    def begin_round(self) -> None:
        """Begin a round of training, because all records were replaced, if there is a shared model (rule 17)."""
        predictor = self.state.engine.predictor
        if predictor.model is not None and predictor.model.started:
            with predictor.locked():
                self._write_beginning(predictor.begin_round())

    def _write_beginning(self, release: PublicRows | None) -> None:
        """Write the release that began a round, which nobody pays for, in this transaction."""
        if release is not None:
            seq = self.state.journal.number()
            database.write_sum(self.state.db, seq, release)
            chain.append(self.state.db, "answers", first=seq, last=seq, count=1, sums=1, charged="0")

    def fold(self, owner_slots: Iterable[int] = ()) -> None:
        """Replace debits by balances, and write the balances of these owners."""
        self.state.journal.fold(owner_slots)


ERASED = {
    "kept": "what was spent, under a keyed hash of the owner's name",
    "keys": "keys bound to the owner's name were revoked, and the name in the file of keys was overwritten",
    "released": "answers and the model released before are kept: they are differentially private. Scheduled purges "
    "drop them, for everybody at once",
}
REWRITTEN = "rewritten, and the log that held it is gone"
PURGED = {
    "dropped": "all answers and the model released before; a new model was begun, and people pay again",
    "kept": "what was spent, and the public rows with which the next round of training has begun",
    "public": "everybody who asks again can see that a purge happened, so it must not be tied to one person's erasure",
}
