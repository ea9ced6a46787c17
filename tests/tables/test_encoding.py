"""What a row becomes: by public constants, and by itself alone."""

from datetime import date
from hashlib import sha256
from itertools import pairwise
from math import fsum, sqrt

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from indknn.errors import InvalidInputError
from indknn.tables import Category, Date, Ignored, Number, Ordered, Schema, YesNo

SCHEMA = Schema(
    {
        "age": Number(bounds=(0, 120), knots=(18, 40, 65), means=(0.9, 0.7, 0.4, 0.1)),
        "income": Number(bounds=(-1e4, 1e6), scale="log"),
        "job": Category(values=("baker", "cook", "7"), shares=(0.5, 0.3, 0.1)),
        "grade": Ordered(values=("low", "middle", "high")),
        "smoker": YesNo(share=0.2),
        "seen": Date(bounds=("2020-01-01", "2026-12-31")),
        "note": Ignored(),
    },
    label="y",
    owner="who",
)
ROWS = [
    {
        "age": 39.0,
        "income": 41_234.56,
        "job": "baker",
        "grade": "low",
        "smoker": "yes",
        "seen": "2024-02-29",
        "note": "x",
    },
    {
        "age": 200.0,
        "income": -5e4,
        "job": "astronaut",
        "grade": "huge",
        "smoker": "No",
        "seen": "1999-01-01",
        "note": "",
    },
    {"age": None, "income": None, "job": None, "grade": None, "smoker": None, "seen": None, "note": None},
    {"age": 0.1, "income": 1e300, "job": "7", "grade": "high", "smoker": True, "seen": "2026-12-31", "note": 3},
]
GOLDEN = "68a9198f65fac0cd44c7e1fd943991579c698f57218107512c47f620beb06610"
NUMBERS = st.one_of(st.none(), st.floats(allow_nan=True, allow_infinity=True), st.integers(-(10**30), 10**30))
TABLES = st.lists(
    st.fixed_dictionaries(
        {
            "age": NUMBERS,
            "income": NUMBERS,
            "job": st.sampled_from(["baker", "cook", "7", 7, "other", "", None]),
            "grade": st.sampled_from(["low", "middle", "high", "none", None]),
            "smoker": st.sampled_from(["yes", "no", True, False, 1, 0, None, ""]),
            "seen": st.one_of(st.none(), st.dates(), st.dates().map(str)),
            "note": st.text(max_size=3),
        }
    ),
    min_size=1,
    max_size=9,
)


def block(schema, name):
    return schema.encode(ROWS)[:, [i for i, place in enumerate(schema.places) if place.startswith(f"{name}: ")]]


@given(TABLES, st.integers(0, 40), st.data())
def test_a_row_has_the_same_bits_wherever_it_stands(rows, before, data):
    alone = np.concatenate([SCHEMA.encode([row]) for row in rows])
    others = data.draw(st.lists(st.sampled_from(ROWS), min_size=before, max_size=before))
    assert SCHEMA.encode([*others, *rows]).tobytes()[len(others) * alone[0].nbytes :] == alone.tobytes()
    assert SCHEMA.encode([*rows, *others])[: len(rows)].tobytes() == alone.tobytes()


@pytest.mark.parametrize("stride", [1, 2, 7])
def test_nor_does_the_layout_in_memory_matter(stride):
    rng = np.random.default_rng(0)
    wide = np.full((5000, stride), np.nan)
    wide[:, 0] = np.exp(rng.normal(size=5000) * 5)
    schema = Schema({"x": Number(bounds=(0, 1e6), scale="log")})
    whole = schema.encode({"x": wide[:, 0]})
    assert np.isfinite(whole).all()
    one_by_one = np.concatenate([schema.encode({"x": [value]}) for value in wide[:, 0].tolist()])
    assert whole.tobytes() == one_by_one.tobytes()
    assert schema.encode({"x": wide[3:, 0][::-1]})[::-1].tobytes() == whole[3:].tobytes()
    assert schema.encode({"x": wide[:, 0].astype(str).tolist()}).tobytes() == whole.tobytes()  # text of a csv file


