"""Predictions over HTTP: both bodies, what is refused, what is idempotent, and what an analyst can see."""

import asyncio
import json

import httpx
import numpy as np
import pytest

from indknn.server.infer import scoped_id, wait_for_tick
from indknn.server.limits import RateLimiter
from indknn.store import Store
from indknn.store.keyfile import create, keys_path
from indknn.store.verify import problems
from server.serving import FEATURES, INFER, application, make_store, question, rows, tensor


def answers(store):
    return store.db.execute("SELECT count(*) FROM answers").get


def raw(client, X, name=None, **headers):
    named = {} if name is None else {"x-request-id": name}
    headers = {"content-type": "application/octet-stream", **named, **headers}
    return client("POST", INFER, content=np.asarray(X, "<f4").tobytes(), headers=headers)


def code(response, status):
    assert response.status_code == status, response.text
    return response.json()["code"]


def test_an_answer_has_the_form_of_the_protocol(client, store):
    response = client.ask(rows(1, 3), "one")
    (output,) = response.json().pop("outputs")
    assert response.json()["model_name"] == "indknn"
    assert response.json()["id"] == "one"
    assert (output["name"], output["datatype"], output["shape"]) == ("label", "BYTES", [3])
    assert set(output["data"]) <= {"a", "b", "c"}
    assert answers(store) == 3
    assert "id" not in client.ask(rows(2)).json()


def test_integer_labels_are_integers(tmp_path):
    with make_store(tmp_path / "a", n=0, classes=(3, 5)) as store, application(store) as client:
        store.add(rows(0, 10), [3, 5] * 5, "each-row")
        (output,) = client.ask(rows(1)).json()["outputs"]
        assert output["datatype"] == "INT64"
        assert output["data"][0] in {3, 5}


def test_raw_and_json_ask_the_same_thing(client, store):
    X = rows(3, 5)
    first = client.ask(X).json()["outputs"]
    assert raw(client, X).json()["outputs"] == first  # a free repeat: the very same queries
    nested = {**tensor(X, "FP64"), "data": X.tolist()}
    assert client("POST", INFER, json={"inputs": [nested]}).json()["outputs"] == first
    assert answers(store) == 5


def test_an_id_makes_it_one_charge(tmp_path):
    with make_store(tmp_path / "a", free_repeats=False) as store, application(store) as client:
        X = rows(4, 2)
        texts = {client.ask(X, "k").text, client.ask(X, "k").text, raw(client, X, "k").text}
        assert len(texts) == 1
        assert answers(store) == 2
        assert code(client.ask(rows(5), "k"), 409) == "id_conflict"
        assert answers(store) == 2


def test_ids_at_the_same_moment_are_one_charge(tmp_path):
    with make_store(tmp_path / "a", free_repeats=False) as store, application(store) as client:
        same = [("POST", INFER, {"json": question(rows(4), "k")})] * 8
        other = [("POST", INFER, {"json": question(rows(5), "k")})]
        responses = client.together(same + other)
        assert sorted(r.status_code for r in responses) in ([200] * 8 + [409], [200] + [409] * 8)
        assert len({r.text for r in responses if r.status_code == 200}) == 1
        assert answers(store) == 1


