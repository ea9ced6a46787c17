"""Who may write: the one row of `leases` that has this id. A process that takes the store over writes the row anew.

Three things identify the holder of a lease, and every writing transaction compares them with the row locked
(`session.py`): the epoch, which counts; a random token in the text, which never repeats; and the transaction that wrote
the row. A restored backup brings back an epoch and a token, but another transaction writes the row. So nobody who was
replaced becomes valid again.

A second process is refused while the session of the holder lives. The row says which session that is. There is no lock
for it, because anybody who may log in could take one.
"""

from __future__ import annotations

import re
import secrets
from dataclasses import dataclass
from time import monotonic, sleep

import psycopg

from indknn.errors import FencedError, StoreError, StoreLockedError

_ID = 0
LOOK = f"SELECT epoch, holder, xmin::text FROM leases WHERE id = {_ID}"
"""Reads what identifies the holder."""
_DATABASE = (
    "SELECT system_identifier || '/' || oid FROM pg_control_system(), pg_database WHERE datname = current_database()"
)
_SESSION = "SELECT usesysid, extract(epoch FROM backend_start) FROM pg_stat_activity WHERE pid = pg_backend_pid()"
# The start of a session of another role cannot be seen. Its number and role can.
_ALIVE = (
    "FROM pg_stat_activity WHERE pid = %(pid)s AND usesysid = %(role)s "
    "AND coalesce(extract(epoch FROM backend_start) = %(start)s::numeric, true) AND pid <> pg_backend_pid()"
)
_HOLDER = re.compile(r"(?P<who>.*) \(lease [0-9a-f]{32}(?:, session (?P<session>\d+ \d+ [\d.]*))?\)", re.DOTALL)
_PATIENCE, _PAUSE = 2.0, 0.05  # seconds; the server may still be ending the session of a process that was killed


@dataclass(frozen=True)
class Lease:
    """The row as somebody wrote it, in the transaction with the number `written`."""

    epoch: int
    holder: str
    written: str

    @property
    def who(self) -> str:
        """Who holds it, to show."""
        found = _HOLDER.fullmatch(self.holder)
        return found["who"] if found else self.holder

    @property
    def session(self) -> dict[str, object] | None:
        """The session of the holder. None if nobody holds it."""
        found = _HOLDER.fullmatch(self.holder)
        if found is None or found["session"] is None:
            return None
        pid, role, start = found["session"].split(" ")
        return {"pid": int(pid), "role": int(role), "start": start or None}


@dataclass(frozen=True)
class Holding:
    """A lease of this process, and the database it is in. A copy of the database is another one."""

    lease: Lease
    database: str


def look(pg: psycopg.Connection) -> Lease | None:
    """The lease as it is now. None if the row is gone."""
    row = pg.execute(LOOK.encode()).fetchone()
    return None if row is None else Lease(*row)


def take(pg: psycopg.Connection, place: str, holder: str, earlier: Holding | None = None) -> Holding:
    """Take the lease of the store.

    `earlier` is what this process held before. Then it is refused if anybody has written the lease since.
    """
    database, found = _database(pg), _current(pg, place)
    if earlier is not None:
        if Holding(found, database) != earlier:
            raise FencedError(
                f"{place} was taken over by {found.who}, or restored; stop this process, and open the store again"
            )
        _end_session(pg, found)  # a lost session of this process may still be running
    if _lives(pg, found):
        raise StoreLockedError(
            f"{place} is in use by {found.who}; a store has one writer at a time. If that process is lost: "
            "indknn takeover"
        )
    pid, (role, start) = pg.info.backend_pid, pg.execute(_SESSION).fetchone() or (0, None)
    taken = _write(pg, found, f"{holder} (lease {secrets.token_hex(16)}, session {pid} {role} {start or ''})")
    if taken is None:
        raise StoreLockedError(f"{place}: another process was quicker to open it")
    return Holding(taken, database)


def take_over(pg: psycopg.Connection, place: str, holder: str) -> str:
    """Take the store away from the process that has it, and return who that was. Then anybody can open it.

    Waits for an open transaction of the holder. If this role may not end the session of the holder, it lives on, and
    can write nothing.
    """
    found = _current(pg, place)
    _end_session(pg, found)
    if _write(pg, found, f"{holder} (lease {secrets.token_hex(16)})") is None:
        now = _current(pg, place)
        raise StoreLockedError(f"{place} was not taken over: {now.who} has it since; try again")
    return found.who


def _write(pg: psycopg.Connection, found: Lease, holder: str) -> Lease | None:
    """Write the lease anew. None if somebody else has written it since it was found."""
    row = pg.execute(
        f"UPDATE leases SET epoch = epoch + 1, holder = %s WHERE id = {_ID} AND epoch = %s AND holder = %s "
        "AND xmin::text = %s RETURNING epoch, holder, xmin::text".encode(),
        (holder, found.epoch, found.holder, found.written),
    ).fetchone()
    return None if row is None else Lease(*row)


def _end_session(pg: psycopg.Connection, found: Lease) -> None:
    """End the session of the holder, if this role may do that."""
    if found.session is not None:
        pg.execute(
            f"SELECT pg_terminate_backend(pid) {_ALIVE} AND usename = current_user".encode(),
            found.session,
        )


def _lives(pg: psycopg.Connection, found: Lease) -> bool:
    """Whether the session of the holder lives on."""
    end = monotonic() + _PATIENCE
    while found.session is not None and pg.execute(f"SELECT 1 {_ALIVE}".encode(), found.session).fetchone():
        if monotonic() >= end:
            return True
        sleep(_PAUSE)
    return False


def _current(pg: psycopg.Connection, place: str) -> Lease:
    found = look(pg)
    if found is None:
        raise StoreError(f"{place} has lost its lease; restore it from a backup")
    return found


def _database(pg: psycopg.Connection) -> str:
    (name,) = pg.execute(_DATABASE).fetchone() or ("",)
    return str(name)
