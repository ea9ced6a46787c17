"""The tables of a store file, and how an older file becomes a newer one.

`PRAGMA user_version` holds the version; `MIGRATIONS[v]` takes a file from version v to v + 1.
"""

from __future__ import annotations

import apsw

from indknn.errors import StoreError

APPLICATION_ID = 0x696B6E6E  # "iknn": the file was closed, and everything is in it
OPEN_ID = 0x4F50454E  # "OPEN": it is in use, or was when its process ended, and is nothing without its head and log

_VERSION_1 = """
-- Parameters, keys and counters, by name.
CREATE TABLE meta (name TEXT PRIMARY KEY, value ANY NOT NULL) STRICT, WITHOUT ROWID;

-- Features and names are kept in rows that never change their length and are never deleted, but overwritten
-- where they are. Rows that are would be moved when SQLite splits and merges pages, and what is moved is left
-- behind in the unused part of a page, secure_delete or not.

-- One row per record slot, packed as `codec.record_type` says. A free slot keeps its generation, so that
-- record ids never repeat; the rest is blank.
CREATE TABLE records (slot INTEGER PRIMARY KEY, body BLOB NOT NULL) STRICT;

-- Those who have records. The name is packed as `codec.encode_name` says, or as many zeros once forgotten.
CREATE TABLE owners (number INTEGER PRIMARY KEY, slot INTEGER NOT NULL, name BLOB NOT NULL) STRICT;
CREATE INDEX owners_by_slot ON owners (slot);

-- Analysts. The one without a name has the empty one.
CREATE TABLE scopes (id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE) STRICT;

-- What owners had spent when debits were last folded, as int64 arrays over blocks of owner slots; and in how
-- many queries they had taken part, as int32 arrays.
CREATE TABLE balances (
    scope INTEGER NOT NULL, block INTEGER NOT NULL, spent BLOB NOT NULL, PRIMARY KEY (scope, block)) STRICT;
CREATE TABLE participation (block INTEGER PRIMARY KEY, queries BLOB NOT NULL) STRICT;

-- Answers given: the transcript. `charged` is the sum of all debits of the answer, in ledger units; as text,
-- because a sum over many people may exceed 63 bits.
CREATE TABLE answers (
    seq INTEGER PRIMARY KEY, scope INTEGER NOT NULL, query BLOB NOT NULL, scale REAL NOT NULL,
    label INTEGER NOT NULL, charged TEXT NOT NULL) STRICT;

-- Who paid for an answer: until the next fold, one blob of owner slots and amounts per answer.
CREATE TABLE debits (seq INTEGER PRIMARY KEY, body BLOB NOT NULL) STRICT;

-- Requests that may be repeated: the digest of what was asked, and the labels given.
CREATE TABLE requests (id TEXT PRIMARY KEY, digest BLOB NOT NULL, labels BLOB NOT NULL) STRICT, WITHOUT ROWID;

-- What the forgotten had spent, by keyed hash of their names: JSON from scope to units, and a count of queries.
CREATE TABLE tombstones (digest BLOB PRIMARY KEY, spent TEXT NOT NULL, queries INTEGER NOT NULL) STRICT, WITHOUT ROWID;

-- The audit trail, a chain of hashes without personal data.
CREATE TABLE audit (
    position INTEGER PRIMARY KEY, at TEXT NOT NULL, kind TEXT NOT NULL, body TEXT NOT NULL, hash BLOB NOT NULL) STRICT;
"""

_VERSION_2 = """
-- What was released besides the label: noisy votes, or a sum over records. Such a sum has no query and label -1.
ALTER TABLE answers ADD COLUMN release BLOB;
"""

_VERSION_3 = """
-- From here on every entry of the audit trail holds a digest of all rows (`books.py`).
"""

_VERSION_4 = """
-- Record ids that callers chose: 16 bytes of a keyed hash for each of 64 record slots, zeros where there is none.
CREATE TABLE record_keys (block INTEGER PRIMARY KEY, digests BLOB NOT NULL) STRICT;

-- Those who were two people until all names became text (`old_names.py`), and have spent more than their budget by
-- that: the keyed hash of the name, and what they had spent then, as in `tombstones`.
CREATE TABLE joined (digest BLOB PRIMARY KEY, spent TEXT NOT NULL) STRICT, WITHOUT ROWID;
"""

_VERSION_5 = """
-- The day on which a request was answered, counted from 1970, so that old ones can be dropped; 0 if it is not known.
ALTER TABLE requests ADD COLUMN day INTEGER NOT NULL DEFAULT 0;

-- Uploads that may be repeated: keyed hashes of their id and of all that was sent, and the numbers of the records.
CREATE TABLE additions (
    id BLOB PRIMARY KEY, digest BLOB NOT NULL, numbers BLOB NOT NULL, day INTEGER NOT NULL) STRICT, WITHOUT ROWID;
"""

MIGRATIONS = [_VERSION_1, _VERSION_2, _VERSION_3, _VERSION_4, _VERSION_5]
VERSION = len(MIGRATIONS)


def version_of(db: apsw.Connection) -> int:
    """The schema version of an open file, 0 for an empty one."""
    return int(db.pragma("user_version"))


def check(db: apsw.Connection, path: str, *, empty: bool) -> None:
    """Refuse a file that is not a store, or not of a known version. `empty` allows a file with nothing in it."""
    version = version_of(db)
    if version == 0 and empty and not db.execute("SELECT count(*) FROM sqlite_schema").get:
        return
    if version == 0 or db.pragma("application_id") not in (APPLICATION_ID, OPEN_ID):
        raise StoreError(f"{path} is not an indknn store")
    if version > VERSION:
        raise StoreError(f"{path} has schema version {version}; this indknn knows versions up to {VERSION}")


def migrate(db: apsw.Connection) -> None:
    """Bring a checked file to the current version, in one transaction per step."""
    for step in range(version_of(db), VERSION):
        with db:
            db.execute(MIGRATIONS[step])
            db.pragma("application_id", APPLICATION_ID)
            db.pragma("user_version", step + 1)
