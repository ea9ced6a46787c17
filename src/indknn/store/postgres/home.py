"""The home of a store in PostgreSQL: how it is opened and held, and what is checked about the server."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg

from indknn.errors import StoreError
from indknn.place import Address, stays_here
from indknn.store.chain import now
from indknn.store.connection import Connection
from indknn.store.home import Home
from indknn.store.postgres import erasure, leases
from indknn.store.postgres.session import Session, translated
from indknn.store.tables import INDEXES, TABLES, VERSION, refuse_other_version

IDLE_SECONDS = 60
"""The server ends a transaction in which nothing happens for this long, so that others can take over."""
_DEFAULTS = {"connect_timeout": "10", "keepalives_idle": "30", "application_name": "indknn"}
_WEAK = {"fsync": "off", "full_page_writes": "off"}
# Who may write is in `leases`: a process that takes over raises the epoch, and every transaction of an earlier one is
# refused.
_MAKE = f"""
{" ".join(table.in_postgres() for table in TABLES.values())} {INDEXES}
CREATE TABLE leases (id int8 PRIMARY KEY, epoch int8 NOT NULL, holder text NOT NULL);
INSERT INTO leases VALUES (0, 0, 'nobody');
CREATE TABLE schema_version (version int8 NOT NULL);
INSERT INTO schema_version VALUES ({VERSION});
"""


class DatabaseHome(Home):
    """A schema of a database. One process at a time has its lease (`leases.py`)."""

    doubt = "somebody else has changed rows, or parts of it were restored; restore all of its schema from one backup"

    def __init__(self, address: Address):
        super().__init__(address)
        self._address = address
        self._lease: leases.Holding | None = None
        self._unused: Session | None = None  # holds the lease, until `connect` hands it out

    def exists(self) -> bool:
        """Whether the schema holds a store."""
        with self._session() as session, translated():
            return _version_of(session.pg) is not None

    def create(self, fill: Callable[[Connection], None]) -> None:
        """Make the tables and the first rows in one transaction."""
        with self._session() as session, translated(lambda words: f"{self.place} cannot be made: {words}"):
            pg = session.pg
            with pg.transaction(), session.enclosed():
                if (
                    pg.execute("SELECT 1 FROM pg_namespace WHERE nspname = %s", (self._address.schema,)).fetchone()
                    is None
                ):
                    pg.execute(f"CREATE SCHEMA {self._address.schema}".encode())
                if _version_of(pg) is not None:
                    raise StoreError(f"{self.place} exists already; a store is never overwritten")
                pg.execute(_MAKE.encode())
                fill(session)

    def hold(self, *, read_only: bool = False) -> None:
        """Take the lease, unless another live process has it. Processes that only read need none."""
        if not read_only:
            self._unused = self._writer()

    def release(self) -> None:
        """Close the connection, which frees the lease."""
        unused, self._unused = self._unused, None
        if unused is not None:
            self.close(unused)

    def connect(self, *, read_only: bool = False, synchronous: str = "FULL", vfs: str | None = None) -> Connection:
        """An open store. After a lost connection it is a new connection with a new lease."""
        if read_only:
            return self._reader()
        unused, self._unused = self._unused, None
        session = unused or self._writer()
        if synchronous != "FULL":
            session.pg.execute("SET synchronous_commit = off")
        return session

    def close(self, db: Connection) -> None:
        """Close, even if the server fails."""
        db.close()

    def _writer(self) -> Session:
        session = self._connected()
        try:
            with translated(lambda words: f"{self.place} cannot be opened: {words}"):
                self._check_version(session.pg)
                _refuse_forgetful(session.pg, str(self.place))
                self._lease = leases.take(session.pg, str(self.place), _holder(), self._lease)
        except BaseException:
            self.close(session)
            raise
        session.lease = self._lease.lease
        return session

    def _reader(self) -> Session:
        """The store at one moment. Others may write meanwhile."""
        session = self._connected(read_only=True)
        try:
            with translated(lambda words: f"{self.place} cannot be opened: {words}"):
                self._check_version(session.pg)
                session.pg.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
                session.pg.execute("SET LOCAL idle_in_transaction_session_timeout = 0")
                session.pg.execute("SELECT 1 FROM leases")
        except BaseException:
            self.close(session)
            raise
        return session

    def _connected(self, *, read_only: bool = False) -> Session:
        """A connection without a lease."""
        tls = {} if stays_here(self._address) else {"sslmode": "verify-full"}
        options: dict[str, Any] = {**_DEFAULTS, **tls, **dict(self._address.options)}
        with translated(lambda words: f"{self.place} cannot be reached: {words}"):
            pg: psycopg.Connection = psycopg.connect(
                dbname=self._address.database, autocommit=True, prepare_threshold=2, **options
            )
            settings = {
                "search_path": self._address.schema,
                "client_encoding": "UTF8",
                "idle_in_transaction_session_timeout": f"{IDLE_SECONDS}s",
                "lock_timeout": f"{IDLE_SECONDS + 30}s",
            }
            for name, value in settings.items():
                pg.execute("SELECT set_config(%s, %s, false)", (name, value))
            return Session(pg, read_only=read_only)

    @contextmanager
    def _session(self) -> Iterator[Session]:
        session = self._connected()
        try:
            yield session
        finally:
            self.close(session)

    def _check_version(self, pg: psycopg.Connection) -> None:
        """Refuse what is not a store, or not of this version."""
        version = _version_of(pg)
        if version is None:
            raise StoreError(f"{self.place} does not exist; make a store with: indknn init {self.place}")
        refuse_other_version(self.place, version)

    def still_held(self, db: Connection) -> bool:
        """Whether this process still has the store. StoreError if the server cannot be asked."""
        assert isinstance(db, Session)
        with translated():
            return db.lease is None or leases.look(db.pg) == db.lease

    def copy(self, db: Connection) -> Iterator[Session | None]:
        """A second connection. It sees everything that is committed when it begins to read, and nothing later."""
        yield self._reader()

    def server(self) -> str:
        """The kind of server. A server in which a store would not be safe is refused."""
        with self._session() as session, translated():
            _refuse_forgetful(session.pg, str(self.place))
            row = session.pg.execute("SELECT current_setting('server_version')").fetchone() or ("?",)
            kept = "; ".join(erasure.elsewhere(session.pg))
            return f"{row[0]}, commits are durable; old bytes may also be in {kept}"

    def take_over(self) -> str:
        """Take the store away from the process that has it. Returns who that was."""
        with self._session() as session, translated():
            self._check_version(session.pg)
            return leases.take_over(session.pg, str(self.place), f"nobody since {_holder()} took it over")

    def rewrite(self) -> erasure.Rewritten:
        """Let the server write everything anew that still holds bytes of erased people."""
        with self._session() as session, translated():
            return erasure.rewrite(session.pg)

    def old_bytes(self, db: Connection) -> list[str]:
        """Why bytes of erased people may still be in files of the server."""
        assert isinstance(db, Session)
        with translated():
            return erasure.doubts(db, db.pg)

    def erasure(self, db: Connection) -> dict[str, Any]:
        """What the first receipt says: rows are deleted, and their bytes are not gone yet."""
        assert isinstance(db, Session)
        with translated():
            return erasure.first_stage(db.pg)


def _version_of(pg: psycopg.Connection) -> int | None:
    """The version of the tables. None if there are none."""
    if pg.execute("SELECT to_regclass('schema_version')").fetchone() == (None,):
        return None
    row = pg.execute("SELECT version FROM schema_version").fetchone()
    return None if row is None else int(row[0])


def _holder() -> str:
    return f"process {os.getpid()} on {socket.gethostname()} since {now()}"


def _refuse_forgetful(pg: psycopg.Connection, place: str) -> None:
    """Refuse a server that can lose committed data, because that would give budgets back (rule 2)."""
    for name, weak in _WEAK.items():
        if pg.execute("SELECT current_setting(%s)", (name,)).fetchone() == (weak,):
            raise StoreError(
                f"{place} has {name} = off: a crash would give back budgets that were spent; switch it on in the server"
            )
    row = pg.execute("SELECT current_setting('synchronous_commit')").fetchone()
    if row not in {("on",), ("remote_apply",)}:
        pg.execute("SET synchronous_commit = on")
