"""Keys: seen once, kept as keyed hashes, revoked at once; a lost file opens nothing."""

import json

import pytest

from helpers.commands import run
from indknn.errors import InvalidInputError, StoreError
from indknn.server.app import create_app
from indknn.server.gate import Keyring
from indknn.store import keyfile as keys
from server.serving import application, mode, rows


def test_the_file_holds_no_key_and_is_for_nobody_else(tmp_path):
    path = tmp_path / "a.store.keys"
    key, text = keys.create(path, "analyst", "alice")
    assert mode(path) == 0o600
    assert len(text) >= len(keys.PREFIX) + 43  # 256 bits
    body = path.read_text()
    assert text not in body
    assert text.removeprefix(keys.PREFIX) not in body
    assert Keyring(path).find(text) == key


def test_the_hash_is_keyed_by_a_secret_of_the_file(tmp_path):
    (_, one), (_, other) = (keys.create(tmp_path / name, "admin", "ann") for name in ("1", "2"))
    assert one != other
    assert Keyring(tmp_path / "1").find(other) is None
    assert keys.read_key_file(tmp_path / "1").secret != keys.read_key_file(tmp_path / "2").secret


def test_a_wrong_key_is_nobodys(tmp_path):
    _, text = keys.create(tmp_path / "k", "analyst", "alice")
    ring = Keyring(tmp_path / "k")
    for wrong in ("", "x", text[:-1], text + "x", text.lower(), "é" * 50):
        assert ring.find(wrong) is None


def test_revoked_stays_listed_and_is_refused_without_a_restart(store):
    with application(store, roles=["analyst"]) as client:
        key = client.keys["analyst"]
        assert client.ask(rows(1), key=key).status_code == 200
        (gone,) = keys.revoke(keys.keys_path(store.path), "analyst")
        client.app.service.keys.refresh(force=True)  # what it does by itself within a second
        assert client.ask(rows(2), key=key).status_code == 401
    assert [k.revoked is not None for k in keys.read_key_file(keys.keys_path(store.path)).keys] == [True]
    assert gone.revoked


def test_a_new_key_works_at_once(store):
    with application(store, roles=["admin"]) as client:
        _, text = keys.create(keys.keys_path(store.path), "analyst", "late")
        assert client.ask(rows(1), key=text).status_code == 200


def test_the_first_key_closes_an_open_server_and_nothing_opens_it_again(store):
    path = keys.keys_path(store.path)
    with application(store) as client:
        ring = client.app.service.keys
        assert client("GET", "/v1/status").status_code == 200
        _, text = keys.create(path, "curator", "carol")
        ring.refresh(force=True)
        assert client("GET", "/v1/status").status_code == 401
        assert client("GET", "/v1/status", text).status_code == 200
        path.write_text("{not json")
        ring.refresh(force=True)
        assert client("GET", "/v1/status").status_code == 401
        assert client("GET", "/v1/status", text).status_code == 401
        path.unlink()
        ring.refresh(force=True)
        assert client("GET", "/v1/status").status_code == 401
    with pytest.raises(StoreError, match="had keys, but a.store.keys is lost or empty: restore that file"):
        create_app(store, keys=path)  # a new server does not open either


def test_a_file_with_revoked_keys_only_is_not_open(tmp_path):
    path = tmp_path / "k"
    keys.create(path, "analyst", "alice")
    keys.revoke(path, "alice")
    assert not Keyring(path).is_open


@pytest.mark.parametrize(
    ("values", "what"),
    [
        ({"role": "king"}, "role must be one of"),
        ({"name": ""}, "name must be"),
        ({"name": "a\nb"}, "name must be"),
        ({"role": "owner"}, "needs --owner"),
        ({"owner": "ann"}, "only an owner key"),
        ({"rate": 0.0}, "rate must be"),
        ({"rate": float("nan")}, "rate must be"),
        ({"max_queries": -1}, "max_queries must be"),
    ],
)
def test_bad_values_are_refused(tmp_path, values, what):
    with pytest.raises(InvalidInputError, match=what):
        keys.create(tmp_path / "k", **{"role": "analyst", "name": "alice", **values})
    assert not (tmp_path / "k").exists()


def test_the_commands(store):
    made = run(
        "keys", "create", store.path, "--role", "analyst", "--name", "alice", "--rate", 5, "--max-queries", 9, "--json"
    )
    assert made.exit_code == 0, made.output
    key = json.loads(made.output)
    listed = run("keys", "list", store.path)
    assert key["id"] in listed.output
    assert "at most 9 queries" in listed.output
    assert key["key"] not in listed.output + run("keys", "list", store.path, "--json").output
    assert run("keys", "revoke", store.path, key["id"]).exit_code == 0
    assert "revoked" in run("keys", "list", store.path).output
    again = run("keys", "revoke", store.path, key["id"])
    assert again.exit_code == 2
    assert "no key in use" in again.output


def test_a_store_that_is_not_there_gets_no_keys(tmp_path):
    result = run("keys", "create", tmp_path / "no.store", "--role", "admin", "--name", "a")
    assert result.exit_code == 2
    assert not list(tmp_path.iterdir())
