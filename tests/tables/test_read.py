"""One reader of files: every format gives the same values, with pyarrow and without it."""

import gzip
import json
import sys

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyarrow import feather

from helpers.commands import run
from indknn.errors import InvalidInputError
from indknn.store import Store
from indknn.tables import read
from indknn.tables.read import Named, pieces, read_pieces, read_table

TRICKY = [
    'a,b\n1,"x, y"\n2,"say ""hi"""\n',  # a separator and quotes within quotes
    'a,b\n1,"two\nlines"\n2,"two\r\nlines"\n',
    "a,b\n,\n1,\n,2\n",  # empty cells
    'a\n""\nx\n',
    "a,b,c,d\n+1,-2.50,1e3,-1E-05\n007,0x10,1_000, 4 \n",  # leading zeros stay
    "a,b\nNA,nan\nnull,true\n-0,inf\n",  # nothing is taken for a gap, a number or a truth value
    "naïve,名前\nÀ,Ω\n😀,𝕏\n",
    "a,b,\n1,2,\n3,4,\n",  # every line ends with a separator
    "a,b\r\n1,2\r\n\r\n3,4\r\n",
    "a,b\r1,2\r3,4\r",
    "a,b\n\n1,2\n\n\n3,4",
    'a,b\n"x"y,1\nx"y,2\n',
    "a,b\n1,2\n" + "3,4\n" * 9000,
    "a,b\n1," + "long " * 400_000 + "\n2,short\n",  # longer than a block of pyarrow
]


def without_pyarrow(monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow.csv", None)


def both_ways(path, monkeypatch, rows=1000):
    """What pyarrow reads, and what the standard library reads: columns in pieces, or the error."""
    found = []
    for bare in (False, True):
        with monkeypatch.context() as patch:
            if bare:
                without_pyarrow(patch)
            try:
                found.append(list(read_pieces(path, rows)))
            except InvalidInputError as error:
                found.append(str(error))
    return found


@pytest.mark.parametrize("text", TRICKY, ids=range(len(TRICKY)))
def test_pyarrow_and_the_standard_library_read_the_same(tmp_path, monkeypatch, text):
    (tmp_path / "t.csv").write_bytes(text.encode())
    fast, plain = both_ways(tmp_path / "t.csv", monkeypatch)
    assert fast == plain
    assert isinstance(fast, list)
    assert all(type(value) is str for piece in fast for column in piece.values() for value in column)
    assert all(len(column) <= 1000 for piece in fast for column in piece.values())


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.text(alphabet='a01.,;"\n\r\t| é', max_size=40))
def test_any_text_is_read_the_same_by_both(tmp_path, monkeypatch, text):
    (tmp_path / "t.csv").write_bytes(f"x,y\n{text}".encode())
    fast, plain = both_ways(tmp_path / "t.csv", monkeypatch)
    assert fast == plain


def test_pyarrow_is_used_where_it_is(tmp_path, monkeypatch):
    (tmp_path / "t.csv").write_text("a,b\n1,2\n")
    monkeypatch.setattr(read.csv, "reader", lambda *_, **__: iter([["a", "b"]]))  # it gives no more than the header
    assert read_table(tmp_path / "t.csv") == {"a": ["1"], "b": ["2"]}


@pytest.mark.parametrize("separator", [",", ";", "\t", "|"])
@pytest.mark.parametrize("name", ["t.csv", "t.csv.gz"])
@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_every_usual_separator_with_mark_and_gzip(tmp_path, monkeypatch, separator, name, mark):
    text = mark + 'a,b,c\n1,"x; | ,\t",007\n2,,\n'.replace(",", "\0").replace('"x; | \0\t"', '"x; | ,\t"')
    body = text.replace("\0", separator).encode()
    (tmp_path / name).write_bytes(gzip.compress(body) if name.endswith(".gz") else body)
    fast, plain = both_ways(tmp_path / name, monkeypatch)
    assert fast == plain == [{"a": ["1", "2"], "b": ["x; | ,\t", ""], "c": ["007", ""]}]


@pytest.mark.parametrize(
    ("text", "header"),
    [
        ("a;b\n1,5;2,5\n", ["a", "b"]),  # commas of decimals
        ("age, years;job\n39;cook\n", ["age, years", "job"]),
        ("a|b,c\n1,2\n", ["a|b", "c"]),  # a pipe in a name
        ("note,b\nx;y,2\n", ["note", "b"]),
        ("only\n1\n2\n", ["only"]),
    ],
)
def test_the_separator_is_the_one_that_fits(tmp_path, text, header):
    (tmp_path / "t.csv").write_text(text)
    assert list(read_table(tmp_path / "t.csv")) == header


