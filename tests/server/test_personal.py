"""Promises of single people over HTTP: in uploads, by the owner's own key, and by the curator."""

import numpy as np
import pytest

from indknn.client import Client
from indknn.errors import InvalidInputError
from server.serving import Server, application, make_store, rows, table_store


@pytest.fixture
def store(tmp_path):
    with make_store(tmp_path / "a.store") as made:
        yield made


def record(owner, seed=0, **more):
    return {"features": rows(seed)[0].tolist(), "label": "a", "owner": owner, **more}


def test_the_owners_own_key_lowers_and_nobody_elses_does(store):
    with application(store, roles=["admin", "curator", "owner", "analyst", "auditor"]) as client:
        for role, name, status in (
            ("owner", "p1", 200),
            ("owner", "p2", 403),
            ("curator", "p2", 200),
            ("analyst", "p1", 403),
            ("auditor", "p1", 403),
        ):
            answer = client("PATCH", f"/v1/owners/{name}", client.keys[role], json={"epsilon": 0.25})
            assert answer.status_code == status, (role, name, answer.text)
        told = client("GET", "/v1/owners/p1", client.keys["owner"]).json()
        assert told["one_analyst"]["epsilon"] == 0.25
        assert told["promise"] == "your promise: epsilon = 0.25, except with probability delta = 1e-05"
        assert "promise" not in client("GET", "/v1/owners/p3", client.keys["curator"]).json()
        for body, status in (({"epsilon": 0.5}, 422), ({"epsilon": 0}, 422), ({"epsilon": "0.1"}, 422), ({}, 422)):
            answer = client("PATCH", "/v1/owners/p1", client.keys["owner"], json=body)
            assert answer.status_code == status, answer.text
        assert client("PATCH", "/v1/owners/zoe", client.keys["curator"], json={"epsilon": 0.1}).status_code == 404
        assert client("GET", "/v1/status", client.keys["curator"]).json()["own_promises"] == 2
        facts = client("GET", "/v1/audit?limit=1000", client.keys["auditor"]).json()["entries"]
        assert [e["body"]["owners"] for e in facts if e["kind"] == "lower"] == [1, 1]
        assert "0.25" not in str(facts)


def test_records_may_carry_a_promise(store):
    with application(store) as client:
        sent = {"records": [record("ann", epsilon=0.25), record("ann", 1), record("bob", 2)]}
        assert client("POST", "/v1/records", json=sent).status_code == 200
        assert [client("GET", f"/v1/owners/{n}").json()["one_analyst"]["epsilon"] for n in ("ann", "bob")] == [
            0.25,
            4.0,
        ]
        raised = client("POST", "/v1/records", json={"records": [record("ann", 3, epsilon=0.5)]})
        assert raised.status_code == 422
        assert "may only be lower: 0.25 was promised" in raised.json()["error"]


def test_analysts_see_nothing_of_it(store):
    """What an analyst may ask about the model is the same before and after somebody lowered their promise."""
    with application(store, roles=["admin", "analyst", "curator"]) as client:
        paths = ("/v2/models/indknn", "/v1/session", "/openapi.json")
        before = [client("GET", path, client.keys["analyst"]).json() for path in paths]
        client("PATCH", "/v1/owners/p1", client.keys["curator"], json={"epsilon": 0.25})
        assert [client("GET", path, client.keys["analyst"]).json() for path in paths] == before


def test_the_client_sends_promises_and_lowers(tmp_path):
    table_store(tmp_path / "t.store").close()
    with Server(tmp_path / "t.store") as server, Client(server.url) as client:
        table = {"age": [30, 40], "job": ["cook", "baker"], "bought": ["no", "yes"], "who": ["ann", "bob"]}
        client.add(table, epsilons=[0.25, np.nan])
        assert client.statement("ann")["one_analyst"]["epsilon"] == 0.25
        assert client.statement("bob")["one_analyst"]["epsilon"] == 8.0
        assert client.lower("bob", 2.0)["on_the_books"]["one_analyst"]["epsilon"] == 2.0
        with pytest.raises(InvalidInputError, match="epsilon of row 0 must be a number"):
            client.add(table, epsilons=["x", None])
