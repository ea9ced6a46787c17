"""A server over a store in a database: it answers, rewrites what was erased, and stops once it was replaced."""

import asyncio
import json
import signal
import subprocess
import sys
import urllib.error
import urllib.request

import psycopg
import pytest

from indknn.errors import FencedError
from indknn.place import place_of
from indknn.server import service
from indknn.store import Store, chain
from indknn.store.home import home_of
from indknn.store.verify import problems
from server.serving import application
from store.postgres.people import NAMES, SETTINGS, X, Y

LIMIT = 120


@pytest.fixture
def outsider_of(server):
    """Connections of somebody else to the tables of a store."""
    with psycopg.connect(server.conninfo(), autocommit=True) as pg:

        def connected(place):
            pg.execute(f"SET search_path = {place_of(place).schema}")
            return pg

        yield connected


@pytest.fixture
def served(place):
    with Store.create(place, SETTINGS) as store:
        store.add(X, Y, NAMES)
    command = [sys.executable, "-m", "indknn", "serve", place, "--port", "0", "--name", "m"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    yield process, place, process.stdout.readline().rpartition(" at ")[2].strip()
    process.kill()
    process.communicate()


def ask(url, rows, name):
    tensor = {"name": "features", "shape": [len(rows), 4], "datatype": "FP64", "data": rows.ravel().tolist()}
    body = json.dumps({"id": name, "inputs": [tensor]}).encode()
    request = urllib.request.Request(f"{url}/v2/models/m/infer", body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=LIMIT) as reply:
        return json.load(reply)["outputs"][0]["data"]


def test_a_stopped_server_is_replaced_writes_nothing_when_it_wakes_and_stops(served):
    process, place, url = served
    ask(url, X[:2], "one")
    process.send_signal(signal.SIGSTOP)
    home_of(place).take_over()
    with Store(place) as successor:
        successor.predict(X[4:6])
        process.send_signal(signal.SIGCONT)
        with pytest.raises(urllib.error.HTTPError) as refused:
            ask(url, X[2:4], "two")
        assert refused.value.code == 503
        refused.value.close()
        _, said = process.communicate(timeout=LIMIT)
        assert process.returncode == 3
        assert "taken over" in said.splitlines()[-1]
        assert successor.db.execute("SELECT count(*) FROM answers").get == 4
        assert list(problems(successor)) == []


def test_an_idle_server_notices_that_it_was_replaced_and_stops(served):
    process, place, _ = served
    home_of(place).take_over()
    with Store(place) as successor:
        successor.forget(["p3"])
        _, said = process.communicate(timeout=LIMIT)  # nobody asks it anything
        assert process.returncode == 3
        assert "taken over" in said.splitlines()[-1]
        assert list(problems(successor)) == []


@pytest.mark.parametrize("session_lives", [False, True])
def test_a_replaced_server_tells_nothing_from_memory(place, outsider_of, session_lives):
    """Also if whoever took over may not end its session, and before it has looked."""
    with Store.create(place, SETTINGS) as store:
        store.add(X, Y, NAMES)
        with application(store, roles=["admin", "curator", "analyst"]) as client:
            told = {
                path: client("GET", path, client.keys["curator"])
                for path in ("/v1/owners?search=p3", "/v1/owners/p3", "/v1/status", "/v1/audit", "/v1/analysts")
            }
            assert {path: answer.status_code for path, answer in told.items()} == dict.fromkeys(told, 200)
            assert client("GET", "/v2/health/ready").status_code == 200
            if session_lives:
                outsider_of(place).execute("UPDATE leases SET epoch = epoch + 1, holder = 'somebody'")
            else:
                home_of(place).take_over()
            for path in told:
                answer = client("GET", path, client.keys["curator"])
                assert (path, answer.status_code) == (path, 503)
                assert "p3" not in answer.text
            service.look(client.app.service)
            for path in ("/v2/health/ready", "/v1/session", "/v1/keys", "/v2/models/indknn"):
                assert client("GET", path, client.keys["admin"]).status_code == 503
            with pytest.raises(FencedError):
                store.spent()


def test_a_server_whose_database_is_away_is_not_ready_and_comes_back(place, monkeypatch):
    with Store.create(place, SETTINGS) as store:
        store.add(X, Y, NAMES)
        with application(store) as client:
            with monkeypatch.context() as patched:
                patched.setattr(psycopg, "connect", _refuses)
                store.db.pg.close()
                service.look(client.app.service)
                assert client("GET", "/v2/health/ready").status_code == 503
                assert client("GET", "/v2/health/live").status_code == 200
            service.look(client.app.service)
            assert client("GET", "/v2/health/ready").status_code == 200
            assert client("GET", "/v1/owners?search=p3").json()["owners"] == ["p3"]


def _refuses(*_, **__):
    raise psycopg.OperationalError("no route to host")


def test_old_bytes_are_rewritten_beside_the_answers(place):
    async def until_rewritten(store):
        task = asyncio.create_task(service.rewrite_old_bytes(store, 1e-6))
        while chain.last(store.db).kind != "rewrite":
            await asyncio.to_thread(store.predict, X[:1])
        task.cancel()

    with Store.create(place, SETTINGS) as store:
        store.add(X, Y, NAMES)
        store.forget(["p3"])
        asyncio.run(asyncio.wait_for(until_rewritten(store), LIMIT))
        assert not any("not rewritten" in doubt for doubt in store.home.old_bytes(store.db))
        assert list(problems(store)) == []
