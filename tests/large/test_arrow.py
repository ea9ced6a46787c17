"""Arrow and parquet as input: the same records as from an array, read in pieces."""

from __future__ import annotations

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import feather

from helpers.commands import run
from indknn import IndKNNClassifier
from indknn.cli import records
from indknn.core.quantise import quantise
from indknn.errors import InvalidInputError
from indknn.store import Store
from indknn.tables.read import Named, pieces, rows_in, stacked

X = np.random.default_rng(0).standard_normal((90, 4)).astype(np.float32)
Y = np.arange(90) % 3
FLAT = pa.array(X.ravel())


def lists(kind):
    if kind == "fixed":
        return pa.FixedSizeListArray.from_arrays(FLAT, 4)
    of = pa.ListArray if kind == "list" else pa.LargeListArray
    return of.from_arrays(pa.array(np.arange(0, 361, 4), type=pa.int32() if kind == "list" else pa.int64()), FLAT)


@pytest.mark.parametrize("kind", ["fixed", "list", "large"])
def test_lists_of_numbers_are_rows_in_their_own_type(kind):
    column = lists(kind)
    for given in (column, pa.table({"x": column}), pa.record_batch([column], ["x"]), pa.chunked_array([column])):
        rows = rows_in(given)
        assert rows.dtype == np.float32
        np.testing.assert_array_equal(rows, X)
    np.testing.assert_array_equal(rows_in(column.slice(7, 20)), X[7:27])
    np.testing.assert_array_equal(rows_in(pa.chunked_array([column[:50], column[50:]])), X)
    assert np.shares_memory(rows_in(column), FLAT.to_numpy())


def test_plain_columns_stand_side_by_side():
    table = {"a": pa.array([1, 2], type=pa.int64()), "b": pa.array([0.5, None]), "c": pa.array(["3", "4.5"])}
    np.testing.assert_array_equal(stacked(table), [[1, 0.5, 3], [2, np.nan, 4.5]])
    mixed = {"a": pa.array([1, 2]), "x": pa.array([[3, 4], [5, 6]])}
    np.testing.assert_array_equal(stacked(mixed), [[1, 3, 4], [2, 5, 6]])
    assert rows_in("no arrow") == "no arrow"
    table_of_numbers = pa.table({"a": [1.0], "b": [2.0]})
    assert rows_in(table_of_numbers) is table_of_numbers


@pytest.mark.parametrize("column", [[[1.0], [2.0, 3.0]], [[1.0], None], [["a"], ["b"]], [[1.0, 2.0, 3.0], []]])
def test_what_is_no_table_of_numbers_is_refused_by_name(column):
    with pytest.raises(InvalidInputError, match="column 'x' must hold numbers, or lists of numbers of one length"):
        stacked({"x": pa.array(column)})


def test_the_estimator_takes_arrow():
    model = IndKNNClassifier(classes=[0, 1, 2]).fit(pa.table({"x": lists("fixed")}), Y, owners=pa.array(Y))
    assert model.owners_.tolist() == ["0", "1", "2"]
    np.testing.assert_array_equal(model._engine.shard.index.slots.values[:90], quantise(X).values)
    assert model.predict(lists("fixed")[:3]).shape == (3,)


@pytest.mark.parametrize("ending", ["parquet", "arrow", "feather"])
def test_files_are_added_in_pieces(tmp_path, monkeypatch, ending):
    monkeypatch.setattr(records.pieces_of, "__defaults__", (16,))
    path, store = tmp_path / f"r.{ending}", tmp_path / "s.store"
    table = pa.table({"x": lists("fixed"), "y": Y, "owner": Y + 7, "record_id": [f"r{i}" for i in range(90)]})
    pq.write_table(table, path) if ending == "parquet" else feather.write_feather(table, path)
    found = list(pieces(path, Named().split, 16))
    assert [piece.first for piece in found] == [0, 16, 32, 48, 64, 80]
    assert all(piece.features.dtype == np.float32 for piece in found)
    assert run("init", str(store), "--classes", "0,1,2").exit_code == 0
    added = run("add", str(store), str(path), "--json")
    assert added.exit_code == 0, added.output
    assert json.loads(added.stdout) == {
        "expired": 0,
        "added": 90,
        "replaced": 0,
        "unchanged": 0,
        "records": 90,
        "owners": 3,
    }
    with Store(store) as opened:
        np.testing.assert_array_equal(opened.engine.shard.index.slots.values[:90], quantise(X).values)
        assert opened.engine.ledger.owners() == ["7", "8", "9"]
