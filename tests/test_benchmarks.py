"""Benchmarks follow the code: all can be called, and the one that reaches into the scan runs with little data."""

import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[1] / "benchmarks"
COMMANDS = sorted(path.name for path in FOLDER.glob("*.py") if "argparse" in path.read_text(encoding="utf-8"))


def run(name, *words):
    command = [sys.executable, str(FOLDER / name), *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=FOLDER.parent)


@pytest.mark.slow
@pytest.mark.parametrize("name", COMMANDS)
def test_every_benchmark_says_what_it_takes(name):
    called = run(name, "--help")
    assert "usage:" in called.stdout, called.stderr


@pytest.mark.slow
def test_the_scan_is_measured(tmp_path):
    called = run("scan.py", "--quick", "--only", "single,private query", "--out", tmp_path)
    assert called.returncode == 0, called.stderr
    assert "whole private query" in called.stdout
