"""An open store: its rows, the keyed sums over them, and the audit trail with its witness (rule 16).

The books are keyed sums over all rows. Every row of every table has a keyed hash. The sums of these hashes, one per
table, determine which rows there are. If a row is changed, deleted, added or set back to an older form, a sum changes.
In a file, triggers update the sums while this process writes, so no code can forget it. A database cannot call this
process, so there the methods that write rows update the sums (`postgres/session.py`). Each entry of the audit trail
holds a digest of the sums at that time. Opening a store reads every row once and compares.

The key is in the store. So this finds damage and careless edits by itself. To find deliberate edits, it needs a
witness, which keeps the audit trail's state elsewhere.

The audit trail is a chain of hashes over what was done, without personal data. The hash of each entry covers the entry
and the hash before it (`indknn.proof`). So an entry cannot be changed, deleted or inserted without changing all later
hashes. If the latest hash is kept elsewhere (by a witness), it proves the rest.

The secret with which receipts and the trail are signed is in the store, beside the records. Whoever can read it there
can read all records too, and is trusted with both. A file of its own could be lost alone, and whoever copies or
restores a store would have to think of it. A signature says that a document came from the store. It does not bind the
operator to the truth: that needs the public key, and heads of the trail, in other hands from the beginning. If a copy
of the store was stolen, make a new key. Old public keys stay published with the time at which they were replaced. A
document that is signed with such a key and has a later date is refused.
"""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

import apsw

from indknn.errors import StaleStoreError, StoreError
from indknn.place import private_file
from indknn.proof import GENESIS, TRAIL, Entry, PublicKey, Signer, as_published, link
from indknn.store.database import SUMMED, TABLES, Table, get_meta, set_meta

if TYPE_CHECKING:
    from indknn.store.filehome import Head
    from indknn.store.home import Home


_MODULUS = 1 << 256
_INSERT, _UPSERT, _DELETE = (
    {name: statement(table, "?") for name, table in TABLES.items()}
    for statement in (Table.insert, Table.upsert, Table.delete)
)
_SELECT = {table.name: f"SELECT {table.names} FROM {table.name}" for table in SUMMED}


class StoreConnection(Protocol):
    """An open store. `with` is a transaction: either everything in it is written, durably, or nothing.

    Only `insert`, `upsert`, `delete` and `clear` write rows, inside a transaction, and the books are told of them.
    """

    books: Books
    undone: bool
    """Whether names or features were written and then undone, and their bytes stayed. `home.load` notes it."""

    def keep(self, books: Books, /) -> None:
        """Tell these books of every row that is written from now on."""
        ...

    def execute(self, sql: str, values: Sequence[Any] | None = None, /) -> Any:
        """Run a SELECT, with `?` for values, in SQL that every database knows.

        The result is read once, as rows: all of them by a loop or `fetchall`, one by `fetchone`, a single value by
        `get`, which is None if there is no row.
        """
        ...

    def scan(self, sql: str, /) -> Iterator[Any]:
        """The rows of a large table, without holding them all. No other statement may run meanwhile."""
        ...

    def insert(self, table: str, rows: Iterable[tuple[Any, ...]], /) -> None:
        """Write new rows."""
        ...

    def upsert(self, table: str, rows: Iterable[tuple[Any, ...]], /) -> None:
        """Write rows, each in place of the one with its key, if there is one."""
        ...

    def delete(self, table: str, keys: Iterable[tuple[Any, ...]], /) -> None:
        """Delete the rows with these keys."""
        ...

    def clear(self, table: str, /) -> None:
        """Delete all rows."""
        ...

    def __enter__(self) -> Any: ...

    def __exit__(self, *error: Any) -> bool | None: ...

    def readonly(self, name: str, /) -> bool:
        """Whether nothing can be written."""
        ...

    def close(self) -> None:
        """Close the connection alone. A store is closed by its home."""
        ...


