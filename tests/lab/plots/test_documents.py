"""What the documents say is what the results say."""

import json
import re
import shutil
import sys
from pathlib import Path

import pytest

from indknn.errors import InvalidInputError
from indknn_lab.experiments.items import ITEMS
from indknn_lab.plots.documents import BLOCKS, FOLDER, kept, rendered, write_documents

ROOT = Path(__file__).parents[3]


@pytest.fixture
def copy(tmp_path):
    """README, the documents and the results, in a place where they may be changed."""
    shutil.copy(ROOT / "README.md", tmp_path)
    shutil.copytree(ROOT / "docs", tmp_path / "docs", ignore=shutil.ignore_patterns("*.png"))
    return tmp_path


@pytest.mark.parametrize("page", rendered(ROOT), ids=lambda page: page[0].name)
def test_every_figure_is_that_of_the_results(page):
    _, said, should_be = page
    assert said == should_be, "run `indknn reproduce write-docs`"


def test_the_pages_that_need_figures_have_them():
    pages = {path.relative_to(ROOT).as_posix() for path, *_ in rendered(ROOT)}
    assert {
        "README.md",
        "docs/results.md",
        "docs/endless.md",
        "docs/reproduction/index.md",
        "docs/audit-report.md",
    } <= pages
    assert {f"docs/reproduction/{name}.md" for name in ITEMS} <= pages
    assert "Not run yet" not in (ROOT / "README.md").read_text()


def test_the_results_are_small():
    assert sum(path.stat().st_size for path in (ROOT / FOLDER).glob("*.json")) < 300_000


def test_a_figure_that_was_edited_is_put_right(copy):
    page = copy / "README.md"
    good = page.read_text()
    page.write_text(re.sub(r" / \.\d{3} ", " / .000 ", good, count=1))
    assert page.read_text() != good
    assert write_documents(copy) == [page]
    assert page.read_text() == good
    assert write_documents(copy) == []


def test_other_results_make_other_documents(copy):
    path = copy / FOLDER / "endless_figures.json"
    path.write_text(path.read_text().replace("AG News", "Other News"))
    names = {page.name for page in write_documents(copy)}
    assert (
        {"results.md", "endless.md", "endless_figures.md"}
        <= names
        <= {"README.md", "results.md", "endless.md", "endless_figures.md"}
    )
    assert "Other News" in (copy / "docs" / "results.md").read_text()


def test_the_comparison_with_rivals_has_whatever_sets_were_run(copy):
    path = copy / FOLDER / "rivals.json"
    scores = {"indknn": {"0.25": 0.7, "1": 0.8}, "NoisySGD": {"0.25": 0.55, "1": 0.65}}
    scores["Opacus"] = {"0.25": 0.5, "1": 0.6}
    scores |= {"public rows only": {"0": 0.4}, "logistic, no privacy": {"0": 0.9}, "trees, no privacy": {"0": 0.95}}
    seeds = {"indknn": 3, "NoisySGD": 3, "Opacus": 1}
    both = {"agnews": scores, "rare": scores}
    path.write_text(json.dumps({"sets": both, "seeds": dict.fromkeys(both, seeds), "delta": 1e-5}))
    block = BLOCKS["rivals"](kept(copy))
    (row,) = block.splitlines()[2:3]
    assert row == "| AG News | .700 / .800 | .550 / .650 | .500 / .600¹ | .400 | .950 |"
    assert "Medians over seeds (AG News 3; fewer where ¹ stands)" in block
    assert "without labels" not in block.splitlines()[0], "nobody ran that"


def test_every_item_has_a_page_and_its_verdicts_are_in_the_index(copy):
    index = (copy / "docs" / "reproduction" / "index.md").read_text()
    menu = re.findall(r"reproduction/(\w+)\.md", (ROOT / "mkdocs.yml").read_text())
    assert menu == ["index", *ITEMS], "the menu has the items in the order of the paper"
    for name in ITEMS:
        findings = kept(copy).get(name, {}).get("findings", [])
        page = (copy / "docs" / "reproduction" / f"{name}.md").read_text()
        assert f"[{ITEMS[name].title}]({name}.md)" in index
        assert all(finding["paper"] in index and finding["here"] in page for finding in findings)
    path = copy / FOLDER / "size.json"
    stored = json.loads(path.read_text()) | {"run": {}}
    for run, said in (({}, "an earlier version"), ({"commit": ["abc123"]}, "abc123")):
        path.write_text(json.dumps(stored | {"run": run}))
        write_documents(copy)
        rows = (copy / "docs" / "reproduction" / "index.md").read_text().splitlines()
        assert next(row for row in rows if "(size.md)" in row).endswith(f"| {said} |")
        assert ("of an earlier version" in (copy / "docs" / "reproduction" / "size.md").read_text()) is not bool(run)
    path.unlink()
    write_documents(copy)
    assert "Not run yet" in (copy / "docs" / "reproduction" / "size.md").read_text()
    assert (
        f"| [{ITEMS['size'].title}](size.md) | – | not run yet | – |"
        in (copy / "docs" / "reproduction" / "index.md").read_text()
    )


def test_every_block_can_be_made_and_unknown_ones_are_refused(copy):
    summaries = kept(copy)
    assert all(isinstance(block(summaries), str) and isinstance(block({}), str) for block in BLOCKS.values())
    (copy / "README.md").write_text("<!-- results: nonsense -->\n<!-- end of results -->")
    with pytest.raises(InvalidInputError, match="'nonsense'"):
        rendered(copy)


def test_the_example_of_a_method_is_in_the_documents():
    example = (ROOT / "examples" / "own_method.py").read_text()
    body = example[example.index("from math") :].rstrip()
    assert body in (ROOT / "docs" / "reproduction" / "index.md").read_text()
    assert len(example.splitlines()) <= 35


def test_the_comparison_of_tools_has_every_point_that_was_measured():
    stored = kept(ROOT)["tools"]
    text, cells = BLOCKS["tools"](kept(ROOT)), 0
    for row in text.splitlines()[2:]:
        cells += sum(len(cell.split(" / ")) for cell in row.strip("| ").split(" | ")[1:])
    assert cells == len(stored["points"]) == 208
    assert "–" not in text
    for point in stored["points"]:
        assert f"{point['accuracy']:.3f}"[1:] in text


def test_the_comparison_of_tools_is_what_its_script_writes(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    monkeypatch.setattr(
        sys, "argv", ["advise.py", "--only-write", "--cache", str(tmp_path), "--out", str(tmp_path / "o")]
    )
    import advise as script

    run = {"data": "agnews", "n": 10, "method": "endless", "epsilon": 1.0, "features": 3, "classes": 2}
    for seed, accuracy in enumerate((0.5, 0.7)):
        (tmp_path / f"{seed}.json").write_text(json.dumps({**run, "points": [[100, accuracy]]}))
    script.main()
    stored = json.loads((tmp_path / "o").read_text())
    assert {**run, "load": 100, "accuracy": 0.6, "runs": 2}.items() >= {
        **next(p for p in stored["points"] if p["n"] == 10)
    }.items()
    assert set(kept(ROOT)["tools"]) == set(stored)