def test_analysts_do_not_meet_each_others_ids(store):
    path = keys_path(store.path)
    keys = [create(path, "analyst", name)[1] for name in ("alice", "bob", "alice")]
    with application(store) as client:
        assert client.ask(rows(1), "k", keys[0]).status_code == 200
        assert client.ask(rows(2), "k", keys[1]).status_code == 200  # neither a conflict nor an answer of alice's
        assert code(client.ask(rows(3), "k", keys[2]), 409) == "id_conflict"  # one name, one ledger, one set of ids
    assert sorted(store.engine.ledger.scopes, key=str) == [None, "alice", "bob"]
    tricky = {scoped_id("a", "1:b"), scoped_id("a:1", "b"), scoped_id(None, "1:a:1:b"), scoped_id("1", "a:1:b")}
    assert len(tricky) == 4


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"", 400),
        (b"{", 400),
        (b"\xff\xfe", 400),
        (b"[" * 60_000, 400),
        (b"[" * 1000 + b"]" * 1000, 422),
        (b"[" * 100_000, 413),  # longer than any request can be
        (b"[]", 422),
        (b"{}", 422),
        (json.dumps({"inputs": []}).encode(), 422),
        (json.dumps({"inputs": [{}]}).encode(), 422),
        (json.dumps({"inputs": [tensor(rows(1))] * 2}).encode(), 422),
        (json.dumps({"id": 7, **question(rows(1))}).encode(), 422),
        (json.dumps({**question(rows(1)), "id": "x" * 300}).encode(), 422),
        (json.dumps({**question(rows(1)), "id": "a\nb"}).encode(), 422),
        (b'{"inputs": [{"name": "features", "shape": [1, 4], "datatype": "FP32", "data": [NaN, 1, 2, 3]}]}', 400),
        (b'{"inputs": [{"name": "features", "shape": [1, 4], "datatype": "FP32", "data": [1e39, 1, 2, 3]}]}', 422),
        (b'{"inputs": [{"name": "features", "shape": [1, 4], "datatype": "FP64", "data": [1e999, 1, 2, 3]}]}', None),
        (
            b'{"inputs": [{"name": "features", "shape": [1, 4], "datatype": "FP64", "data": ['
            + b"9" * 5000
            + b", 1, 2, 3]}]}",
            None,
        ),
        (json.dumps(question(np.zeros((1, 4)))).encode(), 422),
        (json.dumps(question(np.ones((1, 3)))).encode(), 422),
        (json.dumps(question(np.ones((17, 4)))).encode(), 422),
        (json.dumps({"inputs": [{**tensor(rows(1)), "data": ["1", "2", "3", "4"]}]}).encode(), 422),
        (json.dumps({"inputs": [{**tensor(rows(1)), "data": [[1, 2], [3]]}]}).encode(), 422),
        (json.dumps({"inputs": [{**tensor(rows(1)), "data": {"a": 1}}]}).encode(), 422),
        (json.dumps({"inputs": [{**tensor(rows(1)), "data": [1, 2, 3, None]}]}).encode(), 422),
        (json.dumps({"inputs": [{**tensor(rows(1)), "data": [[1, 2, 3, "4"]]}]}).encode(), 422),
        (json.dumps({"inputs": [{**tensor(rows(1)), "data": [[1, 2, 3, 4], {}]}]}).encode(), 422),
        (json.dumps({"inputs": [{**tensor(rows(1)), "shape": [1 << 40, 1 << 40]}]}).encode(), 422),
        (json.dumps({"inputs": [{**tensor(rows(1)), "shape": [True, 4]}]}).encode(), 422),
        (json.dumps({"inputs": [{**tensor(rows(1)), "datatype": ["FP32"]}]}).encode(), 422),
    ],
)
def test_bad_bodies_are_refused_and_cost_nothing(store, body, status):
    with application(store, max_batch=16) as client:
        response = client("POST", INFER, content=body, headers={"content-type": "application/json"})
        assert response.status_code in ({400, 422} if status is None else {status}), response.text
        assert set(response.json()) == {"error", "code"}
    assert answers(store) == 0


def test_one_long_text_among_numbers_does_not_fill_the_memory(store):
    data = ["x" * 100_000] + [1] * 70_000  # as a table of texts it would take 28 GB
    body = {"inputs": [{**tensor(rows(1)), "data": data}]}
    with application(store) as client:
        assert code(client("POST", INFER, json=body), 422) == "invalid_input"


def test_bad_raw_bodies_are_refused(store):
    with application(store, max_batch=16, max_body=1000) as client:
        assert code(raw(client, np.full((1, 4), np.nan)), 422) == "invalid_input"
        assert code(raw(client, np.full((1, 4), np.inf)), 422) == "invalid_input"
        assert code(raw(client, np.ones(3)), 422) == "invalid_input"
        assert code(raw(client, np.ones((0, 4))), 422) == "invalid_input"
        assert code(raw(client, np.ones((17, 4))), 422) == "invalid_input"
        assert code(raw(client, np.ones((2, 4)), **{"x-indknn-rows": "3"}), 422) == "invalid_input"
        assert code(raw(client, np.ones((200, 4))), 413) == "body_too_large"
        assert raw(client, rows(1, 2), **{"x-indknn-rows": "2"}).status_code == 200
        assert code(client("POST", INFER, content=b"x", headers={"content-type": "text/plain"}), 415)
        assert code(client("POST", "/v2/models/other/infer", json=question(rows(1))), 404) == "not_found"
        assert code(client("GET", INFER), 405) == "method_not_allowed"
    assert answers(store) == 2


def test_a_chunked_body_is_refused_while_it_comes(store):
    sent = 0

    async def endless():
        nonlocal sent
        while sent < 1 << 30:
            sent += 1000
            yield b"x" * 1000

    async def run(app):
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://127.0.0.1") as c:
            return await c.post(INFER, content=endless())

    with application(store, max_body=10_000) as client:
        assert code(asyncio.run(run(client.app)), 413) == "body_too_large"
    assert sent < 20_000


