"""A server over a store in a database: it answers, rewrites what was erased, and stops once it was replaced."""

import asyncio
import json
import signal
import subprocess
import sys
import urllib.error
import urllib.request

import pytest

from indknn.server import upkeep
from indknn.store import Store, chain
from indknn.store.home import home_of
from indknn.store.verify import problems
from store.postgres.test_database import NAMES, SETTINGS, X, Y

LIMIT = 120


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


def test_old_bytes_are_rewritten_beside_the_answers(place):
    async def until_rewritten(store):
        task = asyncio.create_task(upkeep.rewrite_old_bytes(store, 1e-6))
        while chain.last(store.db).kind != "rewrite":
            await asyncio.to_thread(store.predict, X[:1])
        task.cancel()

    with Store.create(place, SETTINGS) as store:
        store.add(X, Y, NAMES)
        store.forget(["p3"])
        asyncio.run(asyncio.wait_for(until_rewritten(store), LIMIT))
        assert not any("not rewritten" in doubt for doubt in store.home.old_bytes(store.db))
        assert list(problems(store)) == []
