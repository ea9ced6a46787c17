"""What stands between a store and the wrong file: it must be where it was opened, and not older than its witness."""

from __future__ import annotations

from pathlib import Path

import apsw

from indknn.errors import StaleStoreError, StoreError
from indknn.store import chain, database
from indknn.store.files import Witness


class Guard:
    """The place of an open file, and its witness if it has one."""

    def __init__(self, path: Path, witness: Path | None, new_witness: bool):
        self._path = path
        self._place = _place_of(path)
        self._witness = None if witness is None else Witness(witness)
        self.has_witness = witness is not None
        self._new_witness = new_witness
        self._store_id = ""

    def refuse_if_moved(self) -> None:
        """Before anything is written or read anew: what goes into a file that is no longer here would be lost."""
        if _place_of(self._path) != self._place:
            raise StoreError(f"{self._path} was moved, deleted or replaced while it was open; stop, and open it again")

    def saw(self, entry: chain.Entry) -> None:
        """Have the witness remember this entry of the audit trail."""
        if self._witness is not None:
            self._witness.write(self._store_id, entry.position, entry.hash)

    def check(self, db: apsw.Connection, store_id: str) -> None:
        """Refuse a file that does not contain what its witness saw, or that has a witness which is not here."""
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
        if db.readonly("main"):
            return
        newest = chain.last(db)
        self.saw(newest)  # first: a store that says it has a witness must have one, also after a crash
        if self._witness is not None and not known:
            with db:
                database.set_meta(db, "witnessed", 1)
                newest = chain.append(db, "witness")
            self.saw(newest)

    def _compare(self, db: apsw.Connection, seen: dict[str, object]) -> None:
        if seen["store"] != self._store_id:
            raise StaleStoreError(f"the witness is of store {seen['store']}, but {self._path} is {self._store_id}")
        found = db.execute("SELECT hash FROM audit WHERE position = ?", (int(str(seen["position"])),)).get
        if found is None or found.hex() != seen["hash"]:
            raise StaleStoreError(
                f"{self._path} does not contain entry {seen['position']} of its audit trail, seen at {seen['at']}: "
                "it is an old copy, and budgets were spent since that it does not know of"
            )


def _place_of(path: Path) -> tuple[int, int] | None:
    """Which file is at this path now; None if there is none."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino
