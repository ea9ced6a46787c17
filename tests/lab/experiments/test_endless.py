"""Queries without end: who is private and who asks, what is measured, and what is kept."""

import json
from dataclasses import replace

import numpy as np
import pytest

from helpers.commands import run
from indknn.engine import Engine
from indknn.errors import InvalidInputError
from indknn_lab.experiments import reproduce as runner
from indknn_lab.experiments.data import Results, load
from indknn_lab.experiments.items.endless import EndlessChange, EndlessFigures, EndlessStreams, accuracy
from indknn_lab.experiments.methods import endless as streams
from indknn_lab.experiments.methods import method_of
from indknn_lab.experiments.reproduce import choose, reproduce
from indknn_lab.experiments.setting import find
from indknn_lab.plots.report import summary, verdict

quiet = lambda *_: None  # noqa: E731


def trial(setting, part, method, T, epsilon):
    """One run on agnews-toy.npz, of any length."""
    return replace(EndlessFigures(setting, None).trial(part, "agnews", method, epsilon), T=T)


def measure(unit, data):
    return method_of(unit)(unit, data).measure()


@pytest.fixture(scope="module")
def folder(tmp_path_factory, make_features):
    """An agnews-toy.npz that is large enough for 400 queries."""
    folder = tmp_path_factory.mktemp("endless")
    make_features(folder, "agnews-toy", n=3000, queries=400, classes=4)
    return folder


@pytest.fixture(scope="module")
def data(folder):
    return load(folder / "agnews-toy.npz", None)


@pytest.fixture(scope="module")
def setting(folder):
    return find(folder, quick=True)


def rows_of(X):
    return {row.tobytes() for row in X}


def test_nobody_who_asks_in_a_stream_is_private_and_all_queries_differ(data):
    T = 6000
    world = streams.long_stream(data, T, seed=1)
    n = streams.distinct(len(data.X), len(data.Q))
    assert len(world.first) == 1200
    assert len(rows_of(world.Q)) == T
    assert not rows_of(world.X) & rows_of(world.Q)
    assert rows_of(world.Q[:n]) <= rows_of(data.X) | rows_of(data.Q)
    other = streams.long_stream(data, T, seed=2)
    assert rows_of(other.X) == rows_of(world.X)  # what was tuned for one seed is tuned for all
    assert (other.truth != world.truth).any()
    moved = np.linalg.norm(world.Q[n:] - data.Q[0], axis=1)
    assert np.isfinite(moved).all()


def test_every_hundred_queries_one_leaves_or_arrives(data):
    world = streams.changing_stream(data, 400, seed=0)
    assert [(c.at, len(c.leave), len(c.arrive)) for c in world.changes] == [(100, 1, 0), (200, 0, 1), (300, 1, 0)]
    assert len(world.present(0)) == len(world.first)
    assert len(world.present(100)) == len(world.first) - 1
    assert len(world.present(299)) == len(world.first)
    gone, come = world.changes[0].leave[0], world.changes[1].arrive[0]
    assert gone not in world.present(100)
    assert come not in world.first
    assert come in world.present(200)


def test_new_classes_come_at_half_time_with_records_and_queries(data):
    world = streams.drifting_stream(data, 400, seed=0)
    assert not (world.truth[:200] == 3).any()
    assert (world.truth[200:] == 3).any()
    assert not (world.y[world.present(199)] == 3).any()
    assert (world.y[world.present(200)] == 3).sum() == (data.labels == 3).sum()
    assert len(world.Q) == 400


def test_tuning_sees_private_records_only(data):
    world = streams.long_stream(data, 1000, seed=0)
    held_out = world.held_out()
    assert rows_of(held_out.X) | rows_of(held_out.Q) == rows_of(world.X)
    assert not rows_of(held_out.Q) & rows_of(held_out.X)
    assert len(held_out.truth) == 120


