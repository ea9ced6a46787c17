"""The home of a store in PostgreSQL: how it is opened and held, what is checked about the server, and how it erases.

Erasure has two stages: rows are deleted at once, and their old bytes are gone when tables and log were rewritten. An
UPDATE or DELETE leaves the old row in the file. VACUUM FULL writes a table anew without it. The write-ahead log holds
it until its segments are removed, or are used again and overwritten. Archives, standbys and backups are the operator's
responsibility.
"""

from __future__ import annotations

import os
import re
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import psycopg

from indknn.errors import StoreError
from indknn.place import Address, stays_here
from indknn.store import chain
from indknn.store.chain import StoreConnection, now
from indknn.store.database import INDEXES, SUMMED, TABLES, VERSION, refuse_other_version
from indknn.store.home import Home
from indknn.store.postgres.session import Session, TakenLease, look, take, take_over, translated

IDLE_SECONDS = 60
"""The server ends a transaction in which nothing happens for this long, so that others can take over."""
LOST_SECONDS = 30
"""A connection over which nothing comes back for this long is lost. Without this, a cut cable would make the process
wait for a quarter of an hour, and the server would take it for alive for two hours."""
_KEEPALIVES = {"idle": LOST_SECONDS // 3, "interval": LOST_SECONDS // 6, "count": 4}
_DEFAULTS = {
    "connect_timeout": "10",
    "application_name": "indknn",
    "tcp_user_timeout": str(1000 * LOST_SECONDS),
    **{f"keepalives_{name}": str(value) for name, value in _KEEPALIVES.items()},
}
ERASING = ("forget", "expire", "purge", "prune", "undone")
_PATIENCE = "2s"
_ROUNDS = 8  # extra rounds of switching the log, beyond one for each of its files
_RIGHTS = (
    "this role may not look at the log or switch it: GRANT pg_monitor, pg_checkpoint and EXECUTE ON FUNCTION "
    "pg_switch_wal() to it, or ask the operator when the log was last recycled"
)
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
    """A schema of a database. One process at a time has its lease (`session.py`)."""

    doubt = "somebody else has changed rows, or parts of it were restored; restore all of its schema from one backup"
    other_keys = (
        "; not in files of keys of other machines, other users or another spelling of the address: revoke keys there"
    )

    def __init__(self, address: Address):
        super().__init__(address)
        self._address = address
        self._lease: TakenLease | None = None
        self._undone = False  # as the last connection left it (`StoreConnection.undone`)
        self._unused: Session | None = None  # holds the lease, until `connect` hands it out

    def exists(self) -> bool:
        """Whether the schema holds a store."""
        with self._session() as session, translated():
            return _version_of(session.pg) is not None

    def create(self, fill: Callable[[StoreConnection], None]) -> None:
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

    def connect(self, *, read_only: bool = False, synchronous: str = "FULL", vfs: str | None = None) -> StoreConnection:
        """An open store. After a lost connection it is a new connection with a new lease."""
        if read_only:
            return self._reader()
        unused, self._unused = self._unused, None
        session = unused or self._writer()
        if synchronous != "FULL":
            session.pg.execute("SET synchronous_commit = off")
        return session

    def close(self, db: StoreConnection) -> None:
        """Close, even if the server fails."""
        assert isinstance(db, Session)
        if db.lease is not None:
            self._undone = db.undone
        db.close()

    def _writer(self) -> Session:
        session = self._connected()
        try:
            with translated(lambda words: f"{self.place} cannot be opened: {words}"):
                self._check_version(session.pg)
                _refuse_forgetful(session.pg, str(self.place))
                self._lease = take(session.pg, str(self.place), _holder(), self._lease)
        except BaseException:
            self.close(session)
            raise
        session.lease, session.undone = self._lease.lease, self._undone
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
                "tcp_user_timeout": f"{LOST_SECONDS}s",  # on the other side, for the same reason
                **{f"tcp_keepalives_{name}": str(value) for name, value in _KEEPALIVES.items()},
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

    def still_held(self, db: StoreConnection) -> bool:
        """Whether this process still has the store. StoreError if the server cannot be asked."""
        assert isinstance(db, Session)
        with translated():
            return db.lease is None or look(db.pg) == db.lease

    def copy(self, db: StoreConnection) -> Iterator[Session | None]:
        """A second connection. It sees everything that is committed when it begins to read, and nothing later."""
        yield self._reader()

    def server(self) -> str:
        """The kind of server. A server in which a store would not be safe is refused."""
        with self._session() as session, translated():
            _refuse_forgetful(session.pg, str(self.place))
            row = session.pg.execute("SELECT current_setting('server_version')").fetchone() or ("?",)
            kept = "; ".join(elsewhere(session.pg))
            return f"{row[0]}, commits are durable; old bytes may also be in {kept}"

    def take_over(self) -> str:
        """Take the store away from the process that has it. Returns who that was."""
        with self._session() as session, translated():
            self._check_version(session.pg)
            return take_over(session.pg, str(self.place), f"nobody since {_holder()} took it over")

    def rewrite(self) -> Rewritten:
        """Write all tables anew, and replace the log. It uses its own connection, and answers go on meanwhile."""
        with self._session() as session, translated():
            return _rewritten(session.pg)

    def old_bytes(self, db: StoreConnection) -> list[str]:
        """Why bytes of erased people may still be in files of the server. Empty if it is shown that they are gone."""
        assert isinstance(db, Session)
        erased = upto = 0
        facts: dict[str, Any] = {}
        for entry in chain.entries(db):
            if entry.kind in ERASING:
                erased = entry.position
            elif entry.kind == "rewrite":
                facts, upto = entry.facts, entry.facts["upto"]
        if erased > upto:
            return ["rows that were erased or undone were not rewritten yet: indknn rewrite"]
        if not facts:
            return []  # nobody was ever erased
        if facts["kept"]:
            return [facts["kept"]]
        with translated():
            if files_of(db.pg) != facts["files"]:
                return [
                    "tables are in other files than the last rewrite left: whether old ones are gone cannot be told"
                ]
            try:
                old = _old_segments(db.pg, facts["since"])
            except psycopg.errors.InsufficientPrivilege:
                return [f"cannot tell whether the log is still without them: {_RIGHTS}"]
        return [f"{old} segments of the log are from before the last rewrite"] if old else []

    def erasure(self, db: StoreConnection) -> dict[str, Any]:
        """What the first receipt says: rows are deleted, and their bytes are not gone yet."""
        assert isinstance(db, Session)
        words = (
            "until a rewrite (indknn rewrite) they are still in the files of tables and in the log of the server; a "
            "second receipt says when they are gone"
        )
        with translated():
            return {"stage": "deleted", "old_bytes": words, "elsewhere": elsewhere(db.pg)}


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


# The second stage of an erasure


@dataclass(frozen=True)
class Rewritten:
    """The result of a rewrite: the files of the tables now, and what is known about the log."""

    files: dict[str, int]
    since: float
    """The log holds nothing written before this time (seconds since 1970, by the server's clock)."""
    kept: str
    """Why old bytes may still be there. Empty if they are not."""


def elsewhere(pg: psycopg.Connection) -> list[str]:
    """Other places that may have old bytes. They are the operator's responsibility."""
    found = ["backups of this database, for as long as they are kept"]
    (mode,) = pg.execute("SELECT current_setting('archive_mode')").fetchone() or ("off",)
    if mode != "off":
        found.append(f"the archive of the log (archive_mode = {mode}), for as long as it is kept")
    for (name,) in pg.execute("SELECT slot_name FROM pg_replication_slots ORDER BY slot_name"):
        found.append(f"whoever reads replication slot {name}")
    (standbys,) = pg.execute("SELECT count(*) FROM pg_stat_replication").fetchone() or (0,)
    if standbys:
        found.append(f"{standbys} standby servers")
    return found


def _rewritten(pg: psycopg.Connection) -> Rewritten:
    before = files_of(pg)
    seen: list[str] = []
    pg.add_notice_handler(lambda notice: seen.append(notice.message_detail or ""))
    pg.execute("SET client_min_messages = info")
    pg.execute("SELECT set_config('lock_timeout', %s, false)", (_PATIENCE,))  # answers wait behind a waiting lock
    try:
        for table in SUMMED:
            pg.execute(f"VACUUM (FULL, VERBOSE) {table.name}".encode())
    except psycopg.errors.LockNotAvailable:
        return Rewritten(files_of(pg), 0.0, "another session reads the tables: rewrite again when it has ended")
    files = files_of(pg)
    if any(files[table.name] == before[table.name] for table in SUMMED):  # the server only warns
        return Rewritten(
            files, 0.0, "this role may not rewrite the tables: indknn rewrite needs the role that owns them"
        )
    held = [int(found[1]) for text in seen if (found := re.match(r"(\d+)(?:\.0*)? dead row versions", text))]
    since = time.time()
    kept = ""
    if len(held) < len(SUMMED):  # the server may speak another language
        kept = "the server does not say in English whether old rows are gone: set lc_messages = 'C' for this role"
    elif any(held):
        kept = f"another session still sees {sum(held)} old rows: end it, and rewrite again"
    else:
        try:
            since, kept = _use_up_log(pg)
        except psycopg.errors.InsufficientPrivilege:
            kept = _RIGHTS
    return Rewritten(files, since, kept)


def _use_up_log(pg: psycopg.Connection) -> tuple[float, str]:
    """Switch segments until each file of the log was removed, or filled again from end to end.

    A switch fills the rest of a segment with zeros. A file that is used again keeps the time of its last write until it
    is written to. So when all files except the current one were written since, one more switch overwrites what the
    current one may still hold from an earlier use.
    """
    _switch(pg)
    next_second = "SELECT extract(epoch FROM date_trunc('second', clock_timestamp()))::float8 + 1"
    (since,) = pg.execute(next_second).fetchone() or (0,)
    pg.execute("SELECT pg_sleep(greatest(0, %s - extract(epoch FROM clock_timestamp())::float8))", (since,))
    (files,) = pg.execute("SELECT count(*) FROM pg_ls_waldir()").fetchone() or (0,)
    clean = 0
    for _ in range(files + _ROUNDS):
        _switch(pg)
        clean = clean + 1 if not _old_segments(pg, since) else 0
        if clean == 2:
            return since, ""
    held = ", ".join(elsewhere(pg)[1:]) or "wal_keep_size"
    return since, f"the server keeps {_old_segments(pg, since)} old segments of its log ({held})"


def _switch(pg: psycopg.Connection) -> None:
    pg.execute("SELECT pg_switch_wal()")
    pg.execute("CHECKPOINT")


def _old_segments(pg: psycopg.Connection, since: float) -> int:
    """How many files of the log, except the current one, were last written before this time."""
    row = pg.execute(
        "SELECT count(*) FROM pg_ls_waldir() WHERE name ~ '^[0-9A-F]{24}$' AND name <> pg_walfile_name("
        "pg_current_wal_insert_lsn()) AND extract(epoch FROM modification)::float8 < %s",
        (since,),
    ).fetchone()
    return 0 if row is None else int(row[0])


def files_of(pg: psycopg.Connection) -> dict[str, int]:
    """The number of the file of each table. A table that was written anew has another number."""
    rows = pg.execute(
        "SELECT relname, pg_relation_filenode(oid) FROM pg_class WHERE relname = ANY(%s) AND relkind = 'r' "
        "AND relnamespace = current_schema()::regnamespace ORDER BY relname",
        ([table.name for table in SUMMED],),
    )
    return dict(rows.fetchall())
