"""The client against a real server, also where connections break."""

import asyncio
import re
import socket
import threading

import httpx
import numpy as np
import pytest

from indknn.client import ApiError, AsyncClient, Client, ConnectionLostError
from indknn.errors import InvalidInputError
from indknn.store import Store
from indknn.store.keyfile import create, keys_path
from indknn.store.verify import problems
from server.serving import Server, application, make_store, rows


@pytest.fixture
def served(tmp_path):
    path = tmp_path / "a.store"
    make_store(path, free_repeats=False).close()
    keys = {role: create(keys_path(path), role, role)[1] for role in ("analyst", "curator")}
    with Server(path) as server:
        server.keys = keys
        yield server
        assert server.stop() == 0
    with Store(path) as store:
        assert not list(problems(store))


def message(connection):
    """A whole request or response; nothing if the other end hangs up."""
    data = b""
    while piece := connection.recv(1 << 20):
        data += piece
        head, gap, body = data.partition(b"\r\n\r\n")
        length = re.search(rb"(?i)content-length: (\d+)", head)
        if gap and len(body) >= (int(length[1]) if length else 0):
            return data
    return b""


class BreakingProxy:
    """Between a client and a server: it passes on answers, but loses the first ones to what is not a GET."""

    def __init__(self, port, breaks):
        self.target, self.breaks, self.lost = port, breaks, 0
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listening.getsockname()[1]}"
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self):
        while True:
            try:
                near, _ = self._listening.accept()
            except OSError:
                return
            with near, socket.create_connection(("127.0.0.1", self.target)) as far:
                while data := message(near):
                    far.sendall(data)
                    answer = message(far)
                    if not data.startswith(b"GET") and self.lost < self.breaks:
                        self.lost += 1
                        break
                    near.sendall(answer)

    def close(self):
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()


@pytest.fixture
def breaking(served):
    proxies = []

    def make(breaks):
        proxies.append(BreakingProxy(served.port, breaks))
        return proxies[-1]

    yield make
    for proxy in proxies:
        proxy.close()


def test_everything_a_client_does(served):
    with Client(served.url, served.keys["curator"]) as carl, Client(served.url, served.keys["analyst"]) as ann:
        assert ann.is_ready()
        assert ann.session()["role"] == "analyst"
        assert ann.model()["name"] == "indknn"
        labels = ann.predict(rows(1, 3))
        assert labels.shape == (3,)
        assert set(labels.tolist()) <= {"a", "b", "c"}
        assert (
            ann.predict(rows(1, 3).astype(float), request_id="k").tolist()
            == ann.predict(rows(1, 3).astype(float), request_id="k").tolist()
        )
        likely = ann.predict_proba(rows(1, 3).astype(float), request_id="k")
        assert likely.shape == (3, 3)
        assert np.allclose(likely.sum(axis=1), 1.0)
        assert carl.status()["answers"] == 6
        added = carl.add(np.eye(4)[:2], ["a", "b"], ["ann / x", 17], ["v1", "v2"])
        assert added["records"] == 202
        assert carl.statement("ann / x")["records"] == 1
        assert carl.remove(added["ids"][1:])["removed"] == 1
        assert carl.forget("ann / x")["owners_forgotten"] == 1
        assert carl.purge()["receipt"] == "purge"
        kinds = [entry["kind"] for entry in carl.audit()["entries"]]
        assert kinds[-1] == "purge"
        with pytest.raises(ApiError, match="may not look up or change records") as told:
            ann.add(np.eye(4)[:1], ["a"], ["x"])
        assert (told.value.status, told.value.code) == (403, "forbidden")
        with pytest.raises(InvalidInputError, match="of one length"):
            carl.add(np.eye(4), ["a"], ["x"])


def test_the_async_client_does_the_same(served):
    async def run():
        async with AsyncClient(served.url, served.keys["analyst"]) as ann:
            assert await ann.is_ready()
            answers = await asyncio.gather(*(ann.predict(rows(i)) for i in range(20)))
            with pytest.raises(ApiError, match="may not look up or change records"):
                await ann.purge()
            return answers

    assert all(labels.shape == (1,) for labels in asyncio.run(run()))


def test_a_lost_answer_is_asked_for_again_and_charged_once(served, breaking):
    proxy = breaking(2)
    with Client(proxy.url, served.keys["analyst"]) as ann:
        assert ann.predict(rows(5)).shape == (1,)
        assert proxy.lost == 2
    with Client(breaking(2).url, served.keys["curator"]) as carl:
        assert carl.add(np.eye(4)[:1], ["a"], ["ann"])["repeated"]
        assert carl.status()["answers"] == 1
        assert carl.status()["records"] == 201


def test_what_cannot_be_repeated_is_not(served, breaking):
    proxy = breaking(1)
    with (
        Client(proxy.url, served.keys["curator"]) as carl,
        pytest.raises(ConnectionLostError, match="may have been done") as told,
    ):
        carl.forget("p7")
    assert told.value.unsure
    assert proxy.lost == 1


def test_a_change_that_may_have_been_made_is_not_sent_again(monkeypatch):
    """A 503 after a failed write does not say that nothing was written. A second purge would charge people again."""
    monkeypatch.setattr("time.sleep", lambda _: None)
    for code, sent in (("unavailable", 1), ("busy", 3)):
        seen = []
        refuse = httpx.MockTransport(lambda r, code=code, seen=seen: seen.append(r) or _refused(code))
        with Client("http://x", retries=2, transport=refuse) as client, pytest.raises(ApiError, match=code):
            client.purge()
        assert len(seen) == sent


def _refused(code):
    return httpx.Response(503, json={"error": "not now", "code": code})


def test_a_busy_server_is_asked_again_when_it_says(tmp_path, monkeypatch):
    waited = []
    monkeypatch.setattr("time.sleep", waited.append)
    busy = [httpx.Response(429, json={"error": "later", "code": "rate_limit"}, headers={"Retry-After": "3"})] * 2
    answers = iter([*busy, httpx.Response(200, json={"role": "analyst"}), *busy])
    with Client("http://x", retries=2, transport=httpx.MockTransport(lambda _: next(answers))) as client:
        assert client.session() == {"role": "analyst"}
        assert waited == [3.0, 3.0]
    with Client("http://x", retries=1, transport=httpx.MockTransport(lambda _: next(answers))) as client:
        with pytest.raises(ApiError) as told:
            client.session()
        assert told.value.code == "rate_limit"


def test_nobody_listens(monkeypatch):
    monkeypatch.setattr("time.sleep", lambda _: None)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{free.getsockname()[1]}"
        with Client(address, retries=2) as client:
            assert not client.is_ready()
            with pytest.raises(ConnectionLostError, match=f"{address} does not answer POST /v1/purge") as told:
                client.purge()
            assert not told.value.unsure


def test_labels_keep_their_type(tmp_path):
    for classes in ((3, 5), (0.5, 1.5), (False, True)):
        with make_store(tmp_path / f"{classes[0]}", n=0, classes=classes) as store, application(store) as inner:
            store.add(rows(0, 10), np.array(list(classes) * 5), "each-row")

            async def run(app=inner.app):
                async with AsyncClient("http://127.0.0.1", transport=httpx.ASGITransport(app)) as client:
                    return await client.predict(rows(1, 4))

            labels = asyncio.run(run())
            assert labels.dtype == np.array(classes).dtype
            assert set(labels.tolist()) <= set(classes)
