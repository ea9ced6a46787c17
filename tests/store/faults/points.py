"""Named points at which a process can be made to die, in the test alone: the product knows nothing of them."""

import os
import signal

from indknn.store import chain, database, journal
from indknn.store.filehome import FileHome
from indknn.store.journal import StoreJournal


def _targets():
    return {
        "before the transaction": (StoreJournal, "_write", "before"),
        "in the transaction": (chain, "append", "after"),
        "after the commit": (StoreJournal, "_write", "after"),
        "before the answer leaves": (StoreJournal, "commit", "after"),
        "reading the ledger": (journal, "read_ledger", "after"),
        "adding records": (database, "write_records", "after"),
        "adding owners": (database, "write_owners", "before"),
        "folding": (StoreJournal, "_write_balances", "before"),
        "folded, not committed": (StoreJournal, "_write_balances", "after"),
        "clearing records": (database, "clear_records", "after"),
        "writing a tombstone": (database, "write_tombstones", "after"),
        "before the log is emptied": (FileHome, "empty_log", "before"),
        "after the log is emptied": (FileHome, "empty_log", "after"),
        "before the witness": (chain.Witness, "write", "before"),
        "after the witness": (chain.Witness, "write", "after"),
    }


POINTS = sorted(_targets())


def arm(point, nth):
    """Kill this very process, as if with `kill -9`, when it passes the point for the nth time."""
    owner, name, when = _targets()[point]
    original, left = getattr(owner, name), [nth]

    def dying(*args, **kwargs):
        if when == "before":
            _step(left)
        result = original(*args, **kwargs)
        if when == "after":
            _step(left)
        return result

    setattr(owner, name, dying)


def _step(left):
    left[0] -= 1
    if left[0] <= 0:
        os.kill(os.getpid(), signal.SIGKILL)
