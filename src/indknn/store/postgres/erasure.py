"""Erasure in two stages: rows are deleted at once, and their old bytes are gone when tables and log were rewritten.

An UPDATE or DELETE leaves the old row in the file. VACUUM FULL writes a table anew without it. The write-ahead log
holds it until its segments are removed, or are used again and overwritten. Archives, standbys and backups are the
operator's responsibility.
"""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from typing import Any

import psycopg

from indknn.store import chain
from indknn.store.connection import Connection
from indknn.store.tables import SUMMED

ERASING = ("forget", "purge", "prune")
_PATIENCE = "2s"
_ROUNDS = 8  # extra rounds of switching the log, beyond one for each of its files
_RIGHTS = (
    "this role may not look at the log or switch it: GRANT pg_monitor, pg_checkpoint and EXECUTE ON FUNCTION "
    "pg_switch_wal() to it, or ask the operator when the log was last recycled"
)


@dataclass(frozen=True)
class Rewritten:
    """The result of a rewrite: the files of the tables now, and what is known about the log."""

    files: dict[str, int]
    since: float
    """The log holds nothing written before this time (seconds since 1970, by the server's clock)."""
    kept: str
    """Why old bytes may still be there. Empty if they are not."""


def first_stage(pg: psycopg.Connection) -> dict[str, Any]:
    """What the first receipt says."""
    return {
        "stage": "deleted",
        "old_bytes": "until a rewrite (indknn rewrite) they are still in the files of tables and in the log of the "
        "server; a second receipt says when they are gone",
        "elsewhere": elsewhere(pg),
    }


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


def rewrite(pg: psycopg.Connection) -> Rewritten:
    """Write all tables anew, and replace the log. It uses its own connection, and answers go on meanwhile."""
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
    if any(held):
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


def doubts(db: Connection, pg: psycopg.Connection) -> list[str]:
    """Why old bytes of erased people may still be here. Empty if it can be shown that they are gone."""
    last = {"erased": 0, "upto": 0}
    facts: dict[str, Any] = {}
    for entry in chain.entries(db):
        if entry.kind in ERASING:
            last["erased"] = entry.position
        elif entry.kind == "rewrite":
            facts, last["upto"] = entry.facts, entry.facts["upto"]
    if last["erased"] > last["upto"]:
        return ["erased rows were not rewritten yet: indknn rewrite"]
    if not facts:
        return []  # nobody was ever erased
    if facts["kept"]:
        return [facts["kept"]]
    if files_of(pg) != facts["files"]:
        return ["tables are in other files than the last rewrite left: whether old ones are gone cannot be told"]
    try:
        old = _old_segments(pg, facts["since"])
    except psycopg.errors.InsufficientPrivilege:
        return [f"cannot tell whether the log is still without them: {_RIGHTS}"]
    return [f"{old} segments of the log are from before the last rewrite"] if old else []
