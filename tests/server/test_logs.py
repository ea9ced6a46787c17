"""The operator's log: a line for each request and event, and nothing in it about people, analysts or queries."""

import json
import logging
import re
import threading

import httpx
import pytest

from indknn.server.app import create_app
from indknn.server.telemetry import ForLog, Log
from indknn.settings import ServerOptions
from indknn.store.keyfile import create, keys_path, revoke
from server.serving import INFER, Client, Server, make_store, question, rows, wait_until

MARK = "Zaphod"
ROLES = ("analyst", "curator", "auditor", "admin", "owner")


class Served:
    """An application with keys whose holders have marked names, and the lines of its log."""

    def __init__(self, store, form):
        path, self.written = keys_path(store.path), []
        self.log = Log(form, self.written.append)
        self.keys = {
            role: create(path, role, f"{MARK}-{role}", owner=f"{MARK}/1" if role == "owner" else None)[1]
            for role in ROLES
        }
        self.app = create_app(store, keys=path, options=ServerOptions(), log=self.log)
        self.client = Client(self.app)

    def lines(self):
        """All lines, once everything is written. The application has ended then."""
        self.app.service.close()
        self.log.close()
        return b"".join(self.written).decode()


@pytest.fixture(params=["text", "json"])
def served(tmp_path, request):
    with make_store(tmp_path / "a.store", mode="model") as store:
        store.add(rows(7, 2).tolist(), ["a", "b"], [f"{MARK}/1", f"{MARK}/2"])
        made = Served(store, request.param)
        yield made
        made.lines()


def marked_requests(app):
    """For every route and method: a marked name wherever a client can put one."""
    for route in app.routes:
        path = re.sub(r"\{\w+\}", MARK, route.path.replace("{name}", "indknn").replace("{id:path}", f"{MARK}%2F1"))
        for method in sorted(route.methods - {"HEAD"}):
            yield method, path
    yield from [("GET", f"/v1/{MARK}"), ("PATCH", f"/v1/owners/{MARK}"), ("POST", f"/v1/owners/{MARK}")]


def test_no_line_names_a_person_an_analyst_or_a_query(served, monkeypatch):
    X = [[1234.5, 6789.25, 0.125, 2.0]]
    client, headers = served.client, {"x-request-id": f"{MARK}-id", "user-agent": MARK, "referer": MARK}
    record = {"owner": f"{MARK}/3", "record_id": MARK, "label": MARK, "features": X[0]}
    bodies = [{"records": [record]}, {"records": [{**record, "label": "a"}]}, {"inputs": [{"name": MARK}]}]
    bodies += [{"role": "analyst", "name": f"{MARK} the analyst"}, question(X, f"{MARK}-2")]
    for role in (*ROLES, None):
        key = served.keys.get(role, f"indknn_{MARK}")
        for method, path in marked_requests(served.app):
            for body in [None] if method == "GET" else bodies:
                client(method, path, key, json=body, headers=headers, params={"search": MARK, "after": MARK[:1]})
    assert client.ask(X, f"{MARK}-3", served.keys["analyst"]).status_code == 200

    def fail(*_, **__):
        raise RuntimeError(f"{MARK} {X}")

    log = ForLog(served.log)
    logging.getLogger("indknn.server").addHandler(log)
    monkeypatch.setattr(served.app.service.store, "forget", fail)
    assert client("DELETE", f"/v1/owners/{MARK}%2F1", served.keys["admin"]).status_code == 500
    logging.getLogger("indknn.server").removeHandler(log)
    text = served.lines()
    assert MARK.lower() not in text.lower()
    assert "indknn_Z" not in text
    for secret in (*served.keys.values(), "1234.5", "6789.25"):
        assert secret not in text
    routes = {route.path for route in served.app.routes}
    for word in (*routes, *ROLES, "RuntimeError"):
        assert word in text, word
    assert {"request", "commit", "keys", "error"} <= set(re.findall(r'(?:Z |"event": ")(\w+)', text))


def test_a_request_is_one_line_with_its_id_in_the_answer(tmp_path):
    with make_store(tmp_path / "a.store") as store:
        served = Served(store, "json")
        answers = [served.client.ask(rows(i), key=served.keys["analyst"]) for i in range(3)]
        answers += [
            served.client("GET", "/v1/owners/p1", served.keys["owner"]),
            served.client("GET", "/v2/health/live"),
        ]
        found = [json.loads(line) for line in served.lines().splitlines()]
        asked = [line for line in found if line["event"] == "request"]
        assert [line["request"] for line in asked] == [answer.headers["x-indknn-request"] for answer in answers]
        assert len({line["request"] for line in asked}) == 5
        assert [line["status"] for line in asked] == [200, 200, 200, 403, 200]
        assert [line["role"] for line in asked] == ["analyst", "analyst", "analyst", "owner", "none"]
        assert asked[0]["route"] == INFER.replace("indknn", "{name}")
        assert [line["bytes"] for line in asked] == [len(answer.content) for answer in answers]
        assert all(line["seconds"] >= 0 for line in asked)
        assert sum(line["answers"] for line in found if line["event"] == "commit") == 3


def test_the_life_of_a_server_is_in_its_log(tmp_path):
    make_store(tmp_path / "a.store", mode="model", tau=None).close()
    _, text = create(keys_path(tmp_path / "a.store"), "admin", "root")
    with Server(tmp_path / "a.store", "--log", "json") as server:
        key = {"authorization": f"Bearer {text}"}
        wait_until(lambda: httpx.get(f"{server.url}/v2/health/ready", timeout=60).status_code == 200)
        assert httpx.post(server.url + INFER, json=question(rows(1)), headers=key, timeout=60).status_code == 200
        made, _ = create(keys_path(tmp_path / "a.store"), "analyst", "ann")
        revoke(keys_path(tmp_path / "a.store"), made.id)
        assert httpx.get(f"{server.url}/v1/session", headers=key, timeout=60).status_code == 200
        assert server.stop() == 0
        found = [json.loads(line) for line in server.errors.splitlines()]
    names = [line["event"] for line in found]
    assert names[0] == "start"
    assert names[-1] == "stopped"
    assert {"listening", "ready", "stop", "keys", "training", "commit", "request"} <= set(names)
    assert names.index("listening") < names.index("ready")


def test_nobody_waits_for_a_reader_who_is_stuck_and_dropped_lines_are_counted():
    stuck, written = threading.Event(), []

    def write(lines):
        stuck.wait(60)
        written.append(lines)

    log = Log("text", write)
    for i in range(25_000):
        log.event("tick", number=i)
    stuck.set()
    log.event("last")
    log.close()
    lines = b"".join(written).decode().splitlines()
    dropped = sum(int(line.rpartition("=")[2]) for line in lines if " dropped lines=" in line)
    assert dropped > 0
    assert dropped + sum(" dropped " not in line for line in lines) == 25_001


def test_a_log_without_a_reader_does_not_end_the_server(tmp_path):
    make_store(tmp_path / "a.store").close()
    with Server(tmp_path / "a.store", "--log", "text") as server:
        server.process.stderr.close()
        for i in range(3):
            assert httpx.post(server.url + INFER, json=question(rows(i)), timeout=60).status_code == 200
        server.process.stderr = open("/dev/null")  # noqa: SIM115
        assert server.stop() == 0