@pytest.mark.parametrize(
    ("name", "body", "message"),
    [
        ("t.csv", b"a,b\n1,2\n3\n", r"t\.csv, row 1: must have 2 fields, got 1$"),
        ("t.csv", b"a,b\n" + b"1,2\n" * 300_000 + b"3,4,5\n", r"t\.csv, row 300000: must have 2 fields, got 3$"),
        ("t.csv", b"a;b\n1;2\n3;4;5\n", r"t\.csv, row 1: must have 2 fields, got 3$"),
        ("t.csv", b"a,b,\n1,2,\n1,2,3\n", r"t\.csv, row 1: the last column needs a name$"),
        ("t.csv", b"\na,b\n1,2\n", "needs a line of column names"),
        ("t.csv", "a,b\n1,é\n".encode("latin-1"), r"t\.csv: not a readable csv file \(.*utf-8"),
        ("t.csv.gz", b"no gzip", r"t\.csv\.gz: not a readable csv file"),
        ("t.csv.gz", gzip.compress(b"a,b\n1,2\n" * 999, mtime=0)[:40], r"t\.csv\.gz: not a readable csv file"),
        ("t.tsv", b"a\tb\n1\n", "row 0: must have 2 fields, got 1"),
        ("t.jsonl.gz", b"no gzip", "not a readable JSON lines file"),
        ("t.txt", b"a,b\n", r"must end in one of \.csv, .*\.xlsx, \.npz, \.npy"),
    ],
)
def test_a_wrong_file_is_one_line_that_says_where(tmp_path, monkeypatch, name, body, message):
    (tmp_path / name).write_bytes(body)
    for bare in (False, True):
        if bare:
            without_pyarrow(monkeypatch)
        with pytest.raises(InvalidInputError, match=message) as error:
            read_table(tmp_path / name)
        assert "\n" not in str(error.value)


# The same rows in every format, with a schema and without one

ROWS = [{"a": 1.5, "b": -2.0, "y": "no", "owner": "007"}, {"a": 0.25, "b": 3.0, "y": "yes", "owner": "7"}]
NAMES = [
    "r.csv", "r.csv.gz", "r.tsv", "r.tsv.gz", "r.jsonl", "r.jsonl.gz", "r.parquet", "r.arrow", "r.feather", "r.ipc",
    "r.xlsx", "r.npz",
]  # fmt: skip


def write(path, rows):
    table = pd.DataFrame(rows)
    plain = path.name.removesuffix(".gz")
    if plain.endswith((".csv", ".tsv", ".jsonl")):
        text = table.to_csv(index=False, sep=";" if plain.endswith(".csv") else "\t")
        text = "\n".join(map(json.dumps, rows)) if plain.endswith(".jsonl") else "\ufeff" + text
        path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    elif path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pandas(table, preserve_index=False), path)
    elif path.suffix == ".xlsx":
        pytest.importorskip("openpyxl")
        table.to_excel(path, index=False)
    elif path.suffix == ".npz":
        np.savez(path, X=table[["a", "b"]].to_numpy(), y=table["y"].to_numpy(str), owners=table["owner"].to_numpy(str))
    else:
        feather.write_feather(table, path)
    return path


@pytest.mark.parametrize("name", NAMES)
def test_every_format_without_a_schema(tmp_path, name):
    (found,) = pieces(write(tmp_path / name, ROWS), Named().split)
    assert found.features.tolist() == [[1.5, -2.0], [0.25, 3.0]]
    assert (found.y.tolist(), list(found.owners), found.record_ids) == (["no", "yes"], ["007", "7"], None)


@pytest.mark.parametrize("name", NAMES[:-1])
def test_the_command_line_takes_the_same_files_with_a_schema_and_without(tmp_path, name):
    file = write(tmp_path / name, ROWS)
    columns = {"a": {"kind": "number", "bounds": [0, 2]}, "b": {"kind": "number", "bounds": [-5, 5]}}
    schema = {"columns": columns, "label": {"column": "y", "classes": ["no", "yes"]}, "owner": "owner"}
    (tmp_path / "s.json").write_text(json.dumps(schema))
    for store, more in (("a.store", ["--classes", "no,yes"]), ("b.store", ["--schema", tmp_path / "s.json"])):
        assert run("init", tmp_path / store, *more).exit_code == 0
        added = run("add", tmp_path / store, file)
        assert added.exit_code == 0, added.output
        with Store(tmp_path / store) as opened:
            assert opened.engine.ledger.owners() == ["007", "7"]  # two people (rule 13)


