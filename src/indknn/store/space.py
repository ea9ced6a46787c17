"""Space on the disk: what must be kept free so that people can be forgotten, and the log that must be emptied."""

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


def ballast_bytes(engine: Engine, debits: int) -> int:
    """Enough to forget anybody: all debits overwritten, all balances written, a page for each record of theirs."""
    shard, ledger = engine.shard, engine.ledger
    balances = len(ledger.participation) * (8 * len(ledger.scopes) + 4)
    most = int(np.bincount(shard.owners_of(shard.record_ids() & 0xFFFFFFFF), minlength=1).max())
    return _SPARE + debits + balances * 5 // 4 + most * _PAGE


def truncate_log(db: apsw.Connection, path: Path, ballast: Ballast) -> bool:
    """Empty the log, which still holds pages as they were; whether that took the ballast."""
    try:
        database.empty_log(db, path)
        return False
    except (apsw.Error, OSError) as error:
        if not ballast.drop():
            raise _not_emptied(error) from error
    try:
        database.empty_log(db, path)
        return True
    except (apsw.Error, OSError) as error:
        raise _not_emptied(error) from error


def _not_emptied(error: BaseException) -> StoreError:
    return StoreError(f"forgotten, but old bytes are still in the log, so forget again: {error}")
