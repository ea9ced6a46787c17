"""Requests that may be sent again: predictions and uploads by their ids. They are kept for some days.

The id of a prediction belongs to its analyst. The id and the rows of an upload may say something about people. So only
keyed hashes of an upload are kept, with the numbers of its records.
"""

from __future__ import annotations

import hashlib
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from indknn.errors import RequestConflictError
from indknn.store import chain
from indknn.store.database import get_meta
from indknn.store.home import Connection
from indknn.types import IntArray

if TYPE_CHECKING:
    from indknn.store.change import Change

_DAY = 86_400


def today() -> int:
    """The day, counted from 1970."""
    return int(time.time()) // _DAY


@dataclass(frozen=True)
class Upload:
    """An upload that may be repeated: the id that its sender gave it, and everything that was sent."""

    id: str
    body: bytes

    def _hashes(self, db: Connection) -> tuple[bytes, bytes]:
        key: bytes = get_meta(db, "key")
        name, body = (
            hashlib.blake2b(part, key=key, digest_size=32, person=person).digest()
            for part, person in ((self.id.encode(), b"upload id"), (self.body, b"upload body"))
        )
        return name, body

    def numbers(self, db: Connection) -> IntArray | None:
        """The numbers of the records from an earlier upload with this id. None if it is new."""
        name, body = self._hashes(db)
        known = db.execute("SELECT digest, numbers FROM additions WHERE id = ?", (name,)).fetchone()
        if known is None:
            return None
        if known[0] != body:
            raise RequestConflictError("this request id was used before for other records; use a new one")
        return np.frombuffer(known[1], "<i8").astype(np.int64)

    def note(self, db: Connection, numbers: IntArray) -> None:
        """Remember it, inside the transaction that adds its records and before the entry of the audit trail."""
        row = (*self._hashes(db), numbers.astype("<i8").tobytes(), today())
        db.execute("INSERT INTO additions VALUES (?, ?, ?, ?)", row)


def prune(change: Change, days: int, day: int | None = None) -> int:
    """Delete requests that are older than this many days. Returns how many.

    Only time decides, never what was asked or answered. Requests from before days were kept count from now.
    """
    db, day = change.state.db, today() if day is None else day
    dated = int(db.execute("SELECT count(*) FROM requests WHERE day = 0").get)
    if dated:
        db.execute("UPDATE requests SET day = ? WHERE day = 0", (day,))
    old = (day - days,)
    names = [name for (name,) in db.execute("SELECT id FROM requests WHERE day < ?", old)]
    count = len(names) + int(db.execute("SELECT count(*) FROM additions WHERE day < ?", old).get)
    if count or dated:
        for table in ("requests", "additions"):
            db.execute(f"DELETE FROM {table} WHERE day < ?", old)
        chain.append(db, "prune", requests=count)
        change.state.journal.forget_requests(names)
    return count
