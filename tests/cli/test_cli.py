"""The command line, as people type it."""

import json
import re
import subprocess
import sys

import pytest

from helpers.commands import run
from indknn.cli.app import app
from indknn_lab.datasets import FASHION_CLASSES
from indknn_lab.demonstration import compare as demo


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (["budget", "--epsilon", "1"], 0, "gdp"),
        (["doctor"], 1, "a store needs 'apsw': pip install 'indknn[store]'"),
        (["init", "a.store"], 2, "indknn init needs 'apsw': pip install 'indknn[store]'"),
        (["--help"], 0, "This needs 'apsw': pip install 'indknn[store]'"),
    ],
)
def test_without_the_extra_for_stores_other_commands_work(tmp_path, words, code, told):
    program = "import sys; sys.modules['apsw'] = None; from indknn.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", program, *words], check=False, cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == code, done.stderr
    assert told in " ".join((done.stdout + done.stderr).split())
    assert "Traceback" not in done.stderr


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
def test_demo_tells_the_story_and_writes_the_report(tmp_path):
    out = tmp_path / "deep" / "demo.html"
    result = run("demo", "--queries", "300", "--out", str(out))
    assert result.exit_code == 0, result.output
    found = {name: float(share) for share, name in re.findall(r"^  (0\.\d{3})  (.+)$", result.output, re.M)}
    assert 0.7 < found[demo.OURS] < found[demo.PLAIN] + 0.1
    assert 0.6 < found[demo.PAPER] < found[demo.PLAIN] + 0.06
    assert 0.7 < found[demo.ONCE] < found[demo.LINEAR] + 0.1
    assert 0.6 < found[demo.PUBLIC] < found[demo.LINEAR] + 0.1
    assert result.output.index("at most 90% of B") < result.output.index("queries of Alice")
    assert "All 50,000 people have paid for the model" in result.output
    assert "people who were near" in result.output
    assert "no privacy" in result.output
    assert "nothing was refunded" in result.output
    assert "Nobody is above 100%" in result.output
    page = out.read_text()
    assert f"{found[demo.OURS]:.3f}" in page
    assert "nothing was refunded" in page
    assert "$" not in page
    assert not re.search(r"https?://|<script|<link|<img", page)  # it loads nothing


_LIGHT = """
import sys
heavy = set("matplotlib dp_accounting pyarrow pandas polars torch PIL onnxruntime httpx yaml ray psycopg".split())

class Absent:
    def find_spec(self, name, *_):
        if name.partition(".")[0] in heavy:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Absent())
from indknn.cli import main
main()
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "said"),
    [(["demo", "--queries", "50", "--out", "demo.html"], "nothing was refunded"), (["tune", "--help"], "PUBLIC")],
)
def test_a_light_install_is_enough(words, said, tmp_path):
    """`make demo` installs the extra `server`. Anything else that is imported would fail on a fresh machine."""
    words = [sys.executable, "-W", "ignore", "-c", _LIGHT, *words]
    done = subprocess.run(words, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert said in done.stdout, done.stderr


@pytest.mark.slow
def test_demo_leaves_a_store_to_click_through(tmp_path):
    path = tmp_path / "deep" / "demo.store"
    result = run("demo", "--store", str(path))
    assert result.exit_code == 0, result.output
    assert run("verify", str(path)).exit_code == 0
    known = json.loads(run("status", str(path), "--json").output)
    assert (known["owners"], known["forgotten"], known["answers"]) == (4999, 1, 400)
    label, numbers = path.with_suffix(".questions.txt").read_text().split("\n\n")[0].split(":\n")
    assert label in FASHION_CLASSES
    assert len(numbers.split()) == 64
    again = run("demo", "--store", str(path))
    assert again.exit_code == 2
    assert "exists already" in again.output


def test_the_command_line_needs_no_generic_types_of_click():
    """Before click 8.4 its types take no parameters, and a class that gives them some cannot be imported."""
    program = "import click; click.ParamType.__class_getitem__ = None; import indknn.cli.app"
    subprocess.run([sys.executable, "-c", program], check=True)
