"""Protects against the wrong file: it must be where it was opened, and not older than its witness or this process."""

from __future__ import annotations

from pathlib import Path

from indknn.errors import StaleStoreError
from indknn.store import chain, database
from indknn.store.files import Witness
from indknn.store.home import Connection, Home


class Guard:
    """The place of an open store, and its witness if it has one."""

    def __init__(self, home: Home, witness: Path | None, new_witness: bool):
        self._path = home.place
        self.refuse_if_moved, self.still_held = home.refuse_if_moved, home.still_held
        self._witness = None if witness is None else Witness(witness)
        self._new_witness = new_witness
        self._store_id = ""
        self._newest: chain.Entry | None = None  # what this process has seen, with a witness or without

    def saw(self, entry: chain.Entry) -> None:
        """Remember this entry of the audit trail, in the witness too."""
        self._newest = entry
        if self._witness is not None:
            self._witness.write(self._store_id, entry.position, entry.hash)

    def check(self, db: Connection, store_id: str) -> None:
        """Refuse a file that does not contain what its witness saw, or whose witness is missing."""
        self._store_id = store_id
        known = database.get_meta(db, "witnessed") is not None
        seen = None if self._witness is None or self._new_witness else self._witness.read()
        if known and seen is None and not self._new_witness:
            where = "none was given" if self._witness is None else f"{self._witness.path} does not exist"
            raise StaleStoreError(
                f"{self._path} has a witness, and {where}: give the file that was used before. If it is lost, "
                "and you are sure that this is the latest copy: indknn verify STORE --witness FILE --new-witness"
            )
        if seen is not None:
            self._compare(db, seen)
        if (mine := self._newest) is not None:  # this process reads it again
            self._compare(db, {"store": store_id, "position": mine.position, "hash": mine.hash.hex(), "at": mine.at})
        if db.readonly("main"):
            return
        newest = chain.last(db)
        self.saw(newest)  # first, because a store that says it has a witness must have one, also after a crash
        if self._witness is not None and not known:
            with db:
                database.set_meta(db, "witnessed", 1)
                newest = chain.append(db, "witness")
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
