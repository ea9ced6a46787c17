"""Who may write. A lease has an epoch. A process that takes over raises it, and all earlier holders are refused.

The epoch decides: every writing transaction checks it with its row locked (`session.py`). In addition, the session of a
holder has an advisory lock on its epoch, so that a second process is refused while the first one lives. PostgreSQL
drops that lock with the session.
"""

from __future__ import annotations

import psycopg

from indknn.errors import FencedError, StoreError, StoreLockedError

STORE = 0
"""The lease of the store itself. Shards of a cluster have others."""
_PATIENCE = "2s"  # the server may still be ending the session of a process that was killed


def take(pg: psycopg.Connection, place: str, holder: str, earlier: int | None = None) -> int:
    """Take the lease of the store and return its epoch.

    `earlier` is an epoch that this process had before. Then the lease is refused if another process had it since.
    """
    epoch, who = _current(pg, place)
    if earlier is not None:
        if epoch != earlier:
            raise FencedError(f"{place} was taken over by {who}; stop this process, and open the store again")
        _end_holder(pg, epoch)  # a lost session of this process may still be running
    if not _locked(pg, epoch):
        raise StoreLockedError(
            f"{place} is in use by {who}; a store has one writer at a time. If that process is lost: indknn takeover"
        )
    return raise_epoch(pg, STORE, epoch, holder)


def raise_epoch(pg: psycopg.Connection, lease: int, epoch: int, holder: str) -> int:
    """Take over a lease at this epoch. Waits for an open transaction of the holder."""
    update = "UPDATE leases SET epoch = epoch + 1, holder = %s WHERE id = %s AND epoch = %s RETURNING epoch"
    row = pg.execute(update, (holder, lease, epoch)).fetchone()
    if row is None:
        raise StoreLockedError(f"another process was quicker to take lease {lease}")
    if not _locked(pg, row[0]):
        raise StoreError(f"epoch {row[0]} of lease {lease} is taken, though it is new")
    return int(row[0])


def take_over(pg: psycopg.Connection, place: str, holder: str) -> str:
    """Take the store away from the process that has it, and return who that was. Then anybody can open it."""
    epoch, who = _current(pg, place)
    _end_holder(pg, epoch)
    pg.execute("UPDATE leases SET epoch = epoch + 1, holder = %s WHERE id = %s AND epoch = %s", (holder, STORE, epoch))
    return who


def _end_holder(pg: psycopg.Connection, epoch: int) -> None:
    """End the session that has this epoch, if this role may do that."""
    pg.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_locks JOIN pg_stat_activity USING (pid) WHERE locktype = 'advisory' "
        "AND classid = 'leases'::regclass AND objid = %s AND usename = current_user AND pid <> pg_backend_pid()",
        (_key(epoch),),
    )


def _current(pg: psycopg.Connection, place: str) -> tuple[int, str]:
    row = pg.execute("SELECT epoch, holder FROM leases WHERE id = %s", (STORE,)).fetchone()
    if row is None:
        raise StoreError(f"{place} has lost its lease; restore it from a backup")
    return int(row[0]), str(row[1])


def _locked(pg: psycopg.Connection, epoch: int) -> bool:
    """Take the advisory lock on an epoch, unless a live session has it."""
    try:
        with pg.transaction():
            pg.execute("SELECT set_config('lock_timeout', %s, true)", (_PATIENCE,))
            pg.execute("SELECT pg_advisory_lock('leases'::regclass::oid::int8::int4, %s)", (_key(epoch),))
    except psycopg.errors.LockNotAvailable:
        return False
    return True


def _key(epoch: int) -> int:
    return epoch & 0x7FFFFFFF
