"""The file of answers: every answer has the id of its query, under the names that the user's own tables have."""

import csv

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest

from conftest import blobs
from helpers.commands import run

X, Y = blobs(130, 2, 3, seed=3)
PEOPLE = pd.DataFrame(X[:100], columns=["a", "b", "c"]).assign(
    outcome=np.where(Y[:100], "stays", "goes"), patient=[f"p{i}" for i in range(100)]
)
QUERIES = pd.DataFrame(X[100:], columns=["a", "b", "c"]).assign(visit=[f"v{i}" for i in range(30)])


def lines(path):
    with path.open(newline="") as file:
        return list(csv.reader(file))


@pytest.fixture(scope="module", params=[["visit"], []], ids=["record id in the schema", "none"])
def store(request, tmp_path_factory):
    """A store with a schema for these tables."""
    folder = tmp_path_factory.mktemp("answers")
    PEOPLE.to_csv(folder / "people.csv", index=False)
    named = [word for name in request.param for word in ("--record-id", name)]
    words = ("--label", "outcome", "--owner", "patient", "-o", folder / "schema.json", *named)
    run("schema", "infer", folder / "people.csv", *words, code=0)
    options = ("--tau", 0.3, "--max-queries", 300, "--mode", "votes", "--epsilon", 8)
    run("init", folder / "s.store", "--schema", folder / "schema.json", *options, code=0)
    ids = PEOPLE.assign(visit=[f"w{i}" for i in range(100)]) if named else PEOPLE
    ids.to_csv(folder / "people.csv", index=False)
    run("add", folder / "s.store", folder / "people.csv", code=0)
    return folder / "s.store"


def asked(store, folder, table, out="out.csv", *words, **options):
    table.to_csv(folder / "queries.csv", index=False)
    return run("predict", store, folder / "queries.csv", "-o", folder / out, *words, **options)


@pytest.mark.parametrize("name", ["visit", "id", "record_id"])
def test_answers_have_the_ids_of_their_queries_and_the_name_of_the_label(store, tmp_path, name):
    table = QUERIES.rename(columns={"visit": name})
    words = ["--record-id", name] if name == "visit" else []  # only one of the stores knows this column
    asked(store, tmp_path, table, "out.csv", "--proba", *words, code=0)
    header, *rows = lines(tmp_path / "out.csv")
    assert header == [name, "outcome", "p_goes", "p_stays"]
    assert [row[0] for row in rows] == [f"v{i}" for i in range(30)]
    assert {row[1] for row in rows} == {"goes", "stays"}
    asked(store, tmp_path, table, "out.parquet", *words, code=0)
    found = pq.read_table(tmp_path / "out.parquet").to_pydict()
    assert list(found) == [name, "outcome"]
    assert list(zip(*found.values(), strict=True)) == [(row[0], row[1]) for row in rows]
    asked(store, tmp_path, table, "out.npz", *words, code=0)
    with np.load(tmp_path / "out.npz") as arrays:
        assert arrays["record_ids"].tolist() == found[name]
        assert arrays["y"].tolist() == found["outcome"]


def test_without_ids_there_is_the_number_of_the_row(store, tmp_path):
    many = pd.concat([QUERIES.drop(columns="visit")] * 9)  # more than are answered at a time
    asked(store, tmp_path, many, code=0)
    header, *rows = lines(tmp_path / "out.csv")
    assert header == ["row", "outcome"]
    assert [int(row[0]) for row in rows] == list(range(270))
    asked(store, tmp_path, many, "out.npz", code=0)
    with np.load(tmp_path / "out.npz") as arrays:
        assert sorted(arrays) == ["y"]


def test_a_column_of_ids_that_is_not_there_is_named(store, tmp_path):
    told = asked(store, tmp_path, QUERIES, "out.csv", "--record-id", "vist")
    assert told.exit_code == 2
    assert "no column 'vist', only a, b, c, visit" in told.stderr
    assert not (tmp_path / "out.csv").exists()