def test_the_engine_is_told_of_every_change(data, setting, monkeypatch):
    told, unit = [], trial(setting, "drift", "open", 400, 1.0)
    forget, add = Engine.forget_owners, Engine.add
    monkeypatch.setattr(Engine, "forget_owners", lambda s, o: told.append(("-", o)) or forget(s, o))
    monkeypatch.setattr(Engine, "add", lambda s, X, y, o: told.append(("+", o)) or add(s, X, y, o))
    result = measure(unit, data)
    world = streams.drifting_stream(data, 400, 0)
    assert [sign for sign, _ in told] == ["+", "-", "+", "-"]
    assert told[0][1] == world.first.tolist()
    assert len(told[2][1]) == 1 + (data.labels == 3).sum()
    assert accuracy(result, 200, 400) > 0.6  # the new class was learned: without it no more than half is right
    assert len(result["right"]) == 4


def test_the_product_and_its_parts_are_other_settings(data, setting):
    found = {}
    for method in ("open", "model", "votes"):
        unit = trial(setting, "figures", method, 400, 1.0)
        told = method_of(unit)(unit, data).settings()
        found[method] = (told["mode"], told["max_queries"])
    assert found == {
        "open": ("model", None),
        "model": ("model", 400),
        "votes": ("votes", 400),
    }


def test_the_model_alone_asks_nobody(data, setting):
    assert measure(trial(setting, "figures", "model", 400, 1.0), data)["asked"] == 0
    assert measure(trial(setting, "figures", "votes", 400, 1.0), data)["asked"] == 400


def test_algorithm_3_of_a_stream_is_tuned_for_a_fifth_of_it(data, setting):
    unit = trial(setting, "streams", "votes", 1000, 1.0)
    method, held_out = method_of(unit)(unit, data), streams.long_stream(data, 1000, 0).held_out()
    told = method.settings()
    assert told["max_queries"] == 200
    assert (told["tau"], told["sigma2"]) == method.search(held_out, 200) != method.search(held_out, 100_000)


def test_all_retrainings_are_paid_for(data, setting):
    often, once = (
        measure(trial(setting, "change", method, 400, 1.0), data) for method in ("noisy_sgd_retrained", "noisy_sgd")
    )
    assert (often["trainings_paid"], often["trainings_done"]) == (4, 4)
    assert (once["trainings_paid"], once["trainings_done"]) == (1, 1)
    assert often["noise_multiplier"] > 1.3 * once["noise_multiplier"]


def test_retraining_is_paid_for_where_nothing_changes(data, setting):
    often = measure(trial(setting, "figures", "noisy_sgd_retrained", 400, 1.0), data)
    assert (often["trainings_paid"], often["trainings_done"]) == (4, 1)


def test_private_knn_pays_for_the_whole_stream(data, setting):
    long, short = (measure(trial(setting, "streams", "private_knn", T, 0.05), data) for T in (20_000, 100))
    assert len(long["right"]) == 200
    assert accuracy(long, 0, 20_000) < accuracy(short, 0, 100) - 0.05


def test_ceilings_and_neighbours_follow_the_records(data, setting):
    for method, epsilon in (("ridge", None), ("kernel", None), ("private_knn", 50.0)):
        result = measure(trial(setting, "drift", method, 400, epsilon), data)
        assert accuracy(result, 200, 400) > 0.8


def test_a_run_goes_on_and_fresh_begins_anew(folder, tmp_path, monkeypatch):
    done, measure = [], runner.measure
    monkeypatch.setattr(runner, "measure", lambda unit, path: done.append(unit) or measure(unit, path))
    setting = find(folder, quick=True)
    items = choose("endless_figures")
    first = reproduce(items, setting, tmp_path, quiet, jobs=1)
    n = len(done)
    assert n == 6 + 2
    assert reproduce(items, setting, tmp_path, quiet, jobs=1) == first
    assert len(done) == n
    assert reproduce(items, setting, tmp_path, quiet, jobs=1, fresh=True) == first
    assert len(done) == 2 * n
    reproduce(items, find(folder, quick=True, seeds=2), tmp_path, quiet, jobs=1)
    assert len(done) == 2 * n + 6


