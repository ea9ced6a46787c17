"""A server for all tests in this folder, and the store tests of files run again in it."""

import hashlib
from pathlib import Path

import pytest

from helpers import postgres_server
from helpers.asking import declared
from indknn.place import Address, place_of
from indknn.store import Store, analysts, keyfile
from indknn.store import home as homes
from indknn.store import store as stores
from store.postgres.people import NAMES, SETTINGS, X, Y

HERE = Path(__file__).parent

_BYTES = "looks into the bytes of a file; test_erasure.py looks into those of a server"
_COPY = "copies or damages a file; test_database.py edits tables"
FILE_ONLY = {
    "test_adding_a_record_again_changes_nothing_and_charges_nobody": _BYTES,
    "test_ids_of_records_go_with_their_owner": _BYTES,
    "test_a_purge_leaves_uploads_and_a_name_is_nowhere_in_the_file": _BYTES,
    "test_recovery_without_a_clean_close_is_the_same": _COPY,
    "test_forgotten_bytes_are_nowhere": _BYTES,
    "test_files_that_are_no_stores": "is about files",
    "test_an_old_copy_is_detected_by_the_witness": _COPY,
    "test_verify_notices_what_was_tampered_with": _COPY,
    "test_a_file_that_was_edited_is_refused": _COPY,
}
"""Tests of the file that have no meaning in a database, and why."""


def pytest_collection_modifyitems(config, items):
    why, here = postgres_server.why_not(), [item for item in items if HERE in item.path.parents]
    for item in here:
        item.add_marker(pytest.mark.postgres)
        if why:
            item.add_marker(pytest.mark.skip(reason=why))
    unfit = {item for item in here if item.originalname in FILE_ONLY}
    config.hook.pytest_deselected(items=list(unfit))
    items[:] = [item for item in items if item not in unfit]


@pytest.fixture(scope="session")
def server():
    running = postgres_server.Server()
    yield running
    running.close()


@pytest.fixture
def place(server, tmp_path, monkeypatch):
    """The address of a store that is not there yet."""
    monkeypatch.setenv("INDKNN_HOME", str(tmp_path / "home"))
    return server.new_place()


@pytest.fixture
def in_database(server, monkeypatch):
    """Every path means a schema of the server: tests that were written for files run unchanged."""
    from indknn.store.postgres.home import DatabaseHome

    class Mapped(DatabaseHome):
        def __init__(self, path):
            self.path = path
            schema = "f" + hashlib.sha256(str(path).encode()).hexdigest()[:20]
            options = {"host": str(server.folder), "port": str(server.port), "user": postgres_server.USER}
            super().__init__(Address("postgres", schema, tuple(sorted(options.items()))))
            self.place, self.keys = path, path.with_name(path.name + ".keys")

    def home_of(where):
        found = place_of(where)
        return Mapped(found) if isinstance(found, Path) else DatabaseHome(found)

    for module in (homes, stores, analysts, keyfile):
        monkeypatch.setattr(module, "home_of", home_of)


@pytest.fixture
def store(place):
    """A store of a few people."""
    with Store.create(place, SETTINGS) as made:
        declared(made, "alice", "ann").add(X, Y, NAMES, [f"r{i}" for i in range(60)])
        yield made


@pytest.fixture
def outsider(server, store):
    """Somebody else's connection to the tables of the store."""
    import psycopg

    with psycopg.connect(server.conninfo(), autocommit=True) as pg:
        pg.execute(f"SET search_path = {place_of(str(store.path)).schema}")
        yield pg
