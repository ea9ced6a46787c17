"""Answers that repeat the ids of their rows, and that name the label: in every form of a request."""

import json
import struct

import numpy as np
import pytest

from indknn.tables import Number, Schema
from server.serving import INFER, SCHEMA, application, question, rows, table_store, tensor


@pytest.fixture
def tables(tmp_path):
    with table_store(tmp_path / "t.store") as store, application(store) as client:
        yield client


def column(name, data, kind="BYTES"):
    return {"name": name, "datatype": kind, "shape": [len(data)], "data": data}


def outputs(response):
    assert response.status_code == 200, response.text
    return {one["name"]: one for one in response.json()["outputs"]}


def texts(*parts):
    return b"".join(struct.pack("<I", len(text.encode())) + text.encode() for text in parts)


def behind(inputs, data, **more):
    """A request whose tensors have their data behind the JSON."""
    sized = [{**one, "parameters": {"binary_data_size": len(part)}} for one, part in zip(inputs, data, strict=True)]
    plain = [{name: value for name, value in one.items() if name != "data"} for one in sized]
    head = json.dumps({"inputs": plain, **more}).encode()
    return {"content": head + b"".join(data), "headers": {"inference-header-content-length": str(len(head))}}


def test_ids_come_back_beside_vectors_in_every_form(client, store):
    X = rows(1, 3)
    plain = client.ask(X).json()["outputs"]
    assert [one["name"] for one in plain] == ["label"]  # without ids there are none
    named = {"name": "id", "datatype": "BYTES", "shape": [3], "data": ["x", "ü", "7"]}
    numbers = {"name": "id", "datatype": "INT64", "shape": [3], "data": [7, -8, 2**62]}
    for asked in (
        {"json": {**question(X), "parameters": {"ids": ["x", "ü", "7"]}}},
        {"json": {"inputs": [tensor(X), named]}},
        {"json": {"inputs": [named, tensor(X)]}},
        behind([tensor(X), named], [X.tobytes(), texts("x", "ü", "7")]),
        behind([named, tensor(X)], [texts("x", "ü", "7"), X.tobytes()]),
    ):
        found = outputs(client("POST", INFER, **asked))
        assert found["label"] == plain[0]
        assert found["id"] == named
    for asked in (
        {"json": {"inputs": [tensor(X), numbers]}},
        behind([tensor(X), numbers], [X.tobytes(), np.array(numbers["data"], "<i8").tobytes()]),
    ):
        assert outputs(client("POST", INFER, **asked))["id"] == numbers
    mixed = {**question(X), "parameters": {"ids": ["x", 7, 8]}}
    assert outputs(client("POST", INFER, json=mixed))["id"]["data"] == ["x", "7", "8"]
    assert store.db.execute("SELECT count(*) FROM answers").get == 3  # all of it was one question


def test_ids_are_bytes_where_the_answer_is(client):
    asked = {**question(rows(1, 2)), "parameters": {"ids": ["a", "bc"], "binary_data_output": True}}
    response = client("POST", INFER, json=asked)
    length = int(response.headers["inference-header-content-length"])
    label, ids = json.loads(response.content[:length])["outputs"]
    sizes = [one["parameters"]["binary_data_size"] for one in (label, ids)]
    assert response.content[length + sizes[0] :] == texts("a", "bc")
    assert len(response.content) == length + sum(sizes)


def test_a_table_is_answered_with_its_record_ids_and_the_name_of_its_label(tables):
    people = [{"age": 30, "job": "cook", "visit": "v-1"}, {"age": 70, "job": "baker", "visit": "v-2"}]
    store = tables.app.service.store
    first = outputs(tables("POST", INFER, json={"rows": people}))
    assert first["id"]["data"] == ["v-1", "v-2"]
    assert first["label"]["parameters"] == {"column": "bought"}
    columns = [column("visit", ["v-1", "v-2"]), column("age", [30, 70], "INT64"), column("job", ["cook", "baker"])]
    ages = np.array([30, 70], "<i8").tobytes()
    for asked in (
        {"json": {"inputs": columns}},
        behind(columns, [texts("v-1", "v-2"), ages, texts("cook", "baker")]),
    ):
        assert outputs(tables("POST", INFER, **asked)) == first
    answered = store.db.execute("SELECT count(*) FROM answers").get
    assert answered == 2  # the id is no feature: the questions are the same
    without = [{name: value for name, value in row.items() if name != "visit"} for row in people]
    bare = outputs(tables("POST", INFER, json={"rows": without}))
    assert "id" not in bare
    assert bare["label"] == first["label"]
    both = [{"name": "label", "parameters": {"binary_data": True}}]
    response = tables("POST", INFER, json={"rows": without, "outputs": both})
    length = int(response.headers["inference-header-content-length"])
    (label,) = json.loads(response.content[:length])["outputs"]
    assert label["parameters"] == {"column": "bought", "binary_data_size": len(response.content) - length}
    assert store.db.execute("SELECT count(*) FROM answers").get == 2


