"""Labels of every type, for the estimator, the store and the command line. Answers have the type of the classes."""

import datetime as dt
import json

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from conftest import blobs
from helpers.commands import run
from indknn import IndKNNClassifier, InvalidInputError
from indknn.settings import Settings
from indknn.store import Store
from indknn.tables import Number, Schema, infer, read_schema
from indknn.tables.schema import schema_text

X, Y = blobs(40, 2, 3, seed=1)
PLAIN = {"max_queries": 10, "tau": 0.4, "mode": "votes", "reuse": "none"}
DAYS = [dt.date(2026, 1, 31), dt.date(2026, 2, 1)]
TEXT_OF_DAYS = ["2026-01-31", "2026-02-01"]

CASES = {
    "text of digits": (np.array(["0", "1"])[Y], ["0", "1"], ["0", "1"]),
    "numbers, classes as text": (Y, ["0", "1"], ["0", "1"]),
    "text, classes as numbers": (np.array(["0", "1"])[Y], [0, 1], [0, 1]),
    "whole floats": (Y.astype(float), [0, 1], [0, 1]),
    "whole floats, classes as text": (Y.astype(float), ["0", "1"], ["0", "1"]),
    "truth values": (Y.astype(bool), None, [False, True]),
    "truth values, classes as text": (Y.astype(bool), ["False", "True"], ["False", "True"]),
    "text, classes as truth values": (np.array(["False", "True"])[Y], [False, True], [False, True]),
    "leading zeros": (np.array(["00", "01"])[Y], None, ["00", "01"]),
    "several kinds": (np.array([1, "a"], dtype=object)[Y], None, ["1", "a"]),
    "several kinds in a list": ([[1, "a"][i] for i in Y], None, ["1", "a"]),
    "dates": ([DAYS[i] for i in Y], None, TEXT_OF_DAYS),
    "dates of NumPy": (np.array(TEXT_OF_DAYS, dtype="datetime64[D]")[Y], DAYS, TEXT_OF_DAYS),
    "dates of pandas": (pd.Series(pd.to_datetime(TEXT_OF_DAYS)[Y]), TEXT_OF_DAYS, TEXT_OF_DAYS),
    "categories of pandas": (pd.Series(np.array(["x", "y"])[Y]).astype("category"), None, ["x", "y"]),
    "categories of numbers": (pd.Series(Y).astype("category"), ["0", "1"], ["0", "1"]),
    "nullable numbers": (pd.Series(Y, dtype="Int64"), [0, 1], [0, 1]),
    "text of pandas": (pd.Series(np.array(["x", "y"])[Y], dtype="string"), ["x", "y"], ["x", "y"]),
    "categories of polars": (pl.Series(np.array(["x", "y"])[Y]).cast(pl.Categorical), ["x", "y"], ["x", "y"]),
}


def held(engine):
    """The position of every record's label among the classes."""
    return engine.shard.labels_of(np.arange(len(Y))).tolist()


@pytest.mark.parametrize("case", CASES)
def test_the_estimator_and_the_store_take_labels_of_every_type(tmp_path, case):
    y, classes, wanted = CASES[case]
    model = IndKNNClassifier(classes=classes, random_state=0, **PLAIN).fit(X, y)
    assert model.classes_.tolist() == wanted
    assert {type(label) for label in model.predict(X[:3]).tolist()} == {type(wanted[0])}
    assert held(model._engine) == Y.tolist()
    made = Settings.of(3, classes or [], **PLAIN)
    with Store.create(tmp_path / "s.store", made, draft=classes is None) as store:
        store.add(X, y, [f"p{i}" for i in range(len(Y))])
    with Store(tmp_path / "s.store") as store:
        assert store.settings.class_array.tolist() == wanted
        assert held(store.engine) == Y.tolist()


@pytest.mark.parametrize(
    ("y", "classes", "message"),
    [
        (np.array([b"a", b"b"])[Y], None, "got bytes; decode bytes yourself"),
        (np.array(["x", None], dtype=object)[Y], ["x", "y"], r"row \d+: the label must not be empty"),
        (pd.Series(Y, dtype="Int64").where(Y == 0), [0, 1], r"row \d+: the label must not be empty"),
        (np.array(["2026-01-01", "NaT"], dtype="datetime64[D]")[Y], None, r"row \d+: the label must not be empty"),
        (np.array(["0", "2"])[Y], [0, 1], "unknown label .*'2'.*: the classes are"),
        (np.array(["00", "01"])[Y], [0, 1], "unknown label .*'00'.*: the classes are"),
    ],
)
def test_labels_that_are_none_are_refused_in_words(tmp_path, y, classes, message):
    with pytest.raises(InvalidInputError, match=message):
        IndKNNClassifier(classes=classes, random_state=0, **PLAIN).fit(X, y)
    with Store.create(tmp_path / "s.store", Settings.of(3, classes or [], **PLAIN), draft=classes is None) as store:
        with pytest.raises(InvalidInputError, match=message):
            store.add(X, y, [f"p{i}" for i in range(len(Y))])
        assert len(store.engine.shard) == 0


