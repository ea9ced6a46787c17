"""All functions that read and write the rows of a store, but those of the audit trail (`chain.py`)."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any
from zlib import crc32

import numpy as np
import numpy.typing as npt

from indknn.core.quantise import root_norms
from indknn.core.releases import PublicRows, Release, decode, encode
from indknn.errors import StoreError
from indknn.ledger import SHARED, Scope
from indknn.ledger.memory import Tombstone
from indknn.records.protocol import AnyShard
from indknn.store.connection import Connection
from indknn.types import IntArray, OwnerId, Vectors

_ROWS, _LABEL_BITS = 4096, 16
_SHARED = "*"  # the scope for what every analyst sees; the names of analysts begin with "="
PURGED = -2
"""The label of a purged answer. A sum over records has -1."""


def get_meta(db: Connection, name: str) -> Any:
    """A value by name. None if there is none."""
    return db.execute("SELECT value FROM meta WHERE name = ?", (name,)).get


def set_meta(db: Connection, name: str, value: Any) -> None:
    """Set a value by name."""
    db.upsert("meta", [(name, value)])


def read_public(db: Connection) -> PublicRows | None:
    """The declared public rows, if there are any."""
    body = get_meta(db, "public")
    return None if body is None else PublicRows.read(body)


def write_records(db: Connection, shard: AnyShard, slots: IntArray, vectors: Vectors, labels: IntArray) -> None:
    """Write the records that were just put into these slots, some at a time, to save memory."""
    for low in range(0, len(slots), _ROWS):
        part = slice(low, low + _ROWS)
        here, some = slots[part], vectors[part]
        body = _blank(shard, here, some.values.shape[1])
        body["owner"], body["label"] = shard.owners_of(here), pack_label(labels[part], shard.epochs_of(here))
        body["scale"], body["features"] = some.scale, some.values
        _overwrite(db, here, body)


def clear_records(db: Connection, shard: AnyShard, slots: IntArray, n_features: int) -> None:
    """Clear slots that were just freed. Only the generation stays, increased by one."""
    for low in range(0, len(slots), _ROWS):
        here = slots[low : low + _ROWS]
        _overwrite(db, here, _blank(shard, here, n_features))


def _blank(shard: AnyShard, slots: IntArray, n_features: int) -> npt.NDArray[np.void]:
    body = np.zeros(len(slots), dtype=record_type(n_features))
    body["generation"], body["owner"], body["label"] = shard.generations(slots), -1, -1
    return body


def _overwrite(db: Connection, slots: IntArray, body: npt.NDArray[np.void]) -> None:
    text, size = body.tobytes(), body.dtype.itemsize
    bodies = [text[i : i + size] for i in range(0, len(text), size)]
    db.upsert("records", zip(slots.tolist(), bodies, strict=True))


def read_records(db: Connection, n_features: int, shard: AnyShard) -> None:
    """Fill an empty shard, slot by slot, in pieces, so that there is never a second copy of all records in memory."""
    kind, free = record_type(n_features), [np.zeros(0, dtype=np.int64)]
    shard.expect(int(db.execute("SELECT coalesce(max(slot), -1) + 1 FROM records").get))
    rows, done = db.scan("SELECT slot, body FROM records ORDER BY slot"), 0
    while part := list(islice(rows, _ROWS)):
        slots, bodies = zip(*part, strict=True)
        if slots != tuple(range(done, done + len(part))) or set(map(len, bodies)) != {kind.itemsize}:
            raise StoreError(f"records are missing, or not of {n_features} features")
        body = np.frombuffer(b"".join(bodies), dtype=kind)
        values, owners = body["features"].copy(), body["owner"].astype(np.int64)
        values[owners < 0, 0] = 1  # a placeholder in a free slot while it is restored
        vectors = Vectors(values, root_norms(values), body["scale"].astype(np.float64))
        labels, epochs = unpack_label(body["label"].astype(np.int64))
        shard.restore(vectors, labels, owners, body["generation"].astype(np.int64), epochs)
        free.append(np.flatnonzero(owners < 0) + done)
        done += len(part)
    shard.free(np.concatenate(free))
    for block, digests in db.execute("SELECT block, digests FROM record_keys"):
        shard.keys.restore(block, digests)


def scope_id(db: Connection, scope: Scope) -> int:
    """The number of an analyst. A new analyst gets one."""
    name = "" if scope is None else _SHARED if scope == SHARED else "=" + scope
    found = db.execute("SELECT id FROM scopes WHERE name = ?", (name,)).get
    if found is None:
        found = _next(db, "scopes", "id")
        db.insert("scopes", [(found, name)])
    return int(found)


def _next(db: Connection, table: str, column: str) -> int:
    """The number of the next row."""
    return int(db.execute(f"SELECT coalesce(max({column}), 0) + 1 FROM {table}").get)


def read_scopes(db: Connection) -> dict[int, Scope]:
    """Analysts by number."""
    rows = db.execute("SELECT id, name FROM scopes ORDER BY id")
    return {number: SHARED if name == _SHARED else name[1:] if name else None for number, name in rows}


def read_tombstones(db: Connection) -> dict[bytes, Tombstone]:
    """What forgotten people had spent, by keyed hash."""
    scopes = read_scopes(db)
    return {
        digest: Tombstone({scopes[int(number)]: units for number, units in json.loads(body).items()}, count)
        for digest, body, count in db.execute("SELECT digest, spent, queries FROM tombstones ORDER BY digest")
    }


def read_names(db: Connection) -> Iterator[tuple[int, OwnerId]]:
    """The owners who have records, by slot."""
    for slot, name in db.execute("SELECT slot, name FROM owners ORDER BY number"):
        if name.strip(b"\0"):
            yield slot, decode_name(name, slot)


def write_owners(db: Connection, named: Iterable[tuple[int, Any]]) -> None:
    """Write owners who have just come, by slot."""
    left = enumerate(named, _next(db, "owners", "number"))
    while some := [(number, slot, encode_name(name, slot)) for number, (slot, name) in islice(left, _ROWS)]:
        db.insert("owners", some)


def blank_owners(db: Connection, slots: Iterable[int]) -> None:
    """Overwrite the names in these slots. Only the newest row of a slot can still have one."""
    left = iter(slots)
    while some := list(islice(left, 500)):
        which = ", ".join("?" * len(some))
        found = db.execute(f"SELECT number, slot, name FROM owners WHERE slot IN ({which}) ORDER BY number", some)
        newest = {slot: (number, slot, bytes(len(name))) for number, slot, name in found}
        db.upsert("owners", newest.values())


def write_record_keys(db: Connection, shard: AnyShard, slots: IntArray) -> None:
    """Overwrite the hashes of record ids in the blocks of these slots."""
    if blocks := shard.keys.blocks_of(slots):
        db.upsert("record_keys", blocks.items())


def write_tombstones(db: Connection, tombstones: dict[bytes, Tombstone]) -> None:
    """Write what is kept about forgotten people, by keyed hash."""
    scopes = {scope for tombstone in tombstones.values() for scope, units in tombstone.spent.items() if units}
    numbers = {scope: str(scope_id(db, scope)) for scope in sorted(scopes, key=str)}
    db.upsert(
        "tombstones",
        [
            (digest, json.dumps({numbers[scope]: units for scope, units in t.spent.items() if units}), t.queries)
            for digest, t in tombstones.items()
        ],
    )


def read_answers(db: Connection, n_features: int) -> Iterator[tuple[Scope, Vectors | None, int, Release | None]]:
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


def write_sum(db: Connection, seq: int, release: Release, charged: int = 0) -> None:
    """Write a shared release that was made in a transaction of records and people.

    If anybody was charged for it, the same transaction must also write balances.
    """
    db.insert("answers", [(seq, scope_id(db, SHARED), b"", 0.0, -1, str(charged), encode(release))])
    if not charged:
        db.insert("debits", [(seq, b"")])


def purge_answers(db: Connection) -> None:
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
    """How a record is written: 20 bytes and the features. Owner -1 marks a free slot."""
    head = [("generation", "<i4"), ("owner", "<i4"), ("label", "<i4"), ("scale", "<f8")]
    return np.dtype([*head, ("features", "i1", (n_features,))])


def pack_label(labels: IntArray, epochs: IntArray) -> IntArray:
    """A label, and how many rounds of training had begun when its record came, in the 32 bits of the label.

    >>> packed = pack_label(np.array([3]), np.array([2]))
    >>> [part.tolist() for part in unpack_label(packed)]
    [[3], [2]]
    """
    return labels | epochs << _LABEL_BITS


def unpack_label(packed: IntArray) -> tuple[IntArray, IntArray]:
    """The values that `pack_label` packed. A free slot has label -1."""
    free = packed < 0
    return np.where(free, -1, packed & ((1 << _LABEL_BITS) - 1)), np.where(free, 0, packed >> _LABEL_BITS)


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