@given(
    st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=9, unique=True).map(sorted),
    st.lists(st.floats(allow_nan=False), min_size=1, max_size=50),
)
def test_a_number_is_what_plain_python_makes_of_it(edges, values):
    """One correctly rounded operation after the other: so it cannot depend on the batch."""
    assume(all(high - low > 1e-300 for low, high in pairwise(edges)))
    means = [1.0 / (j + 2) for j in range(len(edges) - 1)]
    number = Number(bounds=(edges[0], edges[-1]), knots=tuple(edges[1:-1]), means=tuple(means))
    weight = 1.0 / sqrt(sqrt(max(fsum(m * (1.0 - m) for m in means), 0.05)))
    expected = [
        [
            min(max((min(max(x, edges[0]), edges[-1]) - low) * (weight / (high - low)), 0.0), weight) - mean * weight
            for (low, high), mean in zip(pairwise(edges), means, strict=True)
        ]
        for x in values
    ]
    assert Schema({"x": number}).encode({"x": values})[:, : len(means)].tolist() == expected


def test_vectors_stay_as_they_are():
    """Stores hold vectors of this version. Who changes them changes `VERSION` in written.py too."""
    assert sha256(SCHEMA.encode(ROWS).tobytes()).hexdigest() == GOLDEN


def frames():
    typed = [{**row, "smoker": [True, False, None, True][i], "note": "x"} for i, row in enumerate(ROWS)]
    dated = [{**row, "seen": row["seen"] and date.fromisoformat(row["seen"])} for row in typed]
    texts = [{name: "" if value is None else str(value) for name, value in row.items()} for row in typed]
    columns = {name: [row[name] for row in dated] for name in dated[0]}
    yield "text of a csv file", texts
    yield "JSON", typed
    yield "a dict of columns", columns
    yield "a dict of arrays", {name: np.array(column, dtype=object) for name, column in columns.items()}
    yield "pandas", pd.DataFrame(dated)
    yield "pandas by way of csv", pd.DataFrame(texts)
    yield "pandas categories", pd.DataFrame(dated).astype({"job": "category", "grade": "category"})
    yield "pandas dates", pd.DataFrame(dated).assign(seen=pd.to_datetime(pd.Series(columns["seen"])))
    yield "pandas with its own gaps", pd.DataFrame(dated).convert_dtypes()
    yield "polars", pl.DataFrame(columns)
    yield "Arrow", pa.table(columns)
    yield "an Arrow batch", pa.RecordBatch.from_pydict(columns)
    yield "Arrow dictionaries", pa.table({**columns, "job": pa.array(columns["job"]).dictionary_encode()})
    yield "other order of columns", pd.DataFrame(dated)[sorted(columns)]


@pytest.mark.parametrize("table", [pytest.param(table, id=name) for name, table in frames()])
def test_every_kind_of_table_gives_the_same_vectors(table):
    assert SCHEMA.encode(table).tobytes() == SCHEMA.encode(ROWS).tobytes()


def test_a_number_is_clipped_and_bends_at_its_knots():
    ages = block(Schema({**SCHEMA.columns, "age": Number(bounds=(0, 120), knots=(18, 40, 65))}), "age")
    assert len(SCHEMA.columns["age"].places) == 5
    assert not ages[2, :4].any()
    assert ages[2, 4] == 1.0  # the gap has a place
    assert not ages[[0, 1, 3], 4].any()
    schema = Schema({"age": Number(bounds=(0, 120), knots=(18, 40, 65))})
    at = {x: schema.encode({"age": [x]})[0, :4] for x in (-5, 0, 9, 18, 40, 52.5, 65, 120, 1e308)}
    assert np.array_equal(at[-5], at[0])
    assert np.array_equal(at[120], at[1e308])
    rise = at[120] - at[0]
    assert np.allclose(at[9] - at[0], [rise[0] / 2, 0, 0, 0])
    assert np.allclose(at[52.5] - at[40], [0, 0, rise[2] / 2, 0])