def test_whole_numbers_and_their_digits_are_one_person(tmp_path):
    store = tmp_path / "s.store"
    assert run("init", store, "--classes", "no,yes").exit_code == 0
    for i, owner in enumerate((17, "17")):
        for ending in ("jsonl", "parquet", "csv", "npz"):
            row = {"a": 1.0 + i, "b": 2.0 + NAMES.index(f"r.{ending}"), "y": "no", "owner": owner}
            added = run("add", store, write(tmp_path / f"r.{ending}", [row]))
            assert added.exit_code == 0, added.output
    with Store(store) as opened:
        assert opened.engine.ledger.owners() == ["17"]
        assert len(opened.engine.shard) == 8


def test_lists_of_numbers_and_single_arrays(tmp_path):
    (tmp_path / "r.jsonl").write_text('{"x": [1, 2], "y": 0}\n{"x": [3, 4], "y": 1}\n')
    (found,) = pieces(tmp_path / "r.jsonl", Named().split)
    assert found.features.tolist() == [[1.0, 2.0], [3.0, 4.0]]
    np.save(tmp_path / "q.npy", np.eye(3))
    (found,) = pieces(tmp_path / "q.npy", Named().split)
    assert (found.features.tolist(), found.y) == (np.eye(3).tolist(), None)
    (tmp_path / "r.jsonl").write_text('{"x": [1, 2]}\n{"x": [3]}\n')
    with pytest.raises(InvalidInputError, match=r"r\.jsonl: column 'x' must hold numbers, or lists of numbers of one"):
        list(pieces(tmp_path / "r.jsonl", Named().split))


def test_an_error_far_down_names_the_file_and_the_rows(tmp_path):
    (tmp_path / "r.csv").write_text("a,y\n" + "1,no\n" * 5000 + "x,no\n")
    with pytest.raises(InvalidInputError, match=r"r\.csv: row 5000: column 'a' must be a number, got 'x'"):
        list(pieces(tmp_path / "r.csv", Named().split))
    columns = {"a": {"kind": "number", "bounds": [0, 2]}}
    schema = {"columns": columns, "label": {"column": "y", "classes": ["no", "yes"]}}
    (tmp_path / "s.json").write_text(json.dumps(schema))
    assert run("init", tmp_path / "s.store", "--schema", tmp_path / "s.json").exit_code == 0
    result = run("add", tmp_path / "s.store", tmp_path / "r.csv", "--each-row")
    assert result.exit_code == 2
    assert f"{tmp_path / 'r.csv'}: row 5000: column 'a' must be a number, got 'x'" in result.output


def test_excel_sheets(tmp_path):
    openpyxl = pytest.importorskip("openpyxl")
    book = openpyxl.Workbook()
    for row in (["a", "when", "owner", None], [1, pd.Timestamp("2026-01-31"), "007"], [None] * 4, [2.5, None, 17]):
        book.active.append(row)
    book.create_sheet("other").append(["z"])
    book.save(tmp_path / "t.xlsx")
    found = read_table(tmp_path / "t.xlsx")
    assert found["a"] == [1, 2.5]
    assert found["owner"] == ["007", 17]
    assert str(found["when"][0])[:10] == "2026-01-31"
    book.active.append([1, None, "x", "stray"])
    book.save(tmp_path / "t.xlsx")
    with pytest.raises(InvalidInputError, match="row 2: must have 3 fields, got 4"):
        read_table(tmp_path / "t.xlsx")
    (tmp_path / "t.xlsx").write_bytes(b"no")
    with pytest.raises(InvalidInputError, match="not a readable Excel file"):
        read_table(tmp_path / "t.xlsx")


@pytest.mark.parametrize(
    ("name", "module", "extra"), [("t.xlsx", "openpyxl", "excel"), ("t.parquet", "pyarrow.parquet", "tables")]
)
def test_a_missing_package_is_named_with_its_extra(tmp_path, monkeypatch, name, module, extra):
    (tmp_path / name).write_bytes(b"")
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(InvalidInputError, match=rf"needs '{module[:7]}\w*': pip install 'indknn\[{extra}\]'"):
        read_table(tmp_path / name)
