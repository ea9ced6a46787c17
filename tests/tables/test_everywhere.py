"""The same schema in the estimator, the store, the command line and over HTTP: one row gives one vector and one answer."""

import csv
import json
from dataclasses import replace

import apsw
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet as pq
import pytest

from helpers.commands import run
from indknn import IndKNNClassifier, InvalidInputError
from indknn.settings import Settings
from indknn.store import Store, chain
from indknn.store.verify import problems
from indknn.tables import infer, read_schema
from indknn.tables.schema import schema_text, to_plain
from indknn.types import Given
from server.serving import INFER, application

RNG = np.random.default_rng(11)
N, ASKED = 3000, 60


def people(n):
    """Income raises the chance of `yes`, and is in another unit than age."""
    age, job = RNG.integers(18, 90, n), RNG.choice(["cook", "baker", "smith", ""], n)
    income = np.exp(RNG.normal(10, 1, n)).round(2)
    bought = np.where((income > 25_000) & (job != "cook"), "yes", "no")
    return pd.DataFrame(
        {"age": age, "income": income, "job": job, "bought": bought, "who": [f"p{i}" for i in range(n)]}
    )


PUBLIC, TABLE, QUERIES = people(400), people(N), people(ASKED).drop(columns=["bought", "who"])
SCHEMA = infer(PUBLIC, label="bought", owner="who").schema
FEATURES = ["age", "income", "job"]


@pytest.fixture
def store(tmp_path):
    settings = Settings(SCHEMA.n_features, SCHEMA.classes, epsilon=8.0, schema=to_plain(SCHEMA))
    with Store.create(tmp_path / "a.store", settings) as made:
        made.add(TABLE)
        yield made


def held(store):
    """Every record, as it is in the file."""
    with store.reading() as db:
        return db.execute("SELECT body FROM records ORDER BY slot").fetchall()


def right(labels, queries=QUERIES):
    truth = np.where((queries["income"] > 25_000) & (queries["job"] != "cook"), "yes", "no")
    return np.mean(np.asarray(labels) == truth)


# The estimator


@pytest.mark.parametrize("kind", ["pandas", "polars", "arrow", "dict", "vectors"])
def test_the_estimator_takes_every_frame(kind):
    convert = {
        "pandas": lambda t: t[sorted(t)],  # columns go by name, not by place
        "polars": pl.DataFrame,
        "arrow": lambda t: pa.Table.from_pandas(t, preserve_index=False),
        "dict": lambda t: t.to_dict("list"),
        "vectors": lambda t: SCHEMA.encode(SCHEMA.split(t).features),
    }[kind]
    if kind == "vectors":
        model = IndKNNClassifier(epsilon=8.0, schema=SCHEMA, random_state=0)
        model.fit(convert(TABLE), TABLE["bought"], TABLE["who"])
    else:
        model = IndKNNClassifier(epsilon=8.0, schema=SCHEMA, random_state=0).fit(convert(TABLE))
    same = IndKNNClassifier(epsilon=8.0, schema=to_plain(SCHEMA), random_state=0)
    same.fit(TABLE[FEATURES], TABLE["bought"], owners=TABLE["who"])
    assert model.owners_.tolist() == same.owners_.tolist() == TABLE["who"].tolist()
    assert model.classes_.tolist() == ["no", "yes"]
    assert model.n_features_in_ == SCHEMA.n_features
    answers = model.predict(convert(QUERIES))
    assert answers.tolist() == same.predict(QUERIES).tolist()
    assert right(answers) > 0.8


