"""The audit trail: a chain of hashes over what was done, without personal data; and its witness.

The hash of each entry covers the entry and the hash before it. So an entry cannot be changed, deleted or inserted
without changing all later hashes. If the latest hash is kept elsewhere (by a witness), it proves the rest.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from indknn.core.files import private_file
from indknn.errors import StaleStoreError, StoreError
from indknn.store.connection import Connection
from indknn.store.database import get_meta, set_meta
from indknn.store.home import Home

GENESIS = bytes(32)


@dataclass(frozen=True)
class Entry:
    """One entry: its position, time, kind and body, and the hash up to here."""

    position: int
    at: str
    kind: str
    body: str
    hash: bytes

    @property
    def facts(self) -> dict[str, Any]:
        """The body as a dict."""
        facts: dict[str, Any] = json.loads(self.body)
        return facts


def link(previous: bytes, position: int, at: str, kind: str, body: str) -> bytes:
    """The hash of an entry on top of the previous one."""
    text = json.dumps([position, at, kind, body], ensure_ascii=True)
    return hashlib.blake2b(previous + text.encode(), digest_size=32).digest()


def now() -> str:
    """The time, in UTC, to the second."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def append(db: Connection, kind: str, **facts: Any) -> Entry:
    """Add an entry, as the last statement of the transaction that it describes.

    It holds a digest of all rows (`connection.py`). Times never go backwards, even if the clock does.
    """
    last = db.execute("SELECT position, at, hash FROM audit ORDER BY position DESC LIMIT 1").fetchone()
    position, since, previous = (last[0] + 1, last[1], last[2]) if last else (1, "", GENESIS)
    at, body = max(now(), since), json.dumps({**facts, "books": db.books.digest()}, sort_keys=True)
    entry = Entry(position, at, kind, body, link(previous, position, at, kind, body))
    db.insert("audit", [(entry.position, entry.at, entry.kind, entry.body, entry.hash)])
    return entry


def entries(db: Connection, first: int = 1) -> Iterator[Entry]:
    """The entries from a position on."""
    query = "SELECT position, at, kind, body, hash FROM audit WHERE position >= ? ORDER BY position"
    for row in db.execute(query, (first,)):
        yield Entry(*row)


def last(db: Connection) -> Entry:
    """The newest entry."""
    row: Any = db.execute("SELECT * FROM audit ORDER BY position DESC LIMIT 1").fetchone()
    return Entry(*row)


def breaks(db: Connection) -> Iterator[str]:
    """What is wrong with the chain. Nothing if it is intact."""
    previous, expected = GENESIS, 1
    for entry in entries(db):
        if entry.position != expected:
            yield f"audit trail: entry {expected} is missing"
        if link(previous, entry.position, entry.at, entry.kind, entry.body) != entry.hash:
            yield f"audit trail: the hash of entry {entry.position} does not fit"
        previous, expected = entry.hash, entry.position + 1


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
            raise StoreError(f"the store was written, but its witness {self.path} was not: {error}") from error

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

    def check(self, db: Connection, store_id: str) -> None:
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

    def _compare(self, db: Connection, seen: dict[str, object]) -> None:
        if seen["store"] != self._store_id:
            raise StaleStoreError(f"the witness is of store {seen['store']}, but {self._path} is {self._store_id}")
        found = db.execute("SELECT hash FROM audit WHERE position = ?", (int(str(seen["position"])),)).get
        if found is None or found.hex() != seen["hash"]:
            raise StaleStoreError(
                f"{self._path} does not contain entry {seen['position']} of its audit trail, seen at {seen['at']}: "
                "it is an old copy, and budgets were spent since that it does not know of"
            )
