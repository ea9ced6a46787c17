"""One transaction on records and people, in memory and in the file together: adding, erasing, folding.

There is one way to add and one way to erase, whoever calls.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from indknn.core.advice import about_labels, about_parameters
from indknn.core.clock import HOUR
from indknn.core.inputs import DUE, as_classes, as_labels, says_each_row
from indknn.core.releases import PublicRows, Release
from indknn.errors import IndKNNError, InvalidInputError
from indknn.ledger.memory import Tombstone
from indknn.ledger.promises import Wanted
from indknn.proof import Entry
from indknn.records.by_slot import KeyArray
from indknn.settings import Settings
from indknn.store import chain, database, journal
from indknn.store.home import State
from indknn.store.intake import Ready
from indknn.store.journal import BLOCK, Upload, today
from indknn.store.keyfile import forget_names
from indknn.tables.schema import Schema, to_plain
from indknn.types import SLOT, Given, IntArray, OwnerId, Vectors

_DATED = ("requests", "additions")


@dataclass(frozen=True)
class Erased:
    """Records and people who are gone from memory, and what must be written about that."""

    state: State
    why: str
    slots: IntArray
    generations: IntArray
    keys: dict[int, bytes]
    """The blocks of record ids, without those that are gone."""
    gone: dict[int, OwnerId]
    """Who has no record left, by owner slot."""
    tombstones: dict[bytes, Tombstone]
    promises: dict[int, bytes]
    """The blocks of promises, without those of the gone."""

    @staticmethod
    def from_memory(state: State, slots: IntArray, why: str) -> Erased:
        """Remove records from memory. Until this is written, memory is ahead of the file."""
        shard, ledger = state.engine.shard, state.engine.ledger
        gone = shard.forget(slots)
        generations, keys = shard.generations(slots), shard.keys.blocks_of(slots)
        graves, promises = ledger.tombstones_of(gone.values()), ledger.promise_blocks(gone, BLOCK)
        return Erased(state, why, slots, generations, keys, gone, graves, promises)

    def write(self, staying: Iterable[OwnerId] = ()) -> Entry:
        """Write it, in a transaction that also writes balances. Keys of people who are gone are revoked."""
        db = self.state.db
        database.clear_records(db, self.slots, self.generations, self.state.engine.settings.n_features)
        database.write_record_keys(db, self.keys)
        database.blank_owners(db, self.gone)
        database.write_tombstones(db, self.tombstones)
        if self.promises:
            journal.write_promise_blocks(db, self.promises)
        entry = chain.append(db, self.why, records=len(self.slots), owners=len(self.gone))
        forget_names(self.state.home.keys, set(self.gone.values()).difference(staying))
        return entry


def expire(state: State, most: int) -> int:
    """Erase at most so many records that have expired, with the answers that are written next. Returns how many."""
    slots = state.engine.shard.dates.due(state.engine.ledger.tick() // HOUR, most)
    if len(slots):
        erased = Erased.from_memory(state, slots, "expire")
        state.journal.note_erasure(dict(zip(erased.gone, erased.tombstones.values(), strict=True)), erased.write)
    return len(slots)


@dataclass
class Change:
    """What can be done in the transaction. If it fails, memory is discarded and read again from the file."""

    state: State
    added: int = 0
    erased: int = 0
    held: int = 0
    """How many records were to be erased, and are kept because of a hold."""
    copies: int = 0
    """How many rows their owner already had."""
    replaced: int = 0
    """How many rows replaced a record."""
    unchanged: int = 0
    """How many rows are equal to the record with their record id."""
    expired: int = 0
    """How many rows had expired already."""
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
        labels = self._label_set(y, classes)
        settings = replace(settings, n_features=X.shape[1], classes=labels)
        database.set_meta(state.db, "settings", json.dumps(settings.stored()))
        chain.append(state.db, "settings", n_features=settings.n_features, classes=list(labels))
        public = database.read_public(state.db)
        if public is not None and public.values.shape[1] != settings.n_features:
            wanted = f"{public.values.shape[1]} features, as the public rows have"
            raise InvalidInputError(f"X must have {wanted}, got {X.shape[1]}")
        state.begin_with(settings, public)
        state.draft = False

    def _label_set(self, y: npt.ArrayLike, classes: npt.ArrayLike | None) -> tuple[Any, ...]:
        """The classes of a draft: those that it has, or were given now, or those of its first records."""
        settings = self.state.engine.settings
        if settings.classes or settings.numeric:
            if settings.numeric and classes is not None:
                raise InvalidInputError("this store has numbers, so it takes no classes")
            return settings.classes
        if classes is None:
            self.advice += about_labels()
        labels = tuple(as_classes(as_labels(y if classes is None else classes)).tolist())
        self.advice += about_parameters(0.0, labels)
        return labels

    def adopt(self, schema: Schema) -> None:
        """Give a schema to a draft. It fixes the number of features, and the classes if it names them."""
        state, settings = self.state, self.state.engine.settings
        if not state.draft or settings.schema is not None:
            raise InvalidInputError("a store takes a schema once, before its first records")
        if database.get_meta(state.db, "public") is not None:
            raise InvalidInputError("this store has public rows, which were declared as vectors without a schema")
        self._use_schema(schema)

    def change_schema(self, schema: Schema) -> None:
        """Use this schema instead of the present one, while nothing has come of that."""
        db, settings = self.state.db, self.state.engine.settings
        late = db.execute("SELECT 1 FROM audit WHERE kind = ? LIMIT 1", ("add",)).get is not None
        if late or database.answered(db):
            raise InvalidInputError("a schema can be changed only before the first records and answers of its store")
        if schema.n_features != settings.n_features and database.get_meta(db, "public") is not None:
            raise InvalidInputError("this store has public rows, which were encoded with all columns of the schema")
        self._use_schema(schema)

    def _use_schema(self, schema: Schema) -> None:
        state, settings = self.state, self.state.engine.settings
        if schema.bounds is not None and not settings.classes:
            settings = replace(settings, target="number", bounds=settings.bounds or schema.bounds)
        classes, width = () if settings.numeric else settings.classes or schema.classes, schema.n_features
        settings = replace(settings, n_features=width, classes=classes, schema=to_plain(schema))
        state.draft, state.schema = not (classes or settings.numeric), schema
        database.set_meta(state.db, "settings", json.dumps(settings.stored(draft=state.draft)))
        chain.append(state.db, "settings", n_features=width, classes=list(classes), schema=True)
        state.begin_with(settings, database.read_public(state.db))

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

        Rows replace the records that have their record ids, and those in the
        `replaced` slots. New records are added first, so that nobody is without records in between.
        """
        match = ready.match or self.state.engine.match(ready.rows)
        kept = match.ids[match.ids >= 0] & SLOT
        if (
            len(named := np.union1d(kept, match.stale))
            and np.isin(named, np.concatenate([named[:0], *self.slots])).any()
        ):
            raise InvalidInputError("a record id must not be given twice")
        fresh = match.fresh
        self.unchanged += len(match.ids) - len(fresh)
        late = match.until[fresh] <= self.state.engine.shard.hour
        self.expired += int(late.sum())
        fresh = fresh[~late]
        self.replaced += int(np.isin(fresh, np.concatenate([match.replacing, ready.replacing])).sum())
        if len(fresh):
            match.ids[fresh] = self._add(match.pick(fresh, ready.rows))
        if ready.wanted is not None:
            self.lower(ready.wanted)
        stale = np.setdiff1d(np.union1d(match.stale, ready.replaced), kept) if len(ready.replaced) else match.stale
        if len(stale):
            self.erase(stale)
        self.copies += match.copies
        self.slots.append(match.ids[match.ids >= 0] & SLOT)
        return match.ids

    def _add(self, rows: tuple[Vectors, IntArray, Sequence[OwnerId], KeyArray, IntArray]) -> IntArray:
        db, shard, ledger = self.state.db, self.state.engine.shard, self.state.engine.ledger
        ids = shard.add(*rows)
        newcomers = ledger.take_arrivals()
        slots = ledger.find(newcomers.names).tolist()
        database.write_records(db, shard, ids & SLOT, rows[0])
        database.write_record_keys(db, shard.keys.blocks_of(ids & SLOT))
        database.write_owners(db, zip(slots, newcomers.names, strict=True))
        if newcomers.tombstones:  # what they had spent moves from the tombstones to the balances
            db.delete("tombstones", ((digest,) for digest in newcomers.tombstones))
            self.state.journal.fold(slots)
            journal.write_promise_blocks(db, ledger.promise_blocks(slots, BLOCK))
        self.added += len(ids)
        return ids

    def lower(self, asked: Wanted, *, receipt: bool = False) -> None:
        """Give people who are here smaller promises. The audit trail says for how many, and nothing else.

        With `receipt` it also says so if nothing changed. The receipt has the time and the hash of the newest entry,
        which would otherwise show a person when something happened to others (rule 14).
        """
        before = self.state.engine.ledger.promises_of(asked.names)["epsilon"]
        asked = asked.only(asked.epsilons != before)
        if len(asked.names):
            slots = self.state.engine.shard.lower(asked)
            blocks = self.state.engine.ledger.promise_blocks(slots, BLOCK)
            journal.write_promise_blocks(self.state.db, blocks)
        if len(asked.names) or receipt:
            chain.append(self.state.db, "lower", owners=len(asked.names))

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

        Their keys are revoked. Owners in `staying` get other records in this transaction and keep their keys. Records
        under a hold take no part and are erased when it ends.
        """
        shard = self.state.engine.shard
        if shard.holds and (held := shard.under_hold(slots)).any():
            self._erase_later(slots[held], staying)
            slots = slots[~held]
        erased = Erased.from_memory(self.state, slots, "forget")
        self.state.journal.fold(erased.gone)
        erased.write(staying)
        self.erased += len(slots)
        return erased.gone

    def _erase_later(self, slots: IntArray, staying: Iterable[OwnerId]) -> None:
        db, shard, ledger = self.state.db, self.state.engine.shard, self.state.engine.ledger
        shard.forget_later(slots)
        database.write_dates(db, shard, slots, self.state.engine.settings.n_features)
        database.write_record_keys(db, shard.keys.blocks_of(slots))
        self.held += len(slots)
        chain.append(db, "keep", records=len(slots))
        names = {ledger.name_of(owner) for owner in np.unique(shard.owners_of(slots)).tolist()}
        left = [name for name in names if (shard.dates.of(shard.slots_of_owners([name])) == DUE).all()]
        forget_names(self.state.home.keys, set(left).difference(staying))

    def hold(self, people: set[int]) -> None:
        """Put the people in these owner slots under a hold: records take no part, and stay until it ends."""
        db, engine, new = self.state.db, self.state.engine, sorted(people - self.state.engine.shard.holds)
        for slot in new:
            engine.shard.hold(slot)
        db.insert("holds", [(slot, engine.ledger.tick()) for slot in new])
        chain.append(db, "hold", owners=len(new))

    def end_hold(self, people: set[int]) -> dict[int, OwnerId]:
        """End the holds of these people, and erase what was due meanwhile. Returns whom this has forgotten."""
        db, shard, ledger = self.state.db, self.state.engine.shard, self.state.engine.ledger
        ledger.tick()
        for slot in sorted(people):
            shard.end_hold(slot)
        db.delete("holds", ((slot,) for slot in sorted(people)))
        chain.append(db, "release", owners=len(people))
        slots = np.sort(shard.slots_of_owners([ledger.name_of(slot) for slot in sorted(people)]))
        database.write_dates(db, shard, slots, self.state.engine.settings.n_features)
        return self.erase(slots[~shard.unexpired(slots)])

    def purge(self) -> None:
        """Delete everything that was released: answers, the shared model, and what was learned from them."""
        state = self.state
        database.purge_answers(state.db)
        database.set_meta(state.db, "epoch", state.engine.shard.epoch)  # after this, no release has it any more
        database.set_meta(state.db, "joint", int(state.engine.ledger.joint))  # the same
        chain.append(state.db, "purge", upto=state.journal.last_noted)
        state.journal.forget_requests()
        self._write_release(state.engine.predictor.purge())

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

    def renew(self) -> None:
        """Begin a new period: everybody's budget starts anew, and a round of training begins (rule 17)."""
        state, predictor = self.state, self.state.engine.predictor
        with predictor.locked():
            state.engine.shard.renew()
            ledger, everybody = state.engine.ledger, range(len(state.engine.ledger.participation))
            database.set_meta(state.db, "period", ledger.period)
            database.write_tombstones(state.db, ledger.tombstones)
            state.journal.fold(everybody)
            journal.write_promise_blocks(state.db, ledger.promise_blocks(everybody, BLOCK))
            chain.append(state.db, "renew", period=ledger.period)
            self._write_release(predictor.renew())
        self.begin_round()

    def begin_round(self) -> None:
        """Begin a round of training, because all records were replaced, if there is a shared model (rule 17)."""
        predictor = self.state.engine.predictor
        if predictor.model is not None and predictor.model.started:
            with predictor.locked():
                self._write_release(predictor.begin_round())

    def _write_release(self, release: Release | None) -> None:
        """Write a shared release that nobody pays for, if there is one."""
        if release is None:
            return
        seq = self.state.journal.number()
        database.write_sum(self.state.db, seq, release)
        chain.append(self.state.db, "answers", first=seq, last=seq, count=1, sums=1, charged="0")


