"""Databases that are set back: whoever was replaced stays replaced, and a witness knows better than an old backup."""

import shutil
from contextlib import contextmanager

import psycopg
import pytest

from helpers import postgres_server
from indknn.errors import FencedError, StaleStoreError, StoreError
from indknn.place import place_of
from indknn.store import Store
from indknn.store.home import home_of
from indknn.store.verify import problems
from store.postgres.people import NAMES, SETTINGS, X, Y


def dumped(server, place, name="dump.sql"):
    """A dump of the schema of this store."""
    file = server.folder / name
    server.run("pg_dump", "-d", server.conninfo(), "-n", place_of(place).schema, "-f", file)
    return file


def restored(server, place, file):
    """The schema as it is in the dump, in its old place."""
    with psycopg.connect(server.conninfo(), autocommit=True) as pg:
        pg.execute(f"DROP SCHEMA {place_of(place).schema} CASCADE")
    server.run("psql", "-q", "-v", "ON_ERROR_STOP=1", "-d", server.conninfo(), "-f", file)


def refused_for_good(store):
    """It answers nothing new, repeats nothing, and changes nothing; and it never comes back."""
    for _ in range(2):
        with pytest.raises(StoreError):
            store.predict(X[3:4], request_id="one")
        with pytest.raises(StoreError):
            store.predict(X[3:4])
        with pytest.raises(FencedError):
            store.add(X[:1], Y[:1], ["p0"])
    assert store.fenced


@contextmanager
def filled(place, **options):
    with Store.create(place, SETTINGS, **options) as store:
        store.add(X, Y, NAMES)
        yield store


def test_two_processes_with_the_same_epoch_after_a_restore(server, place):
    """A restore sets the epoch back, and the next process gets the number that the old one has."""
    with filled(place):
        pass
    dump = dumped(server, place)
    with Store(place) as old:
        old.predict(X[3:4], request_id="one")
        restored(server, place, dump)
        with Store(place) as new:
            assert new.db.lease.epoch == old.db.lease.epoch
            refused_for_good(old)
            new.predict(X[:3])
            assert list(problems(new)) == []


@pytest.mark.parametrize("taken", [True, False])
def test_a_backup_brings_back_the_lease_of_a_process_that_was_replaced(taken, server, place):
    with filled(place) as old:
        old.predict(X[3:4], request_id="one")
        dump = dumped(server, place)
        if taken:
            with psycopg.connect(server.conninfo(), autocommit=True) as pg:  # its session lives on, as if it hung
                pg.execute(f"SET search_path = {place_of(place).schema}")
                pg.execute("UPDATE leases SET epoch = epoch + 1, holder = 'somebody else'")
        restored(server, place, dump)
        refused_for_good(old)
        home_of(place).take_over()
        with Store(place) as new:
            new.predict(X[:3])
            refused_for_good(old)
            assert list(problems(new)) == []


def test_a_copy_of_the_database_is_another_database(server, tmp_path, monkeypatch):
    """The copy has every bit of the row, so only the database itself tells them apart."""
    monkeypatch.setenv("INDKNN_HOME", str(tmp_path))
    place = f"postgresql://{postgres_server.USER}@:{server.port}/people?host={server.folder}"
    with psycopg.connect(server.conninfo(), autocommit=True) as pg:
        pg.execute("CREATE DATABASE people")
        with filled(place) as old:
            old.predict(X[3:4], request_id="one")
            pg.execute("SELECT pg_terminate_backend(%s, 60000)", (old.db.pg.info.backend_pid,))
            pg.execute("CREATE DATABASE copied TEMPLATE people")
            pg.execute("DROP DATABASE people WITH (FORCE)")
            pg.execute("ALTER DATABASE copied RENAME TO people")
            refused_for_good(old)
            Store(place).close()
            refused_for_good(old)
        pg.execute("DROP DATABASE people WITH (FORCE)")


def test_a_server_that_was_set_back_under_a_running_process_is_refused(tmp_path, monkeypatch):
    """The files are as they were, so the lease is too. What the process has seen of the audit trail is missing."""
    monkeypatch.setenv("INDKNN_HOME", str(tmp_path))
    server = postgres_server.Server()
    try:
        with filled(server.new_place()) as store:
            backup = server.folder / "backup"
            server.run("pg_basebackup", "-D", backup, "-c", "fast", "-h", server.folder, "-p", server.port)
            store.predict(X[4:5])
            server.stop()
            shutil.rmtree(server.data)
            backup.rename(server.data)
            server.start()
            with pytest.raises(StoreError, match="PostgreSQL says|not answered"):
                store.predict(X[5:6])  # the connection is lost
            for _ in range(2):
                with pytest.raises(StaleStoreError, match="old copy"):
                    store.predict(X[5:6])
    finally:
        server.close()


def test_an_old_dump_is_refused_where_there_is_a_witness(server, place, tmp_path):
    witness = tmp_path / "witness"
    with filled(place, witness=witness) as store:
        store.predict(X[:1])
    dump = dumped(server, place)
    with Store(place, witness=witness) as store:
        store.predict(X[1:2])
    newest = dumped(server, place, "newest.sql")
    restored(server, place, dump)
    for options in ({}, {"read_only": True}):
        with pytest.raises(StaleStoreError, match="old copy"):
            Store(place, witness=witness, **options)
    with pytest.raises(StaleStoreError, match="has a witness"):
        Store(place)
    restored(server, place, newest)
    with Store(place, witness=witness) as store:
        store.predict(X[2:3])
        assert list(problems(store)) == []
