"""A server says that it is ready when the first query need not wait for a model to be loaded."""

import asyncio
import gc
import threading
from types import SimpleNamespace

import numpy as np
import pytest

from indknn.errors import StoreError
from indknn.place import Address
from indknn.server import serve, service
from indknn.server.app import create_app
from indknn.tables.columns import Text
from server.serving import Client, Server, make_store, rows, wait_until

READY = "/v2/health/ready"


@pytest.fixture(autouse=True)
def _thawed():
    yield
    gc.unfreeze()


def test_it_is_not_ready_before_the_texts_can_be_embedded(store):
    loading, loaded = threading.Event(), threading.Event()

    def embed(texts):
        loading.set()
        assert loaded.wait(60)
        return np.zeros((len(texts), 4))

    app = create_app(store, embed=embed)
    app.service.warm = False
    client, told = Client(app), []

    async def run():
        task = asyncio.ensure_future(serve.become_ready(app.service))
        assert await asyncio.to_thread(loading.wait, 60)
        told.append((await asyncio.to_thread(client, "GET", READY)).status_code)
        told.append((await asyncio.to_thread(client, "GET", "/v2/models/indknn/ready")).status_code)
        told.append((await asyncio.to_thread(client.ask, rows(1))).status_code)
        loaded.set()
        await task
        told.append((await asyncio.to_thread(client, "GET", READY)).status_code)

    try:
        asyncio.run(run())
    finally:
        app.service.close()
    assert told == [503, 503, 200, 200]


def test_it_tries_again_if_a_model_cannot_be_loaded(store, monkeypatch, caplog):
    tries = []

    def embed(texts):
        tries.append(texts)
        if len(tries) == 1:
            raise OSError("the folder is not there yet")
        return np.zeros((len(texts), 4))

    monkeypatch.setattr(serve, "_AGAIN", 0.0)
    app = create_app(store, embed=embed)
    app.service.warm = False
    asyncio.run(serve.become_ready(app.service))
    app.service.close()
    assert app.service.warm
    assert len(tries) == 2
    assert "the folder is not there yet" in caplog.text


def test_what_is_loaded_is_not_looked_through_again_while_people_wait(store):
    app = create_app(store)
    app.service.warm = False
    asyncio.run(serve.become_ready(app.service))
    app.service.close()
    assert gc.get_freeze_count() > 10 * len(gc.get_objects())


def test_the_extractors_of_a_schema_are_loaded(store, monkeypatch):
    seen = []

    def write(self, values, out):
        seen.append((self.extractor, list(values), out.shape))

    monkeypatch.setattr(Text, "write", write)
    columns = {"note": Text(extractor="words", width=3)}
    monkeypatch.setattr(type(store), "schema", type("Schema", (), {"used": columns})())
    app = create_app(store)
    serve.warm_up(app.service)
    app.service.close()
    assert seen == [("words", ["a text"], (1, 4))]


@pytest.mark.parametrize("changes", [{"mode": "model", "tau": None}, {}, {"kernel": "rbf"}, {"index": "sketch"}])
def test_the_rehearsal_charges_nobody(tmp_path, changes):
    with make_store(tmp_path / "a.store", **changes) as store:
        app = create_app(store)
        serve.warm_up(app.service)
        app.service.close()
        assert not store.spent().any()
        assert store.engine.predictor.model is None or not store.engine.predictor.model.trained


def test_a_store_without_records_is_warm_but_not_ready(tmp_path):
    make_store(tmp_path / "a.store", n=0).close()
    with Server(tmp_path / "a.store", "--log", "json") as server:
        wait_until(lambda: '"ready"' in server.process.stderr.readline())
        assert server.stop() == 0


def test_a_store_that_failed_is_read_anew_by_its_worker_never_by_the_loop_that_serves_everybody(store, monkeypatch):
    """With lost shards that takes minutes. Meanwhile the server says that it is not ready, and hears everybody."""
    app, threads, load = create_app(store), [], store._load
    monkeypatch.setattr(store, "_load", lambda: (threads.append(threading.current_thread()), load()))
    client = Client(app)
    try:
        assert client.ask(rows(0)).status_code == 200
        assert client("GET", READY).status_code == 200
        store._state.journal.failure = StoreError("a shard was lost")
        assert client("GET", READY).status_code == 503
        assert client("GET", "/v2/models/indknn").status_code == 200
        assert not threads
        assert client.ask(rows(1)).status_code == 200
        assert client("GET", READY).status_code == 200
    finally:
        app.service.close()
    assert threads
    assert threading.current_thread() not in threads


def test_a_database_that_does_not_answer_in_time_makes_a_server_not_ready(monkeypatch):
    served = SimpleNamespace(store=SimpleNamespace(path=Address("people")), closing=False, reachable=True)
    answered, seen = threading.Event(), []

    def look(service):
        assert answered.wait(60)
        service.reachable = service.closing = True

    async def run():
        watching = asyncio.ensure_future(service.stop_if_fenced(served, lambda: seen.append(served.reachable)))
        while served.reachable:
            await asyncio.sleep(0.01)
        seen.append(served.reachable)
        answered.set()
        await watching

    monkeypatch.setattr(service, "look", look)
    monkeypatch.setattr(service, "UNSURE_SECONDS", 0.01)
    monkeypatch.setattr(service, "LOOK_SECONDS", 0.0)
    asyncio.run(run())
    assert seen == [False, True]
