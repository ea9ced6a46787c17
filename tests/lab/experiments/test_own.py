"""Data and methods of one's own: files of any name, tables, and a class in a file."""

import csv
import gzip
import json
from pathlib import Path

import numpy as np
import pytest

from helpers.commands import run
from indknn.errors import InvalidInputError
from indknn.tables import infer
from indknn.tables.schema import schema_text
from indknn_lab.datasets import load_features
from indknn_lab.experiments.items import ITEMS
from indknn_lab.experiments.methods.own import load_methods
from indknn_lab.experiments.setting import find

EXAMPLE = Path(__file__).parents[3] / "examples" / "own_method.py"


def reproduce(item, out, *words):
    done = run("reproduce", item, "--out", str(out), "--quick", "--jobs", "1", *map(str, words))
    assert done.exit_code == 0, done.output
    return done.output, json.loads((out / "items" / f"{item}.json").read_text())


@pytest.mark.slow
def test_own_features_and_an_own_method_join_a_figure(tmp_path, make_features):
    mine = make_features(tmp_path, "my clinic")
    said, outcome = reproduce("figure2", tmp_path / "out", "--data", mine, "--method", EXAMPLE)
    assert "my clinic takes the place of fmnist; agnews, dbpedia need a folder with their files" in said
    (panel,) = outcome["panels"]
    assert panel["title"].startswith("my clinic, T = ")
    curves = {series["label"]: series["y"] for series in panel["series"]}
    assert len(curves) == 7
    assert min(curves["Noisy class means"]) > 0.8


@pytest.mark.slow
def test_an_own_method_joins_the_endless_figures_in_other_processes(tmp_path, make_features):
    mine = make_features(tmp_path, "mine", n=1000, queries=200)
    _, outcome = reproduce(
        "endless_figures", tmp_path / "out", "--data", mine, "--method", EXAMPLE, "--epsilon", 1, "--jobs", 2
    )
    rows = {row[0]: float(row[1]) for row in outcome["tables"][0]["rows"]}
    assert rows["Noisy class means"] > 0.8
    assert rows["Noisy class means"] <= rows["ridge regression, no privacy"] + 0.1


def test_an_own_method_is_in_every_item_that_compares_methods(tmp_path, make_features):
    setting = find(make_features(tmp_path, "mine"), quick=True, methods=(EXAMPLE,))
    (kind,) = setting.roles
    without = {
        name for name, item in ITEMS.items() if not any(kind in (u.kind, u.method) for u in item(setting, None).units())
    }
    assert without == {"figure3a", "figure3b", "figure4", "table3", "hyperparameters"}  # times, and parts of Ind-KNN


@pytest.mark.slow
@pytest.mark.parametrize(("item", "where"), [("table1", "columns"), ("size", "labels"), ("endless_change", "rows")])
def test_an_own_method_is_shown(item, where, tmp_path, make_features):
    mine = make_features(tmp_path, "mine", n=800, queries=400)
    _, outcome = reproduce(item, tmp_path / "out", "--data", mine, "--method", EXAMPLE)
    tables, series = outcome["tables"], [s["label"] for p in outcome["panels"] for s in p["series"]]
    shown = {
        "columns": [column for table in tables for column in table["columns"]],
        "labels": series,
        "rows": [row[1] for table in tables for row in table["rows"]],
    }
    assert "Noisy class means" in shown[where]


@pytest.fixture
def table(tmp_path):
    """A csv file of 3,000 rows with a label that follows from two of its columns."""
    rng = np.random.default_rng(0)
    ages, jobs = rng.integers(20, 70, size=3000).tolist(), rng.choice(["cook", "baker", "nurse"], size=3000).tolist()
    labels = ["tired" if age > 45 or job == "baker" else "awake" for age, job in zip(ages, jobs, strict=True)]
    path = tmp_path / "visits.csv"
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([("age", "job", "state"), *zip(ages, jobs, labels, strict=True)])
    public = {"age": ages[:200], "job": jobs[:200], "state": labels[:200]}
    schema = tmp_path / "schema.json"
    schema.write_text(schema_text(infer(public, label="state").schema, as_yaml=False))
    return path, schema


def test_a_table_becomes_features_by_its_schema(table, tmp_path):
    path, schema = table
    given = find(path, schema=schema, made=tmp_path / "made")
    (source,) = given.sources["agnews"]
    assert (given.own, source.private, source.public) == ("visits", 2400, 600)
    again = find(path, schema=schema, made=tmp_path / "made")
    assert again.sources == given.sources
    (guessed,) = find(path, label="state", made=tmp_path / "made").sources["agnews"]
    assert (guessed.private, guessed.public) == (1600, 400)  # 1,000 rows made the schema
    data = load_features(source.path)
    assert set(data.y_train) == {"tired", "awake"}
    with pytest.raises(InvalidInputError, match=r"labels must be one of age, job, state, got None"):
        find(path, made=tmp_path / "made")


def test_known_tables_of_a_folder_are_taken(table, tmp_path, make_features):
    folder = tmp_path / "data"
    folder.mkdir()
    make_features(folder, "something else")
    text = table[0].read_text().replace("state", "income")
    with gzip.open(folder / "adult.csv.gz", "wt") as file:
        file.write(text)
    setting = find(folder, quick=True, made=tmp_path / "made")
    assert set(setting.sources) == {"adult"}
    assert "something else.npz was not taken" in setting.notices[0]
    assert {unit.data for unit in ITEMS["tables"](setting, None).units()} == {setting.sources["adult"][0].stem}


def test_what_cannot_be_used_is_refused(tmp_path, table):
    odd = tmp_path / "odd.npz"
    np.savez(odd, X=np.zeros((3, 2)))
    with pytest.raises(InvalidInputError, match="X_train, y_train, X_test and y_test"):
        find(odd)
    with pytest.raises(InvalidInputError, match="--schema and --label are for"):
        find(None, label="y")
    empty = tmp_path / "nothing.py"
    empty.write_text("x = 1\n")
    with pytest.raises(InvalidInputError, match="must define a subclass"):
        load_methods([empty])
    with pytest.raises(InvalidInputError, match="must be a Python file"):
        load_methods([tmp_path / "gone.py"])


def test_other_code_makes_other_units(tmp_path):
    first, second = tmp_path / "a.py", tmp_path / "b.py"
    first.write_text(EXAMPLE.read_text())
    second.write_text(EXAMPLE.read_text().replace("0.5", "0.25"))
    kinds = [set(load_methods([path])) for path in (first, second, EXAMPLE)]
    assert kinds[0] == kinds[2] != kinds[1]
