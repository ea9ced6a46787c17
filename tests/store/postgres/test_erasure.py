"""Erasure in two stages: marked bytes are gone from tables and log before the second receipt and not before the first."""

import secrets
from contextlib import suppress
from types import SimpleNamespace

import numpy as np
import psycopg
import pytest

from indknn.core.quantise import quantise
from indknn.settings import Settings
from indknn.store import Store, chain, keyfile
from indknn.store.verify import problems

SETTINGS = Settings(n_features=24, classes=("a", "b"), tau=0.2, max_queries=1000, reuse="none", mode="votes")


def files_with(server, marks):
    """The files of the server that hold any of these bytes."""
    bodies = {}
    for file in [path for path in server.data.rglob("*") if path.is_file()]:
        with suppress(FileNotFoundError):  # the server makes and removes files all the time
            bodies[str(file.relative_to(server.data))] = file.read_bytes()
    return {name for name, body in bodies.items() if any(mark in body for mark in marks)}


@pytest.fixture
def marked(place):
    """A store in use, and 60 people whose names and features can be found in any file."""
    rng, mark = np.random.default_rng(secrets.randbits(32)), secrets.token_hex(12)
    X, names = rng.normal(size=(180, 24)), [f"{mark}-{i // 2}" for i in range(120)] + [f"stay{i}" for i in range(60)]
    with Store.create(place, SETTINGS) as store:
        store.add(X, rng.choice(["a", "b"], size=180), names, [f"{mark}/{i}" for i in range(180)])
        store.predict(X[:20] + 0.01)
        yield store, sorted(set(names[:120])), [mark.encode(), *(v.tobytes() for v in quantise(X[:120]).values)]


def test_deleted_then_rewritten(server, marked):
    store, people, marks = marked
    with psycopg.connect(server.conninfo(), autocommit=True) as pg:
        pg.execute("ANALYZE")  # samples of values must not stay in the catalogue
        pg.execute("CHECKPOINT")
        assert any(file.startswith("base/") for file in files_with(server, marks))
        first = store.forget(people)
        assert first["stage"] == "deleted"
        assert any("backups" in who for who in first["elsewhere"])
        pg.execute("CHECKPOINT")
        assert {file.partition("/")[0] for file in files_with(server, marks)} == {"base", "pg_wal"}  # as it says
    assert store.home.old_bytes(store.db)
    store.predict(np.ones((1, 24)))
    second = store.rewrite()
    assert second["stage"].startswith("rewritten"), second
    assert second["erased_until"] >= first["at"]
    assert files_with(server, marks) == set()
    assert store.home.old_bytes(store.db) == []
    assert list(problems(store)) == []
    assert chain.last(store.db).kind == "rewrite"
    store.forget(["stay1"])
    assert store.home.old_bytes(store.db) == ["rows that were erased or undone were not rewritten yet: indknn rewrite"]


def test_old_rows_that_somebody_still_sees_are_not_said_to_be_gone(server, marked, monkeypatch):
    store, people, _ = marked
    monkeypatch.setattr("indknn.store.postgres.home._PATIENCE", "200ms")
    with Store(store.path, read_only=True):
        store.forget(people)
        assert "another session reads" in store.rewrite()["why"][0]
    with psycopg.connect(server.conninfo()) as pg:
        pg.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        pg.execute("SELECT txid_current()")
        store.forget(["stay1"])
        receipt = store.rewrite()
        assert "still sees" in receipt["why"][0]
        assert not receipt["stage"].startswith("rewritten")
    assert store.rewrite()["stage"].startswith("rewritten")


def test_what_the_server_says_in_another_language_proves_nothing(server, marked, monkeypatch):
    store, people, _ = marked
    german = lambda detail: detail.replace("dead row versions cannot be removed yet", "tote Zeilenversionen")  # noqa: E731
    listen = psycopg.Connection.add_notice_handler

    def translated(pg, heard):
        listen(pg, lambda notice: heard(SimpleNamespace(message_detail=german(notice.message_detail or ""))))

    monkeypatch.setattr(psycopg.Connection, "add_notice_handler", translated)
    with psycopg.connect(server.conninfo()) as pg:
        pg.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        pg.execute("SELECT txid_current()")
        store.forget(people)
        receipt = store.rewrite()
        assert not receipt["stage"].startswith("rewritten")
        assert "in English" in receipt["why"][0]


def test_a_log_that_is_kept_is_not_said_to_be_gone(server, marked):
    store, people, _ = marked
    with psycopg.connect(server.conninfo(), autocommit=True) as pg:
        pg.execute("SELECT pg_create_physical_replication_slot('slow', true)")
        try:
            receipt = store.forget(people)
            assert "whoever reads replication slot slow" in receipt["elsewhere"]
            assert "slot slow" in store.rewrite()["why"][0]
        finally:
            pg.execute("SELECT pg_drop_replication_slot('slow')")
    assert store.rewrite()["stage"].startswith("rewritten")


def test_tables_in_other_files_prove_nothing(server, marked):
    store, people, _ = marked
    store.forget(people)
    store.rewrite()
    with psycopg.connect(server.conninfo(), autocommit=True) as pg:
        pg.execute(f"VACUUM FULL {store.path.schema}.records")
    assert "other files" in store.home.old_bytes(store.db)[0]


def test_a_change_that_was_undone_leaves_old_bytes_too(server, marked):
    store, people, marks = marked
    X, names = np.random.default_rng(5).normal(size=(20, 24)), people[:20]
    marks = [people[0].partition("-")[0].encode(), *(row.tobytes() for row in quantise(X).values)]
    again = [(X, ["a"] * 20, names, [f"again{i}" for i in range(20)])]
    store.forget(people)
    assert store.rewrite()["stage"].startswith("rewritten")
    store.sync_batches(again, agreed=lambda _: False)  # an old table, and somebody says no
    assert store.engine.ledger.n_owners == 60
    assert "undone" in store.home.old_bytes(store.db)[0]
    assert store.rewrite()["stage"].startswith("rewritten")
    assert files_with(server, marks) == set()
    assert store.home.old_bytes(store.db) == list(problems(store)) == []
    store.sync_batches(again, agreed=lambda _: False)
    store.close()  # a command ends here
    with Store(store.path) as later:
        assert "undone" in later.home.old_bytes(later.db)[0]


def test_a_receipt_claims_nothing_about_keys_elsewhere(marked, tmp_path, monkeypatch):
    store, people, _ = marked
    files = []
    for folder in ("server", "here"):
        monkeypatch.setenv("INDKNN_HOME", str(tmp_path / folder))
        files.append(keyfile.keys_path(store.path))
        keyfile.create(files[-1], "owner", "somebody", owner=people[0])
    store.home.keys = files[1]
    receipt = store.forget(people)
    assert [people[0] in file.read_text() for file in files] == [True, False]
    assert "not in files of keys of other machines" in receipt["keys"]


def test_statistics_hold_no_values_of_people(server, marked):
    store, _, _ = marked
    with psycopg.connect(server.conninfo(), autocommit=True) as pg:
        pg.execute("ANALYZE")
        rows = pg.execute(
            "SELECT tablename, attname FROM pg_stats WHERE schemaname = %s AND tablename <> 'audit' AND attname IN "
            "('name', 'body', 'digests', 'query', 'digest', 'labels', 'spent', 'queries')",
            (store.path.schema,),
        ).fetchall()
    assert [row for row in rows if row != ("tombstones", "queries")] == []
