"""The command line, as people type it."""

import re
import sys

import pytest
from click.testing import CliRunner

from indknn.cli.app import app


def run(*words):
    return CliRunner().invoke(app, list(words))


def test_help_teaches():
    for words in (["--help"], *([name, "--help"] for name in app.list_commands(None))):
        result = run(*words)
        assert result.exit_code == 0
        assert "Usage: " in result.output
    assert "indknn demo" in run("--help").output
    assert "Exit codes" in run("--help").output


def test_budget_prints_both_filters():
    result = run("budget", "--epsilon", "1")
    assert result.exit_code == 0
    assert "0.0359257" in result.output
    assert "0.0305566" in result.output


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["budget", "--epsilon", "-1"], "indknn: epsilon must be at least 0.0001 and below 1000, got -1.0"),
        (["demo", "--queries", "0"], "indknn: queries must be between 1 and 10000, got 0"),
        (["demo", "--queries", "10", "--tau", "0"], "tau"),
    ],
)
def test_bad_values_get_one_line_and_exit_code_2(words, complaint):
    result = run(*words)
    assert result.exit_code == 2
    assert complaint in result.output
    assert "Traceback" not in result.output


@pytest.mark.slow
def test_demo_tells_the_story_and_paints_the_picture(tmp_path):
    out = tmp_path / "deep" / "demo.png"
    result = run("demo", "--queries", "300", "--out", str(out))
    assert result.exit_code == 0, result.output
    found = re.findall(r"(0\.\d{3})  (?:accuracy|the paper's|its vote|plain)", result.output)
    private, paper, vote, plain = map(float, found)
    assert 0.7 < private < plain + 0.06
    assert 0.6 < paper < vote + 0.06
    assert 0.7 < vote < plain + 0.06
    assert "nothing was refunded" in result.output
    assert "Nobody is above 100%" in result.output
    assert out.read_bytes().startswith(b"\x89PNG")


def test_demo_runs_without_matplotlib_and_says_what_the_picture_needs(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.delitem(sys.modules, "matplotlib.figure", raising=False)
    out = tmp_path / "demo.png"
    result = run("demo", "--queries", "20", "--out", str(out))
    assert result.exit_code == 0, result.output
    assert "nothing was refunded" in result.output
    assert "No picture: this needs 'matplotlib': pip install 'indknn[lab]'" in result.output
    assert not out.exists()