class Books:
    """The sums over the rows of a store. The audit trail holds their `digest`."""

    def __init__(self, key: bytes):
        self._sums = {table.name: 0 for table in SUMMED}
        self._hashers = {name: hashlib.blake2b(key=key, digest_size=32, person=name.encode()) for name in self._sums}
        self._digester = hashlib.blake2b(key=key, digest_size=32, person=b"books")

    def read(self, db: StoreConnection) -> str:
        """Compute the sums from the rows in the store, and return their digest."""
        for name, hasher in self._hashers.items():
            self._sums[name] = sum(_hashed(hasher, row) for row in db.scan(_SELECT[name])) % _MODULUS
        return self.digest()

    def digest(self) -> str:
        """A digest of all sums."""
        whole = self._digester.copy()
        for total in self._sums.values():
            whole.update(total.to_bytes(32, "little"))
        return whole.hexdigest()

    def entered(self, table: str, *row: Any) -> None:
        """Add a row that was written."""
        self._sums[table] = (self._sums[table] + _hashed(self._hashers[table], row)) % _MODULUS

    def struck(self, table: str, *row: Any) -> None:
        """Remove a row that was deleted, or that will be overwritten."""
        self._sums[table] = (self._sums[table] - _hashed(self._hashers[table], row)) % _MODULUS

    def emptied(self, table: str) -> None:
        """Remove all rows of a table that was emptied."""
        self._sums[table] = 0


def _hashed(hasher: Any, row: tuple[Any, ...]) -> int:
    """The keyed hash of a row as a number. Two different rows are never encoded in the same way."""
    parts: list[bytes] = []
    for value in row:
        if isinstance(value, bytes):
            parts += b"b%d;" % len(value), value
        elif isinstance(value, int):
            parts.append(b"i%d;" % value)
        elif isinstance(value, str):
            text = value.encode(errors="surrogatepass")
            parts += b"s%d;" % len(text), text
        else:
            parts.append(b"n;" if value is None else b"f%s;" % value.hex().encode())
    hashing = hasher.copy()
    hashing.update(b"".join(parts))
    return int.from_bytes(hashing.digest(), "little")


class FileConnection(apsw.Connection):
    """An open file. When `with` ends, a transaction is durable, and its head is written."""

    books: Books
    undone = False  # what is undone is gone when the log is emptied, at the latest when the file is closed
    head: Head | None = None
    """The head, once the file was found to be complete and may be written."""

    def __enter__(self) -> FileConnection:
        self.execute("BEGIN")
        return self

    def __exit__(self, *error: Any) -> Literal[False]:
        # Not apsw's own `with`: that holds Python's lock while the disk is synced, and every other thread waits.
        try:
            if error[0] is None:
                self.execute("COMMIT")
        finally:
            if self.in_transaction:
                self.execute("ROLLBACK")
        if self.head is not None and error[0] is None:
            self.head.follow(*self.newest())
        return False

    def newest(self) -> tuple[int, bytes]:
        """The position and hash of the newest entry of the audit trail."""
        row: Any = self.execute("SELECT position, hash FROM audit ORDER BY position DESC LIMIT 1").fetchone()
        return int(row[0]), bytes(row[1])

    def keep(self, books: Books) -> None:
        """Let triggers tell these books of every row that is written from now on."""
        self.books = books
        functions: dict[str, Any] = {"entered": books.entered, "struck": books.struck}
        for name, function in functions.items():
            self.create_scalar_function(name, function)
        self.pragma("recursive_triggers", 1)  # otherwise REPLACE would delete rows without calling the triggers
        for table in SUMMED:
            for event in ("INSERT", "DELETE", "UPDATE"):
                self.execute(_trigger(table, event))

    def scan(self, sql: str) -> Iterator[Any]:
        """The rows of a large table."""
        return iter(self.execute(sql))

    def insert(self, table: str, rows: Iterable[tuple[Any, ...]]) -> None:
        """Write new rows."""
        self.executemany(_INSERT[table], rows)

    def upsert(self, table: str, rows: Iterable[tuple[Any, ...]]) -> None:
        """Write rows, each in place of the one with its key, if there is one."""
        self.executemany(_UPSERT[table], rows)

    def delete(self, table: str, keys: Iterable[tuple[Any, ...]]) -> None:
        """Delete the rows with these keys."""
        self.executemany(_DELETE[table], keys)

    def clear(self, table: str) -> None:
        """Delete all rows. Nothing is left to sum up, so no trigger needs to see them one by one."""
        self.execute(f"DROP TRIGGER temp.{table}_DELETE")
        self.execute(f"DELETE FROM {table}")
        self.execute(_trigger(TABLES[table], "DELETE"))
        self.books.emptied(table)


