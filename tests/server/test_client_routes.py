"""The client has a method for every route, and every method does what it says."""

import asyncio
import inspect
import json

import httpx
import pytest

from indknn.client import ApiError, AsyncClient, Client, ConnectionLostError
from indknn.client.routes import Routes
from indknn.errors import IndKNNError, InvalidInputError
from indknn.settings import Settings
from indknn.store import Store
from server.serving import application, make_store, rows, table_store

NOT_FOR_PROGRAMS = {"GET /", "GET /console/{name}"}
"""The files of the console."""
THE_SAME = "/versions/{version}"
"""Routes for clients that name a version. They are the same as those without."""


async def every_method(client, store):
    """Call every method once, and return those that were called."""
    key = await client.create_key("analyst", "zoe", max_queries=5, rate=2.5, epsilon=0.5)
    new = await client.rotate_key(key["id"])
    added = await client.add(rows(1, 2), ["a", "b"], ["new-1", "new-2"], ["r1", "r2"])
    with pytest.raises(IndKNNError):  # of classes there are no intervals
        await client.predict_interval(rows(1))
    calls = {
        "predict_interval": None,
        "predict": await client.predict(rows(1)),
        "predict_proba": await client.predict_proba(rows(1)),
        "predict_table": await client.predict_table(rows(1)),
        "model": (await client.model())["name"] == "indknn",
        "schema": await client.schema() is None,
        "session": (await client.session())["role"] == "admin",
        "sign_in": await client.sign_in() == {"needs_key": True},
        "server": (await client.server())["name"] == "indknn",
        "is_live": await client.is_live(),
        "is_ready": await client.is_ready(),
        "is_model_ready": await client.is_model_ready(),
        "signing_key": (await client.signing_key())["keys"],
        "openapi": "paths" in await client.openapi(),
        "add": len(added["ids"]) == 2,
        "remove": (await client.remove(record_ids="r1"))["removed"] == 1,
        "owners": (await client.owners("new-", limit=5)) == {"owners": ["new-2"], "more": False},
        "statement": (await client.statement("p1"))["records"] == 1,
        "hold": (await client.hold("new-2"))["owners"] == ["new-2"],
        "holds": (await client.holds())["owners"] == ["new-2"],
        "release_hold": (await client.release_hold(["new-2"]))["records"] == 0,
        "lower": (await client.lower("p1", 0.5))["receipt"] == "promise",
        "forget": (await client.forget("new-2"))["owners_forgotten"] == 1,
        "train": await client.train() == {"training": True},
        "published_model": await published(client),
        "purge": (await client.purge())["receipt"] == "purge",
        "keys": [one["id"] for one in (await client.keys())["keys"]][-2:] == [key["id"], new["id"]],
        "create_key": key["key"] != new["key"],
        "rotate_key": new["epsilon"] == 0.5,
        "revoke_key": (await client.revoke_key(new["id"]))["revoked"] is not None,
        "analysts": "admin" in [one["name"] for one in (await client.analysts())["analysts"]],
        "status": (await client.status())["records"] == 200,
        "backup": (await client.backup("a-copy.store"))["backup"] == "a-copy.store",
        "verify": (await client.verify())["ok"],
        "audit": (await client.audit(after=1, limit=2))["entries"][0]["position"] == 2,
        "metrics": "indknn_queries_answered_total" in await client.metrics(),
    }
    assert all(called is not False for called in calls.values()), calls
    return set(calls)


async def published(client):
    """The model is there when its training is done. Before that, the server says so."""
    try:
        return (await client.published_model(with_queries=True))["format"]
    except ApiError as error:
        return error.status in {409, 422}


def test_there_is_a_method_for_every_route_and_each_works(tmp_path):
    options = {"roles": ("admin",), "backups": str(tmp_path)}
    with make_store(tmp_path / "a", mode="model") as store, application(store, **options) as made:
        seen = []

        async def note(request):
            seen.append({"type": "http", "method": request.method, "path": request.url.path})

        async def run():
            transport, hooks = httpx.ASGITransport(made.app), {"request": [note]}
            options = {"transport": transport, "event_hooks": hooks}
            async with AsyncClient("http://127.0.0.1", made.keys["admin"], **options) as client:
                return await every_method(client, store)

        methods = asyncio.run(run())
        routes = made.app.app.routes
        used = {id(made.app._find(scope)[0]) for scope in seen}
        left = {
            f"{method} {route.path}"
            for route in routes
            for method in route.methods
            if id(route) not in used and THE_SAME not in route.path
        }
        assert left == NOT_FOR_PROGRAMS, "the client needs a method for these routes"
    public = {name for name, _ in inspect.getmembers(Routes, callable) if not name.startswith("_")}
    assert methods == public, "call every method in this test"


def test_both_clients_have_the_same_methods():
    for name in vars(Routes):
        if not name.startswith("_"):
            assert getattr(Client, name) is getattr(AsyncClient, name)


def test_a_curator_begins_a_training(tmp_path):
    with (
        make_store(tmp_path / "a", mode="model") as store,
        application(store, roles=("analyst", "curator")) as made,
    ):
        assert made("POST", "/v1/train", made.keys["analyst"]).status_code == 403
        assert not store.engine.predictor.model.started
        for _ in range(2):  # one that is running goes on
            assert made("POST", "/v1/train", made.keys["curator"]).json() == {"training": True}
            assert store.engine.predictor.model.started
    with table_store(tmp_path / "votes") as store, application(store) as made:
        told = made("POST", "/v1/train")
        assert (told.status_code, told.json()["code"]) == (409, "no_model")
    with Store.create(tmp_path / "draft", Settings(1, ("a", "b")), draft=True) as store, application(store) as made:
        told = made("POST", "/v1/train")
        assert (told.status_code, told.json()["code"]) == (409, "no_records")


