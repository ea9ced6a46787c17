"""The command: report files, exit codes, and the short audit itself."""

import json
from dataclasses import replace

import pytest

from helpers.commands import run
from indknn.core import mechanism
from indknn_lab.audits import report as reports
from indknn_lab.audits import runner
from indknn_lab.audits.attacks import membership, one_run
from indknn_lab.audits.checks import CHECKS
from indknn_lab.audits.measure import measure_gradients, simulations
from indknn_lab.audits.mutants import MUTANTS
from indknn_lab.audits.patches import Mutant
from indknn_lab.audits.runner import Verdict
from indknn_lab.audits.scenarios import scenarios


def small(monkeypatch, clock=lambda: 0.0, minutes=0.05):
    """A second or two instead of two minutes: less of everything, and no clock."""
    cheap = {"exact books": CHECKS["exact books"], "scales": CHECKS["scales"]}
    monkeypatch.setattr(runner.failed_checks, "__defaults__", (cheap,))
    monkeypatch.setattr(runner, "CHECKS", cheap)
    monkeypatch.setattr(runner, "PROBES", runner.PROBES[:1])
    monkeypatch.setattr(runner, "MUTANTS", [m for m in MUTANTS if m.name in {"float32 ledger", "half noise"}])
    monkeypatch.setattr(runner, "TRIALS", 10)
    monkeypatch.setattr(runner, "scenarios", lambda: scenarios()[1:3])
    monkeypatch.setattr(runner, "simulations", lambda: simulations()[:1])
    monkeypatch.setattr(runner, "measure_gradients", lambda n, seed, error: measure_gradients(200, seed, error))
    monkeypatch.setattr(runner, "one_run", lambda canaries, seed, error: one_run(300, seed, error))
    monkeypatch.setattr(runner, "membership", lambda people, seed, error: membership(300, seed, error))
    monkeypatch.setattr(runner, "timing", lambda answers, error: ())
    return runner.run(minutes, seed=1, clock=clock)


class Hasty:
    """A clock that goes on by so many seconds whenever somebody looks."""

    def __init__(self, step):
        self.step, self.now = step, 0.0

    def __call__(self):
        self.now += self.step
        return self.now


def test_report_files_and_exit_codes(monkeypatch, tmp_path):
    good = small(monkeypatch)
    assert good.problems == []
    bad = replace(
        good,
        scenarios=(replace(good.scenarios[0], epsilon=99.0),),
        mutants=(Verdict("quiet", "nothing", {}, {}, False, 0.0),),
        product_checks={"books": "<b>wrong</b>"},
    )
    assert len(bad.problems) == 3
    short = replace(good, missing=("mutants: <i>quiet</i>",))
    for report, code in ((good, 0), (bad, 1), (replace(bad, missing=short.missing), 1), (short, 4)):
        monkeypatch.setattr(runner, "run", lambda minutes, seed, show, report=report: report)
        result = run("audit", "--out", str(tmp_path))
        assert result.exit_code == code, result.output
        data = json.loads((tmp_path / "audit.json").read_text())
        assert data["passed"] == (code == 0)
        assert data["verdict"] == {0: "PASSED", 1: "FAILED", 4: "INCOMPLETE"}[code]
        assert data["problems"] == report.problems
        assert data["missing"] == list(report.missing)
        assert data["verdict"] in result.output
        assert all(f"missing, for want of time: {name}" in result.output for name in report.missing)
        page = (tmp_path / "audit.html").read_text()
        assert "http" not in page
        assert ("class=bad" in page) == (code > 0)
        assert ("&lt;b&gt;wrong" in page) == (code == 1)
        assert ("&lt;i&gt;quiet" in page) == bool(report.missing)
    result = run("audit", "--out", str(tmp_path), "--json")
    assert '"problems"' in result.output
    assert "ABOVE THE CLAIM" in reports.summary(bad)


