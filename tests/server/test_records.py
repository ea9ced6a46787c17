"""Records, people, reports: what the curator's side does over HTTP."""

import pytest
from jsonschema import Draft202012Validator

from indknn.store import chain
from indknn.store.verify import problems
from server.serving import INFER, application, make_store, question, rows


def record(seed=1, **more):
    return {"features": rows(seed)[0].tolist(), "label": "a", **more}


def add(client, *records):
    return client("POST", "/v1/records", json={"records": list(records)})


def test_records_are_added_all_or_none(client, store):
    answer = add(client, record(1, owner="ann"), record(2, owner="ann"), record(3, owner="carl")).json()
    assert (len(answer["ids"]), answer["records"], answer["owners"]) == (3, 203, 202)
    named = {"label": "a", "owner": "eve"}
    for bad in (record(4, label="z", owner="eve"), {"features": [1, 2], **named}, {"features": [0] * 4, **named}):
        response = add(client, record(5, owner="bob"), bad)
        assert response.status_code == 422, response.text
    assert len(store.engine.shard) == 203
    assert not list(problems(store))


def test_replacing_a_record_keeps_the_ledger(client, store):
    for i in range(30):
        client.ask(rows(i))
    spent = {name: store.engine.ledger.spent([name], None)[0] for name in store.engine.ledger.owners()}
    assert max(spent.values()) > 0
    ids = store.engine.shard.record_ids().tolist()[:3]
    answer = add(client, *(record(50 + i, id=i) for i in ids), record(60, owner="p9")).json()
    assert answer["records"] == 201
    assert answer["owners"] == 200
    assert not set(answer["ids"][:3]) & set(ids)
    assert {name: store.engine.ledger.spent([name], None)[0] for name in store.engine.ledger.owners()} == spent
    assert not store.engine.ledger.tombstones
    assert not list(problems(store))
    path = store.path
    store.close()
    with type(store)(path) as again:
        assert not list(problems(again))
        assert {name: again.engine.ledger.spent([name], None)[0] for name in again.engine.ledger.owners()} == spent


def test_a_record_does_not_go_to_somebody_else(client, store):
    (first, *_) = store.engine.shard.record_ids().tolist()
    told = client("POST", "/v1/records", json={"records": [record(1, id=first, owner="heir")]})
    assert told.status_code == 422
    assert "a record never changes its owner" in told.text
    assert client("GET", "/v1/owners/p0").json()["records"] == 1
    assert client("GET", "/v1/owners/heir").status_code == 404
    assert not list(problems(store))


def test_a_replacement_that_fails_changes_nothing(client, store):
    ids = store.engine.shard.record_ids().tolist()
    for bad in (
        [record(1, id=ids[0]), record(2, id=ids[0])],
        [record(1, id=ids[0]), record(2, id=10**9)],
        [record(1, id=ids[0]), record(2, label="z", owner="ann")],
        [record(1, id=ids[0]), record(2, label=5, owner="ann")],
        [record(1, id=ids[0]), record(2)],
        [record(1, id=-1)],
        [record(1, id=2**63)],
        [record(1, id="0")],
        [record(1, owner=1.5)],
        [{**record(1), "features": ["1", "2", "3", "4"]}],
        [{**record(1), "features": [True, False, 1, 2]}],
        [record(1, label=None)],
        [record(1, extra=1)],
        [],
    ):
        assert add(client, *bad).status_code == 422
    assert store.engine.shard.record_ids().tolist() == ids
    assert store._state.journal.failure is None


def test_records_are_removed_all_or_none(client, store):
    ids = store.engine.shard.record_ids().tolist()
    assert client("DELETE", "/v1/records", json={"ids": [ids[0], 10**9]}).status_code == 422
    assert client("DELETE", "/v1/records", json={"ids": []}).status_code == 422
    assert client("DELETE", "/v1/records", json={"ids": [True]}).status_code == 422
    answer = client("DELETE", "/v1/records", json={"ids": ids[:2]}).json()
    receipt = answer.pop("receipt")
    assert answer == {"removed": 2, "records": 198, "owners": 198}
    assert chain.last(store.db).hash.hex() == receipt["audit_hash"]
    assert not list(problems(store))