def test_the_estimator_with_a_file_and_more_rows(tmp_path):
    path = tmp_path / "s.yaml"
    path.write_text(schema_text(SCHEMA, as_yaml=True))
    model = IndKNNClassifier(epsilon=8.0, schema=str(path), random_state=0).partial_fit(TABLE[:2000])
    path.unlink()  # the schema in force is the one that was read
    model.partial_fit(TABLE[2000:])
    assert len(model.record_ids_) == N
    assert right(model.predict(QUERIES)) > 0.8


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda q: q.drop(columns="job"), "column 'job' is missing"),
        (lambda q: q.assign(weight=1), "column 'weight' is not in the schema"),
        (lambda q: q.assign(age=q["age"].astype(str) + " years"), "row 0: column 'age' must be a number, got"),
        (lambda q: q.rename(columns={"age": "Age"}), "column 'Age' is not in the schema"),
        (lambda q: q.to_numpy(), r"a table with column names, or vectors of \d+ numbers .* got shape \(60, 3\)"),
    ],
)
def test_a_wrong_table_is_refused_before_anybody_is_charged(store, change, message):
    model = IndKNNClassifier(epsilon=8.0, schema=SCHEMA, random_state=0).fit(TABLE)
    for ask, spent in ((model.predict, model.privacy_spent), (store.predict, store.spent)):
        with pytest.raises(InvalidInputError, match=message):
            ask(change(QUERIES))
        assert not spent().any()


def test_nothing_is_given_twice():
    with pytest.raises(InvalidInputError, match="owners must be given once"):
        IndKNNClassifier(schema=SCHEMA).fit(TABLE, owners=TABLE["who"])


# The store


def test_the_store_keeps_the_schema(store):
    first = store.predict(QUERIES)
    assert right(first) > 0.8
    path = store.path
    store.close()
    with Store(path) as again:
        assert again.schema == SCHEMA
        assert again.predict(QUERIES).tolist() == first.tolist()  # free repeats: the very same vectors
        with again.reading() as db:
            (made, *_) = chain.entries(db)
            assert made.facts["settings"]["schema"] == to_plain(SCHEMA)  # it is on the books
        assert not list(problems(again))


def test_a_changed_schema_in_the_file_is_noticed(store):
    path = store.path
    store.close()
    db = apsw.Connection(str(path))
    db.execute("UPDATE meta SET value = replace(value, 'baker', 'bakes') WHERE name = 'settings'")
    db.close()
    with pytest.raises(Exception, match="does not agree with its audit trail"):
        Store(path)


def test_frames_and_vectors_are_one_record(store):
    vectors = SCHEMA.encode(TABLE[FEATURES][:50])
    with pytest.warns(UserWarning, match="50 of 50 rows are already here"):
        store.add(vectors, TABLE["bought"][:50].to_numpy(), TABLE["who"][:50].tolist())
    with pytest.raises(InvalidInputError, match="a table with column names"):
        store.add(np.zeros((1, 3)), ["no"], ["ann"])


def test_the_estimator_opens_a_store_with_its_schema(tmp_path):
    path = tmp_path / "b.store"
    model = IndKNNClassifier(epsilon=8.0, schema=SCHEMA, store=path).fit(TABLE)
    first = model.predict(QUERIES)
    model._engine.close()
    with Store(path) as store:
        assert store.predict(QUERIES).tolist() == first.tolist()
    other = IndKNNClassifier(epsilon=8.0, store=path, classes=["no", "yes"])
    with pytest.raises(InvalidInputError, match="made with other parameters: schema differ"):
        other.fit(SCHEMA.encode(TABLE[FEATURES]), TABLE["bought"], TABLE["who"])


# The command line


def write(path, table):
    if path.suffix == ".csv":
        table.to_csv(path, index=False)
    elif path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in table.to_dict("records")))
    elif path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pandas(table, preserve_index=False), path)
    else:
        pa.feather.write_feather(table, path)
    return path


@pytest.fixture
def made(tmp_path):
    (tmp_path / "schema.yaml").write_text(schema_text(SCHEMA, as_yaml=True))
    result = run("init", tmp_path / "c.store", "--schema", tmp_path / "schema.yaml", "--epsilon", 8)
    assert result.exit_code == 0, result.output
    return tmp_path / "c.store"