def test_without_a_schema_an_id_is_a_feature_only_if_the_store_has_so_many(tmp_path):
    PEOPLE.rename(columns={"c": "id", "outcome": "y", "patient": "owner"}).to_csv(tmp_path / "people.csv", index=False)
    options = ("--tau", 0.3, "--max-queries", 300, "--mode", "votes", "--classes", "goes,stays")
    run("init", tmp_path / "s.store", *options, code=0)
    run("add", tmp_path / "s.store", tmp_path / "people.csv", code=0)
    features = QUERIES.drop(columns="visit")
    for table, header in (
        (features.rename(columns={"c": "id"}), "row"),
        (features.assign(id=range(7, 37)), "id"),
        (features.assign(record_id=range(7, 37)), "record_id"),
        (features.rename(columns={"c": "id"}).assign(record_id=range(7, 37)), "record_id"),
    ):
        asked(tmp_path / "s.store", tmp_path, table, code=0)
        first, *rows = lines(tmp_path / "out.csv")
        assert first == [header, "y"]
        assert [int(row[0]) for row in rows] == list(range(30) if header == "row" else range(7, 37))
    words = ("--features", "a,b,c", "--record-id", "visit")
    asked(tmp_path / "s.store", tmp_path, QUERIES, "out.csv", *words, code=0)
    assert lines(tmp_path / "out.csv")[1][0] == "v0"
    np.savez(tmp_path / "q.npz", X=X[100:], record_ids=np.arange(30) * 2)
    run("predict", tmp_path / "s.store", tmp_path / "q.npz", "-o", tmp_path / "out.csv", code=0)
    assert lines(tmp_path / "out.csv")[:2][0] == ["record_id", "y"]
    assert lines(tmp_path / "out.csv")[30][0] == "58"


class TestNothingIsOverwrittenByMistake:
    @pytest.fixture
    def plain(self, tmp_path):
        np.savez(tmp_path / "people.npz", X=X[:100], y=Y[:100], owners=PEOPLE["patient"].to_numpy(str))
        np.savez(tmp_path / "q.npz", X=X[100:])
        run("init", tmp_path / "a.store", "--classes", "0,1", code=0)
        run("add", tmp_path / "a.store", tmp_path / "people.npz", code=0)
        return tmp_path

    @pytest.mark.parametrize("there", [True, False])
    def test_a_refused_query_leaves_the_file_of_answers_as_it_was(self, plain, there):
        out = plain / "out.csv"
        if there:
            out.write_text("of yesterday\n")
        np.savez(plain / "wide.npz", X=np.ones((2, 9)))
        told = run("predict", plain / "a.store", plain / "wide.npz", "-o", out, code=2).stderr
        assert "wide.npz: the queries must have 3 features per row, got 9" in told
        assert out.read_text() == "of yesterday\n" if there else not out.exists()
        run("predict", plain / "a.store", plain / "q.npz", "-o", out, code=0)
        assert len(lines(out)) == 31

    def test_no_queries_are_a_file_without_answers(self, plain):
        np.savez(plain / "none.npz", X=np.ones((0, 3)))
        run("predict", plain / "a.store", plain / "none.npz", "-o", plain / "out.csv", code=0)
        assert lines(plain / "out.csv") == [["row", "y"]]

    def test_the_queries_are_never_overwritten_and_a_missing_folder_is_named_before_any_charge(self, plain):
        before = (plain / "q.npz").read_bytes()
        asked = run("predict", plain / "a.store", plain / "q.npz", "-o", plain / "q.npz", code=2)
        assert "holds the queries" in asked.stderr
        assert (plain / "q.npz").read_bytes() == before
        asked = run("predict", plain / "a.store", plain / "q.npz", "-o", plain / "no" / "a.npz", code=2)
        assert f"there is no folder {plain / 'no'}" in asked.stderr
        assert " 0 answers given" in run("status", plain / "a.store", code=0).stdout

    @pytest.mark.parametrize("classes", ["a,a", "", "a,"])
    def test_classes_are_different_names(self, tmp_path, classes):
        told = run("init", tmp_path / "b.store", "--classes", classes, code=2).stderr
        assert f"as a,b,c, got {classes!r}" in told
        assert not (tmp_path / "b.store").exists()

    def test_promises_are_counted_and_a_promise_that_is_spent_says_so(self, plain):
        run("predict", plain / "a.store", plain / "q.npz", "-o", plain / "out.csv", code=0)
        assert "promised less" not in run("status", plain / "a.store", code=0).stdout
        told = run("owner", plain / "a.store", "p3", "--lower", "0.01", code=0).stderr
        assert "more than epsilon = 0.01 was spent already: nothing further is learned from them" in told
        assert "promised less than everybody: 1 person" in run("status", plain / "a.store", code=0).stdout
