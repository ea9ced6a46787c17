"""The adviser weighs measurements: between them, outside of them, and for tasks that some tools cannot do."""

import json
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from indknn.cli.app import app
from indknn.errors import InvalidInputError
from indknn_lab.advice.measurements import Measurements, measured
from indknn_lab.advice.verdict import Task, judge

LINES = {  # accuracy at (least load, greatest load)
    "endless": (0.80, 0.82),
    "algorithm3": (0.84, 0.50),
    "private_knn": (0.75, 0.40),
    "noisy_sgd": (0.86, 0.30),
}


def made_up(**other):
    points = [
        {"data": "d", "method": method, "n": n, "epsilon": e, "load": load, "accuracy": accuracy + bonus}
        for method, ends in (LINES | other).items()
        for n, bonus in ((10_000, 0.0), (40_000, 0.02))
        for e in (0.5, 2.0)
        for load, accuracy in zip((0 if method == "noisy_sgd" else 1000, 10_000), ends, strict=True)
    ]
    return Measurements.read({"data": {"d": {"title": "D", "features": 10, "classes": 3}}, "points": points})


def advise(*words):
    result = CliRunner().invoke(app, ["advise", *map(str, words)])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def test_between_measurements_there_are_straight_lines_in_logarithms():
    known = made_up()
    half = known.estimate("d", "algorithm3", 20_000, 1.0, 3161)
    assert half.accuracy == pytest.approx(0.5 * (0.84 + 0.50) + 0.01, abs=1e-3)
    assert not half.outside


def test_outside_of_them_the_edge_counts_and_is_named():
    found = made_up().estimate("d", "algorithm3", 1_000_000, 8.0, 10**7)
    assert found.accuracy == pytest.approx(0.52)
    assert [text.split()[0] for text in found.outside] == ["n", "epsilon", "queries"]


def test_noise_of_measuring_never_makes_less_privacy_worse_or_more_load_better():
    stored = [
        {"data": "d", "method": "private_knn", "n": 100, "epsilon": e, "load": load, "accuracy": a}
        for e, load, a in ((1.0, 10, 0.8), (1.0, 100, 0.9), (2.0, 10, 0.7), (2.0, 100, 0.6))
    ]
    known = Measurements.read({"data": {"d": {}}, "points": stored})
    values = [known.estimate("d", "private_knn", 100, e, load).accuracy for e in (1.0, 2.0) for load in (10, 100)]
    assert values == [0.8, 0.8, 0.8, 0.8]


def test_without_updates_one_training_wins():
    assert judge(Task(10_000, 10_000, 0, 1.0), made_up()).best.name == "NoisySGD, trained once"


def test_updates_rule_out_a_model_that_never_changes():
    found = judge(Task(10_000, 10_000, 5000, 1.0), made_up())
    assert found.best.name == "Ind-KNN"
    (once,) = (o for o in found.options if o.name == "NoisySGD, trained once")
    assert once.mean > found.best.mean
    assert not once.fit
    assert "are to come" in " ".join(found.reasons)


def test_few_queries_are_for_algorithm_3_and_few_updates_for_retraining():
    assert judge(Task(10_000, 1000, 5000, 1.0), made_up()).best.name == "Ind-KNN, Algorithm 3"
    assert judge(Task(10_000, 10_000, 1, 1.0), made_up(noisy_sgd=(0.9, 0.8))).best.name.startswith(
        "NoisySGD, retrained"
    )
    assert judge(Task(10_000, 1000, 5000, 1.0), made_up(private_knn=(0.9, 0.4))).best.name == "Private-kNN"


def test_what_is_level_is_called_level():
    found = judge(Task(10_000, 1000, 10_000, 1.0), made_up(private_knn=(0.835, 0.4)))
    assert found.level == ["Private-kNN"]


def test_other_shapes_are_cautioned():
    found = " ".join(judge(Task(10_000, 1000, 0, 1.0, features=5000, classes=100), made_up()).cautions)
    assert "100 classes: measured with 3" in found
    assert "at most 4,096 features" in found


# What ships


def test_the_shipped_measurements_cover_what_they_say():
    known = measured()
    assert known.data == ["agnews", "cifar10"]
    for data in known.data:
        for method in LINES:
            sizes = known.points[data, method]
            assert len(sizes) == 2
            for by_epsilon in sizes.values():
                assert sorted(by_epsilon) == [0.25, 0.5, 1.0, 2.0]
                assert all(len(loads) >= 2 for loads in by_epsilon.values())
                assert all(0.0 < a < 1.0 for loads in by_epsilon.values() for a in loads.values())


def test_the_shipped_file_is_what_the_script_writes(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    monkeypatch.setattr(
        sys, "argv", ["advise.py", "--only-write", "--cache", str(tmp_path), "--out", str(tmp_path / "o")]
    )
    import advise as script

    run = {"data": "agnews", "n": 10, "method": "endless", "epsilon": 1.0, "features": 3, "classes": 2}
    for seed, accuracy in enumerate((0.5, 0.7)):
        (tmp_path / f"{seed}.json").write_text(json.dumps({**run, "points": [[100, accuracy]]}))
    script.main()
    stored = json.loads((tmp_path / "o").read_text())
    assert Measurements.read(stored).estimate("agnews", "endless", 10, 1.0, 100).accuracy == pytest.approx(0.6)
    shipped = json.loads(script.SHIPPED.read_text())
    assert set(shipped) == set(stored)


def test_the_command_prints_accuracies_and_a_verdict():
    text = advise("--n", 50000, "--queries", 100000, "--updates", "10/day", "--epsilon", 1).output
    assert "The right tool: Ind-KNN" in text
    assert "3,651 trainings" in text
    assert text.count("0.") >= 15
    facts = json.loads(advise("--n", 20000, "--queries", 2000, "--epsilon", 0.5, "--json").output)
    assert facts["tool"] in {o["name"] for o in facts["options"] if o["fit"]}


def test_bad_values_are_named():
    for words, complaint in (
        (["--n", 0, "--queries", 1], "n must be at least 1, got 0"),
        (["--n", 1, "--queries", 1, "--updates", "often"], "--updates must be like 1000/day"),
        (["--n", 1, "--queries", 1, "--days", 0], "--days must be above 0"),
        (["--n", 1, "--queries", 1, "--epsilon", -1], "epsilon must be above 0, got -1.0"),
    ):
        result = advise(*words)
        assert result.exit_code == 2
        assert complaint in result.output
    with pytest.raises(InvalidInputError, match="nothing was measured of 'magic'"):
        made_up().estimate("d", "magic", 1, 1.0, 1)