@pytest.mark.parametrize(
    ("schema", "names"),
    [
        (Schema({"age": Number(bounds=(0, 100))}, label="bought", classes=("no", "yes")), ["record_id", "id"]),
        (Schema({"id": Number(bounds=(0, 100))}, label="bought", classes=("no", "yes")), ["record_id"]),
        (Schema({"age": Number(bounds=(0, 100))}, label="id", classes=("no", "yes")), ["record_id"]),
        (SCHEMA, ["visit", "record_id", "id"]),
    ],
)
def test_which_column_has_the_ids_of_rows(schema, names):
    assert schema.row_ids == names


@pytest.mark.parametrize(
    "ids", [[], ["a"], ["a", "b", "c"], ["a", ""], ["a", None], [1.5, 2], [True, 1], [2**63, 1], ["a", "x" * 257], "ab"]
)
def test_wrong_ids_are_refused_and_nobody_is_charged(client, store, ids):
    for asked in ({**question(rows(1, 2)), "parameters": {"ids": ids}},):
        response = client("POST", INFER, json=asked)
        assert response.status_code == 422
        assert "one for each of 2 rows" in response.json()["error"]
    assert store.db.execute("SELECT count(*) FROM answers").get == 0


def test_requests_with_ids_that_are_not_clear_are_refused(client, tables):
    X, ids = rows(1, 2), column("id", ["a", "b"])
    people = [{"age": 30, "job": "cook", "visit": "v-1"}, {"age": 70, "job": "baker"}]
    columns = [column("age", [30, 70], "INT64"), column("job", ["cook", "baker"])]
    size = {"parameters": {"binary_data_size": 32}}
    for target, asked, text in (
        (client, {"inputs": [tensor(X), ids], "parameters": {"ids": ["a", "b"]}}, "given once"),
        (client, {"inputs": [tensor(X), ids, ids]}, "at most 2 tensors"),
        (client, {"inputs": [ids, ids]}, "one tensor, named 'features', and 'id' for the ids of rows"),
        (client, {"inputs": [tensor(X), column("id", ["a"])]}, "one for each of 2 rows"),
        (client, {"inputs": [tensor(X), {**ids, "datatype": "FP16"}]}, "'datatype' must be one of"),
        (client, {"inputs": [{**tensor(X), **size}, ids]}, "behind the JSON are 0 bytes"),
        (client, {"inputs": []}, "'inputs' must be a list"),
        (tables, {"rows": people}, "one for each of 2 rows"),
        (tables, {"rows": people[:1], "parameters": {"ids": ["a"]}}, "given once"),
        (tables, {"inputs": [*columns, column("visit", ["a"])]}, "one for each of 2 rows"),
        (tables, {"inputs": [*columns, *[column("visit", ["a", "b"])] * 2]}, "at most 3 tensors"),
        (tables, {"rows": [{**people[0], "id": 7}]}, "column 'id' is not in the schema"),
    ):
        response = target("POST", INFER, json=asked)
        assert response.status_code == 422
        assert text in response.json()["error"]


def test_a_long_table_is_read_elsewhere_and_has_its_ids(tables):
    people = [{"age": 30 + i % 9, "job": "x" * 400, "visit": i} for i in range(300)]
    found = outputs(tables("POST", INFER, json={"rows": people}))
    assert tables.app.service.reader._process is not None
    assert found["id"]["data"] == list(range(300))
    assert found["id"]["datatype"] == "INT64"
    assert found["label"]["shape"] == [300]


def test_the_ids_of_one_request_do_not_change_what_it_is(client, store):
    """An id names a request with its rows. Ids of rows are the caller's own, and no part of the question."""
    first = client("POST", INFER, json={**question(rows(3), "k"), "parameters": {"ids": ["a"]}})
    again = client("POST", INFER, json={**question(rows(3), "k"), "parameters": {"ids": ["b"]}})
    assert outputs(again)["label"] == outputs(first)["label"]
    assert outputs(again)["id"]["data"] == ["b"]
    assert store.db.execute("SELECT count(*) FROM answers").get == 1
