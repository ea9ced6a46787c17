"""Runs that stop and go on, files that are damaged, data that are missing."""

import json
import re
import shutil

import numpy as np
import pytest

from helpers import commands
from indknn.errors import InvalidInputError
from indknn_lab.experiments import reproduce as runner
from indknn_lab.experiments.data import Results
from indknn_lab.experiments.items import ITEMS
from indknn_lab.experiments.items import ablation as ablation_item
from indknn_lab.experiments.items.base import Compared, ahead
from indknn_lab.experiments.reproduce import choose, reproduce
from indknn_lab.experiments.setting import as_changes, find
from indknn_lab.plots.report import write_report

quiet = lambda *_: None  # noqa: E731


@pytest.fixture
def counted(monkeypatch):
    """The units that were really done."""
    done, measure = [], runner.measure
    monkeypatch.setattr(runner, "measure", lambda unit, path: done.append(unit) or measure(unit, path))
    return done


def run(name, features, out, jobs=1):
    return reproduce(choose(name), find(features, quick=True), out, quiet, jobs=jobs)


@pytest.fixture(scope="module")
def once(tmp_path_factory, make_toys):
    """A run of Figure 4, which several tests begin with: its folder, with features and results, and its outcomes."""
    folder = tmp_path_factory.mktemp("once")
    features = make_toys(folder / "features")
    return folder, run("figure4", features, folder / "out")


@pytest.fixture
def ran(once, tmp_path):
    """The same in a folder that a test may change: features, results, outcomes."""
    shutil.copytree(once[0], tmp_path / "ran")
    return tmp_path / "ran" / "features", tmp_path / "ran" / "out", once[1]


@pytest.mark.slow
def test_a_second_run_does_nothing_and_says_the_same(ran, counted):
    features, out, first = ran
    assert len(list((out / "units").glob("*.json"))) == 2 * 4 * 2  # data sets, ways, epsilons
    assert run("figure4", features, out) == first
    assert not counted


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
def test_a_damaged_result_is_done_again(ran, counted):
    features, out, _ = ran
    path = sorted((out / "units").glob("*.json"))[0]
    good = json.loads(path.read_text())
    edited = {**good, "result": {**good["result"], "sigma2": 7.0}}
    other = {**good, "config": {**good["config"], "epsilon": 99.0}}
    for damaged in ("", "{", "null", "[]", json.dumps(edited), json.dumps(other), json.dumps(good)[:-9]):
        before = len(counted)
        path.write_text(damaged)
        run("figure4", features, out)
        assert len(counted) == before + 1
        assert json.loads(path.read_text())["result"] == good["result"]


@pytest.mark.slow
def test_other_data_under_the_same_name_are_other_units(ran, counted, make_features):
    features, out, _ = ran
    make_features(features, "agnews-toy", classes=2, seed=7)
    run("figure4", features, out)
    assert len(counted) == 8


@pytest.mark.slow
def test_what_lacks_data_is_listed(ran):
    features, out, (done,) = ran
    assert done.status == "done"
    (features / "cifar10-toy.npz").unlink()
    (partly,) = run("figure4", features, out)
    assert (partly.status, partly.not_run) == ("partly", ["needs cifar10-*.npz"])
    (idle,) = run("figure1a", features, out)
    assert (idle.status, idle.not_run) == ("not run", ["needs cifar10-*.npz"])


@pytest.mark.slow
def test_two_processes_find_what_one_finds(ran, tmp_path):
    features, _, alone = ran
    assert run("figure4", features, tmp_path / "together", jobs=2) == alone


def test_unknown_items_and_folders_are_refused(tmp_path):
    with pytest.raises(InvalidInputError, match="got 'tabel1'; did you mean 'table1'"):
        choose("tabel1")
    with pytest.raises(InvalidInputError, match="no file has features 'vit': there are no files"):
        find(tmp_path, features="vit")
    with pytest.raises(InvalidInputError, match="--features is for --data with a folder"):
        find(None, features="vit")
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


