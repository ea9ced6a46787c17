"""The tables of a store, and all functions that read and write their rows, but those of the audit trail (`chain.py`).

Everything that must know the tables follows from `TABLES`: how a file or a database makes them, how rows are written,
and what the keyed sums cover (`chain.py`).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any
from zlib import crc32

import numpy as np
import numpy.typing as npt

from indknn.core.quantise import root_norms
from indknn.core.releases import PublicRows, Release, TableCounts, decode, encode
from indknn.errors import StoreError
from indknn.ledger import SHARED, Scope
from indknn.ledger.memory import Tombstone
from indknn.ledger.promises import PROMISE
from indknn.records.any_shard import AnyShard
from indknn.types import IntArray, OwnerId, Vectors

if TYPE_CHECKING:
    from indknn.store.chain import StoreConnection


VERSION = 1
"""The version of the format. A store of another version is refused."""
_SQLITE = {"int": "INTEGER", "real": "REAL", "text": "TEXT", "bytes": "BLOB", "any": "ANY"}
_POSTGRES = {"int": "int8", "real": "float8", "text": "text", "bytes": "bytea", "any": "json"}


@dataclass(frozen=True)
class Table:
    """A table: its columns with their types, and how many of the first columns are the key."""

    name: str
    columns: dict[str, str]
    key: int = 1
    optional: str = ""
    """The column that may be NULL."""
    summed: bool = True
    """Whether the keyed sums cover it."""

    @property
    def names(self) -> str:
        """The columns, as SQL lists them."""
        return ", ".join(self.columns)

    @property
    def keys(self) -> list[str]:
        """The columns of the key."""
        return list(self.columns)[: self.key]

    @property
    def postgres_types(self) -> list[str]:
        """The types of the columns in PostgreSQL."""
        return [_POSTGRES[kind] for kind in self.columns.values()]

    def insert(self, place: str) -> str:
        """The statement that writes a new row. `place` stands for a value."""
        return f"INSERT INTO {self.name} VALUES ({', '.join([place] * len(self.columns))})"

    def upsert(self, place: str) -> str:
        """The statement that writes a row in place of the one with its key, if there is one."""
        rest = ", ".join(f"{name} = excluded.{name}" for name in list(self.columns)[self.key :])
        return f"{self.insert(place)} ON CONFLICT ({', '.join(self.keys)}) DO UPDATE SET {rest}"

    def delete(self, place: str) -> str:
        """The statement that deletes the row with a key."""
        return f"DELETE FROM {self.name} WHERE {' AND '.join(f'{name} = {place}' for name in self.keys)}"

    def in_sqlite(self) -> str:
        """The statement that makes it in a file."""
        options = "STRICT" if self.key > 1 or self.columns[self.keys[0]] == "int" else "STRICT, WITHOUT ROWID"
        return self._create(_SQLITE) + f" {options};"

    def in_postgres(self) -> str:
        """The statements that make it in a database.

        ANALYZE keeps samples of values in a catalogue, which would outlive an erasure. So there are no statistics about
        personal data. Compression would only cost time: features, debits and hashes look like noise.
        """
        made = [self._create({**_POSTGRES, "text": 'text COLLATE "C"'})]
        for name, kind in self.columns.items():
            change = f"ALTER TABLE {self.name} ALTER COLUMN {name} SET"
            made += [f"{change} STATISTICS 0"] if kind in {"bytes", "text", "any"} else []
            made += [f"{change} STORAGE EXTERNAL"] if kind == "bytes" else []
        return "; ".join(made) + ";"

    def _create(self, types: dict[str, str]) -> str:
        columns = [
            f"{name} {types[kind]}" + (" NOT NULL" if name != self.optional else "")
            for name, kind in self.columns.items()
        ]
        return f"CREATE TABLE {self.name} ({', '.join(columns)}, PRIMARY KEY ({', '.join(self.keys)}))"


_ALL = (
    # Parameters, keys and counters, by name.
    Table("meta", {"name": "text", "value": "any"}),
    # Features and names are kept in rows that never change their length and are never deleted, but overwritten where
    # they are. Other rows are moved when SQLite splits and merges pages, and what is moved is left behind in the unused
    # part of a page, secure_delete or not.
    # One row per record slot (`database.record_type`). A free slot keeps its generation, so that record ids never
    # repeat. The rest is blank.
    Table("records", {"slot": "int", "body": "bytes"}),
    # Those who have records. The name is packed (`database.encode_name`), or as many zeros once forgotten.
    Table("owners", {"number": "int", "slot": "int", "name": "bytes"}),
    # The slots of owners under a hold, and the minute at which it began.
    Table("holds", {"slot": "int", "since": "int"}),
    # Analysts. The one without a name has the empty one.
    Table("scopes", {"id": "int", "name": "text"}),
    # What owners had spent when debits were last folded, as int64 arrays over blocks of owner slots; and in how many
    # queries they had taken part, as int32 arrays.
    Table("balances", {"scope": "int", "block": "int", "spent": "bytes"}, key=2),
    Table("participation", {"block": "int", "queries": "bytes"}),
    # Answers given: the transcript. `charged` is the sum of all debits of the answer, in ledger units; as text, because
    # a sum over many people may exceed 63 bits. `release` is what was released besides the label: noisy votes, or a sum
    # over records. Such a sum has no query and label -1.
    Table(
        "answers",
        {
            "seq": "int",
            "scope": "int",
            "query": "bytes",
            "scale": "real",
            "label": "int",
            "charged": "text",
            "release": "bytes",
        },
        optional="release",
    ),
    # Who paid for an answer: until the next fold, owner slots and amounts (`journal.Debits`).
    Table("debits", {"seq": "int", "body": "bytes"}),
    # Requests that may be repeated: a digest of what was asked, the answers, and the day, counted from 1970.
    Table("requests", {"id": "text", "digest": "bytes", "labels": "bytes", "day": "int"}),
    # What the forgotten had spent, by keyed hash of their names: JSON from scope to units, and a count of queries. Also
    # the promise of whoever had one of their own (`ledger.promises`).
    Table("tombstones", {"digest": "bytes", "spent": "text", "queries": "int", "promise": "bytes"}, optional="promise"),
    # Promises of single people, as arrays over blocks of owner slots, zeros for whoever has the public default.
    Table("promises", {"block": "int", "body": "bytes"}),
    # Record ids that callers chose: 16 bytes of a keyed hash for each of 64 record slots, zeros where there is none.
    Table("record_keys", {"block": "int", "digests": "bytes"}),
    # Uploads that may be repeated: keyed hashes of their id and of all that was sent, and the numbers of the records.
    Table("additions", {"id": "bytes", "digest": "bytes", "numbers": "bytes", "day": "int"}),
    # The audit trail, a chain of hashes without personal data.
    Table("audit", {"position": "int", "at": "text", "kind": "text", "body": "text", "hash": "bytes"}, summed=False),
)
TABLES = {table.name: table for table in _ALL}
SUMMED = [table for table in _ALL if table.summed]
"""The tables that the keyed sums cover. The audit trail is itself a chain of hashes."""
INDEXES = "CREATE INDEX owners_by_slot ON owners (slot, number); CREATE UNIQUE INDEX scopes_by_name ON scopes (name);"


def refuse_other_version(place: object, version: int) -> None:
    """Refuse a store of another version than this program reads and writes."""
    if version != VERSION:
        raise StoreError(f"{place} has version {version} of the store's format; this indknn supports version {VERSION}")


# Their rows

_ROWS = 4096
_SHARED = "*"  # the scope for what every analyst sees; the names of analysts begin with "="
PURGED = -2
"""The label of a purged answer. A sum over records has -1."""


def get_meta(db: StoreConnection, name: str) -> Any:
    """A value by name. None if there is none."""
    return db.execute("SELECT value FROM meta WHERE name = ?", (name,)).get


def set_meta(db: StoreConnection, name: str, value: Any) -> None:
    """Set a value by name."""
    db.upsert("meta", [(name, value)])


def answered(db: StoreConnection) -> bool:
    """Whether anything was released about records. Counts of a table are no use of them."""
    used = "SELECT 1 FROM answers WHERE label >= 0 OR substr(release, 1, 1) <> ? LIMIT 1"
    return db.execute(used, (TableCounts.kind,)).get is not None


def read_analysts(db: StoreConnection) -> set[str]:
    """The analysts who were declared."""
    return set(json.loads(get_meta(db, "analysts") or "[]"))


def read_public(db: StoreConnection) -> PublicRows | None:
    """The declared public rows, if there are any."""
    body = get_meta(db, "public")
    return None if body is None else PublicRows.read(body)


def write_records(db: StoreConnection, shard: AnyShard, slots: IntArray, vectors: Vectors) -> None:
    """Write the records that were just put into these slots."""
    for part in _parts(slots):
        facts = {**shard.facts_at(slots[part]), "scale": vectors.scale[part], "features": vectors.values[part]}
        body = np.zeros(len(slots[part]), dtype=record_type(vectors.values.shape[1]))
        for name, column in facts.items():
            body[name] = column
        _overwrite(db, slots[part], body)


def clear_records(db: StoreConnection, slots: IntArray, generations: IntArray, n_features: int) -> None:
    """Clear slots that were freed. Only the generation stays, increased by one."""
    for part in _parts(slots):
        body = np.zeros(len(slots[part]), dtype=record_type(n_features))
        body["generation"], body["owner"], body["label"] = generations[part], -1, -1
        _overwrite(db, slots[part], body)


def write_dates(db: StoreConnection, shard: AnyShard, slots: IntArray, n_features: int) -> None:
    """Overwrite the dates and epochs of these records."""
    for part in _parts(slots):
        here = slots[part].tolist()
        found = dict(db.execute(f"SELECT slot, body FROM records WHERE slot IN ({', '.join('?' * len(here))})", here))
        body = np.frombuffer(b"".join(found[slot] for slot in here), dtype=record_type(n_features)).copy()
        body["until"], body["epoch"] = shard.dates.of(slots[part]), shard.epochs_of(slots[part])
        _overwrite(db, slots[part], body)


def _parts(slots: IntArray) -> Iterator[slice]:
    """Some rows at a time, to save memory."""
    return (slice(low, low + _ROWS) for low in range(0, len(slots), _ROWS))


def _overwrite(db: StoreConnection, slots: IntArray, body: npt.NDArray[np.void]) -> None:
    text, size = body.tobytes(), body.dtype.itemsize
    bodies = [text[i : i + size] for i in range(0, len(text), size)]
    db.upsert("records", zip(slots.tolist(), bodies, strict=True))


def read_records(db: StoreConnection, n_features: int, shard: AnyShard) -> None:
    """Fill an empty shard, slot by slot, in pieces, so that there is never a second copy of all records in memory."""
    kind, free = record_type(n_features), [np.zeros(0, dtype=np.int64)]
    records = int(db.execute("SELECT coalesce(max(slot), -1) + 1 FROM records").get)
    shard.expect(records + records // 64 + 1024)  # or the first newcomer would have all of them moved
    rows, done = db.scan("SELECT slot, body FROM records ORDER BY slot"), 0
    while part := list(islice(rows, _ROWS)):
        slots, bodies = zip(*part, strict=True)
        if slots != tuple(range(done, done + len(part))) or set(map(len, bodies)) != {kind.itemsize}:
            raise StoreError(f"records are missing, or not of {n_features} features")
        body = np.frombuffer(b"".join(bodies), dtype=kind)
        values, owners = body["features"].copy(), body["owner"].astype(np.int64)
        values[owners < 0, 0] = 1  # a placeholder in a free slot while it is restored
        vectors = Vectors(values, root_norms(values), body["scale"].astype(np.float64))
        labels, epochs = body["label"].astype(np.int64), body["epoch"].astype(np.int64)
        generations, until = body["generation"].astype(np.int64), body["until"].astype(np.int64)
        shard.restore(vectors, labels, owners, generations, (epochs, until))
        free.append(np.flatnonzero(owners < 0) + done)
        done += len(part)
    shard.free(np.concatenate(free))
    for block, digests in db.execute("SELECT block, digests FROM record_keys"):
        shard.keys.restore(block, digests)
    for (owner,) in db.execute("SELECT slot FROM holds ORDER BY slot"):
        shard.hold(owner)


def scope_id(db: StoreConnection, scope: Scope) -> int:
    """The number of an analyst. A new analyst gets one."""
    name = "" if scope is None else _SHARED if scope == SHARED else "=" + scope
    found = db.execute("SELECT id FROM scopes WHERE name = ?", (name,)).get
    if found is None:
        found = _next(db, "scopes", "id")
        db.insert("scopes", [(found, name)])
    return int(found)


def _next(db: StoreConnection, table: str, column: str) -> int:
    """The number of the next row."""
    return int(db.execute(f"SELECT coalesce(max({column}), 0) + 1 FROM {table}").get)


def read_scopes(db: StoreConnection) -> dict[int, Scope]:
    """Analysts by number."""
    rows = db.execute("SELECT id, name FROM scopes ORDER BY id")
    return {number: SHARED if name == _SHARED else name[1:] if name else None for number, name in rows}


def read_tombstones(db: StoreConnection) -> dict[bytes, Tombstone]:
    """What forgotten people had spent, by keyed hash."""
    scopes = read_scopes(db)
    return {
        digest: Tombstone({scopes[int(number)]: units for number, units in json.loads(body).items()}, count, own)
        for digest, body, count, text in db.execute("SELECT * FROM tombstones ORDER BY digest")
        for own in (None if text is None else np.frombuffer(text, PROMISE)[0].item(),)
    }


def read_names(db: StoreConnection) -> Iterator[tuple[int, OwnerId]]:
    """The owners who have records, by slot."""
    for slot, name in db.execute("SELECT slot, name FROM owners ORDER BY number"):
        if name.strip(b"\0"):
            yield slot, decode_name(name, slot)


def write_owners(db: StoreConnection, named: Iterable[tuple[int, Any]]) -> None:
    """Write owners who have just come, by slot."""
    left = enumerate(named, _next(db, "owners", "number"))
    while some := [(number, slot, encode_name(name, slot)) for number, (slot, name) in islice(left, _ROWS)]:
        db.insert("owners", some)


def blank_owners(db: StoreConnection, slots: Iterable[int]) -> None:
    """Overwrite the names in these slots. Only the newest row of a slot can still have one."""
    left = iter(slots)
    while some := list(islice(left, 500)):
        which = ", ".join("?" * len(some))
        found = db.execute(f"SELECT number, slot, name FROM owners WHERE slot IN ({which}) ORDER BY number", some)
        newest = {slot: (number, slot, bytes(len(name))) for number, slot, name in found}
        db.upsert("owners", newest.values())


def write_record_keys(db: StoreConnection, blocks: dict[int, bytes]) -> None:
    """Overwrite blocks of hashes of record ids."""
    if blocks:
        db.upsert("record_keys", blocks.items())


def write_tombstones(db: StoreConnection, tombstones: dict[bytes, Tombstone]) -> None:
    """Write what is kept about forgotten people, by keyed hash."""
    scopes = {scope for tombstone in tombstones.values() for scope, units in tombstone.spent.items() if units}
    numbers = {scope: str(scope_id(db, scope)) for scope in sorted(scopes, key=str)}
    db.upsert(
        "tombstones",
        [
            (digest, json.dumps({numbers[scope]: units for scope, units in t.spent.items() if units}), t.queries, own)
            for digest, t in tombstones.items()
            for own in (None if t.promise is None else np.array([t.promise], PROMISE).tobytes(),)
        ],
    )


def read_answers(db: StoreConnection, n_features: int) -> Iterator[tuple[Scope, Vectors | None, int, Release | None]]:
    """The transcript, in order. A sum over records has no query."""
    scopes = read_scopes(db)
    rows = db.execute(
        "SELECT scope, query, scale, label, release FROM answers WHERE label <> ? ORDER BY seq", (PURGED,)
    )
    for number, body, scale, label, text in rows:
        release = None if text is None else decode(text)
        if label < 0:
            yield scopes[number], None, label, release
            continue
        values = np.frombuffer(body, dtype=np.int8).reshape(1, n_features)
        yield scopes[number], Vectors(values, root_norms(values), np.array([scale])), label, release


def write_sum(db: StoreConnection, seq: int, release: Release, charged: int = 0) -> None:
    """Write a shared release that was made in a transaction of records and people.

    If anybody was charged for it, the same transaction must also write balances.
    """
    db.insert("answers", [(seq, scope_id(db, SHARED), b"", 0.0, -1, str(charged), encode(release))])
    if not charged:
        db.insert("debits", [(seq, b"")])


def purge_answers(db: StoreConnection) -> None:
    """Overwrite all queries and everything that was released. Who was charged how much stays."""
    done = 0
    some = "SELECT seq, scope, length(query), charged, length(release) FROM answers WHERE seq > ? ORDER BY seq LIMIT ?"
    while rows := db.execute(some, (done, _ROWS)).fetchall():
        blank = [(*row[:2], bytes(row[2]), 0.0, PURGED, row[3]) for row in rows]
        # Zeros of the same length overwrite what was there. Only then the row may become shorter.
        db.upsert("answers", [(*new, bytes(row[4] or 0)) for new, row in zip(blank, rows, strict=True)])
        db.upsert("answers", [(*new, None) for new in blank])
        done = rows[-1][0]
    db.clear("requests")


# How records and names are packed


def record_type(n_features: int) -> np.dtype[np.void]:
    """How a record is written: 26 bytes and the features. Owner -1 marks a free slot. `until` is its date (`Dates`).

    `epoch` is how many rounds of training had begun when the record came.
    """
    head = [("generation", "<i4"), ("owner", "<i4"), ("label", "<i4"), ("until", "<i4"), ("epoch", "<i4")]
    head.append(("scale", "<f8"))
    return np.dtype([*head, ("features", "i1", (n_features,))])


def encode_name(name: OwnerId, slot: int) -> bytes:
    """A letter, the name, and a checksum over both and the slot. A damaged name would be a lost ledger.

    The letter keeps every name apart from zeros, which mark a name that was overwritten.

    >>> encode_name("ann", 5)[:-4], decode_name(encode_name("7", 5), 5)
    (b'sann', '7')
    """
    body = b"s" + name.encode(errors="surrogatepass")
    return body + crc32(body, slot).to_bytes(4, "little")


def decode_name(text: bytes, slot: int) -> OwnerId:
    """The name that `encode_name` wrote."""
    body = text[:-4]
    if crc32(body, slot) != int.from_bytes(text[-4:], "little"):
        raise StoreError(f"the name of the owner in slot {slot} is damaged")
    return str(body[1:], "utf-8", "surrogatepass")
