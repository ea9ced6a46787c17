"""The audit trail: a chain of hashes over what was done, without personal data.

The hash of each entry covers the entry and the hash before it. So an entry cannot be changed, deleted or inserted
without changing all later hashes. If the latest hash is kept elsewhere (by a witness), it proves the rest.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from indknn.store.home import Connection

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

    It holds a digest of all rows (`books.py`). Times never go backwards, even if the clock does.
    """
    last = db.execute("SELECT position, at, hash FROM audit ORDER BY position DESC LIMIT 1").fetchone()
    position, since, previous = (last[0] + 1, last[1], last[2]) if last else (1, "", GENESIS)
    digest = db.execute("SELECT books_digest()").get
    at, body = max(now(), since), json.dumps({**facts, "books": digest}, sort_keys=True)
    entry = Entry(position, at, kind, body, link(previous, position, at, kind, body))
    db.execute(
        "INSERT INTO audit VALUES (?, ?, ?, ?, ?)",
        (entry.position, entry.at, entry.kind, entry.body, entry.hash),
    )
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