@pytest.mark.slow
def test_the_same_seed_gives_the_same_figures(monkeypatch):
    first, second = small(monkeypatch), small(monkeypatch)
    assert [(m.mu, m.epsilon) for m in first.scenarios] == [(m.mu, m.epsilon) for m in second.scenarios]
    assert first.membership.private == second.membership.private


def test_a_mutant_that_merely_crashes_is_not_caught():
    def broken(*words, **more):
        raise TypeError("odd")

    verdict = runner.judge(Mutant("odd", "nothing", lambda: [(mechanism, "settle", broken)]), 1, 5)
    assert not verdict.caught
    assert verdict.wrong == "nothing; it crashed: TypeError: odd"


def test_bad_minutes_are_refused():
    result = run("audit", "--minutes", "0")
    assert result.exit_code == 2
    assert "minutes must be between" in result.output


@pytest.mark.parametrize("step", [0.02, 0.25, 9.0])
def test_what_there_is_no_time_for_is_listed(monkeypatch, step):
    """The audit has three seconds. The clock is told, not read: the slower the audit, the more it has to leave out."""
    clock = Hasty(step)
    report = small(monkeypatch, clock)
    assert report.problems == []
    assert report.outcome == ("INCOMPLETE" if report.missing else "PASSED")
    assert all(f"missing, for want of time: {name}" in reports.summary(report) for name in report.missing)
    names = {m.name for m in report.scenarios} | {v.mutant for v in report.mutants}
    told = {name.split(": ", maxsplit=1)[1] for name in report.missing}
    wanted = {"votes", "counts", "many trials, votes", "many trials, gradients", "float32 ledger", "half noise"}
    assert wanted - told <= names  # a scenario that was played, but too seldom, is missing too
    assert (report.membership is None) == ("membership" in told)
    assert clock.now <= 3.0 + 60 * step  # what is left is only counted
    assert (step > 0.1) == bool(report.missing)
    if step == 9.0:
        assert not names
    reports.html(report)


@pytest.mark.parametrize("step", [0.02, 0.25, 9.0])
def test_a_leak_never_passes_however_short_the_time(monkeypatch, step):
    (leak,) = (mutant for mutant in MUTANTS if mutant.name == "half noise")
    with leak():
        report = small(monkeypatch, Hasty(step))
    assert report.outcome == ("FAILED" if report.problems else "INCOMPLETE")
    assert report.problems or "checks: scales" in report.missing


def test_everything_required_comes_before_more_trials_of_anything(monkeypatch):
    """With no limit all of it is done, on whatever machine."""
    order = []
    part = runner.Allowance.part

    def listed(self, name, things, *, required=True):
        order.append(required)
        return part(self, name, things, required=required)

    monkeypatch.setattr(runner.Allowance, "part", listed)
    monkeypatch.setattr(runner, "PLANNED", 1.5)
    report = small(monkeypatch, Hasty(1e6), minutes=None)
    assert order == sorted(order, reverse=True)
    assert order.count(False) == 4  # simulations, attacks, two more rounds of each scenario
    assert (report.outcome, report.missing, report.left_out) == ("PASSED", (), ())
    assert [m.trials for m in report.scenarios[:2]] == [200, 200]


def test_fewer_trials_than_planned_are_said_and_pass(monkeypatch):
    report = small(monkeypatch, Hasty(4.5), minutes=1.5)
    assert report.outcome == "PASSED"
    assert report.left_out


@pytest.mark.slow
def test_the_short_audit_passes(monkeypatch, tmp_path):
    """What `indknn audit --minutes 1` plans: no claim exceeded, no mutant left. The other mutants have their own tests."""
    monkeypatch.setattr(runner, "MUTANTS", [mutant for mutant in MUTANTS if mutant.probes])
    report = runner.run(1.0, seed=1, clock=lambda: 0.0)
    reports.write(report, tmp_path)
    assert report.outcome == "PASSED"
    assert report.strongest.tightness > 0.5