HELD = "records under a legal hold take no part any more; their bytes are kept until the hold ends, then erased"
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


@dataclass(frozen=True)
class Synced:
    """How many rows of the table were added, replaced a record, or were equal to one, and how many records it lacks.

    `missing` records have an id that the table does not have. `nameless` records have no id and stay.
    """

    added: int
    replaced: int
    unchanged: int
    missing: int
    nameless: int


class DeclinedError(IndKNNError):
    """Somebody was shown the counts and said no, so the transaction must not be committed."""


class Step:
    """One synchronisation. `synced` has its counts, even if nothing was changed because `agreed` said no."""

    synced: Synced

    def __init__(self, delete_missing: bool, agreed: Callable[[Synced], bool] | None):
        self._delete, self._agreed = delete_missing, agreed

    def checked(self, rows: Given) -> Given:
        """These rows, if every one has a record id and a named owner."""
        if rows.record_ids is None:
            raise InvalidInputError("sync needs the record id of every row, to tell which rows are here already")
        if says_each_row(rows.owners):
            raise InvalidInputError("sync needs the name of every owner, to tell who is here already")
        return rows

    def take(self, change: Change) -> None:
        """Forget what is missing. All rows were added before, so nobody is without records in between.

        An empty table is refused, because a failed export must not erase everybody.
        """
        shard = change.state.engine.shard
        seen, slots = np.concatenate([np.zeros(0, dtype=np.int64), *change.slots]), shard.slots()
        slots = slots[shard.unexpired(slots)]  # the others are as good as gone
        named = np.intersect1d(shard.keys.named(), slots)
        if self._delete and not len(seen):
            raise InvalidInputError("the table has no rows, so all records would be forgotten: is it complete?")
        missing = np.setdiff1d(named, seen)
        new = change.added - change.replaced
        self.synced = Synced(new, change.replaced, change.unchanged, len(missing), len(slots) - len(named))
        if self._agreed is not None and not self._agreed(self.synced):
            raise DeclinedError("nothing was changed")
        if self._delete and len(missing):
            change.erase(missing)