@pytest.mark.parametrize("ending", [".csv", ".jsonl", ".parquet", ".arrow"])
def test_the_command_line_takes_every_format(tmp_path, made, store, ending):
    result = run("add", made, write(tmp_path / f"records{ending}", TABLE))
    assert result.exit_code == 0, result.output
    assert f"{N:,} records of {N:,} people" in result.output
    with Store(made) as opened:
        assert opened.schema == SCHEMA
        assert held(opened) == held(store)  # to the last bit
        assert len(held(store)) >= N
    out = tmp_path / "answers.csv"
    result = run("predict", made, write(tmp_path / f"queries{ending}", QUERIES[["job", "age", "income"]]), "-o", out)
    assert result.exit_code == 0, result.output
    with out.open() as file:
        answers = [row["bought"] for row in csv.DictReader(file)]
    assert right(answers) > 0.8


def test_a_mistake_in_the_last_query_charges_nobody(tmp_path, made):
    run("add", made, write(tmp_path / "records.csv", TABLE))
    many = pd.concat([QUERIES] * 10, ignore_index=True).astype({"age": object})
    many.loc[599, "age"] = "old"
    result = run("predict", made, write(tmp_path / "q.csv", many), "-o", tmp_path / "a.csv")
    assert result.exit_code == 2
    assert "row 599: column 'age' must be a number, got 'old'" in result.output
    with Store(made) as opened:
        assert not opened.spent().any()


def test_options_for_columns_are_not_for_a_schema(tmp_path, made):
    records = write(tmp_path / "records.csv", TABLE)
    result = run("add", made, records, "--label", "job")
    assert result.exit_code == 2
    assert "--label is not for this store: its schema names the columns" in result.output
    no_owner = write(tmp_path / "none.csv", TABLE.drop(columns="who"))
    told = run("add", made, no_owner).output
    assert f"has no owners: an array owners, or a column named by --owner; the schema calls it {SCHEMA.owner!r}" in told
    extra = write(tmp_path / "extra.csv", TABLE.assign(note="x"))
    assert "column 'note' is not in the schema" in run("add", made, extra).output


def test_a_list_of_who_left_names_its_own_column(tmp_path, made):
    """The list need not come from where the records come from. --owner was asked for, and then refused."""
    run("add", made, write(tmp_path / "records.csv", TABLE))
    (tmp_path / "left.csv").write_text(f"name\n{TABLE[SCHEMA.owner].iloc[0]}\n")
    assert "name it by --owner" in run("forget", made, "--file", tmp_path / "left.csv").output
    said = run("forget", made, "--file", tmp_path / "left.csv", "--owner", "name").output
    assert "forgotten: 1 person" in said


def test_a_schema_without_classes_takes_those_of_the_first_records(tmp_path):
    plain = to_plain(SCHEMA)
    plain["label"] = "bought"
    (tmp_path / "s.json").write_text(json.dumps(plain))
    assert run("init", tmp_path / "d.store", "--schema", tmp_path / "s.json").exit_code == 0
    result = run("add", tmp_path / "d.store", write(tmp_path / "r.csv", TABLE))
    assert result.exit_code == 0, result.output
    assert "the label set was taken from the private labels" in result.output
    with Store(tmp_path / "d.store") as opened:
        assert opened.settings.class_array.tolist() == ["no", "yes"]
        assert opened.settings.n_features == SCHEMA.n_features


def test_a_table_without_the_owner_that_the_schema_names_is_not_one_person_per_row():
    model = IndKNNClassifier(epsilon=8.0, schema=SCHEMA, random_state=0)
    nobody = TABLE.drop(columns=SCHEMA.owner)
    with pytest.raises(
        InvalidInputError, match=f"no owners; the schema calls it '{SCHEMA.owner}': add the column, or give owners="
    ):
        model.fit(nobody)
    with pytest.raises(InvalidInputError, match=f"no y; the schema calls it '{SCHEMA.label}'"):
        model.fit(TABLE.drop(columns=SCHEMA.label))
    assert len(model.fit(nobody, owners="each-row").privacy_spent()) == len(nobody)
    alone = IndKNNClassifier(schema=SCHEMA, random_state=0).fit(nobody, owners=["one"] * len(nobody))
    assert len(alone.privacy_spent()) == 1


