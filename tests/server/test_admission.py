"""Hostile clients: what is refused before it is read, and how little anybody else notices."""

import asyncio
import json
import operator
import os
import signal
import socket
import subprocess
import sys

import httpx
import pytest

from indknn.server.gate import IN_VAIN, BodyBudget
from indknn.server.limits import RESERVE, Connections, Pace
from indknn.server.problems import Problem
from indknn.server.wire import SMALL, Bounds, Reader
from indknn.store.keyfile import create, keys_path
from indknn.store.verify import problems
from server.serving import ENVIRONMENT, INFER, Server, application, make_store, question, rows, tensor, wait_until


def call(app, key, receive, path=INFER, **headers):
    """A request whose body comes from `receive`; its status and what it says."""
    sent = []

    async def send(message):
        sent.append(message)

    given = {"host": "127.0.0.1", "authorization": f"Bearer {key}", **headers}
    scope = {"type": "http", "method": "POST", "path": path, "query_string": b"", "client": ("192.0.2.1", 1)}
    scope["headers"] = [(name.replace("_", "-").encode(), str(value).encode()) for name, value in given.items()]

    async def run():
        await app(scope, receive, send)
        return sent[0]["status"], json.loads(sent[1]["body"])

    return run()


async def never():
    raise AssertionError("the body was read")


def refused(app, key, **headers):
    return asyncio.run(call(app, key, never, **headers))


def test_what_the_headers_tell_is_refused_before_the_body_is_read(store):
    keys = keys_path(store.path)
    slow = create(keys, "analyst", "slow", rate=0.001)[1]
    none = create(keys, "analyst", "none", max_queries=0)[1]
    done = create(keys, "analyst", "done", max_queries=1)[1]
    with application(store) as client:
        app = client.app
        assert client.ask(rows(1), key=slow).status_code == 200
        assert client.ask(rows(1), "k", key=done).status_code == 200
        assert refused(app, slow)[1]["code"] == "rate_limit"
        assert refused(app, none)[1]["code"] == "query_limit"
        assert refused(app, done, content_length=SMALL + 1)[1]["code"] == "body_too_large"
        assert refused(app, done)[1]["code"] == "query_limit"  # of no known length
        assert refused(app, "wrong")[0] == 401
        assert refused(app, client_key(keys), content_type="text/plain")[0] == 415
        assert refused(app, client_key(keys), content_encoding="gzip")[0] == 415
        most, _ = app.service.query_bounds
        assert refused(app, client_key(keys), content_length=most + 1)[1]["code"] == "body_too_large"
        app.service.worker.waiting = app.service.options.max_waiting
        assert refused(app, client_key(keys))[1]["code"] == "busy"
        app.service.worker.waiting = 0
        assert client.ask(rows(1), "k", key=done).status_code == 200  # a repeat, by the id in its body


def client_key(keys, role="analyst", name="any"):
    return create(keys, role, name)[1]


def test_a_repeat_by_header_may_be_long_though_the_key_is_used_up(store):
    key = create(keys_path(store.path), "analyst", "done", max_queries=4096)[1]
    with application(store, max_batch=5000) as client:
        raw = {"content": rows(1, 4096).tobytes(), "headers": {"content-type": "application/octet-stream"}}
        assert len(raw["content"]) == SMALL
        long = {"json": question(rows(1, 4096))}
        first = client("POST", INFER, key, **long, headers={"x-request-id": "k"})
        assert first.status_code == 200
        assert client("POST", INFER, key, **long).status_code == 413
        assert client("POST", INFER, key, **raw).json()["code"] == "query_limit"
        assert client("POST", INFER, key, **long, headers={"x-request-id": "k"}).json() == first.json()


def test_a_bad_request_costs_its_key_one_query_of_its_rate(store):
    key = create(keys_path(store.path), "analyst", "slow", rate=0.001)[1]
    with application(store) as client:
        assert client("POST", INFER, key, content=b"{").status_code == 400
        assert client("POST", INFER, key, content=b"{").status_code == 429


def test_bodies_on_their_way_are_bounded_for_each_sender(store):
    keys = keys_path(store.path)
    ann, bob, carol = (create(keys, "analyst", name)[1] for name in ("ann", "bob", "carol"))
    most = 1 << 20

    async def run(app):
        over = asyncio.Event()

        async def unfinished():
            await over.wait()
            return {"type": "http.disconnect"}

        async def whole():
            return {"type": "http.request", "body": json.dumps(question(rows(3))).encode()}

        def start(key):
            return asyncio.ensure_future(call(app, key, unfinished, content_length=most))

        begun = [start(ann) for _ in range(24)]
        begun += [start(bob) for _ in range(24)]
        while sum(task.done() for task in begun) < len(begun) - 2:
            await asyncio.sleep(0)
        told = [task.result() for task in begun if task.done()]
        assert len(told) == 2 * 24 - 2  # each of them holds one body
        assert {status for status, _ in told} == {503}
        assert (await call(app, carol, whole))[0] == 200
        assert (await call(app, ann, whole))[0] == 200  # a small one always finds room
        over.set()
        assert {(await task)[0] for task in begun} == {499, 503}
        assert (await start(ann))[0] == 499  # what was held has been given back

    with application(store, max_body=most, max_bodies=4 * most, max_batch=100_000) as client:
        asyncio.run(run(client.app))


