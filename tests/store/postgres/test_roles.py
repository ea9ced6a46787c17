"""The roles of docs/postgresql.md: its SQL is run as it stands there."""

import os
import re
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest
from psycopg import errors

from helpers import postgres_server
from indknn.errors import FencedError, StoreError, StoreLockedError
from indknn.server.infer import scoped_id
from indknn.store import Store
from indknn.store.database import TABLES as STORED
from indknn.store.home import home_of
from indknn.store.verify import problems
from store.postgres.people import NAMES, SETTINGS, X, Y
from store.postgres.test_served import ask

PAGE = Path(__file__).parents[3] / "docs" / "postgresql.md"


@pytest.fixture(scope="module")
def addresses():
    """A store that was made by its owner, as seen by each of the three roles and by somebody without one."""
    blocks = re.findall(r"^```sql\n(.*?)^```", PAGE.read_text(), re.M | re.S)
    before, after = (block for block in blocks if "GRANT" in block)
    server = postgres_server.Server()
    there = {
        name: f"postgresql://{name}@:{server.port}/postgres?host={server.folder}"
        for name in ("own", "write", "read", "stranger")
    }
    with psycopg.connect(server.conninfo(), autocommit=True) as pg:
        pg.execute(before)
        pg.execute("CREATE ROLE own LOGIN IN ROLE indknn_owner; ALTER ROLE own SET role = indknn_owner")
        pg.execute("CREATE ROLE write LOGIN IN ROLE indknn_writer; CREATE ROLE read LOGIN IN ROLE indknn_reader")
        pg.execute("CREATE ROLE stranger LOGIN")
        Store.create(there["own"], SETTINGS).close()
        pg.execute(after)
    yield there
    server.close()


def test_each_role_can_do_its_work_and_no_more(addresses):
    with Store(addresses["write"]) as store:
        store.add_analyst("ann")
        store.add(X, Y, NAMES)
        store.predict(X[:3], "ann", request_id="one")
        store.fold()
        assert store.forget(["p3"])["stage"] == "deleted"
        assert "owns them" in store.rewrite()["why"][0]
        assert list(problems(store)) == []
        for refused in ("UPDATE audit SET kind = 'x'", "DELETE FROM audit", "TRUNCATE records", "DROP TABLE debits"):
            with pytest.raises(errors.InsufficientPrivilege):
                store.db.pg.execute(refused)
    with Store(addresses["read"], read_only=True) as store:
        assert list(problems(store)) == []
        assert "not rewritten" in store.home.old_bytes(store.db)[0] or "owns them" in store.home.old_bytes(store.db)[0]
    with pytest.raises(StoreError, match="permission denied"):
        Store(addresses["read"])
    with Store(addresses["own"]) as store:
        assert store.rewrite()["stage"].startswith("rewritten")


TABLES = (*STORED, "leases", "schema_version")
READ = ("SELECT * FROM {}",)
CHANGE = ("INSERT INTO {} SELECT * FROM {} LIMIT 0", "DELETE FROM {} WHERE false")
LOCK = ("SELECT * FROM {} FOR SHARE", "BEGIN; LOCK TABLE {}", "BEGIN; LOCK TABLE {} IN SHARE UPDATE EXCLUSIVE MODE")
OWN = ("TRUNCATE {}", "DROP TABLE {}", "ALTER TABLE {} ADD COLUMN x int", "VACUUM FULL {}", "CREATE INDEX ON {} ((1))")


def done(address, statements):
    """The statements, of each table, that somebody can carry out. Nothing remains of them."""
    home, able = home_of(address), set()
    session = home._connected()
    for table in TABLES:
        for statement in statements:
            noticed = []
            session.pg.add_notice_handler(lambda notice, seen=noticed: seen.append(notice.message_primary))
            try:
                session.pg.execute(statement.replace("{}", f"indknn.{table}").encode())
                if not any("skipping" in words for words in noticed):  # a VACUUM without the right only warns
                    able.add((table, statement))
            except errors.InsufficientPrivilege:
                pass
            finally:
                session.pg.execute("ROLLBACK")
    home.close(session)
    return able


def test_nobody_else_reads_writes_or_locks(addresses):
    assert done(addresses["stranger"], READ + CHANGE + LOCK + OWN) == set()
    for options in ({}, {"read_only": True}):
        with pytest.raises(StoreError):
            Store(addresses["stranger"], **options)
    with pytest.raises(StoreError):
        home_of(addresses["stranger"]).take_over()


def test_the_reader_only_reads_and_the_writer_owns_nothing(addresses):
    assert done(addresses["read"], READ + CHANGE + LOCK + OWN) == {(table, READ[0]) for table in TABLES}
    assert done(addresses["write"], OWN) == set()
    able = done(addresses["write"], CHANGE)
    assert {table for table, _ in able} == set(STORED)
    assert ("audit", CHANGE[1]) not in able


def test_a_session_of_another_role_is_seen_and_can_be_replaced(addresses):
    """Nobody may end a session of another role, so it lives on, and is shut out."""
    for first, second in (("write", "own"), ("own", "write")):
        with Store(addresses[first]) as old:
            with pytest.raises(StoreLockedError, match="in use by process"):
                Store(addresses[second])
            assert "process" in home_of(addresses[second]).take_over()
            assert not old.home.still_held(old.db)
            with Store(addresses[second]) as new:
                with pytest.raises(FencedError):
                    old.add(X[:1], Y[:1], ["p0"])
                assert old.fenced
                assert list(problems(new)) == []


def test_the_service_runs_as_the_writer(addresses, tmp_path):
    with Store(addresses["write"]) as store:
        store.add(X + 1, Y, NAMES)
    command = [sys.executable, "-m", "indknn", "serve", addresses["write"], "--port", "0", "--name", "m"]
    environment = {**os.environ, "INDKNN_HOME": str(tmp_path)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        try:
            url = process.stdout.readline().rpartition(" at ")[2].strip()
            assert len(ask(url, X[:2], "one")) == 2
            with Store(addresses["read"], read_only=True) as store:
                assert store.knows(scoped_id(None, "one"))
                assert list(problems(store)) == []
        finally:
            process.terminate()