def _trigger(table: Table, event: str) -> str:
    """The statement that lets the books be told of rows of a table."""
    old, new = (", ".join(f"{side}.{column}" for column in table.columns) for side in ("OLD", "NEW"))
    strike, enter = f"SELECT struck('{table.name}', {old});", f"SELECT entered('{table.name}', {new});"
    work = {"INSERT": enter, "DELETE": strike, "UPDATE": strike + enter}[event]
    return f"CREATE TEMP TRIGGER {table.name}_{event} AFTER {event} ON main.{table.name} BEGIN {work} END"


# The audit trail


def now() -> str:
    """The time, in UTC, to the second."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def append(db: StoreConnection, kind: str, **facts: Any) -> Entry:
    """Add an entry, as the last statement of the transaction that it describes.

    It holds a digest of all rows. Times never go backwards, even if the clock does.
    """
    last = db.execute("SELECT position, at, hash FROM audit ORDER BY position DESC LIMIT 1").fetchone()
    position, since, previous = (last[0] + 1, last[1], last[2]) if last else (1, "", GENESIS)
    at, body = max(now(), since), json.dumps({**facts, "books": db.books.digest()}, sort_keys=True)
    entry = Entry(position, at, kind, body, link(previous, position, at, kind, body))
    db.insert("audit", [(entry.position, entry.at, entry.kind, entry.body, entry.hash)])
    return entry


def entries(db: StoreConnection, first: int = 1) -> Iterator[Entry]:
    """The entries from a position on."""
    query = "SELECT position, at, kind, body, hash FROM audit WHERE position >= ? ORDER BY position"
    for row in db.execute(query, (first,)):
        yield Entry(*row)


def last(db: StoreConnection) -> Entry:
    """The newest entry."""
    row: Any = db.execute("SELECT * FROM audit ORDER BY position DESC LIMIT 1").fetchone()
    return Entry(*row)


class Witness:
    """A small file in another place that remembers how far the audit trail was.

    A store that was restored from an old backup would give back budgets that were spent since. Its trail does not
    contain the entry that the witness saw, so it is refused.
    """

    def __init__(self, path: Path):
        self.path = path

    def write(self, store_id: str, position: int, digest: bytes) -> None:
        """Remember this entry, atomically and durably."""
        body = json.dumps({"store": store_id, "position": position, "hash": digest.hex(), "at": now()})
        try:
            with private_file(self.path) as file:
                file.write(body)
        except OSError as error:
            raise StoreError(f"the store was written, but its witness {self.path} was not: {error.strerror}") from error

    def read(self) -> dict[str, Any] | None:
        """The entry that was seen last. None before the first."""
        if not self.path.exists():
            return None
        try:
            seen: dict[str, Any] = json.loads(self.path.read_text())
            int(seen["position"]), bytes.fromhex(seen["hash"]), str(seen["store"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise StoreError(
                f"the witness {self.path} cannot be read ({error}); it must not be lost or edited"
            ) from None
        return seen


class Guard:
    """Refuses the wrong store: one that was moved since it was opened, or is older than its witness or this process."""

    def __init__(self, home: Home, witness: Path | None, new_witness: bool):
        self._path = home.place
        self.refuse_if_moved, self.still_held = home.refuse_if_moved, home.still_held
        self._witness = None if witness is None else Witness(witness)
        self._new_witness = new_witness
        self._store_id = ""
        self.newest: Entry | None = None  # what this process has seen, with a witness or without

    def saw(self, entry: Entry) -> None:
        """Remember this entry of the audit trail, in the witness too."""
        self.newest = entry
        if self._witness is not None:
            self._witness.write(self._store_id, entry.position, entry.hash)

    def check(self, db: StoreConnection, store_id: str) -> None:
        """Refuse a file that does not contain what its witness saw, or whose witness is missing."""
        self._store_id = store_id
        known = get_meta(db, "witnessed") is not None
        seen = None if self._witness is None or self._new_witness else self._witness.read()
        if known and seen is None and not self._new_witness:
            where = "none was given" if self._witness is None else f"{self._witness.path} does not exist"
            raise StaleStoreError(
                f"{self._path} has a witness, and {where}: give the file that was used before. If it is lost, "
                "and you are sure that this is the latest copy: indknn verify STORE --witness FILE --new-witness"
            )
        if seen is not None:
            self._compare(db, seen)
        if (mine := self.newest) is not None:  # this process reads it again
            self._compare(db, {"store": store_id, "position": mine.position, "hash": mine.hash.hex(), "at": mine.at})
        if db.readonly("main"):
            return
        newest = last(db)
        self.saw(newest)  # first, because a store that says it has a witness must have one, also after a crash
        if self._witness is not None and not known:
            with db:
                set_meta(db, "witnessed", 1)
                newest = append(db, "witness")
            self.saw(newest)

    def _compare(self, db: StoreConnection, seen: dict[str, object]) -> None:
        if seen["store"] != self._store_id:
            raise StaleStoreError(f"the witness is of store {seen['store']}, but {self._path} is {self._store_id}")
        found = db.execute("SELECT hash FROM audit WHERE position = ?", (int(str(seen["position"])),)).get
        if found is None or found.hex() != seen["hash"]:
            newest = last(db)
            raise StaleStoreError(
                f"{self._path} does not contain entry {seen['position']} of its audit trail, seen at {seen['at']}: "
                "it is an old copy, and budgets were spent since that it does not know of. It ends with entry "
                f"{newest.position}, of {newest.at}"
            )


# The keys with which receipts and copies of the audit trail are signed

SECRET, _KEYS = "signing_secret", "signing_keys"


def new_signer(db: StoreConnection, at: str) -> Signer:
    """Make a new key inside a transaction. The one before it stays published. The caller notes it in the trail."""
    signer = Signer(secrets.token_bytes(32))
    before = [replace(key, until=key.until or at) for key in read_public_keys(db)]
    set_meta(db, SECRET, signer.secret)
    set_meta(db, _KEYS, json.dumps([asdict(key) for key in (*before, PublicKey(signer.public, at))]))
    return signer


def renew_signer(db: StoreConnection) -> Signer:
    """Replace the key, and note it in the audit trail. Inside a transaction."""
    signer = new_signer(db, max(now(), last(db).at))
    append(db, "signing", key=signer.public)
    return signer


def read_public_keys(db: StoreConnection) -> list[PublicKey]:
    """All public keys, the oldest first."""
    return [PublicKey(**key) for key in json.loads(get_meta(db, _KEYS) or "[]")]


def published(db: StoreConnection) -> dict[str, Any]:
    """The public keys as everybody may see them."""
    return as_published(str(get_meta(db, "store")), read_public_keys(db))


def signed_trail(db: StoreConnection, signer: Signer) -> Iterator[dict[str, Any]]:
    """All entries of the audit trail, and at the end the signed head."""
    end = last(db)
    for entry in entries(db):
        if entry.position <= end.position:
            yield entry.shown()
    yield signed_head(db, signer, end)


def signed_head(db: StoreConnection, signer: Signer, end: Entry) -> dict[str, Any]:
    """How far the audit trail is: the position and hash of its last entry, signed."""
    facts = {"signed": TRAIL, "store": str(get_meta(db, "store")), "at": end.at, "entries": end.position}
    return signer.signed({**facts, "hash": end.hash.hex()})
