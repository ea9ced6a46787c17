"""Disk space: space that is reserved so that people can be forgotten, and the log that must be emptied afterwards."""

from __future__ import annotations

from pathlib import Path

import apsw
import numpy as np

from indknn.engine import Engine
from indknn.errors import StoreError
from indknn.store.files import Ballast
from indknn.store.sqlitelog import empty_log

_SPARE = 2 << 20
_PAGE = 4096 + 24  # in the log


class Space:
    """The reserved space beside a store, and the store's log."""

    def __init__(self, path: Path):
        self._path = path
        self._ballast = Ballast(path)
        self._records = 0  # the number of records for which space was last reserved

    def fill(self, engine: Engine, debits: int) -> None:
        """Reserve enough to forget anybody.

        That means overwriting debits, writing balances, and one page for each of their records.
        """
        shard, ledger = engine.shard, engine.ledger
        balances = len(ledger.participation) * (8 * len(ledger.scopes) + 4)
        most = int(np.bincount(shard.owners_of(shard.slots()), minlength=1).max())
        self._ballast.fill(_SPARE + debits + balances * 5 // 4 + most * _PAGE)
        self._records = len(shard)

    def fill_if_grown(self, engine: Engine, debits: int) -> None:
        """The same, if there are many more records than last time."""
        if len(engine.shard) > 2 * self._records + 1000:
            self.fill(engine, debits)

    def drop(self) -> bool:
        """Give up the space. Returns whether there was any."""
        return self._ballast.drop()

    def empty_log(self, db: apsw.Connection) -> bool:
        """Empty the log, which still holds old pages. Returns whether the reserved space was needed for that."""
        for dropped in (False, True):
            try:
                empty_log(db, self._path)
                return dropped
            except (apsw.Error, OSError) as error:
                if dropped or not self.drop():
                    text = f"erased, but old bytes are still in the log, so do it again: {error}"
                    raise StoreError(text) from error
        raise AssertionError