def test_records_are_removed_by_their_senders_own_ids_and_by_owner(client, store):
    def remove(**which):
        return client("DELETE", "/v1/records", json=which)

    visits = [record(i, owner="ann", record_id=f"visit-{i}") for i in range(3)]
    numbers = add(client, *visits, record(9, owner=17, record_id=900)).json()["ids"]
    for i in range(3):
        client.ask(rows(i))
    spent = store.spent(["ann"])
    assert spent > 0
    assert remove(record_ids=["visit-1"]).json()["removed"] == 1
    assert client("GET", "/v1/owners/ann").json()["records"] == 2
    for wrong in (
        {"record_ids": ["visit-1"]},  # it is gone
        {"record_ids": ["visit-2", "visit-7"]},
        {"record_ids": ["visit-2"], "ids": [numbers[1]]},
        {"record_ids": [1.5]},
        {"record_ids": [None]},
        {"record_ids": "visit-2"},
        {"owners": [["ann"]]},
        {},
    ):
        assert remove(**wrong).status_code == 422, wrong
    assert remove(owners=["ann", "nobody"], record_ids=["visit-2"]).json()["code"] == "unknown_owner"
    assert client("GET", "/v1/owners/ann").json()["records"] == 2  # all or none
    answer = remove(record_ids=["visit-2", 900], ids=numbers[:1]).json()  # 900 is the text of its digits
    assert (answer["removed"], answer["receipt"]["owners_forgotten"]) == (3, 2)
    assert remove(owners=["p1", "p2"]).json()["owners"] == 198
    add(client, *visits)
    assert store.spent(["ann"]) == spent  # nothing is given back
    assert not list(problems(store))


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[1]", b"null", b'{"records": 5}', b"[" * 5000, b'{"records": [{"features": [NaN]}]}']
)
def test_bad_bodies_are_told_in_the_one_shape(client, body):
    for method in ("POST", "DELETE"):
        response = client(method, "/v1/records", content=body)
        assert response.status_code in {400, 422}
        assert set(response.json()) == {"error", "code"}


def test_too_many_records_are_refused(tmp_path):
    with make_store(tmp_path / "a") as store, application(store, max_records=2, max_body=2000) as client:
        assert add(client, record(1, owner="a"), record(2, owner="a")).status_code == 200
        assert add(client, *(record(i, owner="a") for i in range(3))).status_code == 422
        assert add(client, *(record(i, owner="a") for i in range(60))).status_code == 413


def test_an_error_about_a_record_does_not_repeat_it(client):
    text = add(client, {"features": ["secret-7"], "label": "a", "owner": "somebody"}).text
    assert "records.0.features.0" in text
    assert "secret" not in text
    assert "somebody" not in text


def test_a_curator_may_purge_what_was_released_and_an_owner_may_not(store):
    with application(store, roles=("curator", "owner")) as client:
        assert client("POST", "/v1/purge", client.keys["owner"]).status_code == 403
        receipt = client("POST", "/v1/purge", client.keys["curator"]).json()
        assert receipt["receipt"] == "purge"
        assert "everybody" in receipt["public"]
        assert chain.last(store.db).hash.hex() == receipt["audit_hash"]


def test_forgetting_gives_a_receipt_that_the_trail_confirms(client, store):
    receipt = client("DELETE", "/v1/owners/p7").json()
    assert (receipt["records"], receipt["owners_forgotten"], receipt["owners"]) == (1, 1, ["p7"])
    page = client("GET", "/v1/audit").json()
    assert page["entries"][-1]["hash"] == receipt["audit_hash"]
    assert page["next"] is None
    assert client("GET", "/v1/owners/p7").json()["records"] == 0
    assert client("DELETE", "/v1/owners/nobody").status_code == 404


def test_odd_names_reach_their_owners(client, store):
    names = ["a/b", "ü", "x y", "7", "50%", "-5", "int:7"]
    add(client, *(record(i, owner=name) for i, name in enumerate(names)), record(9, owner=7), record(10, owner=-5))
    from urllib.parse import quote

    for name in names:
        facts = client("GET", f"/v1/owners/{quote(name, safe='')}").json()
        assert (facts["owner"], facts["records"]) == (name, 2 if name in {"7", "-5"} else 1)
    for strange in ("int:²", "007", "²", "9" * 900, "%00", "str:7"):
        assert client("GET", f"/v1/owners/{strange}").status_code == 404


def test_status_tells_the_promise_and_the_course(client, store):
    for i in range(5):
        client.ask(rows(i, 3))
    status = client("GET", "/v1/status").json()
    assert "store" not in status
    assert (status["records"], status["owners"], status["answers"]) == (200, 200, 15)
    assert sum(step["answers"] for step in status["answers_over_time"]) == 15
    assert sum(status["spent_share_histogram"]) == 200
    assert set(status["guarantee"]) == {"observer", "epsilon", "delta", "filter", "budget", "words", "periods"}
    client.ask(rows(99))
    again = client("GET", "/v1/status").json()
    assert sum(step["answers"] for step in again["answers_over_time"]) == 16
    assert status["forecast"]["queries_left_for_average_owner"] > 0


def test_many_seconds_are_thinned_to_a_few_hundred(client):
    client("GET", "/v1/status")
    reports = client.app.service.reports
    for n in (12_345, 123_457):
        reports._answers = [(f"{i:06d}", 1) for i in range(n)]
        steps = reports.answers_over_time()
        assert len(steps) <= 500
        assert sum(step["answers"] for step in steps) == n
        assert [step["at"] for step in steps] == sorted(step["at"] for step in steps)
        assert steps[-1]["at"] == f"{n - 1:06d}"


