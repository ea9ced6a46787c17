"""Numbers on the command line: schema, init, add, predict with intervals, train."""

import csv
import json

import numpy as np
import pandas as pd
import pytest

from helpers.commands import run


def table(n, seed):
    rng = np.random.default_rng(seed)
    age, shift = rng.uniform(20, 70, n), rng.choice(["day", "night"], n)
    hours = np.clip(20 + 0.3 * age + 8 * (shift == "day") + rng.normal(0, 2, n), 0, 80)
    return pd.DataFrame(
        {"age": age.round(1), "shift": shift, "hours": hours.round(2), "name": [f"p{i}" for i in range(n)]}
    )


@pytest.mark.usefixtures("known_noise")
def test_from_a_table_to_answers_with_intervals(tmp_path):
    public, records, queries = (tmp_path / f"{name}.csv" for name in ("public", "records", "queries"))
    table(200, 0).drop(columns="name").to_csv(public, index=False)
    table(1500, 1).to_csv(records, index=False)
    asked = table(60, 2)
    asked.drop(columns=["name", "hours"]).to_csv(queries, index=False)
    words = ("--label", "hours", "--owner", "name", "--target", "number", "--bounds", 0, 80)
    run("schema", "infer", public, *words, "-o", tmp_path / "schema.json", code=0)
    assert json.loads((tmp_path / "schema.json").read_text())["label"] == {"column": "hours", "bounds": [0.0, 80.0]}
    store = tmp_path / "hours.store"
    run("init", store, "--schema", tmp_path / "schema.json", "--epsilon", 8, "--public", public, code=0)
    run("add", store, records, code=0)
    trained = run("train", store, "--json", code=0)
    assert 0 < json.loads(trained.stdout)["error"] < 20
    run("predict", store, queries, "-o", tmp_path / "out.csv", "--interval", 0.9, code=0)
    ahead = run("forecast", store, "--json", code=0).stdout
    assert json.loads(ahead)["off_by"] == json.loads(trained.stdout)["error"]
    assert "The model alone is off by about" in (said := run("forecast", store, code=0).stdout)
    assert "unknown before the first report card" not in said
    with (tmp_path / "out.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == ["row", "hours", "low", "high"]
    found = np.array([float(row["hours"]) for row in rows])
    assert np.corrcoef(found, asked["hours"])[0, 1] > 0.5
    assert all(float(row["low"]) <= float(row["hours"]) <= float(row["high"]) for row in rows)
    run("predict", store, queries, "-o", tmp_path / "out.npz", "--interval", 0.5, code=0)
    assert np.load(tmp_path / "out.npz")["interval"].shape == (60, 2)
    refused = run("predict", store, queries, "-o", tmp_path / "p.csv", "--proba")
    assert refused.exit_code != 0
    assert "the target is a number" in refused.stderr


def test_init_needs_bounds_and_takes_them(tmp_path):
    refused = run("init", tmp_path / "a.store", "--target", "number")
    assert refused.exit_code != 0
    assert "needs bounds" in refused.stderr
    assert "--bounds 0 120" in refused.stderr
    made = run("init", tmp_path / "b.store", "--target", "number", "--bounds", 0, 120, "--json", code=0)
    assert json.loads(made.stdout)["bounds"] == [0.0, 120.0]
