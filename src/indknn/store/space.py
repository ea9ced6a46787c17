"""Space on the disk: room that is kept so that people can be forgotten, and the log that must be emptied after it."""

from __future__ import annotations

from pathlib import Path

import apsw
import numpy as np

from indknn.engine import Engine
from indknn.errors import StoreError
from indknn.store import database
from indknn.store.files import Ballast

_SPARE = 2 << 20
_PAGE = 4096 + 24  # in the log


class Space:
    """The ballast beside a store, and the store's log."""

    def __init__(self, path: Path):
        self._path = path
        self._ballast = Ballast(path)
        self._records = 0  # the ballast was last filled for so many

    def fill(self, engine: Engine, debits: int) -> None:
        """Keep enough to forget anybody: debits overwritten, balances written, a page for each of their records."""
        shard, ledger = engine.shard, engine.ledger
        balances = len(ledger.participation) * (8 * len(ledger.scopes) + 4)
        most = int(np.bincount(shard.owners_of(shard.slots()), minlength=1).max())
        self._ballast.fill(_SPARE + debits + balances * 5 // 4 + most * _PAGE)
        self._records = len(shard)

    def fill_if_grown(self, engine: Engine, debits: int) -> None:
        """The same, once there are many more records than last time."""
        if len(engine.shard) > 2 * self._records + 1000:
            self.fill(engine, debits)

    def drop(self) -> bool:
        """Give the space back; whether there was any."""
        return self._ballast.drop()

    def empty_log(self, db: apsw.Connection) -> bool:
        """Empty the log, which still holds pages as they were; whether that took the ballast."""
        for dropped in (False, True):
            try:
                database.empty_log(db, self._path)
                return dropped
            except (apsw.Error, OSError) as error:
                if dropped or not self.drop():
                    text = f"erased, but old bytes are still in the log, so do it again: {error}"
                    raise StoreError(text) from error
        raise AssertionError