def test_the_trail_is_paged(client, store):
    for i in range(4):
        store.add(rows(i), ["a"], [f"n{i}"])
    seen, after = [], 0
    while after is not None:
        page = client("GET", f"/v1/audit?after={after}&limit=2").json()
        seen += [entry["position"] for entry in page["entries"]]
        after = page["next"]
    assert seen == list(range(1, page["last"] + 1))
    for bad in ("limit=0", "limit=1001", "after=-1", "after=x", f"after={1 << 64}"):
        assert client("GET", f"/v1/audit?{bad}").status_code == 422


def test_metrics_tell_of_the_service_and_of_nobody(client, store):
    client.ask(rows(1, 3))
    text = client("GET", "/metrics").text
    assert "indknn_queries_answered_total 3" in text
    assert 'indknn_requests_total{route="infer",status="200"} 1' in text
    assert 'indknn_batch_queries_bucket{le="4.0"} 1' in text
    for line in text.splitlines():
        assert line.startswith("#") or len(line.rsplit(" ", 1)) == 2
    own = "\n".join(line for line in text.splitlines() if not line.startswith("# HELP process_"))
    for secret in ("spent", "budget", "exhaust", "owner", "epsilon", "p1"):
        assert secret not in own
    client("GET", "/v1/owners/p1")
    assert "p1" not in client("GET", "/metrics").text


def test_metrics_are_those_of_one_service_and_tell_no_times_of_first_use(client, store):
    client.ask(rows(1))
    with application(store) as other:
        text = other("GET", "/metrics").text
    assert "indknn_queries_answered_total 0.0" in text  # nothing is shared with the first service
    names = {line.split()[2] for line in client("GET", "/metrics").text.splitlines() if line.startswith("# TYPE")}
    assert {name for name in names if not name.startswith("process_")} == {  # not the library's _created samples
        "indknn_build_info",
        "indknn_ready",
        "indknn_last_backup_timestamp_seconds",
        "indknn_requests_total",
        "indknn_queries_answered_total",
        "indknn_queries_repeated_total",
        "indknn_late_answers_total",
        "indknn_connections",
        "indknn_body_bytes",
        "indknn_stage_seconds",
        "indknn_queries_waiting",
        "indknn_infer_seconds",
        "indknn_batch_queries",
    }


def test_the_document_has_examples_that_work(client):
    document = client("GET", "/openapi.json").json()
    infer = document["paths"]["/v2/models/{name}/infer"]["post"]
    asked = infer["requestBody"]["content"]["application/json"]["example"]
    assert client("POST", INFER, json=asked).status_code == 200
    assert document["components"]["schemas"]["Error"]
    for path in ("/v1/session", "/v2/models/{name}", "/v1/status", "/v1/audit", "/v1/owners/{id}"):
        schema = document["paths"][path]["get"]["responses"]["200"]["content"]["application/json"]["schema"]
        answer = client("GET", path.format(name="indknn", id="p1")).json()
        Draft202012Validator({**document, **schema}).validate(answer)
        described = document["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
        rare = {"everywhere", "promise"}  # of several stores, and of a person with a promise of their own
        assert set(described["properties"]) - rare == set(answer) - rare
    assert all("422" in operation["responses"] for path in document["paths"].values() for operation in path.values())


def test_changes_between_queries_keep_their_order(client, store):
    requests = []
    for i in range(12):
        requests.append(("POST", INFER, {"json": question(rows(i))}))
        requests.append(("POST", "/v1/records", {"json": {"records": [record(i, owner=f"new-{i}")]}}))
        if i:
            requests.append(("DELETE", f"/v1/owners/p{i}", {}))
    assert {r.status_code for r in client.together(requests)} == {200}
    assert not list(problems(store))


def test_an_upload_with_an_id_is_done_once(tmp_path):
    body = {"records": [{"features": [1, 0, 0, 0], "label": "a", "owner": "ann"}]}
    other = {"records": [{**body["records"][0], "owner": "bob"}]}
    path, once = tmp_path / "a.store", {"x-request-id": "morning"}
    with make_store(path) as store, application(store, roles=["curator", "admin"]) as client:
        carl, root = client.keys["curator"], client.keys["admin"]
        first = client("POST", "/v1/records", carl, json=body, headers=once).json()
        again = client("POST", "/v1/records", carl, json=body, headers=once).json()
        assert (first["repeated"], again["repeated"]) == (False, True)
        assert first["ids"] == again["ids"]
        assert again["records"] == 201
        conflict = client("POST", "/v1/records", carl, json=other, headers=once)
        assert (conflict.status_code, conflict.json()["code"]) == (409, "id_conflict")
        assert (
            client("POST", "/v1/records", root, json=other, headers=once).json()["records"] == 202
        )  # ids of their own
        together = client.together(
            [("POST", "/v1/records", {"json": body, "headers": {"x-request-id": "x"}})] * 5, carl
        )
        assert len({str(r.json()["ids"]) for r in together}) == 1
        long = client("POST", "/v1/records", carl, json=body, headers={"x-request-id": "x" * 300})
        assert long.status_code == 422
    with type(store)(path) as store, application(store) as client:
        assert client("POST", "/v1/records", carl, json=body, headers=once).json()["repeated"]
        assert not list(problems(store))