def test_what_is_done_so_far_is_reported(tmp_path, folder):
    setting, results = find(folder, seeds=2, only=(0.5, 1.0)), Results(tmp_path / "units")
    (item,) = choose("endless_figures")
    for unit in item(setting, results).units():
        if unit.method in ("open", "noisy_sgd") and unit.epsilon == 1.0 and unit.seed == 0:
            results.put(unit, {"block": 100, "right": [90] * 4, "length": 400}, 0.0)
    (outcome,) = reproduce([item], setting, tmp_path, quiet, so_far=True)
    assert outcome.status == "partly"
    assert outcome.not_run[-1] == "24 of 26 units, which are not done yet"
    rows = {row[0]: row[1:] for row in outcome.tables[0].rows}
    assert rows["Ind-KNN"] == ["–", ".900"]
    assert rows["Private-kNN"] == ["–", "–"]
    (against,) = outcome.findings
    assert against.agrees


def test_seeds_and_epsilons_are_those_asked_for(folder):
    full = EndlessFigures(find(folder), None).units()
    assert {u.seed for u in full if u.method in ("model", "private_knn")} == {0}
    assert {u.seed for u in full if u.method in ("open", "votes", "noisy_sgd")} == set(range(5))
    few = EndlessStreams(find(folder, seeds=2, only=(0.25,)), None).units()
    assert {(u.epsilon, u.seed) for u in few if u.method == "open"} == {(0.25, 0), (0.25, 1)}
    with pytest.raises(InvalidInputError, match=r"epsilon must be one of 0\.25"):
        EndlessChange(find(folder, only=(3.0,)), None).units()


@pytest.mark.parametrize(("sgd", "votes", "level", "best"), [(89, 88, True, True), (90, 91, False, False)])
def test_goals_are_judged(tmp_path, folder, sgd, votes, level, best):
    results = Results(tmp_path)
    item = EndlessFigures(find(folder, only=(0.5,)), results)
    for unit in item.units():
        share = {"noisy_sgd": sgd, "votes": votes}.get(unit.method, 89)
        results.put(unit, {"block": 100, "right": [share] * 4, "length": 400}, 0.0)
    against, parts = item.outcome().findings
    assert (against.agrees, parts.agrees) == (level, best)
    assert f"{0.89 - sgd / 100:+.4f}" in against.here


def test_a_stream_that_falls_is_found_out(tmp_path, folder):
    results = Results(tmp_path)
    item = EndlessStreams(find(folder, only=(1.0,)), results)
    one = item.once("agnews")
    for last in (90, 88):
        for unit in item.units():
            counts = [90 if i < (unit.T - one) // 100 else last for i in range(unit.T // 100)]
            results.put(unit, {"block": 100, "right": counts, "length": unit.T}, 0.0)
        (finding,) = item.outcome().findings
        assert finding.agrees == (last == 90)


def test_the_command_runs_them_and_tells_goals_from_claims(folder, tmp_path):
    words = ["reproduce", "endless", "--data", str(folder), "--out", str(tmp_path), "--quick", "--jobs", "1"]
    done = run(*words, "--epsilon", "1")
    assert done.exit_code == 0, done.output
    outcomes = [json.loads((tmp_path / "items" / f"{item.name}.json").read_text()) for item in choose("endless")]
    assert [o["status"] for o in outcomes] == ["partly"] * 3 + ["not run"]
    assert outcomes[-1]["not_run"] == ["needs adult.csv.gz", "needs letters.csv.gz", "needs shuttle.csv.gz"]
    findings = [f for o in outcomes for f in o["findings"]]
    assert {verdict(f) for f in findings} == {"not judged"}  # a rehearsal judges nothing
    assert summary(outcomes) == "Not run: tables."
    assert "Goal: " in (tmp_path / "results.md").read_text()
    assert "the goal" in (tmp_path / "report.html").read_text()