def test_the_best_features_are_used_unless_others_are_chosen(tmp_path, make_features):
    for extractor in ("r50", "lite3", "mine", "r50-mini"):
        make_features(tmp_path, f"cifar10-{extractor}", n=60, queries=40)
    best, chosen = find(tmp_path), find(tmp_path, features="r50")
    assert [s.extractor for s in best.sources["cifar10"]] == ["lite3", "r50", "mine", "r50-mini"]
    assert best.unit("indknn", "cifar10", 10, 1.0).data == "cifar10-lite3"
    assert best.title("cifar10") == "CIFAR-10 (lite3)"
    assert chosen.unit("indknn", "cifar10", 10, 1.0).data == "cifar10-r50"
    sizes, table2 = ITEMS["size"](best, None), ITEMS["table2"](best, None)
    assert {unit.data for unit in sizes.units()} == {"cifar10-r50"}  # as in the paper
    assert {unit.data for unit in table2.units()} == {"cifar10-lite3", "cifar10-r50", "cifar10-mine"}
    with pytest.raises(InvalidInputError, match="no file has features 'vit': there are lite3, r50, mine"):
        find(tmp_path, features="vit")


def test_parts_of_ind_knn_can_be_set(features):
    setting = find(features, changed=as_changes(["T=40", "weights=equal", "epsilon=2", "delta=1e-6"]))
    units = ITEMS["figure1a"](setting, None).units()
    private = [unit for unit in units if unit.epsilon is not None]
    assert {(u.T, u.weights, u.epsilon, u.delta) for u in private} == {(40, "equal", 2.0, 1e-6)}
    assert {unit.epsilon for unit in ITEMS["hyperparameters"](setting, None).units()} == {2.0}
    assert setting.title("cifar10") == "CIFAR-10 (toy, weights = equal)"
    assert setting.epsilons == (2.0,)  # so that no curve has the same point at several places
    lengths = [unit.T for unit in ITEMS["figure1b"](setting, None).lines()["indknn"]]
    assert lengths == sorted(lengths)  # what an item varies itself stays as it is
    assert lengths[0] != 40
    varied = ITEMS["ablation"](find(features, changed=as_changes(["sigma1=0.9"])), None).lines()
    assert [varied[name][0].sigma1 for name in ("the paper's (cosine)", "σ1 of a half", "σ1 of 1.4")] == [0.9, 0.5, 1.4]
    for text, message in (("x=1", "--set must name one of T"), ("T=a", "needs a number"), ("noise=no", "'by K' or 'f")):
        with pytest.raises(InvalidInputError, match=message):
            as_changes([text])


@pytest.mark.slow
def test_own_data_of_any_name_run_in_every_item(tmp_path, make_features):
    own = make_features(tmp_path, "my data", n=700, queries=60)
    outcomes = {outcome.name: outcome for outcome in run("all", own, tmp_path / "out")}
    assert {(name, o.status) for name, o in outcomes.items() if o.status not in {"done", "partly"}} == set()
    table2, ablation = outcomes["table2"], outcomes["ablation"]
    assert table2.tables[0].columns[2:] == ["my data", "paper, ResNet50", "paper, SimCLRv2", "paper, ViT"]
    findings = [finding for outcome in outcomes.values() for finding in outcome.findings]
    assert {(finding.agrees, finding.judged) for finding in findings} == {(None, False)}  # a rehearsal judges nothing
    assert [row[0] for row in ablation.tables[0].rows] == list(ablation_item.VARIANTS)
    assert len({finding.paper for finding in ablation.findings}) == len(ablation.findings) == 11
    shown = [panel.title for o in outcomes.values() for panel in o.panels] + [
        table.title for o in outcomes.values() for table in o.tables
    ]
    nameless = {"Best threshold by epsilon", "Best (σ2, τ) on the validation set", "Time per query"}  # in their rows
    assert all("my data" in title for title in shown if title not in nameless)
    with_numbers = ("table1", "figure1a", "figure3b", "table2", "table3", "hyperparameters", "ablation")
    assert all("paper" in str(outcomes[name].tables) for name in with_numbers)  # its numbers stand beside ours


