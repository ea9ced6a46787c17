"""`indknn schema`, as an operator uses it, and the files that it reads."""

import csv
import gzip
import json

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet as pq
import pytest

from helpers.commands import run
from indknn.errors import InvalidInputError
from indknn.tables import Category, Number, Schema, infer, read_schema
from indknn.tables.infer import TEMPLATE, check
from indknn.tables.read import read_pieces, read_table

RNG = np.random.default_rng(2)
TABLE = pd.DataFrame(
    {
        "age": RNG.integers(18, 90, 300),
        "pay": RNG.lognormal(8, 2, 300).round(2),
        "job": RNG.choice(["cook", "baker", "smith"], 300),
        "y": RNG.choice(["ill", "well"], 300),
        "owner": [f"p{i}" for i in range(300)],
    }
)


@pytest.fixture
def public(tmp_path):
    TABLE.to_csv(tmp_path / "public.csv", index=False)
    return tmp_path / "public.csv"


def test_infer_then_check(tmp_path, public):
    out = tmp_path / "schema.yaml"
    told = run("schema", "infer", public, "-o", out)
    assert told.exit_code == 0, told.output
    assert "3 columns, from 300 public rows" in told.output
    schema = read_schema(out)
    assert schema == infer(TABLE, label="y", owner="owner").schema
    assert "# y: the classes are those of the sample" in out.read_text()
    assert (schema.label, schema.owner, schema.record_id) == ("y", "owner", None)
    fits = run("schema", "check", out, public, "--json")
    assert fits.exit_code == 0, fits.output
    assert {one["what"] for one in json.loads(fits.output)} == {"age", "pay", "job", "label", "vectors"}
    again = run("schema", "infer", public, "-o", out)
    assert again.exit_code == 2
    assert "exists already" in again.output


def test_infer_prints_what_it_would_write(tmp_path, public):
    printed = run("schema", "infer", public, "--label", "y").output
    (tmp_path / "s.yaml").write_text(printed)
    assert read_schema(tmp_path / "s.yaml").classes == ("ill", "well")
    assert run("schema", "infer", public, "--label", "z").exit_code == 2


def test_the_template_is_a_schema(tmp_path):
    printed = run("schema", "template").output
    assert printed == TEMPLATE
    (tmp_path / "s.yaml").write_text(printed)
    schema = read_schema(tmp_path / "s.yaml")
    assert {column.kind for column in schema.columns.values()} == {
        "number",
        "category",
        "ordered",
        "yesno",
        "date",
        "ignored",
    }
    assert schema.encode({name: [None] if name != "pressure" else [120] for name in schema.used}).shape == (
        1,
        schema.n_features,
    )


def found(schema, table):
    return {one.what: one.seen for one in check(schema, table) if not one.ok}


def test_what_does_not_fit_is_told():
    schema = infer(TABLE, label="y", owner="owner").schema
    assert not found(schema, TABLE)
    assert "missing in the sample" in found(schema, TABLE.drop(columns="job"))["job"]
    assert "not in the schema" in found(schema, TABLE.assign(x=1))["x"]
    assert "beyond the bounds" in found(schema, TABLE.assign(age=TABLE["age"] * 2))["age"]
    assert "not listed" in found(schema, TABLE.assign(job="astronaut"))["job"]
    assert "the same in all rows" in found(schema, TABLE.assign(age=40))["age"]
    assert "'dead' is not among the classes" in found(schema, TABLE.assign(y="dead"))["label"]
    assert "row 0: column 'age' must be a number" in found(schema, TABLE.assign(age="x"))["values"]
    assert found(schema, TABLE.head(0)) == {"sample": "it has no rows"}
    columns = {"age": Number(bounds=(0, 100)), "pay": Number(bounds=(0, 1e9)), "job": Category(values=("cook", "none"))}
    assert "no classes" in found(Schema(columns, label="y", owner="owner"), TABLE)["label"]
    assert run("schema", "check", "none.yaml", "none.csv").exit_code == 2


def write(path, table):
    rows = table.to_dict("records")
    if path.name.endswith(".gz"):
        plain = path.with_suffix("")
        write(plain, table)
        path.write_bytes(gzip.compress(plain.read_bytes()))
    elif path.suffix == ".csv":
        with path.open("w", newline="") as file:
            writer = csv.DictWriter(file, list(table))
            writer.writeheader()
            writer.writerows(rows)
    elif path.suffix == ".jsonl":
        path.write_text("\n".join(json.dumps(row) for row in rows) + "\n\n")
    elif path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pandas(table, preserve_index=False), path, row_group_size=100)
    else:
        pyarrow.feather.write_feather(table, path)


@pytest.mark.parametrize("name", ["t.csv", "t.csv.gz", "t.jsonl", "t.jsonl.gz", "t.parquet", "t.arrow", "t.feather"])
def test_every_format_gives_the_same_vectors(tmp_path, name):
    write(tmp_path / name, TABLE)
    schema = infer(TABLE, label="y", owner="owner").schema
    pieces = [schema.split(piece) for piece in read_pieces(tmp_path / name, 128)]
    assert len(pieces) >= 3
    X = np.concatenate([schema.encode(piece.features) for piece in pieces])
    assert X.tobytes() == schema.encode(TABLE[["age", "pay", "job"]]).tobytes()
    assert [who for piece in pieces for who in piece.owners] == TABLE["owner"].tolist()
    assert np.concatenate([piece.y for piece in pieces]).tolist() == TABLE["y"].tolist()
    assert infer(read_table(tmp_path / name), label="y", owner="owner").schema == schema


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("t.csv", "", "needs a line of column names"),
        ("t.csv", "a,a\n1,2\n", "column 'a' must not occur twice"),
        ("t.csv", "a,b\n1,2\n1,2,3\n", "row 1: must have 2 fields, got 3"),
        ("t.csv", "a,b\n", "at least one row"),
        ("t.jsonl", "[1]\n", "row 0: must be a JSON object"),
        ("t.jsonl", '{"a": 1}\n{"a"\n', "row 1: not JSON"),
        ("t.jsonl", '{"a": 1}\n{"b": 1}\n', "row 1: column 'a' must be in every row or in none"),
        ("t.parquet", "no", "not a readable parquet file"),
        ("t.arrow", "no", "not a readable Arrow file"),
        ("t.txt", "no", "must end in one of .csv"),
    ],
)
def test_files_that_cannot_be_read(tmp_path, name, text, message):
    (tmp_path / name).write_text(text)
    with pytest.raises(InvalidInputError, match=message):
        read_table(tmp_path / name)
    with pytest.raises(InvalidInputError, match="does not exist"):
        read_table(tmp_path / "none.csv")