def test_a_body_of_unknown_length_is_counted_as_it_comes():
    budget = BodyBudget(total=400_000, largest=100_000)
    from indknn.server.gate import read_body

    async def chunks():
        return {"type": "http.request", "body": b"x" * 30_000, "more_body": True}

    async def run(take, most):
        await read_body(chunks, {}, most, take)

    with budget.holding("ann") as take, pytest.raises(Problem) as told:
        asyncio.run(run(take, 90_000))
    assert told.value.status == 413
    with budget.holding("ann") as take, pytest.raises(Problem) as told:
        asyncio.run(run(take, 1 << 30))
    assert told.value.status == 503
    assert not budget._held
    assert budget._left == 400_000


def test_large_bodies_that_are_refused_all_the_time_are_refused_unread():
    now = [0.0]
    budget = BodyBudget(total=1 << 28, largest=1 << 26, clock=lambda: now[0])

    def send(sender, size, status=422):
        with budget.holding(sender) as take:
            take(size)
            raise Problem(status, "this is no question")

    for _ in range(3):
        with pytest.raises(Problem, match="no question"):
            send("eve", IN_VAIN // 2)
    with pytest.raises(Problem, match="had to be refused") as refused, budget.holding("eve") as take:
        take(SMALL + 1)
    assert refused.value.status == 429
    assert budget.held == 0
    for _ in range(9):
        with pytest.raises(Problem, match="no question"):
            send("ann", IN_VAIN // 2, 503)  # that was not her fault
    now[0] += 1.0
    with budget.holding("eve") as take:
        take(SMALL + 1)  # after a while she may try again


def test_who_sends_large_bodies_in_vain_is_soon_refused_before_they_are_read(client, monkeypatch):
    monkeypatch.setattr("indknn.server.gate.IN_VAIN", 1000)  # a second
    wrong = b'{"inputs":[' + b"[]," * 60_000 + b"[]]}"
    told = [client("POST", INFER, content=wrong).status_code for _ in range(2)]
    assert told[0] in {400, 413, 422}
    assert told[1] == 429
    assert client.ask(rows(1)).status_code == 200  # a small body is read as ever


HOSTILE = {
    "a name of many lists": lambda n: b'{"inputs": [{"name": [' + b"[]," * (n // 3) + b"[]]}]}",
    "many numbers": lambda n: b'{"inputs": [{"name": "features", "data": [' + b"1," * (n // 2) + b"1]}]}",
    "a deep name": lambda n: b'{"inputs": [{"name": ' + b"[" * 1000 + b"]" * 1000 + b', "x": "' + b"y" * n + b'"}]}',
    "a long text for a name": lambda n: b'{"inputs": [{"name": "' + b"x" * n + b'"}]}',
    "a long id": lambda n: b'{"id": "' + b"x" * n + b'", "inputs": [' + json.dumps(tensor(rows(1))).encode() + b"]}",
    "a long key": lambda n: b'{"' + b"x" * n + b'": 1}',
    "nothing but brackets": lambda n: b"[" * n,
    "nothing but objects": lambda n: b'{"a":' * (n // 5),
}


@pytest.mark.parametrize("kind", HOSTILE)
@pytest.mark.parametrize("size", [10_000, 5_000_000])
def test_a_hostile_body_is_refused_in_a_few_words(store, kind, size):
    with application(store, max_batch=100_000) as client:
        response = client("POST", INFER, content=HOSTILE[kind](size))
        assert 400 <= response.status_code < 500, response.text
        assert len(response.content) < 1000
        assert client.ask(rows(1)).status_code == 200


@pytest.mark.parametrize("path", ["/v1/records"])
def test_hostile_uploads_are_refused_in_a_few_words(store, path):
    record = {"features": [1, 0, 0, 0], "label": "a", "owner": "ann"}
    many = {"records": [{**record, "features": ["x"] * 4}] * 9000}
    for body in (
        b'{"records": [' + b"[]," * 1_000_000 + b"[]]}",
        b'{"records": [' + b"[" * 900 + b"]" * 900 + b"]}",
        json.dumps({"records": [{**record, "owner": "x" * 200_000}]}).encode(),
        json.dumps({"records": [{**record, "x" * 200_000: 1}]}).encode(),
        json.dumps(many).encode(),
    ):
        with application(store) as client:
            response = client("POST", path, content=body)
            assert response.status_code in {400, 422}, response.text
            assert len(response.content) < 1000


def test_a_long_body_asks_what_a_short_one_does(store):
    with application(store, max_batch=5000) as client:
        X = rows(7, 3000)
        response = client("POST", INFER, json=question(X))  # read in the other process
        assert len(response.request.content) > SMALL
        first = response.json()["outputs"][0]["data"]
        raw = client("POST", INFER, content=X.tobytes(), headers={"content-type": "application/octet-stream"})
        assert raw.json()["outputs"][0]["data"] == first
        records = [{"features": x.tolist(), "label": "a", "owner": f"new-{i}"} for i, x in enumerate(X.astype(float))]
        added = client("POST", "/v1/records", json={"records": records}).json()
        assert (len(added["ids"]), added["owners"]) == (3000, 3200)
        assert client("DELETE", "/v1/records", content=json.dumps({"ids": added["ids"]})).json()["removed"] == 3000
    assert not list(problems(store))


def test_a_reader_that_dies_is_replaced(store):
    with application(store, max_batch=5000) as client:
        long = {"json": question(rows(7, 3000))}
        assert client("POST", INFER, **long).status_code == 200
        process = client.app.service.reader._process
        process.send_signal(signal.SIGSTOP)  # it takes no more, then dies in the middle of its work
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("indknn.server.wire._SECONDS", 0.2)
            assert client("POST", INFER, **long).json()["code"] == "busy"
        assert process.returncode == -signal.SIGKILL
        assert client("POST", INFER, **long).status_code == 200
        last = client.app.service.reader._process
    assert last.returncode is not None


def test_a_fault_of_the_reader_is_logged_without_what_was_read(caplog):
    reader = Reader()
    try:
        with pytest.raises(Problem) as told:
            asyncio.run(reader.read(operator.truediv, b"7" * (SMALL + 1), Bounds(9, 9), 2))
        assert told.value.status == 500
        assert "TypeError" in caplog.text
        assert "unsupported operand" not in caplog.text
    finally:
        reader.close()


@pytest.fixture
def waited(monkeypatch):
    """How long senders have to wait, by a clock that stands still."""
    seconds = []

    async def sleep(time):
        seconds.append(time)

    monkeypatch.setattr("indknn.server.limits.asyncio.sleep", sleep)
    return seconds


def test_who_is_refused_all_the_time_waits_for_it(store, waited):
    now = [0.0]
    with application(store) as client:
        client.app.service.pace = Pace(lambda: now[0])
        told = [client("GET", "/nothing").status_code for _ in range(300)]
        assert told == [404] * 270 + [429] * 30  # twenty at once, 250 wait, the others are sent away
        assert waited == pytest.approx([turn / 50 for turn in range(1, 251)])
        now[0] = 1.0  # fifty had their turn
        told = [client("GET", "/nothing").status_code for _ in range(60)]
        assert told == [404] * 50 + [429] * 10
        del waited[:]
        assert client("GET", "/v1/status").status_code == 200
        assert not waited
        now[0] = 60.0
        assert [client("GET", "/nothing").status_code for _ in range(20)] == [404] * 20
        assert not waited


def test_strangers_wait_before_anything_is_done_for_them_on_however_many_connections(store, waited):
    done = []

    async def ask(app, path, address, port):
        sent = []

        async def send(message):
            sent.append(message)

        scope = {"type": "http", "method": "GET", "path": path, "query_string": b"", "client": (address, port)}
        await app({**scope, "headers": [(b"host", b"x")]}, never, send)
        return sent[0]["status"]

    async def run(app):
        app.service.pace = Pace(lambda: 0.0)

        async def inner(scope, receive, send):
            done.append(scope["client"][0])
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b""})

        app.app = inner
        paths = ("/v2/health/ready", "/v1/session", "/", "/v1/owners/p1")
        return [await ask(app, paths[i % 4], "192.0.2.9", i) for i in range(400)], [
            await ask(app, "/v2/health/live", "192.0.2.10", 1)
        ]

    with application(store, roles=["analyst"]) as client:
        told, other = asyncio.run(run(client.app))
    assert told == [200, 401] * 135 + [429] * 130
    assert len(waited) == 250
    assert done == ["192.0.2.9"] * 135 + ["192.0.2.10"]
    assert other == [200]


@pytest.mark.parametrize("name", [b"host", b"authorization", b"content-type", b"x-request-id"])
def test_a_header_that_says_two_things_is_refused(store, name):
    with application(store, roles=["analyst"]) as client:
        key = client.keys["analyst"].encode()
        headers = {b"host": b"127.0.0.1", b"authorization": b"Bearer " + key, b"content-type": b"application/json"}
        twice = (
            [*headers.items(), (name, b"other")] if name in headers else [*headers.items(), (name, b"a"), (name, b"b")]
        )
        sent = []

        async def send(message):
            sent.append(message)

        scope = {"type": "http", "method": "POST", "path": INFER, "query_string": b"", "client": ("192.0.2.1", 1)}
        asyncio.run(client.app({**scope, "headers": twice}, never, send))
        assert sent[0]["status"] == 400
        assert "more than once" in json.loads(sent[1]["body"])["error"]


class Fake:
    """A connection that is only counted."""

    def __init__(self, since):
        self.since, self.dropped = since, False

    def idle_since(self):
        return self.since

    def drop(self):
        self.dropped = True


def test_the_connection_closes_that_was_idle_longest():
    house, busy = Connections(10), Fake(None)
    house.without_key = 10
    house.opened(busy, "a")
    idle = [Fake(float(i)) for i in range(9)]
    for one in reversed(idle):
        house.opened(one, "a")
    newest = Fake(99.0)
    house.opened(newest, "b")
    assert [one.dropped for one in idle] == [True] + [False] * 8
    assert not any(one.dropped for one in (busy, newest))
    house.shown(newest, "key")
    assert len(house) == 10
    for one in idle:
        house.closed(one)
    assert len(house) == 2
    full = [Fake(None) for _ in range(9)]
    for one in full:
        house.opened(one, "c")
    assert [one.dropped for one in full] == [False] * 8 + [True]  # nobody is idle but the one with a key...


def test_an_address_has_a_quarter_of_the_connections_and_a_key_half():
    house = Connections(8)
    keyless = [Fake(float(i)) for i in range(4)]
    for one in keyless:
        house.opened(one, "a")
    assert [one.dropped for one in keyless] == [True, True, False, False]
    house = Connections(10)
    of_a_key = [Fake(float(i)) for i in range(6)]
    for one in of_a_key:
        house.opened(one, "a")
        assert house.shown(one, "k")
    assert [one.dropped for one in of_a_key] == [True] + [False] * 5
    for one in of_a_key:
        one.since = None
    late = Fake(0.0)
    house.opened(late, "a")
    assert not house.shown(late, "k")  # all others of this key are busy: the request is refused, not charged in vain


@pytest.mark.slow
def test_idle_connections_keep_nobody_out(tmp_path):
    """With 400 descriptors and a witness, which needs one for each commit."""
    path, files = tmp_path / "a.store", 400
    make_store(path).close()
    key = create(keys_path(path), "analyst", "ann")[1]
    code = (
        f"import resource as r; r.setrlimit(r.RLIMIT_NOFILE, ({files}, {files}))\nfrom indknn.cli import main; main()"
    )
    command = [sys.executable, "-c", code, "serve", str(path), "--port", "0", "--name", "indknn"]
    command += ["--witness", str(tmp_path / "witness")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=ENVIRONMENT) as process:
        idle = []
        try:
            port = int(process.stdout.readline().rsplit(":", 1)[1])
            idle += [socket.create_connection(("127.0.0.1", port)) for _ in range(600)]
            head = {"authorization": f"Bearer {key}"}
            with httpx.Client(base_url=f"http://127.0.0.1:{port}", headers=head, timeout=60) as http:
                for i in range(20):
                    assert http.post(INFER, json=question(rows(i))).status_code == 200
                    idle.append(socket.create_connection(("127.0.0.1", port)))
            wait_until(lambda: len(os.listdir(f"/proc/{process.pid}/fd")) < (files - RESERVE) // 4 + 60)
        finally:
            for one in idle:
                one.close()
            process.terminate()
        assert process.wait(60) == 0


@pytest.mark.slow
def test_another_analyst_goes_on_beside_a_hostile_one(tmp_path):
    """A smoke test of `benchmarks/abuse.py`, without its clock: everybody is answered while hostile bodies come."""
    path = tmp_path / "a.store"
    make_store(path).close()
    ann, eve = (create(keys_path(path), "analyst", name)[1] for name in ("ann", "eve"))
    with Server(path, "--max-batch", "100000") as server:
        body = HOSTILE["a name of many lists"](9_000_000)
        head = f"POST {INFER} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {eve}\r\nContent-Length: {len(body)}\r\n\r\n"
        hostile = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(20)]
        for one in hostile[:10]:
            one.setblocking(False)
            one.send(head.encode())
        headers = {"authorization": f"Bearer {ann}"}
        with httpx.Client(base_url=server.url, headers=headers, timeout=60) as http:
            for i in range(50):
                assert http.post(INFER, json=question(rows(i))).status_code == 200
        for one in hostile:
            one.close()
        assert server.stop() == 0
        assert server.errors == ""
