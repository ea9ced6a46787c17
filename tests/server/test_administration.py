"""Keys, analysts, owners by name and the check of the store, over HTTP."""

import re
from pathlib import Path

import pytest

import indknn
from indknn.store.keyfile import create, keys_path, read_key_file
from server.serving import application, make_store, rows


def status(client, key):
    return client("GET", "/v1/session", key).status_code


@pytest.fixture
def admin(store):
    with application(store, roles=["admin", "auditor"]) as client:
        client.key = client.keys["admin"]
        yield client


def test_a_key_is_made_shown_once_rotated_and_revoked(admin, store):
    wanted = {"role": "analyst", "name": "ann", "rate": 5.5, "max_queries": 9}
    made = admin("POST", "/v1/keys", json=wanted).json()
    assert made.items() >= wanted.items()
    assert status(admin, made["key"]) == 200
    listed = admin("GET", "/v1/keys")
    assert made["key"] not in listed.text
    assert "digest" not in listed.text
    assert [key["name"] for key in listed.json()["keys"]] == ["admin", "auditor", "ann"]

    fresh = admin("POST", f"/v1/keys/{made['id']}/rotate").json()
    assert fresh.items() >= wanted.items()
    assert (status(admin, made["key"]), status(admin, fresh["key"])) == (401, 200)
    assert admin("POST", f"/v1/keys/{made['id']}/rotate").json()["code"] == "unknown_key"  # it is in use no more

    assert admin("DELETE", f"/v1/keys/{fresh['id']}").json()["revoked"]
    assert status(admin, fresh["key"]) == 401
    assert admin("DELETE", f"/v1/keys/{fresh['id']}").status_code == 404
    assert admin("DELETE", "/v1/keys/ann").status_code == 404  # by its id, never by a name that several may have
    assert len(read_key_file(keys_path(store.path)).keys) == 4


def test_an_admin_may_rotate_and_revoke_their_own_key_and_is_told(admin):
    (own,) = [key["id"] for key in admin("GET", "/v1/keys").json()["keys"] if key["role"] == "admin"]
    fresh = admin("POST", f"/v1/keys/{own}/rotate")
    assert fresh.status_code == 200
    assert status(admin, admin.key) == 401
    admin.key = fresh.json()["key"]
    assert admin("DELETE", f"/v1/keys/{fresh.json()['id']}").status_code == 200
    assert status(admin, admin.key) == 401  # the server does not open because its last admin is gone
    assert admin("GET", "/v1/sign-in").json() == {"needs_key": True}


@pytest.mark.parametrize(
    "wrong",
    [
        {"role": "king", "name": "ann"},
        {"role": "analyst"},
        {"role": "analyst", "name": ""},
        {"role": "analyst", "name": " ann"},
        {"role": "analyst", "name": "x" * 129},
        {"role": "analyst", "name": "ann", "rate": 0},
        {"role": "analyst", "name": "ann", "rate": "5"},
        {"role": "analyst", "name": "ann", "max_queries": -1},
        {"role": "analyst", "name": "ann", "owner": "p1"},
        {"role": "owner", "name": "ann"},
        {"role": "analyst", "name": "ann", "secret": "x"},
    ],
)
def test_a_key_that_makes_no_sense_is_refused(admin, wrong):
    response = admin("POST", "/v1/keys", json=wrong)
    assert response.status_code == 422
    assert len(admin("GET", "/v1/keys").json()["keys"]) == 2


def test_the_first_key_closes_an_open_server(client):
    assert client("GET", "/v1/sign-in").json() == {"needs_key": False}
    assert client("POST", "/v1/keys", json={"role": "analyst", "name": "ann"}).status_code == 422
    made = client("POST", "/v1/keys", json={"role": "admin", "name": "root"}).json()
    assert client("GET", "/v1/sign-in").json() == {"needs_key": True}
    assert (status(client, None), status(client, made["key"])) == (401, 200)


def test_who_asks_and_how_much_is_left(tmp_path):
    path = keys_path(tmp_path / "a")
    ann = create(path, "analyst", "ann", max_queries=5)[1]
    create(path, "analyst", "ann", max_queries=8)
    bob = create(path, "analyst", "bob")[1]
    with make_store(tmp_path / "a") as store, application(store, roles=["auditor"]) as client:
        store.predict(rows(9))  # by nobody, on the command line
        client.ask(rows(1, 3), key=ann)
        client.ask(rows(2), key=bob)
        told = client("GET", "/v1/analysts", client.keys["auditor"]).json()
        assert told["answers"] == 5 == client("GET", "/v1/status", client.keys["auditor"]).json()["answers"]
        assert told["analysts"] == [
            {"name": None, "answers": 1, "keys": 0, "max_queries": None, "queries_left": None, "epsilon": 4.0},
            {"name": "ann", "answers": 3, "keys": 2, "max_queries": 8, "queries_left": 5, "epsilon": 4.0},
            {"name": "bob", "answers": 1, "keys": 1, "max_queries": None, "queries_left": None, "epsilon": 4.0},
        ]


def test_owners_are_found_by_a_part_of_their_name(admin, store):
    store.add([[1, 0, 0, 0.0]] * 2, ["a", "b"], ["Ünal, Ayşe", "ward/7"])

    def search(text, **more):
        return admin("GET", "/v1/owners", params={"search": text, **more}).json()

    assert search("ÜNAL") == {"owners": ["Ünal, Ayşe"], "more": False}
    assert search("d/7")["owners"] == ["ward/7"]
    assert search("p1", limit=3) == {"owners": ["p1", "p10", "p11"], "more": True}
    assert search("nobody") == {"owners": [], "more": False}
    store.add([[1, 0, 0, 0.0]] * 3, ["a", "b", "a"], ["zz-12", "zz-11", "zz-1"])
    assert search("zz-1", limit=2) == {"owners": ["zz-1", "zz-11"], "more": True}  # who was meant exactly comes first
    assert admin("GET", "/v1/owners?search=").status_code == 422
    assert admin("GET", "/v1/owners?search=p", admin.keys["auditor"]).status_code == 403  # an auditor sees no names


def test_the_store_is_checked_and_damage_is_told(admin, store):
    told = admin("POST", "/v1/verify", admin.keys["auditor"]).json()
    assert (told["ok"], told["problems"]) == (True, [])
    assert told["entries"] >= 2
    ledger = store.engine.ledger
    ledger.charge(ledger.taken()[:1], ledger.remaining(ledger.taken()[:1], None), None)  # memory alone knows
    ledger.log = {}
    told = admin("POST", "/v1/verify").json()
    assert not told["ok"]
    assert any("memory and disk disagree" in line for line in told["problems"])


def test_the_console_has_words_for_every_kind_of_entry():
    source = Path(indknn.__file__).parent
    written = {
        kind
        for file in (source / "store").glob("*.py")
        for kind in re.findall(r'\bappend\([\w.]*\bdb, "(\w+)"', file.read_text())
    }
    assert written >= {"init", "add", "answers", "purge", "prune", "lower", "hold", "renew", "rewrite"}
    written |= {"forget", "expire"}  # by `Erased`
    told = set(re.findall(r'case "(\w+)"', (source / "server" / "console" / "audit.js").read_text()))
    assert written <= told, written - told
