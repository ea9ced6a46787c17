"""The documents say what is true: every command and parameter is described, every link leads somewhere."""

import inspect
import re
import tomllib
from importlib import import_module
from pathlib import Path

import pytest

from indknn import IndKNNClassifier
from indknn.cli.app import app

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")]
PAGES += sorted((ROOT / "docs").rglob("*.md"))
CODE = [path for folder in ("src", "tests") for kind in ("*.py", "*.c", "*.h") for path in (ROOT / folder).rglob(kind)]
PACKAGES = [ROOT / "src" / "indknn", ROOT / "src" / "indknn_lab"]


def test_every_command_is_in_the_documents():
    text = "\n".join(page.read_text() for page in PAGES)
    missing = [name for name in app.list_commands(None) if f"indknn {name}" not in text]
    assert not missing


def test_every_parameter_of_the_estimator_is_documented():
    doc = inspect.getdoc(IndKNNClassifier)
    missing = [p for p in IndKNNClassifier().get_params() if not re.search(rf"^\s*(\w+, )*{p}\b.* : ", doc, re.M)]
    assert not missing


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_links_lead_somewhere(page):
    for target, _, anchor in re.findall(r"\]\(([^)#]*)(#([^)]+))?\)", page.read_text()):
        if target.startswith("http"):
            continue
        there = page.parent / target if target else page
        assert there.exists(), target
        assert not anchor or anchor in anchors(there), f"{target}#{anchor}"


def anchors(page):
    """The anchors that GitHub gives to the headings of a page."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_modules_that_are_named_exist(page):
    text = page.read_text()
    named, imported = r"`(indknn(?:_lab)?(?:\.\w+)+)`", r"^ *from (indknn\S*) import"
    for name in re.findall(named, text) + re.findall(imported, text, re.M):
        assert resolves(name), name
    if page.name == "architecture.md":
        return  # names modules relative to their package; the test below holds it to all of them
    for path in re.findall(r"`((?:\w+/)+(?:\w+\.(?:py|c|h|json))?)`", text):
        assert any((folder / path).exists() for folder in (ROOT, *PACKAGES, ROOT / "tests")), path


def resolves(name):
    """Whether this is a module, or something in one."""
    module, _, rest = name.rpartition(".")
    try:
        import_module(name)
    except ModuleNotFoundError:
        return bool(module) and resolves(module) and hasattr(import_module(module), rest)
    return True


def test_extras_that_are_named_exist():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for path in CODE + PAGES:
        for group in re.findall(r"(?:indknn|'\.)\[([a-z,]+)\]", path.read_text()):
            assert set(group.split(",")) <= set(extras), f"{path}: {group}"


def test_every_rule_that_is_cited_is_written_down():
    privacy = (ROOT / "docs" / "privacy.md").read_text()
    rules = [int(number) for number in re.findall(r"^### Rule (\d+): \S", privacy, re.M)]
    assert rules == list(range(1, 19))
    some = re.compile(r"\brules?\s+(\d+(?:(?:,| and| to)\s+\d+)*)", re.I)
    cited = {
        path: {int(n) for group in some.findall(path.read_text()) for n in re.findall(r"\d+", group)}
        for path in CODE + PAGES
    }
    assert sum(map(bool, cited.values())) > 10  # or else the pattern finds nothing any more
    assert not {str(path): numbers for path, numbers in cited.items() if numbers - set(rules)}


def test_every_module_is_in_the_architecture_page():
    text = (ROOT / "docs" / "architecture.md").read_text()
    source = ROOT / "src" / "indknn"
    names = [p.name for p in source.glob("*.py") if not p.name.startswith("__")]
    names += [f"{p.name}/" for p in source.iterdir() if p.is_dir() and p.name != "__pycache__"]
    missing = [n for n in names if f"`{n}`" not in text]
    assert not missing
    named = set(re.findall(r"`((?:[a-z_]+/)*[a-z_]+\.py)`", text))
    assert len(named) > 50
    everything = [
        p.as_posix() for folder in ("src", "tests", "benchmarks", "tools") for p in (ROOT / folder).rglob("*.py")
    ]
    assert not [n for n in named if not any(f"/{p}".endswith(f"/{n}") for p in everything)]  # moved or deleted