@pytest.mark.parametrize(("method", "path"), [("POST", INFER), ("POST", "/v1/records")])
def test_a_client_that_hangs_up_is_no_fault_of_the_server(client, caplog, method, path):
    sent = []

    async def receive():
        return {"type": "http.disconnect"}

    async def send(message):
        sent.append(message)

    headers = [(b"host", b"127.0.0.1"), (b"content-length", b"100")]
    scope = {"type": "http", "method": method, "path": path, "headers": headers, "query_string": b""}
    asyncio.run(client.app(scope, receive, send))
    assert sent[0]["status"] == 499
    assert not caplog.records


def test_one_bad_request_does_not_spoil_its_neighbours(store):
    with application(store) as client:
        bad = ("POST", INFER, {"json": question(np.zeros((1, FEATURES)))})
        good = [("POST", INFER, {"json": question(rows(i))}) for i in range(20)]
        statuses = [r.status_code for r in client.together([*good[:10], bad, *good[10:]])]
        assert statuses == [200] * 10 + [422] + [200] * 10
    assert answers(store) == 20
    assert not list(problems(store))


def test_a_key_has_so_many_queries_also_after_a_restart(tmp_path):
    with make_store(tmp_path / "a") as store:
        _, key = create(keys_path(store.path), "analyst", "alice", max_queries=3)
        with application(store) as client:
            assert client.ask(rows(1, 2), "k", key).status_code == 200
            assert code(client.ask(rows(2, 2), key=key), 403) == "query_limit"
    with type(store)(tmp_path / "a") as store, application(store) as client:
        assert client.ask(rows(1, 2), "k", key).status_code == 200  # known: costs nothing
        assert client.ask(rows(3), key=key).status_code == 200
        response = client.ask(rows(4), key=key)
        assert code(response, 403) == "query_limit"
        assert "0 of 3 are left" in response.text
        assert client.ask(rows(1, 2), "k", key).status_code == 200
        assert answers(store) == 3


def test_a_key_has_its_rate(store):
    now, (_, key) = [0.0], create(keys_path(store.path), "analyst", "alice", rate=2.0)
    with application(store) as client:
        client.app.service.rate_limiter = RateLimiter(lambda: now[0])
        assert [client.ask(rows(i), key=key).status_code for i in range(4)] == [200, 200, 429, 429]
        now[0] = 0.5
        assert [client.ask(rows(i), key=key).status_code for i in range(4, 6)] == [200, 429]
        response = client.ask(rows(9, 5), key=key)
        assert code(response, 429) == "rate_limit"
        assert int(response.headers["retry-after"]) >= 1


def test_answers_and_errors_leave_on_the_tick(store, monkeypatch):
    allowed = []

    async def wait(start, seconds, late):
        allowed.append(seconds)

    monkeypatch.setattr("indknn.server.infer.wait_for_tick", wait)
    with application(store, tick=0.2, max_batch=16) as client:
        for wrong in (np.ones((0, 4)), np.ones((17, 4))):  # the tick of one query, however many rows were sent
            assert code(raw(client, wrong), 422) == "invalid_input"
        for body in (question(rows(1)), question(np.zeros((1, FEATURES))), {"inputs": 7}):
            client("POST", INFER, json=body)
        assert allowed == [0.2] * 5
        client("POST", INFER, json=question(rows(2, 3)))
        assert allowed[5:] == [pytest.approx(0.6)]  # a tick per query


@pytest.mark.parametrize("rows_asked", [1, 3])
def test_whatever_fits_into_the_tick_leaves_at_the_same_time(store, monkeypatch, rows_asked):
    now, left = [0.0], []

    async def sleep(seconds):
        now[0] += seconds

    with application(store, tick=0.1) as client:
        late = client.app.service.metrics.late
        monkeypatch.setattr("indknn.server.infer.time.perf_counter", lambda: now[0])
        monkeypatch.setattr("indknn.server.infer.asyncio.sleep", sleep)
        for took in (0.0, 0.01, 0.05, 0.0999):
            now[0] = 7.0 + took * rows_asked
            asyncio.run(wait_for_tick(7.0, 0.1 * rows_asked, late))
            left.append(now[0])
        assert max(left) - min(left) < 1e-9
        assert left[0] == pytest.approx(7.0 + 0.1 * rows_asked)
        assert "indknn_late_answers_total 0.0" in client("GET", "/metrics").text
        now[0] = 7.0 + 0.15 * rows_asked
        asyncio.run(wait_for_tick(7.0, 0.1 * rows_asked, late))
        assert now[0] == pytest.approx(7.0 + 0.2 * rows_asked)
        assert "indknn_late_answers_total 1.0" in client("GET", "/metrics").text


