"""A schema from a public sample, and on paper."""

import json

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline

from indknn.core.inputs import encode_labels
from indknn.errors import InvalidInputError
from indknn.tables import (
    Category,
    Date,
    Ignored,
    Number,
    Ordered,
    Schema,
    TableEncoder,
    Text,
    YesNo,
    infer,
    read_schema,
)
from indknn.tables.infer import category_from, knots_from, number_from
from indknn.tables.schema import from_plain, schema_text, to_plain

RNG = np.random.default_rng(5)
N = 400
SAMPLE = pd.DataFrame(
    {
        "row": np.arange(N),
        "age": RNG.integers(18, 90, N),
        "gain": np.where(RNG.random(N) < 0.9, 0.0, RNG.lognormal(8, 1, N)),
        "job": RNG.choice(["cook", "baker", "?", "NO"], N, p=[0.5, 0.3, 0.1, 0.1]),
        "smoker": RNG.choice(["Yes", "No"], N),
        "seen": pd.date_range("2024-01-01", periods=N)
        .strftime("%Y-%m-%d")
        .to_series(index=range(N))
        .sample(frac=1, random_state=1)
        .to_numpy(),
        "code": [f"id-{i}" for i in range(N)],
        "note": [f"this is note number {i}" for i in range(N)],
        "same": ["x"] * N,
        "empty": [""] * N,
        "y": RNG.choice(["ill", "well"], N),
        "who": [f"p{i // 2}" for i in range(N)],
    }
)


@pytest.fixture(scope="module")
def found():
    return infer(SAMPLE, label="y", owner="who")


def test_kinds_are_found(found):
    columns = found.schema.columns
    kinds = {name: column.kind for name, column in columns.items()}
    assert kinds == {
        "row": "ignored",
        "age": "number",
        "gain": "number",
        "job": "category",
        "smoker": "yesno",
        "seen": "date",
        "code": "ignored",
        "note": "ignored",
        "same": "ignored",
        "empty": "ignored",
    }
    assert columns["job"].values == ("cook", "baker", "NO")
    assert found.schema.blanks == ("", "?")
    assert columns["age"].bounds == (SAMPLE["age"].min(), SAMPLE["age"].max())
    assert columns["seen"].bounds == ("2024-01-01", "2025-02-03")
    assert (found.schema.label, found.schema.classes, found.schema.owner) == ("y", ("ill", "well"), "who")
    told = " ".join(found.notes)
    assert all(f"{name}: " in told for name, kind in kinds.items() if kind == "ignored")
    assert infer(SAMPLE, label="y", extractor="some-model").schema.columns["note"] == Text(extractor="some-model")


def kind_of(*values):
    return infer({"x": values * 20, "z": [0.5, 2.5] * (10 * len(values))}).schema.columns["x"]


def test_what_could_be_more_than_yes_or_no_is_not_taken_for_it():
    count = kind_of(0, 1)
    assert (count.kind, count.bounds, count.knots) == ("number", (0, 1), ())
    assert Schema({"x": count}).encode({"x": [2]}).tolist() == Schema({"x": count}).encode({"x": [1]}).tolist()
    assert kind_of("0", "1").kind == "number"
    assert kind_of("Y", "N").kind == kind_of(True, False).kind == kind_of("true", "False").kind == "yesno"
    assert kind_of("F", "N").kind == kind_of("yes", "no", "maybe").kind == kind_of("F", "M").kind == "category"
    assert kind_of("yes").kind == "ignored"
    assert kind_of(1.0, float("inf"), 3.0).bounds == (1, 3)


def test_a_wide_table_has_fewer_pieces_per_column():
    table = {f"c{i}": RNG.normal(size=50) for i in range(300)}
    schema = infer(table).schema
    assert 600 < schema.n_features <= 1025
    assert infer({"a": table["c0"]}).schema.n_features == 12 + 2


@pytest.mark.parametrize("labels", [[True, False], [0, 1], [0.0, 1.0], ["0", "1"], ["True", "False"], ["a", "b"]])
def test_labels_are_the_same_as_text_and_as_numbers(labels):
    found = infer({"x": [1, 2, 3, 4], "y": labels * 2}, label="y").schema
    for spelled in (labels, [str(label) for label in labels]):
        codes = encode_labels(found.split({"x": [1, 2], "y": spelled}).y, np.array(found.classes))
        assert codes.tolist() == [sorted(map(str, labels)).index(str(label)) for label in labels]
    assert found.split({"x": [1], "y": ["other"]}).y.tolist() == ["other"]


def test_the_public_rows_come_out_centred_and_of_one_size(found):
    X = found.schema.encode(found.schema.split(SAMPLE).features)
    assert np.abs(X[:, :-1].mean(axis=0)).max() < 0.06  # gaps and unlisted values share what is left over
    size = {name: X[:, part].var(axis=0).sum() for name, part in found.schema.parts.items()}
    assert max(size.values()) < 4 * min(size.values())


def test_a_column_that_is_mostly_zero_has_knots_where_it_is_not():
    gain = infer(SAMPLE, label="y").schema.columns["gain"]
    above = SAMPLE["gain"][SAMPLE["gain"] > 0]
    assert gain.bounds[0] == 0
    assert sum(above.min() <= knot <= above.max() for knot in gain.knots) >= 8


def test_few_values_are_all_knots():
    number = number_from(np.array([1.0, 2.0, 5.0]), np.array([10.0, 20.0, 10.0]))
    assert (number.bounds, number.knots, number.means) == ((1, 5), (2,), (0.75, 0.25))