def test_a_server_that_does_not_answer_is_named():
    def refuse(request):
        raise httpx.ConnectError("[Errno 111] Connection refused")

    with Client("http://predict.example:8080", retries=0, transport=httpx.MockTransport(refuse)) as client:
        with pytest.raises(ConnectionLostError) as told:
            client.predict([[1.0]])
        assert "http://predict.example:8080 does not answer GET /v1/session" in str(told.value)
        assert "Connection refused" in str(told.value)
        assert "\n" not in str(told.value)


@pytest.mark.parametrize("url", ["127.0.0.1:8080", "localhost", "", "ftp://x", "http://", None, "http://[::"])
def test_an_address_must_be_one(url):
    for kind in (Client, AsyncClient):
        with pytest.raises(InvalidInputError, match="must be like http://127.0.0.1:8080"):
            kind(url)


@pytest.mark.parametrize("key", ["", "  \n", "schlüssel", "two\nlines", 7])
def test_a_key_must_be_one(key):
    with pytest.raises(InvalidInputError, match="key must be the text of a key"):
        Client("http://x", key)


def test_another_server_is_not_taken_for_ours(monkeypatch):
    monkeypatch.setattr("time.sleep", lambda _: None)
    page = httpx.Response(200, text="<html>Welcome")
    moved = httpx.Response(302, headers={"Location": "https://x/login"})
    gateway = httpx.Response(502, text="<html>Bad Gateway")
    later = httpx.Response(503, text="later", headers={"Retry-After": "Wed, 21 Oct 2026 07:28:00 GMT"})
    for answer, status in ((page, 200), (moved, 302), (gateway, 502), (later, 503)):
        transport = httpx.MockTransport(lambda _, answer=answer: answer)
        with Client("http://x", transport=transport, retries=1) as client, pytest.raises(ApiError) as told:
            client.session()
        assert (told.value.status, told.value.code) == (status, "unknown")
        assert "GET http://x/v1/session" in str(told.value)
        assert "not the answer of an indknn server" in str(told.value)
    for told in ({}, [], {"model": "m"}, "x"):
        answer = httpx.MockTransport(lambda _, told=told: httpx.Response(200, json=told))
        with Client("http://x", transport=answer) as client, pytest.raises(IndKNNError, match="does not describe a"):
            client.predict([[1.0]])


def test_a_long_prediction_waits_as_long_as_the_server_says(monkeypatch):
    """A rate of 5 a second makes a piece of 512 rows wait for 102 seconds. One request waits 10 at most."""
    waited, asked = [], []
    monkeypatch.setattr("time.sleep", waited.append)
    limits = {"max_batch": 2, "max_records": 2, "max_body": 10_000, "n_features": 1, "classes": [0, 1]}
    model = {"name": "m", "inputs": [{"name": "features"}], "parameters": limits}
    later = httpx.Response(429, json={"error": "later", "code": "rate_limit"}, headers={"Retry-After": "102"})

    def answer(request):
        if request.method == "GET":
            return httpx.Response(200, json=model)
        asked.append(request.headers["x-request-id"])
        if len(asked) in {1, 3}:
            return later
        output = {"name": "label", "datatype": "INT64", "shape": [2], "parameters": {"binary_data_size": 16}}
        head = json.dumps({"outputs": [output]}).encode()
        return httpx.Response(
            200, content=head + bytes(16), headers={"Inference-Header-Content-Length": str(len(head))}
        )

    with Client("http://x", model="m", transport=httpx.MockTransport(answer)) as client:
        assert client.predict([[1.0]] * 4, request_id="r").tolist() == [0] * 4
    assert asked == ["r/0", "r/0", "r/1", "r/1"]
    assert waited == [10.0, 102.0]


def test_refusals_say_status_and_code(client):
    async def run():
        async with AsyncClient("http://127.0.0.1", transport=httpx.ASGITransport(client.app)) as one:
            with pytest.raises(ApiError, match=r"\(status 404, unknown_owner\)$"):
                await one.statement("nobody")
            for wrong in (None, 1.5, True):
                with pytest.raises(InvalidInputError, match="must be text or a whole number"):
                    await one.statement(wrong)
            for wrong in ("", "x" * 257, "a\nb", 7):
                with pytest.raises(InvalidInputError, match="request_id must be 1 to 256 printable"):
                    await one.predict(rows(1), request_id=wrong)
            for odd in (one.statement, one.owners, one.forget, one.revoke_key):
                with pytest.raises(InvalidInputError, match="a name"):
                    await odd("\ud800")
            for odd in (one.owners, one.rotate_key, one.revoke_key):
                with pytest.raises(InvalidInputError, match="a name"):
                    await odd(None)
            with pytest.raises(InvalidInputError, match="a whole number is needed"):
                await one.audit(after="x")
            with pytest.raises(InvalidInputError, match="cannot be sent as JSON"):
                await one.create_key("analyst", "ann", rate=float("nan"))
            assert len(await one.predict(rows(1), request_id="één ✓")) == 1

    asyncio.run(run())


@pytest.mark.parametrize("owner", [".", "..", "a/../b", "x y", "50%", "ü", "?", "#", 17])
def test_people_are_found_by_any_name(client, store, owner):
    store.add(rows(1), ["a"], [owner])

    async def run():
        async with AsyncClient("http://127.0.0.1", transport=httpx.ASGITransport(client.app)) as one:
            assert (await one.statement(owner))["owner"] == str(owner)
            assert (await one.forget(owner))["owners"] == [str(owner)]

    asyncio.run(run())
