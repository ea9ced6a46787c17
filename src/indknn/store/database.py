"""The connection to a store file, and all functions that read or write its tables."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Self
from urllib.parse import quote

import apsw
import numpy as np
import numpy.typing as npt

from indknn.core.quantise import root_norms
from indknn.core.releases import PublicRows, Release, decode, encode
from indknn.errors import StoreError
from indknn.ledger import SHARED, Scope
from indknn.ledger.memory import MemoryLedger, Tombstone
from indknn.records.protocol import AnyShard
from indknn.store.codec import BLOCK, Debits, decode_name, encode_name, pack_label, record_type, unpack_label
from indknn.store.head import Head, has_log, log_path
from indknn.store.home import Connection, scan
from indknn.store.schema import check, migrate
from indknn.types import IntArray, OwnerId, Vectors

_ROWS = 4096
_SHARED = "*"  # the scope for what every analyst sees; the names of analysts begin with "="
PURGED = -2
"""The label of a purged answer. A sum over records has -1."""


@dataclass(frozen=True)
class Balance:
    """What the owners of one block had spent in a scope, and in how many queries they had taken part."""

    scope: Scope
    block: int
    spent: bytes
    queries: bytes


class FileConnection(apsw.Connection):
    """An open file. When `with` ends, a transaction is durable, and its head is written."""

    head: Head | None = None
    """The head, once the file was found to be complete and may be written."""

    def __enter__(self) -> Self:
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> bool:
        done = super().__exit__(*error)
        if self.head is not None and error[0] is None and not self.in_transaction:
            self.head.follow(*newest(self))
        return done


def connect(
    path: Path, *, create: bool = False, synchronous: str = "FULL", vfs: str | None = None, read_only: bool = False
) -> FileConnection:
    """Open, check and migrate a file. It uses WAL, syncs every commit, and overwrites deleted content.

    Closing the connection leaves the log as it is.
    """
    name, flags = str(path), apsw.SQLITE_OPEN_READWRITE | (apsw.SQLITE_OPEN_CREATE if create else 0)
    if read_only:
        if has_log(path):
            raise StoreError(
                f"{log_path(path)} holds changes that are not in the store yet: open it where it can be written"
            )
        # with "immutable" SQLite writes nothing at all, not even a lock
        name, flags = f"file:{quote(name)}?immutable=1", apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI
    try:
        db = FileConnection(name, flags=flags, vfs=vfs)
    except apsw.Error as error:
        raise StoreError(f"{path} cannot be opened as a store: {error}") from error
    try:
        db.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)  # a log that is refused must stay as it was
        db.pragma("locking_mode", "EXCLUSIVE")  # one writer; keeps the WAL index out of a shared file
        check(db, str(path), empty=create)  # check first, because the file may belong to somebody else
        db.pragma("journal_mode", "WAL")
        db.pragma("synchronous", synchronous)
        db.pragma("secure_delete", 1)
        db.pragma("temp_store", "MEMORY")
        db.pragma("foreign_keys", 1)
        migrate(db)
    except apsw.Error as error:
        db.close(True)
        raise StoreError(f"{path} cannot be opened as a store: {error}") from error
    except BaseException:
        db.close(True)
        raise
    return db


def newest(db: Connection) -> tuple[int, bytes]:
    """The position and hash of the newest entry of the audit trail."""
    position, digest = db.execute("SELECT position, hash FROM audit ORDER BY position DESC LIMIT 1").fetchone()
    return int(position), bytes(digest)


def get_meta(db: Connection, name: str) -> Any:
    """A value by name. None if there is none."""
    return db.execute("SELECT value FROM meta WHERE name = ?", (name,)).get


def set_meta(db: Connection, name: str, value: Any) -> None:
    """Set a value by name."""
    db.execute("INSERT INTO meta VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET value = excluded.value", (name, value))


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
    rows = zip(slots.tolist(), (text[i : i + size] for i in range(0, len(text), size)), strict=True)
    db.executemany("INSERT INTO records VALUES (?, ?) ON CONFLICT (slot) DO UPDATE SET body = excluded.body", rows)


def read_records(db: Connection, n_features: int, shard: AnyShard) -> None:
    """Fill an empty shard, slot by slot, in pieces, so that there is never a second copy of all records in memory."""
    kind, free = record_type(n_features), [np.zeros(0, dtype=np.int64)]
    shard.expect(int(db.execute("SELECT coalesce(max(slot), -1) + 1 FROM records").get))
    rows, done = scan(db, "SELECT slot, body FROM records ORDER BY slot"), 0
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
        found = db.execute("INSERT INTO scopes (name) VALUES (?) RETURNING id", (name,)).get
    return int(found)


def read_scopes(db: Connection) -> dict[int, Scope]:
    """Analysts by number."""
    rows = db.execute("SELECT id, name FROM scopes ORDER BY id")
    return {number: SHARED if name == _SHARED else name[1:] if name else None for number, name in rows}


@dataclass(frozen=True)
class Accounts:
    """What every slot had spent in each scope, its number of queries, and which blocks have debits."""

    spent: dict[Scope, IntArray]
    queries: IntArray
    touched: set[tuple[Scope, int]]


def read_accounts(db: Connection) -> Accounts:
    """Read the balances, then apply the debits that came later."""
    scopes, capacity = read_scopes(db), int(db.execute("SELECT coalesce(max(slot), -1) + 1 FROM owners").get)
    size = -(-capacity // BLOCK) * BLOCK
    spent = {scope: np.zeros(size, dtype=np.int64) for scope in scopes.values()}
    queries = np.zeros(size, dtype=np.int64)
    for number, block, body in db.execute("SELECT scope, block, spent FROM balances"):
        _fill(spent[scopes[number]], block, np.frombuffer(body, "<i8"))
    for block, body in db.execute("SELECT block, queries FROM participation"):
        _fill(queries, block, np.frombuffer(body, "<i4"))
    touched: set[tuple[Scope, int]] = set()
    replay = "SELECT a.scope, d.body FROM debits d JOIN answers a USING (seq) ORDER BY d.seq"
    for number, body in db.execute(replay):
        debits = Debits.decode(body)
        spent[scopes[number]][debits.slots] += debits.units
        queries[debits.slots] += 1
        touched |= {(scopes[number], block) for block in debits.blocks}
    return Accounts(spent, queries, touched)


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


def read_ledger(db: Connection, ledger: MemoryLedger) -> set[tuple[Scope, int]]:
    """Fill an empty ledger. Returns the blocks that debits have touched since the last balances."""
    accounts, number = read_accounts(db), int(get_meta(db, "next_number") or 0)
    old_names = get_meta(db, "old_names") is not None
    ledger.restore(read_names(db), accounts.spent, accounts.queries, read_tombstones(db), number, old_names)
    return accounts.touched


def snapshot(ledger: MemoryLedger, blocks: Iterable[tuple[Scope, int]]) -> list[Balance]:
    """The balances of these blocks as they are now."""
    parts = [(scope, block, slice(block * BLOCK, (block + 1) * BLOCK)) for scope, block in blocks]
    return [
        Balance(
            scope,
            block,
            ledger.column(scope)[p].astype("<i8").tobytes(),
            ledger.participation[p].astype("<i4").tobytes(),
        )
        for scope, block, p in parts
    ]


def write_balances(db: Connection, balances: Iterable[Balance], last: int) -> None:
    """Write balances in place of all debits up to answer number `last`."""
    for b in balances:
        db.execute(
            "INSERT INTO balances VALUES (?, ?, ?) ON CONFLICT (scope, block) DO UPDATE SET spent = excluded.spent",
            (scope_id(db, b.scope), b.block, b.spent),
        )
        db.execute(
            "INSERT INTO participation VALUES (?, ?) ON CONFLICT (block) DO UPDATE SET queries = excluded.queries",
            (b.block, b.queries),
        )
    db.execute("DELETE FROM debits")
    set_meta(db, "folded", last)


def write_owners(db: Connection, named: Iterable[tuple[int, Any]]) -> None:
    """Write owners who have just come, by slot."""
    rows = ((slot, encode_name(name, slot)) for slot, name in named)
    db.executemany("INSERT INTO owners (slot, name) VALUES (?, ?)", rows)


def blank_owners(db: Connection, slots: Iterable[int]) -> None:
    """Overwrite the names in these slots. Only the newest row of a slot can still have one."""
    blank = """UPDATE owners SET name = zeroblob(length(name))
               WHERE number = (SELECT max(number) FROM owners WHERE slot = ?)"""
    db.executemany(blank, ((slot,) for slot in slots))


def write_record_keys(db: Connection, shard: AnyShard, slots: IntArray) -> None:
    """Overwrite the hashes of record ids in the blocks of these slots."""
    write = "INSERT INTO record_keys VALUES (?, ?) ON CONFLICT (block) DO UPDATE SET digests = excluded.digests"
    db.executemany(write, shard.keys.blocks_of(slots).items())


def read_joined(db: Connection) -> dict[bytes, dict[Scope, int]]:
    """What people who were counted as two had spent when that was found, if above a budget. By keyed hash."""
    scopes = read_scopes(db)
    rows = db.execute("SELECT digest, spent FROM joined")
    return {digest: {scopes[int(n)]: units for n, units in json.loads(body).items()} for digest, body in rows}


def write_joined(db: Connection, digest: bytes, spent: dict[Scope, int]) -> None:
    """Remember what a person who was counted as two had spent when that was found."""
    body = {str(scope_id(db, scope)): units for scope, units in spent.items() if units}
    write = "INSERT INTO joined VALUES (?, ?) ON CONFLICT (digest) DO UPDATE SET spent = excluded.spent"
    db.execute(write, (digest, json.dumps(body)))


def write_tombstones(db: Connection, tombstones: dict[bytes, Tombstone]) -> None:
    """Write what is kept about forgotten people, by keyed hash."""
    scopes = {scope for tombstone in tombstones.values() for scope, units in tombstone.spent.items() if units}
    numbers = {scope: str(scope_id(db, scope)) for scope in sorted(scopes, key=str)}
    update = "spent = excluded.spent, queries = excluded.queries"
    db.executemany(
        f"INSERT INTO tombstones VALUES (?, ?, ?) ON CONFLICT (digest) DO UPDATE SET {update}",
        (
            (digest, json.dumps({numbers[scope]: units for scope, units in t.spent.items() if units}), t.queries)
            for digest, t in tombstones.items()
        ),
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
    row = (seq, scope_id(db, SHARED), b"", 0.0, -1, str(charged), encode(release))
    db.execute("INSERT INTO answers VALUES (?, ?, ?, ?, ?, ?, ?)", row)
    if not charged:
        db.execute("INSERT INTO debits VALUES (?, ?)", (seq, Debits.merge([]).encode()))


def purge_answers(db: Connection) -> None:
    """Overwrite all queries and everything that was released. Who was charged how much stays."""
    db.execute("UPDATE answers SET query = zeroblob(length(query)), scale = 0.0, release = zeroblob(length(release))")
    db.execute("UPDATE answers SET label = ?, release = NULL", (PURGED,))
    db.execute("DELETE FROM requests")


def _fill(column: IntArray, block: int, part: IntArray) -> None:
    here = column[block * BLOCK : (block + 1) * BLOCK]  # shorter, or empty, if the last owners are gone
    here[: len(part)] = part[: len(here)]
