"""A server beyond loopback: encrypted, and known by its certificate, unless the address says otherwise in words."""

import os
import shutil
import subprocess

import psycopg
import pytest

from helpers import postgres_server
from indknn.errors import StoreError
from indknn.store import Store
from indknn.store.verify import problems
from store.postgres.people import NAMES, SETTINGS, X, Y

HOST, PASSWORD = "db.example", "s3cret"


def openssl(folder, *words):
    subprocess.run(["openssl", *map(str, words)], cwd=folder, check=True, capture_output=True)


def authority(folder, name):
    """A certificate authority: its certificate."""
    days = ("-days", "2", "-nodes", "-subj", f"/CN={name}")
    openssl(folder, "req", "-x509", "-newkey", "rsa:2048", "-keyout", f"{name}.key", "-out", f"{name}.crt", *days)
    return folder / f"{name}.crt"


@pytest.fixture(scope="module")
def secured(tmp_path_factory):
    """A server with a certificate of our own authority: the folder of the authorities, and the server."""
    folder = tmp_path_factory.mktemp("authorities")
    authority(folder, "ours")
    authority(folder, "theirs")
    names = ("-subj", f"/CN={HOST}", "-addext", f"subjectAltName=DNS:{HOST}")
    openssl(folder, "req", "-newkey", "rsa:2048", "-nodes", "-keyout", "server.key", "-out", "server.csr", *names)
    by = ("-CA", "ours.crt", "-CAkey", "ours.key", "-CAcreateserial", "-copy_extensions", "copy", "-days", "2")
    openssl(folder, "x509", "-req", "-in", "server.csr", "-out", "server.crt", *by)
    server = postgres_server.Server()
    for name in ("server.key", "server.crt"):
        shutil.copy(folder / name, server.data / name)
        (server.data / name).chmod(0o600)
        if os.getuid() == 0:
            shutil.chown(server.data / name, postgres_server.USER)
    with psycopg.connect(server.conninfo(), autocommit=True) as pg:
        pg.execute(f"ALTER ROLE postgres PASSWORD '{PASSWORD}'")
        pg.execute("ALTER SYSTEM SET ssl = on")
    server.stop()
    server.start()
    yield folder, server
    server.close()


@pytest.fixture
def address(secured, tmp_path, monkeypatch):
    """An address of a new store with the options given. The name of the server leads to loopback, and so no further."""
    _, server = secured
    monkeypatch.setenv("PGHOSTADDR", "127.0.0.1")
    monkeypatch.setenv("PGPASSWORD", PASSWORD)
    monkeypatch.setenv("INDKNN_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("HOME", str(tmp_path))
    schema = server.new_place().rpartition("=")[2]
    return lambda *options, host=HOST: "&".join(
        [f"postgresql://postgres@{host}:{server.port}/postgres?schema={schema}", *options]
    )


def encrypted(store):
    ask = "SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()"
    return store.db.pg.execute(ask).fetchone()[0]


@pytest.mark.parametrize("said", [[], ["sslmode=verify-full"]])
def test_a_store_over_tls(said, secured, address):
    place = address(f"sslrootcert={secured[0] / 'ours.crt'}", *said)
    with Store.create(place, SETTINGS) as store:
        assert encrypted(store)
        store.add(X, Y, NAMES)
        store.predict(X[:3], request_id="one")
        store.forget(["p3"])
    with Store(place) as store:
        assert encrypted(store)
        assert list(problems(store)) == []


@pytest.mark.parametrize(
    ("root", "host", "why"),
    [
        ("theirs.crt", HOST, "certificate verify failed"),
        ("ours.crt", "other.example", "does not match host name"),
        (None, HOST, "root certificate"),
    ],
)
def test_a_server_that_cannot_show_who_it_is_gets_nothing(root, host, why, secured, address):
    place = address(*([] if root is None else [f"sslrootcert={secured[0] / root}"]), host=host)
    with pytest.raises(StoreError, match=why) as refused:
        Store.create(place, SETTINGS)
    assert PASSWORD not in str(refused.value)


@pytest.fixture(scope="module")
def plain(server):
    """A server that speaks no TLS."""
    with psycopg.connect(server.conninfo(), autocommit=True) as pg:
        pg.execute(f"ALTER ROLE postgres PASSWORD '{PASSWORD}'")
    return server


@pytest.mark.usefixtures("address")
def test_a_server_without_tls_is_refused_beyond_loopback_unless_the_address_says_so(plain, secured, monkeypatch):
    """A setting of the environment is not the word of whoever wrote the address."""
    schema = plain.new_place().rpartition("=")[2]
    place = f"postgresql://postgres@{HOST}:{plain.port}/postgres?schema={schema}"
    monkeypatch.setenv("PGSSLMODE", "prefer")
    root = f"&sslrootcert={secured[0] / 'ours.crt'}"
    for said in (root, "&sslmode=require", "&sslmode=verify-full" + root):
        with pytest.raises(StoreError, match="server does not support SSL"):
            Store.create(place + said, SETTINGS)
    with Store.create(place + "&sslmode=disable", SETTINGS) as store:
        assert not encrypted(store)
    monkeypatch.delenv("PGHOSTADDR")
    with Store(place.replace(HOST, "127.0.0.1")) as store:
        assert not encrypted(store)


def test_a_cut_connection_is_noticed_on_both_sides_within_half_a_minute(secured, address):
    """Without this a cut cable would hang a server for a quarter of an hour, and keep its store in use for two."""
    with Store.create(address(f"sslrootcert={secured[0] / 'ours.crt'}"), SETTINGS) as store:
        pg = store.db.pg
        told = pg.info.get_parameters()
        assert [told[name] for name in ("tcp_user_timeout", "keepalives_idle", "keepalives_interval")] == [
            "30000",
            "10",
            "5",
        ]
        there = ("tcp_user_timeout", "tcp_keepalives_idle", "tcp_keepalives_interval", "tcp_keepalives_count")
        assert [pg.execute(f"SHOW {name}").fetchone()[0] for name in there] == ["30000", "10", "5", "4"]
