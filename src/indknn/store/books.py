"""Self-checks: a keyed sum over every row of the file, recorded in the audit trail (rule 16).

Every row of every table has a keyed hash. The sums of these hashes, one per table, determine which rows there are. If a
row is changed, deleted, added or set back to an older form, a sum changes. In a file, triggers update the sums while
this process writes, so no code can forget it. A database cannot call this process, so there all writes go through one
class (`postgres/door.py`), which updates the sums. Each entry of the audit trail holds a digest of the sums at that
time. Opening a store reads every row once and compares.

The key is in the file. So this finds damage and careless edits by itself. To find deliberate edits, it needs a witness,
which keeps the audit trail's state elsewhere.
"""

from __future__ import annotations

import hashlib
from typing import Any

import apsw

from indknn.store.home import BookedConnection, Connection, scan

TABLES = {
    "meta": ("name", "value"),
    "records": ("slot", "body"),
    "owners": ("number", "slot", "name"),
    "scopes": ("id", "name"),
    "balances": ("scope", "block", "spent"),
    "participation": ("block", "queries"),
    "answers": ("seq", "scope", "query", "scale", "label", "charged", "release"),
    "debits": ("seq", "body"),
    "requests": ("id", "digest", "labels", "day"),
    "tombstones": ("digest", "spent", "queries"),
    "record_keys": ("block", "digests"),
    "joined": ("digest", "spent"),
    "additions": ("id", "digest", "numbers", "day"),
}
"""All tables except the audit trail, which is itself a chain of hashes."""
_LATER = {"record_keys", "joined", "additions"}
"""Tables that older files do not have. They count only if they have rows, so that older digests still hold."""
_MODULUS = 1 << 256


class Books:
    """The sums over the rows of an open file. The audit trail holds their `digest`."""

    def __init__(self, db: Connection, key: bytes):
        self._db: Connection = db
        self._sums = dict.fromkeys(TABLES, 0)
        self._hashers = {name: hashlib.blake2b(key=key, digest_size=32, person=name.encode()) for name in TABLES}
        self._digester = hashlib.blake2b(key=key, digest_size=32, person=b"books")
        if isinstance(db, apsw.Connection):
            self._set_triggers(db)
        else:
            assert isinstance(db, BookedConnection), "nothing would tell the books what is written"
            db.keep(self)

    def _set_triggers(self, db: apsw.Connection) -> None:
        functions: dict[str, Any] = {"entered": self.entered, "struck": self.struck, "books_digest": self.digest}
        for name, function in functions.items():
            db.create_scalar_function(name, function)
        db.pragma("recursive_triggers", 1)  # otherwise REPLACE would delete rows without calling the triggers
        for table, columns in TABLES.items():
            old, new = (", ".join(f"{side}.{column}" for column in columns) for side in ("OLD", "NEW"))
            strike, enter = f"SELECT struck('{table}', {old});", f"SELECT entered('{table}', {new});"
            for event, work in (("INSERT", enter), ("DELETE", strike), ("UPDATE", strike + enter)):
                db.execute(f"CREATE TEMP TRIGGER {table}_{event} AFTER {event} ON main.{table} BEGIN {work} END")

    def read(self) -> str:
        """Compute the sums from the rows in the file, and return their digest."""
        for table, columns in TABLES.items():
            total, hasher = 0, self._hashers[table]
            for row in scan(self._db, f"SELECT {', '.join(columns)} FROM {table}"):
                total += _hashed(hasher, _counted(table, row))
            self._sums[table] = total % _MODULUS
        return self.digest()

    def digest(self) -> str:
        """A digest of all sums."""
        whole = self._digester.copy()
        for table, total in self._sums.items():
            if total or table not in _LATER:
                whole.update(total.to_bytes(32, "little"))
        return whole.hexdigest()

    def entered(self, table: str, *row: Any) -> None:
        """Add a row that was written."""
        self._sums[table] = (self._sums[table] + _hashed(self._hashers[table], _counted(table, row))) % _MODULUS

    def struck(self, table: str, *row: Any) -> None:
        """Remove a row that was deleted, or that will be overwritten."""
        self._sums[table] = (self._sums[table] - _hashed(self._hashers[table], _counted(table, row))) % _MODULUS

    def emptied(self, table: str) -> None:
        """Remove all rows of a table that was emptied."""
        self._sums[table] = 0


def _counted(table: str, row: tuple[Any, ...]) -> tuple[Any, ...]:
    """The part of a row that counts. A request without a day counts as it did before there were days."""
    return row[:-1] if table == "requests" and row[-1] == 0 else row


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
    one = hasher.copy()
    one.update(b"".join(parts))
    return int.from_bytes(one.digest(), "little")