def test_more_rows_may_name_the_classes_in_the_other_type():
    model = IndKNNClassifier(classes=["0", "1"], random_state=0, **PLAIN).fit(X, Y)
    model.partial_fit(X[:2] + 1.0, [0, 1], classes=[0, 1])
    with pytest.raises(InvalidInputError, match="classes must stay"):
        model.partial_fit(X[:2], [0, 1], classes=[0, 2])


# Files and schemas


@pytest.fixture
def table(tmp_path):
    columns = {f"f{j}": X[:, j] for j in range(3)}
    return pd.DataFrame({**columns, "y": np.array(["0", "1"])[Y], "owner": [f"p{i}" for i in range(len(Y))]})


def classes_after(tmp_path, file, *options):
    run("init", tmp_path / "c.store", *options, code=0)
    run("add", tmp_path / "c.store", file, code=0)
    with Store(tmp_path / "c.store") as store:
        assert held(store.engine) == Y.tolist()
        return store.settings.class_array.tolist()


def test_labels_of_a_csv_are_numbers_if_all_are(tmp_path, table):
    table.to_csv(tmp_path / "r.csv", index=False)
    assert classes_after(tmp_path, tmp_path / "r.csv") == [0, 1]


def test_other_labels_of_a_csv_are_text(tmp_path, table):
    table.assign(y=np.array(["00", "1"])[Y]).to_csv(tmp_path / "r.csv", index=False)
    assert classes_after(tmp_path, tmp_path / "r.csv") == ["00", "1"]


def test_text_in_a_format_with_types_stays_text(tmp_path, table):
    pq.write_table(pa.Table.from_pandas(table, preserve_index=False), tmp_path / "r.parquet")
    assert classes_after(tmp_path, tmp_path / "r.parquet") == ["0", "1"]
    table.to_csv(tmp_path / "more.csv", index=False)  # the store has text now, and a csv file fits
    assert "40 of 40 rows are already here" in run("add", tmp_path / "c.store", tmp_path / "more.csv", code=0).output


@pytest.mark.parametrize("ending", ["json", "yaml"])
@pytest.mark.parametrize("classes", [("0", "1"), (0, 1)])
def test_a_schema_says_whether_labels_are_text(tmp_path, table, ending, classes):
    schema = Schema({f"f{j}": Number(bounds=(-5, 5)) for j in range(3)}, "y", classes, "owner")
    (tmp_path / f"s.{ending}").write_text(schema_text(schema, as_yaml=ending == "yaml"))
    assert read_schema(tmp_path / f"s.{ending}") == schema
    table.to_csv(tmp_path / "r.csv", index=False)
    assert classes_after(tmp_path, tmp_path / "r.csv", "--schema", tmp_path / f"s.{ending}") == list(classes)


@pytest.mark.parametrize("classes", [["0", "1"], [0, 1], None])
def test_classes_beside_a_schema_may_be_text_or_numbers(table, classes):
    schema = infer(table, label="y", owner="owner").schema
    assert schema.classes == (0, 1)
    model = IndKNNClassifier(schema=schema, classes=classes, random_state=0).fit(table)
    assert model.classes_.tolist() == (classes or [0, 1])
    assert held(model._engine) == Y.tolist()


def test_yaml_keeps_what_else_looks_like_a_number(tmp_path):
    text = "owner: 7\nblanks: [-999, '']\nlabel: {column: 2020, classes: [no, yes]}\ncolumns: {1: {kind: category, values: [1, NO, 007]}}"
    (tmp_path / "s.yaml").write_text(text)
    schema = read_schema(tmp_path / "s.yaml")
    assert (schema.owner, schema.label, schema.blanks) == ("7", "2020", ("-999", ""))
    assert (schema.classes, schema.columns["1"].values) == (("no", "yes"), ("1", "NO", "007"))
    assert json.loads(schema_text(schema, as_yaml=False))["label"]["classes"] == ["no", "yes"]