def test_whoever_is_waiting_shares_a_commit(client, store):
    asked = [("POST", INFER, {"json": question(rows(i))}) for i in range(40)]
    assert {r.status_code for r in client.together(asked)} == {200}
    commits = store.db.execute("SELECT count(*) FROM audit WHERE kind = 'answers'").get
    assert commits < 40
    assert answers(store) == 40


def test_an_analyst_cannot_tell_who_is_exhausted(tmp_path):
    """Everything but the noisy labels is the same to the byte, whether budgets are untouched or all gone."""
    seen = []
    for spent in (False, True):
        with (
            make_store(tmp_path / f"{spent}", n=0, classes=("a",)) as store,
            application(store, roles=["analyst"]) as client,
        ):
            store.add(rows(0, 300), ["a"] * 300, "each-row")
            key = client.keys["analyst"]
            if spent:
                ledger = store.engine.ledger
                ledger.charge(ledger.taken(), ledger.remaining(ledger.taken(), "analyst"), "analyst")
                ledger.log = {}
            bad = [question(np.zeros((1, 4))), question(np.ones((1, 3))), {"inputs": None}, {"id": 1}]
            told = [client.ask(rows(i), "n", key) for i in (1, 1, 2)]  # one class: the label is no secret
            told += [client("POST", INFER, key, json=body) for body in bad]
            told += [client(m, p, key) for m, p in (("GET", "/v2/models/indknn"), ("GET", "/v1/session"))]
            told += [client(m, p, key) for m, p in (("GET", "/v1/status"), ("GET", "/metrics"), ("GET", "/v1/audit"))]
            seen.append([(r.status_code, r.headers.multi_items(), r.content) for r in told])
    assert seen[0] == seen[1]


def test_a_draft_says_that_it_has_never_held_records(tmp_path):
    settings = {"n_features": 1, "classes": ()}
    from indknn.settings import Settings
    from indknn.store import Store

    with Store.create(tmp_path / "a", Settings(**settings), draft=True) as store, application(store) as client:
        assert code(client.ask(rows(1)), 409) == "no_records"
        assert code(client("GET", "/v2/health/ready"), 503) == "not_ready"
        assert client("GET", "/v1/session").json()["n_features"] is None
        assert client("GET", "/v1/status").status_code == 200
        body = {"records": [{"features": [1, 0, 0, 0], "label": "a"}, {"features": [0, 1, 0, 0], "label": "b"}]}
        assert client("POST", "/v1/records", json={**body, "each_row": True}).status_code == 200
        assert client.ask(rows(1)).status_code == 200
        assert client("GET", "/v1/session").json()["classes"] == ["a", "b"]


def test_a_full_disk_is_a_fixed_text_and_passes(store, monkeypatch):
    import apsw

    from indknn.store.journal import StoreJournal

    with application(store) as client:
        write = StoreJournal._write
        monkeypatch.setattr(StoreJournal, "_write", lambda *a: (_ for _ in ()).throw(apsw.FullError("p1 secret")))
        response = client.ask(rows(1))
        assert code(response, 503) == "unavailable"
        assert "secret" not in response.text
        monkeypatch.setattr(StoreJournal, "_write", write)
        assert client.ask(rows(1)).status_code == 200
    assert not list(problems(store))


def test_the_unexpected_is_a_fixed_text_and_logs_no_contents(store, monkeypatch, caplog):

    def broken(*_):
        raise RuntimeError(f"features of p{len(_)}")

    with application(store) as client:
        monkeypatch.setattr(Store, "compute", broken)
        response = client.ask(rows(1))
        assert code(response, 500) == "internal_error"
        assert "of p2" not in response.text + caplog.text
        assert "RuntimeError" in caplog.text


def test_a_fold_that_fails_leaves_nobody_waiting(store, monkeypatch):
    def fails(_):
        raise MemoryError

    monkeypatch.setattr("indknn.store.store.Store.fold_if_long", fails)
    with application(store) as client:
        assert [client.ask(rows(i)).status_code for i in range(3)] == [200] * 3


def test_nothing_is_told_of_a_batch_that_was_not_written(store, monkeypatch):
    """Whatever goes wrong between computing and committing, answers wait for the disk."""
    compute = Store.compute

    def odd(*given):
        batch = compute(*given)
        batch.outcomes.append(None)  # so that the worker stumbles after it has seen the answers
        return batch

    def full(_):
        raise OSError

    with application(store) as client:
        monkeypatch.setattr(Store, "compute", odd)
        monkeypatch.setattr("indknn.store.journal.StoreJournal.commit", full)
        assert code(client.ask(rows(1)), 503) == "unavailable"
        monkeypatch.undo()
