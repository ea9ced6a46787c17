"""The roles of docs/postgresql.md: its SQL is run as it stands there."""

import re
from pathlib import Path

import psycopg
import pytest
from psycopg import errors

import postgres_server
from indknn.errors import StoreError
from indknn.store import Store
from indknn.store.verify import problems
from store.postgres.people import NAMES, SETTINGS, X, Y

PAGE = Path(__file__).parents[3] / "docs" / "postgresql.md"


@pytest.fixture(scope="module")
def addresses():
    """A store that was made by its owner, as seen by each of the three roles."""
    blocks = re.findall(r"^```sql\n(.*?)^```", PAGE.read_text(), re.M | re.S)
    before, after = (block for block in blocks if "GRANT" in block)
    server = postgres_server.Server()
    there = {
        name: f"postgresql://{name}@:{server.port}/postgres?host={server.folder}" for name in ("own", "write", "read")
    }
    with psycopg.connect(server.conninfo(), autocommit=True) as pg:
        pg.execute(before)
        pg.execute("CREATE ROLE own LOGIN IN ROLE indknn_owner; ALTER ROLE own SET role = indknn_owner")
        pg.execute("CREATE ROLE write LOGIN IN ROLE indknn_writer; CREATE ROLE read LOGIN IN ROLE indknn_reader")
        Store.create(there["own"], SETTINGS).close()
        pg.execute(after)
    yield there
    server.close()


def test_each_role_can_do_its_work_and_no_more(addresses):
    with Store(addresses["write"]) as store:
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
