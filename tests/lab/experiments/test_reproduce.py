"""Runs that stop and go on, files that are damaged, data that are missing."""

import json

import numpy as np
import pytest

from helpers import commands
from indknn.errors import InvalidInputError
from indknn_lab.experiments import reproduce as runner
from indknn_lab.experiments.items import ITEMS
from indknn_lab.experiments.reproduce import choose, reproduce
from indknn_lab.experiments.setting import find
from indknn_lab.experiments.units import Results

quiet = lambda *_: None  # noqa: E731


@pytest.fixture
def counted(monkeypatch):
    """The units that were really done."""
    done, measure = [], runner.measure
    monkeypatch.setattr(runner, "measure", lambda unit, path: done.append(unit) or measure(unit, path))
    return done


def run(name, features, out, jobs=1):
    return reproduce(choose(name), find(features, quick=True), out, quiet, jobs=jobs)


@pytest.mark.slow
def test_a_second_run_does_nothing_and_says_the_same(features, tmp_path, counted):
    first = run("figure4", features, tmp_path)
    n = len(counted)
    assert n == 2 * 4 * 2  # data sets, ways, epsilons
    assert run("figure4", features, tmp_path) == first
    assert len(counted) == n


@pytest.mark.slow
def test_an_interrupted_run_goes_on(features, tmp_path, monkeypatch, counted):
    real = runner.measure

    def stumble(unit, path):
        if len(counted) == 5:
            raise KeyboardInterrupt
        return real(unit, path)

    with monkeypatch.context() as patch:
        patch.setattr(runner, "measure", stumble)
        with pytest.raises(KeyboardInterrupt):
            run("figure4", features, tmp_path)
    assert len(list((tmp_path / "units").glob("*.json"))) == 5
    run("figure4", features, tmp_path)
    assert len(counted) == 16


@pytest.mark.slow
def test_a_damaged_result_is_done_again(features, tmp_path, counted):
    run("figure4", features, tmp_path)
    path = sorted((tmp_path / "units").glob("*.json"))[0]
    good = json.loads(path.read_text())
    edited = {**good, "result": {**good["result"], "sigma2": 7.0}}
    other = {**good, "config": {**good["config"], "epsilon": 99.0}}
    for damaged in ("", "{", "null", "[]", json.dumps(edited), json.dumps(other), json.dumps(good)[:-9]):
        before = len(counted)
        path.write_text(damaged)
        run("figure4", features, tmp_path)
        assert len(counted) == before + 1
        assert json.loads(path.read_text())["result"] == good["result"]


@pytest.mark.slow
def test_other_data_under_the_same_name_are_other_units(features, tmp_path, counted, make_features):
    run("figure4", features, tmp_path)
    before = len(counted)
    make_features(features, "agnews-toy", classes=2, seed=7)
    run("figure4", features, tmp_path)
    assert len(counted) == before + 8


@pytest.mark.slow
def test_what_lacks_data_is_listed(features, tmp_path):
    (partly,) = run("figure4", features, tmp_path)
    assert partly.status == "done"
    (features / "cifar10-toy.npz").unlink()
    (partly,) = run("figure4", features, tmp_path)
    assert (partly.status, partly.not_run) == ("partly", ["needs cifar10-*.npz"])
    (idle,) = run("figure1a", features, tmp_path)
    assert (idle.status, idle.not_run) == ("not run", ["needs cifar10-*.npz"])


@pytest.mark.slow
def test_two_processes_find_what_one_finds(features, tmp_path):
    alone, together = run("figure4", features, tmp_path / "a"), run("figure4", features, tmp_path / "b", jobs=2)
    assert alone == together


def test_unknown_items_and_folders_are_refused(tmp_path):
    with pytest.raises(InvalidInputError, match="figure9"):
        choose("figure9")
    with pytest.raises(InvalidInputError, match="not a folder"):
        find(tmp_path / "nowhere")
    assert find(tmp_path).stand_in == ("cifar10",)  # an empty folder is like none


def test_every_item_names_units_that_differ_only_where_they_should(features):
    setting = find(features, quick=True)
    for item in (item for name, item in ITEMS.items() if name != "tables"):  # which are not there
        units = item(setting, None).units()
        assert units
        assert len({u.name for u in units}) == len(set(units))


def test_results_know_their_own(tmp_path, features):
    setting, results = find(features, quick=True), Results(tmp_path)
    unit = setting.unit("plain", "cifar10", 1000, method="kernel")
    assert results.get(unit) is None
    with pytest.raises(KeyError):
        results[unit]
    results.put(unit, {"accuracies": [0.5]}, 1.0)
    assert results[unit] == {"accuracies": [0.5]}
    assert results.get(setting.unit("plain", "cifar10", 1000, method="knn")) is None


@pytest.mark.slow
def test_the_command_lists_runs_and_reports(features, tmp_path):
    listed = commands.run("reproduce", "list")
    assert listed.exit_code == 0
    assert all(name in listed.output for name in ITEMS)
    words = ["reproduce", "figure3a", "--data", str(features), "--out", str(tmp_path), "--quick", "--jobs", "1"]
    done = commands.run(*words)
    assert done.exit_code == 0, done.output
    assert "nobody paid for this search" in done.output
    (tmp_path / "report.html").unlink()
    assert commands.run("reproduce", "report", "--out", str(tmp_path)).exit_code == 0
    assert "Figure 3a" in (tmp_path / "report.html").read_text()
    idle = commands.run("reproduce", "size", "--data", str(_only_news(features)), "--out", str(tmp_path), "--quick")
    assert "not run: needs cifar10-*.npz" in idle.output
    refused = commands.run("reproduce", "figure9")
    assert refused.exit_code == 2
    assert "figure9" in refused.output


def _only_news(features):
    (features / "cifar10-toy.npz").unlink()
    return features


@pytest.mark.slow
def test_quick_runs_everything_on_the_packaged_data(tmp_path):
    result = commands.run("reproduce", "all", "--quick", "--out", str(tmp_path))
    assert result.exit_code == 0, result.output
    outcomes = {p.stem: json.loads(p.read_text()) for p in (tmp_path / "items").glob("*.json")}
    assert set(outcomes) == set(ITEMS)
    assert {name for name, o in outcomes.items() if o["status"] == "not run"} == {"tables"}
    assert outcomes["figure2"]["not_run"] == ["needs agnews-*.npz", "needs dbpedia-*.npz"]
    best = np.median([max(s["y"]) for p in outcomes["figure1a"]["panels"] for s in p["series"]])
    assert best > 0.6
    assert (tmp_path / "report.html").stat().st_size > 50_000
