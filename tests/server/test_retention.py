"""Records that expire while a server runs, and holds."""

import asyncio
import time
from threading import Event

import pytest

from indknn.core import clock
from indknn.server import worker
from indknn.server.telemetry import Metrics
from indknn.server.worker import ROWS, Training, Worker
from indknn.store import Store
from indknn.store.verify import problems
from server.serving import application, rows

START = 500_000 * 3600.0


class Time:
    """A clock that a test sets."""

    def __init__(self):
        self.seconds = START

    def __call__(self):
        return self.seconds


@pytest.fixture
def now(monkeypatch):
    time = Time()
    monkeypatch.setattr(clock, "seconds", time)
    return time


def record(seed, **more):
    return {"features": rows(seed)[0].tolist(), "label": "a", **more}


def add(client, key, *records):
    answer = client("POST", "/v1/records", key, json={"records": list(records)})
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_a_server_erases_what_has_expired_between_answers(store, now):
    with application(store, roles=["analyst", "curator"]) as client:
        curator, analyst = client.keys["curator"], client.keys["analyst"]
        soon = "2027-01-15T09:00:00Z"  # the next hour
        assert START + 3600 == 1_800_003_600.0
        told = add(client, curator, *(record(i, owner=f"late {i}", expires=soon) for i in range(40)))
        assert (told["records"], told["expired"]) == (240, 0)
        status = client("GET", "/v1/status", curator).json()["retention"]
        assert (status["expired"], status["day"], status["week"], status["never"], status["held"]) == (0, 40, 0, 200, 0)
        now.seconds += 3600
        gone = add(client, curator, record(99, owner="never", expires=soon))
        assert (gone["ids"], gone["added"], gone["expired"]) == ([-1], 0, 1)
        for seed in range(200, 400):
            assert client.ask(rows(seed), None, analyst).status_code == 200
            if client("GET", "/v1/status", curator).json()["records"] == 200:
                break
        assert client("GET", "/v1/status", curator).json()["records"] == 200
        assert client("GET", "/v1/owners/late%203", curator).json()["records"] == 0
        entries = client("GET", "/v1/audit?limit=1000", curator).json()["entries"]
        assert sum(entry["body"]["records"] for entry in entries if entry["kind"] == "expire") == 40
    assert not list(problems(store))


def test_holds_over_http(store, now):
    with application(store, roles=["analyst", "curator", "auditor"]) as client:
        curator = client.keys["curator"]
        for key in (client.keys["analyst"], client.keys["auditor"]):
            assert client("GET", "/v1/holds", key).status_code == 403
            assert client("POST", "/v1/holds", key, json={"owners": ["p1"]}).status_code == 403
        assert client("POST", "/v1/holds", curator, json={"owners": ["nobody"]}).status_code == 404
        assert client("POST", "/v1/holds", curator, json={"owners": ["p1"]}).json() == {"owners": ["p1"]}
        receipt = client("DELETE", "/v1/owners/p1", curator).json()
        assert (receipt["records"], receipt["records_held"]) == (0, 1)
        assert client("GET", "/v1/status", curator).json()["retention"]["held"] == 1
        receipt = client("DELETE", "/v1/holds", curator, json={"owners": ["p1"]}).json()
        assert (receipt["records"], receipt["owners_forgotten"]) == (1, 1)
        assert client("GET", "/v1/holds", curator).json() == {"owners": []}
        assert (
            client("POST", "/v1/records", curator, json={"records": [record(1, owner="x", expires="soon")]})
            .json()["error"]
            .startswith("row 0: expires must be a date")
        )
    assert not list(problems(store))


@pytest.mark.parametrize(("moment", "erased"), [(0.0, False), (0.2, False), (60.0, True)])
def test_nobody_who_asks_at_a_models_moment_waits_for_erasing(store, now, monkeypatch, moment, erased):
    """How much has expired is private. So no piece of erasing is between a public moment and an answer, or just before.

    Two batches wait, and there is something to erase. The moment has come, comes soon, or is far away.
    """
    seen, held, go_on, answer = [], Event(), Event(), Worker._answer
    monkeypatch.setattr(worker, "_LOOK", -1.0)  # the chores are due after every batch
    monkeypatch.setattr(Training, "_moment", lambda _: time.monotonic() + moment)
    monkeypatch.setattr(Training, "piece", lambda _: False)
    monkeypatch.setattr(Store, "expire_piece", lambda *_: seen.append("erased") or 0)
    monkeypatch.setattr(Worker, "_answer", lambda self, jobs: seen.append("answered") or answer(self, jobs))

    async def ask():
        working = Worker(store, Metrics())
        waiting = asyncio.ensure_future(working.run(lambda: held.set() or go_on.wait()))
        await asyncio.to_thread(held.wait)
        now.seconds += 3600
        seen.clear()
        asked = [working.predict(rows(seed, n).astype(float), None, None, None) for seed, n in ((1, ROWS), (2, 1))]
        await asyncio.sleep(worker._PAUSE)  # so that the pause after the piece before is over
        go_on.set()
        await asyncio.gather(waiting, *asked)
        await asyncio.to_thread(working.close)

    asyncio.run(ask())
    assert ("erased" in seen[: len(seen) - seen[::-1].index("answered")]) is erased
