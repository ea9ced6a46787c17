"""The documents say what is true: every command and parameter is described, every link leads somewhere."""

import inspect
import re
from pathlib import Path

import pytest

from indknn import IndKNNClassifier
from indknn.cli.app import app

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]


def test_every_command_is_in_the_documents():
    text = "\n".join(page.read_text() for page in PAGES)
    missing = [name for name in app.commands if f"indknn {name}" not in text]
    assert not missing


def test_every_parameter_of_the_estimator_is_documented():
    doc = inspect.getdoc(IndKNNClassifier)
    missing = [p for p in IndKNNClassifier().get_params() if not re.search(rf"^\s*(\w+, )*{p}\b.* : ", doc, re.M)]
    assert not missing


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#]+)", page.read_text()):
        assert target.startswith("http") or (page.parent / target).exists(), target


def test_every_module_is_in_the_architecture_page():
    text = (ROOT / "docs" / "architecture.md").read_text()
    source = ROOT / "src" / "indknn"
    names = [p.name for p in source.glob("*.py") if not p.name.startswith("__")]
    names += [f"{p.name}/" for p in source.iterdir() if p.is_dir() and p.name != "__pycache__"]
    missing = [n for n in names if f"`{n}`" not in text]
    assert not missing