def test_queries_in_another_unit_are_told_of(tmp_path, made):
    run("add", made, write(tmp_path / "records.csv", TABLE))
    cents = pd.concat([QUERIES] * 4, ignore_index=True).assign(income=1e9, job="cook")
    result = run("predict", made, write(tmp_path / "q.csv", cents), "-o", tmp_path / "a.csv")
    assert result.exit_code == 0, result.output
    assert "100% of the queries are beyond the bounds of column 'income'" in result.output
    model = IndKNNClassifier(epsilon=8.0, schema=SCHEMA, random_state=0).fit(TABLE)
    with pytest.warns(UserWarning, match="beyond the bounds of column 'income'"):
        model.predict(cents[:60])
    with pytest.warns(UserWarning, match="values in column 'job' that the schema does not list"):
        model.predict(QUERIES.assign(job="Cook"))


@pytest.mark.parametrize("column", ["visit", "record_id", "id"])
def test_the_ids_of_queries_are_no_features_anywhere(store, tmp_path, column):
    """The schema calls the record id `visit`. A table of queries may have its ids in record_id or id too."""
    schema = SCHEMA.with_roles(record_id="visit")
    asked = QUERIES[:3].assign(**{column: ["a", "b", "c"]})
    model = IndKNNClassifier(epsilon=8.0, schema=schema, random_state=0).fit(TABLE)
    assert model.predict(asked).tolist() == model.predict(QUERIES[:3]).tolist()
    path, settings = tmp_path / "v.store", replace(store.settings, schema=to_plain(schema))
    with Store.create(path, settings) as made:
        made.add(TABLE)
        expected = made.predict(QUERIES[:3]).tolist()
        assert made.predict(asked).tolist() == expected
        with application(made) as client:
            answer = client("POST", INFER, json={"rows": asked.to_dict("records")}).json()
            assert {one["name"]: one["data"] for one in answer["outputs"]} == {"label": expected, "id": ["a", "b", "c"]}
        with pytest.raises(InvalidInputError, match="column 'id' is not in the schema"):
            made.upsert(Given([{**QUERIES.iloc[0], "id": "a"}], ["yes"], ["p1"]), [None])  # is that the record id?
    result = run("explain", path, write(tmp_path / "q.csv", asked))
    assert result.exit_code == 0, result.output
    assert "row 2: " in result.output


# HTTP


@pytest.fixture
def client(store):
    with application(store) as made:
        yield made


def _binary(tensors):
    """The same tensors with their data behind the JSON, as tritonclient sends them."""
    kinds, parts, asked = {"INT64": "<i8", "FP64": "<f8"}, [], []
    for one in tensors:
        texts = [str(value).encode() for value in one["data"]]
        packed = b"".join(len(text).to_bytes(4, "little") + text for text in texts)
        numbers = one["datatype"] in kinds
        parts.append(np.array(one["data"], kinds[one["datatype"]]).tobytes() if numbers else packed)
        facts = {name: value for name, value in one.items() if name != "data"}
        asked.append({**facts, "parameters": {"binary_data_size": len(parts[-1])}})
    head = json.dumps({"inputs": asked}).encode()
    return {"content": head + b"".join(parts), "headers": {"inference-header-content-length": str(len(head))}}


