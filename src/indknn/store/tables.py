"""The tables of a store.

Everything that must know the tables follows from `TABLES`: how a file or a database makes them, how rows are written,
and what the keyed sums cover (`connection.py`).
"""

from __future__ import annotations

from dataclasses import dataclass

from indknn.errors import StoreError

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
    # What the forgotten had spent, by keyed hash of their names: JSON from scope to units, and a count of queries.
    Table("tombstones", {"digest": "bytes", "spent": "text", "queries": "int"}),
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