def test_few_records_are_all_in_every_batch(tmp_path, make_features):
    setting = find(make_features(tmp_path, "few", n=60, queries=20), quick=True)
    finding = ITEMS["ablation"](setting, Results(tmp_path))._retraining()  # the rate of sampling is 1
    assert "after 100 trainings" in finding.here


def test_the_files_of_one_data_set_are_told_apart(tmp_path, make_features):
    for seed, extractor in enumerate(("r50", "r50-logits")):
        make_features(tmp_path, f"cifar10-{extractor}", n=60, queries=40, seed=seed)
    setting = find(tmp_path)
    assert [row[:2] for row in setting.describe()] == [
        ["CIFAR-10 (r50)", "cifar10-r50.npz"],
        ["CIFAR-10 (r50-logits)", "cifar10-r50-logits.npz"],
    ]


def test_a_verdict_is_as_sure_as_the_test_sets_allow():
    ours, theirs = [0.80, 0.82, 0.81], [0.78, 0.81, 0.79]
    assert Compared.of(ours, theirs).ahead is True
    assert Compared.of(ours, [0.78, 0.82, 0.79]).ahead is None  # three sets do not suffice for this
    assert Compared.of(theirs, ours).level is False
    assert ahead([Compared(0.02, 0.01), Compared(-0.01, 0.02)]) is True
    assert ahead([Compared(0.02, 0.01), Compared(-0.03, 0.02)]) is False
    assert ahead([Compared(0.01, 0.02)]) is None
    assert Compared.of(ours, theirs).spread == pytest.approx(
        4.3027 * np.std([0.02, 0.01, 0.02], ddof=1) / 3**0.5, rel=1e-4
    )
    assert Compared.apart([0.9, 0.9], [0.8, 0.8]) == Compared(pytest.approx(0.1), 0.0)


def table2(tmp_path, make_features, accuracies):
    """Table 2 with these accuracies on three test sets, by extractor and method (or "kernel", "knn", "linear")."""
    for seed, extractor in enumerate(accuracies):
        make_features(tmp_path, f"cifar10-{extractor}", n=60, queries=40, seed=seed)
    results = Results(tmp_path / "units")
    item = ITEMS["table2"](find(tmp_path), results)
    for unit in item.units():
        middle = accuracies[unit.data.removeprefix("cifar10-")][unit.method or unit.kind]
        results.put(unit, {"accuracies": [middle - 0.001, middle, middle + 0.001]}, 0.0)
    return {finding.paper: finding for finding in item.outcome().findings}


@pytest.mark.parametrize(("better", "agrees"), [(0.88, True), (0.80, False)])
def test_the_claim_about_better_extractors_is_judged_by_the_gaps(tmp_path, make_features, better, agrees):
    plain = {"linear": 0.9, "kernel": 0.89, "knn": 0.88}
    found = table2(
        tmp_path,
        make_features,
        {
            "r50": {"noisy_sgd": 0.85, "indknn": 0.80, "private_knn": 0.75, **{m: v - 0.05 for m, v in plain.items()}},
            "lite3": {"noisy_sgd": 0.89, "indknn": better, "private_knn": 0.70, **plain},
        },
    )
    (gap,) = (finding for claim, finding in found.items() if "shrinks with a better extractor" in claim)
    assert gap.agrees is agrees
    assert gap.here.index("r50 (") < gap.here.index("lite3 (")  # the better linear model last