def test_columns_weigh_about_the_same_whatever_their_unit():
    rng = np.random.default_rng(1)
    metres, job = rng.normal(1.7, 0.1, 4000), rng.choice(["a", "b", "c", "d"], 4000)
    table = {"metres": metres, "nanometres": metres * 1e9, "job": job}
    bounds = tuple(np.quantile(metres, [0.001, 0.999]).tolist())
    number = {"metres": Number(bounds=bounds), "nanometres": Number(bounds=tuple(b * 1e9 for b in bounds))}
    schema = Schema({**number, "job": Category(values=("a", "b", "c", "d"))})
    X = schema.encode(table)
    powers = [
        sum(X[:, i].var() for i, place in enumerate(schema.places) if place.startswith(name + ":")) for name in table
    ]
    assert np.isclose(powers[0], powers[1])
    assert max(powers) < 2.5 * min(powers)
    assert abs(X[:, :-1].mean()) < 0.05


def test_what_is_not_listed_and_what_is_missing_have_places_of_their_own():
    jobs = block(SCHEMA, "job")
    assert len({tuple(row) for row in jobs.tolist()}) == 4
    assert [int(row.argmax()) for row in jobs] == [0, 3, 4, 2]
    grades = block(SCHEMA, "grade")
    assert [place.split(": ")[1] for place in SCHEMA.places if place.startswith("grade")] == [
        "above low",
        "above middle",
        "other",
        "missing",
    ]
    assert grades[1].tolist() == [0, 0, 1, 0]
    assert grades[2].tolist() == [0, 0, 0, 1]
    low, middle, high = (SCHEMA.columns["grade"]._rows[i, :2] for i in range(3))
    assert np.linalg.norm(low - middle) < np.linalg.norm(low - high)  # neighbours are similar


def test_a_gap_may_become_a_value_or_be_refused():
    filled = Schema({"age": Number(bounds=(0, 10), missing=5), "job": Category(values=("a", "b"), missing="b")})
    given = {"age": [None, 5], "job": ["", "b"]}
    first, second = filled.encode(given).tolist()
    assert first == second
    assert "age: missing" not in filled.places
    assert filled.places[-1] == "constant"
    for column in (
        Number(bounds=(0, 1), missing="refuse"),
        Category(values=("1",), missing="refuse"),
        YesNo(missing="refuse"),
    ):
        with pytest.raises(InvalidInputError, match="row 2: column 'x' must not be empty"):
            Schema({"x": column}).encode({"x": [1, 1, None]})


def test_other_words_for_a_gap():
    schema = Schema({"age": Number(bounds=(0, 10)), "job": Category(values=("a", "b"))}, blanks=("", "?"))
    assert np.array_equal(schema.encode({"age": ["?"], "job": ["?"]}), schema.encode({"age": [None], "job": [None]}))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"age": ["39", "old", "", ""]}, "row 1: column 'age' must be a number, got 'old'"),
        ({"age": [True] * 4}, "row 0: column 'age' must be a number, got True"),
        ({"age": ["1_000"] * 4}, "column 'age' must be a number, got '1_000'"),
        ({"age": [[1]] * 4}, r"column 'age' must be a number, got \[1\]"),
        ({"job": ["cook", {"a": 1}, "", ""]}, "row 1: column 'job' must be text or a number, got {'a': 1}"),
        ({"job": pd.Series(["cook", b"x", "", ""])}, "row 1: column 'job' must be text or a number, got b'x'"),
        ({"smoker": ["yes", "no", "maybe", ""]}, "row 2: column 'smoker' must be one of yes, true"),
        ({"seen": ["2024-02-30"] * 4}, "row 0: column 'seen' must be a date such as 2026-01-31, got '2024-02-30'"),
        ({"seen": [20240229] * 4}, "column 'seen' must be a date"),
        ({"weight": [1] * 4}, "column 'weight' is not in the schema"),
        ({"y": [1] * 4}, "column 'y' is not in the schema"),
        ({"age": [1, 2]}, "all columns must have the same number of rows"),
    ],
)
def test_a_wrong_column_is_named(change, message):
    table = {name: [row[name] for row in ROWS] for name in ROWS[0]}
    with pytest.raises(InvalidInputError, match=message):
        SCHEMA.encode({**table, **change})


