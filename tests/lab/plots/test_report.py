"""Plots and report come from JSON alone."""

import json

import pytest

from indknn.errors import InvalidInputError
from indknn_lab.plots.report import draw, markdown, summary, write_report

SERIES = {
    "label": "Ind-KNN",
    "x": [0.5, 1.0],
    "y": [0.7, 0.8],
    "low": [0.6, 0.7],
    "high": [0.75, 0.9],
    "role": "indknn",
}
PANEL = {"title": "A panel", "xlabel": "ε", "ylabel": "accuracy", "series": [SERIES], "log_x": False, "log_y": False}
OUTCOME = {
    "name": "figure1a",
    "title": "Figure <1a>",
    "status": "partly",
    "panels": [PANEL, {**PANEL, "log_x": True, "log_y": True, "series": [{**SERIES, "low": None, "y": [0.0, 2.0]}]}],
    "tables": [{"title": "Found", "columns": ["a", "b"], "rows": [["x", 50_000]]}],
    "paper": [{"title": "Printed", "columns": ["a"], "rows": [[0.25]]}],
    "findings": [
        {"paper": "It is so.", "here": "It is.", "agrees": True, "why": ""},
        {"paper": "It is not.", "here": "It is.", "agrees": False, "why": "Other features."},
        {"paper": "Perhaps.", "here": "Who knows.", "agrees": None, "why": ""},
    ],
    "notes": ["nobody paid for this search"],
    "not_run": ["needs dbpedia-*.npz"],
}


@pytest.fixture
def out(tmp_path):
    (tmp_path / "items").mkdir()
    (tmp_path / "items" / "figure1a.json").write_text(json.dumps(OUTCOME))
    idle = {**OUTCOME, "name": "table1", "status": "not run", "panels": [], "findings": []}
    (tmp_path / "items" / "table1.json").write_text(json.dumps(idle))
    about = {"sources": [["CIFAR-10", "cifar10-r50.npz", 50_000, 10_000, 256]], "quick": True, "stand_in": ["cifar10"]}
    (tmp_path / "setting.json").write_text(json.dumps({**about, "order": ["table1", "figure1a", "size"]}))
    return tmp_path


def test_the_report_holds_everything_in_one_file(out):
    page = write_report(out).read_text()
    for text in ("agrees", "differs", "undecided", "Other features.", "Printed", "50,000", "dbpedia-*.npz"):
        assert text in page
    assert "Figure &lt;1a&gt;" in page
    assert 'src="data:image/png;base64,' in page
    assert "1 hold, 1 do not, 1 cannot be told from chance. Not run: table1." in page
    assert "quick rehearsal" in page
    assert page.index('id="table1"') < page.index('id="figure1a"')


def test_markdown_has_the_same(out):
    write_report(out)
    text = (out / "results.md").read_text()
    assert "- **differs**. Paper: It is not. Here: It is. *Other features.*" in text
    assert "| Ind-KNN | 0.700 | 0.800 |" in text


def test_pictures_are_png_and_svg_and_the_same_every_time(out):
    png, svg = draw(OUTCOME, out / "plots")
    assert png.read_bytes().startswith(b"\x89PNG")
    assert "<svg" in svg.read_text()
    again = [p.read_bytes() for p in draw(OUTCOME, out / "again")]
    assert [png.read_bytes(), svg.read_bytes()] == again


def test_an_outcome_without_panels_draws_nothing(out):
    assert draw({**OUTCOME, "panels": []}, out / "plots") == []


def test_a_folder_without_results_is_refused(tmp_path):
    with pytest.raises(InvalidInputError, match="holds no results"):
        write_report(tmp_path)


def test_a_claim_is_counted_once_however_many_data_sets_it_was_looked_at_on():
    def finding(paper, agrees, by="paper"):
        return {"paper": paper, "here": "", "agrees": agrees, "why": "", "by": by}

    findings = [
        finding("A.", True),
        finding("A.", False),
        finding("B.", True),
        finding("B.", True),
        finding("C.", None),
    ]
    goals = [finding("G.", True, "goal"), finding("G.", False, "goal")]
    text = summary([{"name": "x", "status": "done", "findings": [*findings, *goals]}])
    assert text.startswith(
        "Of 3 claims of the paper that were looked at, 1 hold, 1 do not, 1 cannot be told from chance."
    )
    assert "Of 2 goals for queries without end 1 were reached." in text


def test_markdown_has_the_numbers_of_the_paper():
    assert "Printed" in markdown(OUTCOME)