def test_noisy_counts_will_do():
    """Histograms with noise feed the same functions: counts may be fractions, and some below zero."""
    values, counts = np.arange(50.0), np.full(50, 20.0)
    noisy = counts + np.random.default_rng(0).normal(size=50)
    noisy[:3] = -1.5
    number = number_from(values, noisy)
    assert number.bounds == (3, 49)
    assert len(number.edges) == 13
    assert np.abs(np.diff(number.edges) - 46 / 12).max() < 3
    assert category_from({"a": 70.4, "b": 20.3, "c": 0.7}, 91.4).values == ("a", "b")
    assert category_from({"a": 1.0}, 1e6) is None


def test_knots_rise_whatever_the_counts():
    for seed in range(50):
        rng = np.random.default_rng(seed)
        values = np.unique(rng.normal(size=rng.integers(2, 200)).round(1))
        edges = knots_from(values, rng.geometric(0.1, len(values)) ** 3.0, 12)
        assert (np.diff(edges) > 0).all()
        assert (edges[0], edges[-1]) == (values[0], values[-1])


def test_a_sample_that_cannot_be_used():
    with pytest.raises(InvalidInputError, match="no column 'z': the table has only row, age"):
        infer(SAMPLE, label="z")
    with pytest.raises(InvalidInputError, match="at least one row"):
        infer({"a": []})


EVERYTHING = Schema(
    {
        "age": Number(bounds=(0, 120), knots=(18, 40.5), means=(0.9, 0.5, 0.2), missing=40),
        "income": Number(bounds=(0, 1e6), scale="log", missing="refuse"),
        "country": Category(values=("NO", "yes", "3", "ä: #b"), shares=(0.5, 0.25, 0.125, 0.125), missing="NO"),
        "grade": Ordered(values=("low", "high")),
        "smoker": YesNo(yes=("ja",), no=("nein",), share=0.25),
        "seen": Date(bounds=("2020-01-01", "2026-12-31"), knots=("2024-02-29",)),
        "note": Text(extractor="some-model", width=3, missing="nothing"),
        "other": Ignored(),
    },
    label="y",
    classes=(0, 1),
    owner="who",
    record_id="visit",
    blanks=("", "?"),
)


@pytest.mark.parametrize("ending", ["json", "yaml", "yml"])
def test_what_is_written_is_read_back(tmp_path, ending, found):
    for schema in (EVERYTHING, found.schema):
        path = tmp_path / f"schema.{ending}"
        path.write_text(schema_text(schema, as_yaml=ending != "json"), encoding="utf-8")
        assert read_schema(path) == schema
        assert read_schema(str(path)) == schema
    assert from_plain(json.loads(json.dumps(to_plain(EVERYTHING)))) == EVERYTHING
    assert read_schema(EVERYTHING) is EVERYTHING


def test_yaml_by_hand(tmp_path):
    path = tmp_path / "s.yaml"
    path.write_text(
        "label: y\ncolumns:\n  country: {kind: category, values: [NO, SE, yes, 3]}\n  age: {kind: number, bounds: [0, 120]}\n"
        "  seen: {kind: date, bounds: [2020-01-01, 2026-12-31]}\n  smoker: yesno\n  note: ignored\n"
    )
    schema = read_schema(path)
    assert schema.columns["country"].values == ("NO", "SE", "yes", "3")  # not False, True and a number
    assert schema.columns["seen"].bounds == ("2020-01-01", "2026-12-31")
    assert schema.label == "y"


@pytest.mark.parametrize(
    ("plain", "message"),
    [
        ({}, "must have 'columns'"),
        ({"columns": {"a": {"kind": "integer"}}}, "column 'a': kind must be one of number, category, .* got 'integer'"),
        ({"columns": {"a": {"kind": "number", "bound": [0, 1]}}}, "column 'a' must have only bounds, .* got 'bound'"),
        ({"columns": {"a": {"kind": "number", "bounds": [1, 0]}}}, "column 'a': bounds must be two values"),
        ({"columns": {"a": "yesno"}, "labels": "y"}, "the schema must have only .* got 'labels'"),
        ({"columns": {"a": "yesno"}, "label": {"column": "y", "classes": "ab"}}, "classes must be a list of labels"),
        ({"columns": {"a": "yesno"}, "version": 2}, "version must be 1, got 2"),
        ({"columns": {"a": "yesno"}, "owner": [7]}, r"owner must be the name of a column, got \[7\]"),
        ({"columns": {"a": "text"}}, "column 'a': extractor must be the name of a model"),
    ],
)
def test_a_mistake_in_a_schema_is_named(plain, message):
    with pytest.raises(InvalidInputError, match=message):
        from_plain(plain)


def test_files_that_are_no_schema(tmp_path):
    with pytest.raises(InvalidInputError, match="does not exist"):
        read_schema(tmp_path / "none.yaml")
    for name, text, message in (("a.json", "{", "not readable as JSON"), ("a.yaml", "{", "not readable as YAML")):
        (tmp_path / name).write_text(text)
        with pytest.raises(InvalidInputError, match=f"{name}: {message}"):
            read_schema(tmp_path / name)


def test_the_encoder_is_a_step_of_a_pipeline(found, tmp_path):
    X, y = SAMPLE.drop(columns="y"), SAMPLE["y"]
    encoder = TableEncoder(found.schema)
    path = tmp_path / "s.json"
    path.write_text(schema_text(found.schema, as_yaml=False))
    made = encoder.transform(X)
    assert np.array_equal(TableEncoder(str(path)).fit(X.head(1)).transform(X), made)
    assert np.array_equal(clone(encoder).fit(X.iloc[::-1]).transform(X), made)  # nothing is learned
    assert list(encoder.get_feature_names_out()) == found.schema.places
    assert encoder.set_output(transform="pandas").transform(X).shape == made.shape
    assert make_pipeline(TableEncoder(found.schema), LogisticRegression(max_iter=500)).fit(X, y).predict(X).shape == (
        N,
    )
