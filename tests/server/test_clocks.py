"""Clocks that jump while a server runs. What lasts some time is measured by a clock that nobody sets."""

import ast
import asyncio
import time
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest

import indknn.server
from indknn.core import clock
from indknn.server import service as services
from indknn.server import worker
from indknn.server.gate import BodyBudget
from indknn.server.limits import Pace, RateLimiter
from indknn.server.service import steady_days
from indknn.server.telemetry import Metrics
from indknn.server.worker import Worker
from indknn.settings import Settings
from indknn.store import Store, chain, journal
from indknn.store.keyfile import create, keys_path
from indknn.store.verify import problems
from server.serving import application, make_store, rows, wait_until

HOUR = 3600.0
JUMPS = (5, -9, 26, -48, 24 * 400, -24 * 800)


class Wall:
    """The system's clock, which somebody sets."""

    def __init__(self, monkeypatch):
        self._real, self.hours = time.time, 0.0
        monkeypatch.setattr(journal.time, "time", lambda: self._real() + HOUR * self.hours)
        monkeypatch.setattr(chain, "now", self._now)

    def _now(self):
        return (datetime.now(UTC) + timedelta(hours=self.hours)).strftime("%Y-%m-%dT%H:%M:%SZ")


@pytest.fixture
def wall(monkeypatch):
    return Wall(monkeypatch)


def test_a_served_store_goes_on_when_the_clock_jumps(store, wall):
    with application(store, roles=["analyst", "admin"]) as client:
        ask, keys = client.ask, client.keys
        first = ask(rows(1), "r", keys["analyst"])
        spent = store.spent().sum()
        for jump, hours in enumerate(JUMPS):
            wall.hours = hours
            assert ask(rows(1), "r", keys["analyst"]).json() == first.json()  # a repeat stays free
            assert store.spent().sum() == spent
            assert ask(rows(10 + jump), None, keys["analyst"]).status_code == 200
            spent = store.spent().sum()
            owner = create(keys_path(store.path), "owner", f"o{jump}", owner="p1")[1]
            assert client("GET", "/v1/owners/p1", owner).status_code == 200  # a key does not expire
            assert client("GET", "/v1/status", keys["admin"]).status_code == 200
        entries = client("GET", "/v1/audit?limit=1000", keys["admin"]).json()["entries"]
        times = [entry["at"] for entry in entries]
        assert times == sorted(times)
        over_time = client("GET", "/v1/status", keys["admin"]).json()["answers_over_time"]
        assert sum(step["answers"] for step in over_time) == 1 + len(JUMPS)
        assert [step["at"] for step in over_time] == sorted(step["at"] for step in over_time)
    assert not list(problems(store))


def test_requests_are_not_forgotten_because_the_clock_was_set_forward(store, wall, monkeypatch):
    passed, slept = [0.0], []
    monkeypatch.setattr(services, "steady_days", lambda: steady_days(lambda: passed[0]))
    with application(store, keep_requests=30) as client:
        first = client.ask(rows(1), "r").json()

        async def sleep(_):
            slept.append(store.db.execute("SELECT count(*) FROM requests").get)
            passed[0] += HOUR
            wall.hours = 24 * 400 if len(slept) < 30 else 24 * 32
            if len(slept) > 30:
                passed[0] += 32 * 24 * HOUR  # now so much time has really passed
            if len(slept) == 40:
                raise asyncio.CancelledError

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(services.asyncio, "sleep", sleep)
            with pytest.raises(asyncio.CancelledError):
                asyncio.run(client.app.service.prune_requests())
        assert slept[:31] == [1] * 31
        assert slept[-1] == 0
        assert client.ask(rows(1), "r").json()["outputs"] == first["outputs"]  # as the same query


def test_days_go_on_steadily(wall):
    passed = [0.0]
    day = steady_days(lambda: passed[0])
    first = day()
    wall.hours = 24 * 1000
    assert day() == first + 1
    wall.hours = -24 * 1000
    assert day() == first - 1000
    wall.hours, passed[0] = 24 * 1000, 10 * 24 * HOUR
    assert day() == first + 11