def test_rows_over_http_get_the_answers_of_the_store(client, store):
    list(store.train())  # else it goes on in the background
    rows = QUERIES.to_dict("records")
    answer = client("POST", INFER, json={"id": "1", "rows": rows}).json()
    labels = answer["outputs"][0]["data"]
    assert right(labels) > 0.8
    spent = store.spent().sum()
    kinds = {"age": "INT64", "income": "FP64", "job": "BYTES"}
    tensors = [
        {"name": name, "datatype": kinds[name], "shape": [ASKED], "data": QUERIES[name].tolist()}
        for name in ("job", "income", "age")
    ]
    vectors = SCHEMA.encode(QUERIES)
    tensor = {"name": "features", "datatype": "FP64", "shape": list(vectors.shape), "data": vectors.ravel().tolist()}
    for asked in ({"inputs": tensors}, {"inputs": [tensor]}):
        assert client("POST", INFER, json=asked).json()["outputs"][0]["data"] == labels
    assert client("POST", INFER, **_binary(tensors)).json()["outputs"][0]["data"] == labels
    assert store.spent().sum() == spent  # the same vectors: repeats are free


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"rows": [{"age": 3, "income": 1}]}, "column 'job' is missing"),
        ({"rows": [{"age": 3, "income": 1, "job": "cook", "x": 1}]}, "column 'x' is not in the schema"),
        ({"rows": [{"age": "old", "income": 1, "job": "cook"}]}, "row 0: column 'age' must be a number"),
        ({"rows": [{"age": [3], "income": 1, "job": "cook"}]}, "column 'age' must be a number"),
        ({"rows": [{"age": 3, "income": 1, "job": {}}]}, "column 'job' must be text or a number"),
        ({"rows": [7]}, "'rows' must be a list of objects"),
        ({"rows": []}, "must have 1 to"),
        ({"rows": [{"age": 3, "income": 1, "job": "cook", "who": "p1"}]}, "column 'who' is not in the schema"),
        ({"inputs": [{"name": "age", "datatype": "INT64", "shape": [1], "data": [3]}]}, "column 'income' is missing"),
        ({"inputs": [{"name": "age", "datatype": "TEXT", "shape": [1], "data": [3]}]}, "'datatype' must be one of"),
        ({"inputs": [{"name": "age", "datatype": "INT64", "shape": [2], "data": [3]}]}, "'data' must be a flat list"),
        ({"inputs": [{"name": "age", "datatype": "INT64", "shape": [1], "data": [3]}] * 2}, "every column once"),
    ],
)
def test_wrong_rows_are_refused_by_name(client, store, asked, message):
    response = client("POST", INFER, json=asked)
    assert response.status_code == 422, response.text
    assert message in response.json()["error"]
    assert not store.spent().any()


def test_records_by_column_over_http(client, store):
    values = QUERIES.to_dict("records")[0]
    good = {"values": values, "label": "no", "owner": "eve"}
    answer = client("POST", "/v1/records", json={"records": [good, {**good, "owner": "fay"}]})
    assert answer.json()["records"] == N + 2, answer.text
    again = client(
        "POST",
        "/v1/records",
        json={"records": [{**good, "values": None, "features": SCHEMA.encode([values])[0].tolist()}]},
    )
    assert again.json()["already_here"] == 1, again.text  # the same vector by another road
    for bad, message in (
        ({**good, "values": {**values, "age": "old"}}, "column 'age' must be a number"),
        ({**good, "values": {**values, "who": "gil"}}, "column 'who' is not in the schema"),
        ({**good, "values": {"age": 3}}, "column 'income' is missing"),
        ({**good, "features": [1.0]}, "either features or values"),
        ({"label": "no", "owner": "eve"}, "either features or values"),
    ):
        response = client("POST", "/v1/records", json={"records": [bad]})
        assert response.status_code == 422
        assert message in response.json()["error"]
    assert len(store.engine.shard) == N + 3


def test_the_metadata_and_the_document_show_the_columns(client):
    facts = client("GET", "/v2/models/indknn").json()
    assert facts["inputs"] == [
        {"name": "age", "datatype": "FP64", "shape": [-1]},
        {"name": "income", "datatype": "FP64", "shape": [-1]},
        {"name": "job", "datatype": "BYTES", "shape": [-1]},
    ]
    assert read_schema(facts["parameters"]["schema"]) == SCHEMA
    document = client("GET", "/openapi.json").json()
    body = document["paths"]["/v2/models/{name}/infer"]["post"]["requestBody"]["content"]["application/json"]
    assert body["schema"]["properties"]["rows"]["items"]["required"] == FEATURES


def test_a_store_without_a_schema_takes_no_rows(tmp_path):
    from server.serving import make_store

    with make_store(tmp_path / "v.store") as plain, application(plain) as ask:
        assert "no schema" in ask("POST", INFER, json={"rows": [{"a": 1}]}).json()["error"]
        record = {"values": {"a": 1}, "label": "a", "owner": "ann"}
        assert "no schema" in ask("POST", "/v1/records", json={"records": [record]}).json()["error"]