@pytest.mark.parametrize(("extractor", "named"), [("r50", True), ("r50-logits", True), ("lite3", False), ("my", False)])
def test_claims_about_resnet_are_looked_at_on_its_features_only(tmp_path, make_features, extractor, named):
    methods = {"noisy_sgd": 0.85, "indknn": 0.80, "private_knn": 0.75, "linear": 0.9, "kernel": 0.89, "knn": 0.88}
    found = table2(tmp_path, make_features, {extractor: methods})
    ours = [finding for claim, finding in found.items() if claim.startswith("On ResNet50 and SimCLRv2 features")]
    assert [(finding.agrees, finding.here.split(":")[0]) for finding in ours] == [(True, extractor)] * named


@pytest.mark.parametrize(("share", "agrees"), [(0.39, True), (0.5, True), (0.64, False), (0.75, False)])
def test_half_of_the_budget_is_the_limit_of_the_claim_about_the_median_person(tmp_path, features, share, agrees):
    results = Results(tmp_path / "units")
    item = ITEMS["figure3b"](find(features), results)
    unit = item.ours("cifar10")[-1]
    results.put(unit, {"median_epsilon": [0.0, 1.2], "median_share": share, "exhausted": 0.1}, 0.0)
    assert item._median("cifar10", unit).agrees is agrees


@pytest.mark.slow
def test_an_item_that_fails_does_not_take_the_others_along(features, tmp_path, monkeypatch):
    def broken(_):
        raise IndexError("tuple index out of range")

    monkeypatch.setattr(ITEMS["figure3a"], "body", broken)
    words = ["--data", features, "--out", tmp_path, "--quick", "--jobs", "1"]
    result = commands.run("reproduce", "figure3a", *words)
    assert result.exit_code != 0
    assert "could not be made: figure3a; the report says why" in result.output
    assert "it failed: IndexError: tuple index out of range" in (tmp_path / "report.html").read_text()


@pytest.mark.slow
def test_a_unit_that_fails_is_named(features, tmp_path, monkeypatch):
    monkeypatch.setattr(runner, "measure", lambda *_: 1 / 0)
    (outcome,) = run("figure3a", features, tmp_path)
    assert outcome.status == "not run"
    assert outcome.not_run == ["3 of 3 units, which failed: ZeroDivisionError: division by zero"]
    words = ["--data", features, "--out", tmp_path, "--quick", "--jobs", "1"]
    result = commands.run("reproduce", "figure3a", *words)
    assert result.exit_code != 0
    assert "could not be made: figure3a; the report says why" in result.output
    assert "ZeroDivisionError" in (tmp_path / "report.html").read_text()


@pytest.mark.slow
def test_an_item_says_where_it_was_made_and_how_long_it_took(features, tmp_path, monkeypatch):
    monkeypatch.setattr(runner.os, "getloadavg", lambda: (7.0, 0.0, 0.0))
    (outcome,) = run("figure3a", features, tmp_path)
    assert outcome.run["seconds"] > 0
    assert outcome.run["memory_mb"] > 10
    assert "cores" in outcome.run["machine"][0]
    write_report(tmp_path)
    said = re.compile(r"Run on 20.* s of computing .* MB in one process. Times were .* other work \(load 7\)\.")
    assert said.search((tmp_path / "report.html").read_text())
    assert said.search((tmp_path / "results.md").read_text())
    monkeypatch.setattr(runner, "_about_here", lambda: {"date": "2030-01-01", "commit": "other"})
    assert run("figure3a", features, tmp_path)[0].run == outcome.run  # kept results have the code that made them


@pytest.mark.slow
def test_what_ends_a_process_does_not_take_the_report_along(features, tmp_path, monkeypatch):
    def ended(*_, **__):
        raise RuntimeError("a worker process was ended")

    monkeypatch.setattr(runner, "Parallel", ended)
    (outcome,) = run("figure3a", features, tmp_path)
    assert outcome.not_run == ["3 of 3 units, which failed: RuntimeError: a worker process was ended"]
    assert write_report(tmp_path).is_file()


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