def test_limits_do_not_notice_a_clock_that_is_set(wall):
    now = [0.0]
    limiter = RateLimiter(lambda: now[0])
    assert RateLimiter()._clock is time.monotonic
    assert BodyBudget(1, 1)._clock is time.monotonic
    assert Pace()._clock is time.monotonic
    for hours in JUMPS:
        wall.hours = hours
        limiter.take("k", 1.0, 1)
        with pytest.raises(Exception, match="ask again in 1 s"):
            limiter.take("k", 1.0, 1)
        now[0] += 1.0


def test_the_server_asks_no_clock_that_can_be_set():
    """Durations are measured by monotonic clocks. Only `store` writes dates: in the trail, and of requests.

    Lines of the operator's log have dates too. Nothing follows from them.
    """
    wall_clocks = {"time.time", "time.time_ns", "datetime.now", "datetime.utcnow", "datetime.today", "date.today"}
    for path in Path(indknn.server.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute):
                allowed = {"datetime.now"} if path.name == "telemetry.py" else set()
                assert ast.unparse(node) not in wall_clocks - allowed, f"{path.name}:{node.lineno}"
            if isinstance(node, ast.ImportFrom) and node.module == "time":
                assert not {name.name for name in node.names} & {"time", "time_ns"}, path.name


def test_the_clock_alone_begins_a_period(tmp_path, monkeypatch):
    """Nobody asks and nobody calls: the server looks at the clock by itself (rule 17)."""
    now, day = [20_000 * 24 * HOUR], 24 * HOUR
    monkeypatch.setattr(clock, "seconds", lambda: now[0])
    monkeypatch.setattr(worker, "CLOCK_SECONDS", 0.02)  # this clock jumps while the server sleeps
    settings = Settings(3, ("a", "b"), tau=0.2, mode="votes", renew_days=10, i_understand="epsilon per period")
    with Store.create(tmp_path / "a.store", settings, synchronous="OFF") as store:
        store.add(np.ones((4, 3)), list("abab"), [f"p{i}" for i in range(4)])
        store.predict(np.ones((1, 3)))
        spent = store.engine.ledger.spent(["p1"], None).tolist()
        assert spent[0] > 0
        with closing(Worker(store, Metrics())):
            for periods in (1, 2):
                now[0] += 10 * day
                end = time.monotonic() + 30
                while store.engine.ledger.period < periods and time.monotonic() < end:
                    time.sleep(0.01)
                ledger = store.engine.ledger
                assert ledger.period == periods
                assert ledger.spent(["p1"], None).tolist() == [0]
                assert ledger.spent_in_all(["p1"], None).tolist() == spent
        assert not list(problems(store))


def test_a_served_store_begins_a_period_when_its_clock_was_set(tmp_path, monkeypatch):
    """The server slept until the moment that it had computed, however far the clock was set meanwhile."""
    now = [20_000 * 24 * HOUR]
    monkeypatch.setattr(clock, "seconds", lambda: now[0])
    monkeypatch.setattr(worker, "CLOCK_SECONDS", 0.05)
    renewed = {"mode": "votes", "renew_days": 10, "i_understand": "epsilon per period"}
    with make_store(tmp_path / "a.store", **renewed) as store, application(store) as client:
        assert client.ask(rows(1)).status_code == 200
        assert client("GET", "/v1/session").json()["time"]["period"] == 1
        now[0] += 10 * 24 * HOUR
        wait_until(lambda: client("GET", "/v1/session").json()["time"]["period"] == 2)
        told = client("GET", "/v1/session").json()
        assert told["guarantee"]["periods"]["begun"] == 2
        assert told["time"]["next_begins"] == "2024-10-24T00:00:00Z"
        assert not list(problems(store))
