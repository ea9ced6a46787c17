"""Who may not know whether a person is in the store is told the same, by the same steps, about everybody."""

import pytest

from indknn.server.worker import Worker
from indknn.store.keyfile import ROLES, create, keys_path
from server.serving import INFER, application, question, rows

METHODS = ("GET", "DELETE", "POST", "PUT", "PATCH", "HEAD", "OPTIONS")
PEOPLE = ("p2", "P2", "p2/", "p2 ", "nobody", "gone", "x" * 5000, "<script>", "p1/../p2", "\u202ep2")
CURIOUS = ("nobody", "wrong", "analyst", "auditor", "owner")


def told(response):
    """All that a client sees, but for what it has sent itself."""
    headers = {name: value for name, value in response.headers.items() if name != "content-length"}
    return response.status_code, headers, response.text


@pytest.fixture
def curious(store):
    """A client, and the keys of those who may not know. The owner's key is for p1."""
    store.add([[1.0, 0, 0, 0]], ["a"], ["gone"])
    store.forget(["gone"])
    with application(store, roles=ROLES) as client:
        client.app.service.pace.turn = _at_once
        client.keys.update(nobody=None, wrong="wrong")
        yield client


async def _at_once(_):
    pass


@pytest.mark.parametrize("role", CURIOUS)
def test_a_person_who_exists_looks_like_one_who_does_not(curious, role, monkeypatch):
    looked = []
    monkeypatch.setattr(Worker, "run", lambda *_: looked.append(1))
    monkeypatch.setattr(Worker, "predict", lambda *_, **__: looked.append(1))
    for method in METHODS:
        paths = [f"/v1/owners/{person}" for person in PEOPLE]
        seen = {path: told(curious(method, path, curious.keys[role])) for path in paths}
        assert len({str(answer) for answer in seen.values()}) == 1, (method, seen)
        (status, *_), *_ = seen.values()
        assert status in {401, 403, 405}
        lists = curious(method, "/v1/owners?search=p2", curious.keys[role])
        assert told(lists) == told(curious(method, "/v1/owners?search=nobody", curious.keys[role]))
        assert lists.status_code in {401, 403}
        if method in {"POST", "DELETE"}:
            bodies = [{"records": [{"features": [1, 0, 0, 0], "label": "a", "owner": p}]} for p in ("p2", "nobody")]
            first, second = (curious(method, "/v1/records", curious.keys[role], json=body) for body in bodies)
            assert told(first) == told(second)
            assert first.status_code in {401, 403}
    assert looked == []  # nothing that could take longer for one than for the other


def test_an_owners_key_is_the_same_whoever_it_is_for(curious, store):
    """What a key of somebody who is not there (any more) is told is about that person alone."""
    keys = keys_path(store.path)
    absent = create(keys, "owner", "absent", owner="nobody")[1]
    present = curious.keys["owner"]
    for path, status in (("/v1/session", 200), ("/v2/models/indknn", 200), ("/v1/status", 403), ("/v1/keys", 403)):
        first, second = curious("GET", path, present), curious("GET", path, absent)
        assert first.status_code == second.status_code == status
        if path != "/v1/session":
            assert told(first) == told(second)
    assert curious("GET", "/v1/owners/p1", absent).status_code == 403
    assert curious("GET", "/v1/owners/nobody", absent).status_code == 404


def test_an_analyst_is_told_the_same_before_and_after_somebody_came(curious):
    key, admin = curious.keys["analyst"], curious.keys["admin"]
    asked = [("GET", "/v1/session"), ("GET", "/v2/models/indknn"), ("GET", "/v2/health/ready"), ("GET", "/v1/sign-in")]
    answer = curious("POST", INFER, key, json=question(rows(1), "r")).json()
    before = [told(curious(*one, key)) for one in asked]
    record = {"features": [1, 0, 0, 0], "label": "a", "owner": "newcomer"}
    assert curious("POST", "/v1/records", admin, json={"records": [record]}).status_code == 200
    assert curious("DELETE", "/v1/owners/p2", admin).status_code == 200
    assert [told(curious(*one, key)) for one in asked] == before
    assert curious("POST", INFER, key, json=question(rows(1), "r")).json() == answer
