"""A stranger with a csv file of mixed columns has private answers in five commands, or in twelve lines of Python."""

import csv
import json
from pathlib import Path

import pandas as pd
import pytest

from helpers.commands import run
from indknn.store import Store
from pages.blocks import blocks

PAGE = Path(__file__).parents[2] / "docs" / "guides" / "table.md"
TABLES, COMMANDS, LINES, NIGHT, LEAVING = (block.code for block in blocks(PAGE.read_text()))


@pytest.fixture(scope="module")
def tables(tmp_path_factory):
    """The files that the page makes."""
    folder = tmp_path_factory.mktemp("tables")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        exec(TABLES, names := {})
    return folder, names["asked"].set_index("visit")["outcome"]


def typed(code, folder):
    """Run these commands in this folder, as somebody types them one after the other."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for line in code.strip().splitlines():
            program, *words = line.split()
            assert program == "indknn"
            told = run(*words, code=0)
    return told


def right(folder, truth):
    """How many answers in the file are right. Each has the id of its question."""
    with (folder / "answers.csv").open(newline="") as file:
        answers = {row["visit"]: row["outcome"] for row in csv.DictReader(file)}
    assert answers.keys() == set(truth.index)
    return (pd.Series(answers) == truth).mean()


@pytest.mark.usefixtures("known_noise")
def test_five_commands(tables):
    folder, truth = tables
    assert len(COMMANDS.strip().splitlines()) <= 5
    typed(COMMANDS, folder)
    assert right(folder, truth) > 0.75
    with Store(folder / "visits.store") as store:
        before = store.spent().tolist()
    assert "added 0, replaced 0, unchanged 9,000, missing 0; now 9,000 records" in typed(NIGHT, folder).stdout
    with Store(folder / "visits.store") as store:
        assert store.spent().tolist() == before
    assert "forgotten: 0 people, 1 record," in typed(LEAVING, folder).stdout
    assert json.loads(run("verify", folder / "visits.store", "--json", code=0).stdout)["ok"]


@pytest.mark.usefixtures("known_noise")
def test_twelve_lines_of_python(tables, monkeypatch):
    folder, truth = tables
    assert len([line for line in LINES.splitlines() if line.strip()]) <= 12
    monkeypatch.chdir(folder)
    (folder / "answers.csv").unlink(missing_ok=True)
    exec(LINES, {})
    assert right(folder, truth) > 0.75
