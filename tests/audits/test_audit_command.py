"""The command: report files, exit codes, and the short audit itself."""

import json
from dataclasses import replace

import pytest
from click.testing import CliRunner

from indknn.cli.app import app
from indknn_lab.audits import report as reports
from indknn_lab.audits import runner
from indknn_lab.audits.probes import Verdict
from indknn_lab.cli import audit as command


def small(monkeypatch):
    """A few seconds instead of two minutes."""
    monkeypatch.setattr(runner, "simulations", lambda whole=runner.simulations: whole()[:1])
    monkeypatch.setattr(runner, "one_run", lambda canaries, seed, error, run=runner.one_run: run(300, seed, error))
    monkeypatch.setattr(
        runner, "measure_statistics", lambda n, seed, error, run=runner.measure_statistics: run(200, seed, error)
    )
    monkeypatch.setattr(runner, "scenarios", lambda whole=runner.scenarios: whole()[:2])
    monkeypatch.setattr(runner, "MUTANTS", [m for m in runner.MUTANTS if not m.probes][:2])
    monkeypatch.setattr(runner, "TRIALS", 10)
    monkeypatch.setattr(runner, "timing", lambda answers, error: [])
    return runner.run(0.05, seed=1)


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
    for report, code in ((good, 0), (bad, 1)):
        monkeypatch.setattr(command, "run", lambda minutes, seed, show, report=report: report)
        result = CliRunner().invoke(app, ["audit", "--out", str(tmp_path)])
        assert result.exit_code == code, result.output
        data = json.loads((tmp_path / "audit.json").read_text())
        assert data["passed"] == (code == 0)
        assert data["problems"] == report.problems
        page = (tmp_path / "audit.html").read_text()
        assert "http" not in page
        assert ("class=bad" in page) == (code == 1)
    assert "&lt;b&gt;wrong" in page
    result = CliRunner().invoke(app, ["audit", "--out", str(tmp_path), "--json"])
    assert '"problems"' in result.output
    assert "ABOVE THE CLAIM" in reports.summary(bad)


def test_the_same_seed_gives_the_same_figures(monkeypatch):
    first, second = small(monkeypatch), small(monkeypatch)
    assert [(m.mu, m.epsilon) for m in first.scenarios] == [(m.mu, m.epsilon) for m in second.scenarios]
    assert first.membership.private == second.membership.private


def test_bad_minutes_are_refused():
    result = CliRunner().invoke(app, ["audit", "--minutes", "0"])
    assert result.exit_code == 2
    assert "minutes must be between" in result.output


@pytest.mark.slow
def test_the_short_audit_passes(tmp_path):
    """What `indknn audit` runs, but for the seconds that it takes: no claim exceeded, no mutant left."""
    report = runner.run(1.0, seed=1)
    reports.write(report, tmp_path)
    assert report.problems == []
    assert report.strongest.tightness > 0.5