def test_a_missing_column_is_named():
    with pytest.raises(InvalidInputError, match="column 'job' is missing: the table has only age, income"):
        SCHEMA.encode(pd.DataFrame(ROWS).drop(columns="job"))
    with pytest.raises(InvalidInputError, match="row 1: column 'job' must be in every row or in none"):
        SCHEMA.encode([ROWS[0], {k: v for k, v in ROWS[1].items() if k != "job"}])
    SCHEMA.encode(pd.DataFrame(ROWS).drop(columns="note"))  # nobody needs what is ignored


@pytest.mark.parametrize(
    "X", [np.zeros((3, 7)), [[1, 2]], 7, "text", pd.DataFrame([[1, 2]]), pd.DataFrame([[1, 2]], columns=["a", "a"])]
)
def test_a_table_needs_the_names_of_its_columns(X):
    with pytest.raises(InvalidInputError, match="column"):
        SCHEMA.encode(X)


def test_a_table_without_rows():
    assert SCHEMA.encode({name: [] for name in SCHEMA.used}).shape == (0, SCHEMA.n_features)


def test_labels_owners_and_ids_are_split_off():
    schema = Schema(SCHEMA.columns, label="y", owner="who", record_id="visit")
    table = pd.DataFrame(ROWS).assign(y=[0, 1, 1, 0], who=["ann", "bob", "ann", "cid"])
    split = schema.split(table)
    assert split.y.tolist() == [0, 1, 1, 0]
    assert split.owners == ["ann", "bob", "ann", "cid"]
    assert split.record_ids is None
    assert np.array_equal(schema.encode(split.features), SCHEMA.encode(ROWS))


def test_how_much_lies_outside():
    outside = SCHEMA.outside(ROWS)
    assert (outside["age"], outside["income"], outside["job"], outside["grade"]) == (0.25, 0.5, 0.25, 0.25)
    assert (outside["smoker"], outside["seen"]) == (0.0, 0.25)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Number(bounds=(1, 1)), "bounds must be two values, the lower one first"),
        (lambda: Number(bounds=(0, "x")), "bounds must be a list of finite numbers"),
        (lambda: Number(bounds=(0, 1), knots=(0.5, 0.5)), "knots must rise within the bounds"),
        (lambda: Number(bounds=(0, 1), means=(0.5,)), "means must be 12 numbers"),
        (lambda: Number(bounds=(0, 1), scale="cubic"), "scale must be 'linear' or 'log'"),
        (lambda: Number(bounds=(-1e308, 1e308), knots=()), "neither too close nor too far apart"),
        (lambda: Number(bounds=(0, 5e-324), knots=()), "neither too close nor too far apart"),
        (lambda: Schema({"a": 7}), "column 'a' must be a kind of column such as Number, got 7"),
        (lambda: Date(bounds=("2020", "2021")), "bounds must be dates such as"),
        (lambda: Category(values=()), "values must be a list of one text or more"),
        (lambda: Category(values=("3", "3.0")), "category '3.0' must not be given twice"),
        (lambda: Category(values=("a", "b"), shares=(0.9, 0.2)), "shares must be 2 numbers"),
        (lambda: Category(values=("a",), missing="b"), "missing must be 'place', 'refuse' or a listed value"),
        (lambda: YesNo(yes=("ja",), no=("JA",)), "yes and no must be different words"),
        (lambda: YesNo(share=2), "share must be from 0 to 1"),
        (lambda: Schema({"a": YesNo()}, label="a"), "column 'a' must have one meaning"),
        (lambda: Schema({"a": Ignored()}), "at least one column that is not ignored"),
    ],
)
def test_a_wrong_schema_is_refused(make, message):
    with pytest.raises(InvalidInputError, match=message):
        make()
