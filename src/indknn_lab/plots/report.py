"""Writes the report of a run as one HTML page with pictures, and as Markdown. It shows the paper's numbers too.

A method has the same colour, marker and line in every picture.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Sequence
from html import escape
from importlib.resources import files
from math import nan
from pathlib import Path
from string import Template
from textwrap import fill
from typing import Any, cast

from indknn.errors import IndKNNError, InvalidInputError

_WIDTH, _HEIGHT = 5.2, 4.3
_TITLE = 56  # letters per line
_PNG_DPI = 110
_BLUE, _ORANGE, _GREEN, _RED, _PURPLE, _GREY = "#1f5fa8", "#d9730d", "#2f8f4e", "#c0392b", "#7d4fa8", "#777777"

STYLES: dict[str, dict[str, Any]] = {
    "indknn": {"color": _BLUE, "marker": "o"},
    "indknn_rbf": {"color": _GREEN, "marker": "s"},
    "indknn_gdp": {"color": _BLUE, "marker": "o", "linestyle": ":", "alpha": 0.7},
    "indknn_reuse": {"color": _PURPLE, "marker": "D"},
    "indknn_alone": {"color": _BLUE, "marker": "", "linestyle": "--"},
    "ours": {"color": _BLUE, "marker": ""},
    "votes": {"color": _RED, "marker": ""},
    "sgd": {"color": _GREY, "marker": ""},
    "sgd_retrained": {"color": _GREY, "marker": "", "linestyle": "--"},
    "ceiling": {"color": _GREEN, "marker": "", "linestyle": ":"},
    "ceiling_kernel": {"color": _PURPLE, "marker": "", "linestyle": ":"},
    "model": {"color": _BLUE, "marker": "", "linestyle": ":"},
    "knn": {"color": _ORANGE, "marker": ""},
    "median": {"color": "#c9a400", "marker": "."},
    "private_knn": {"color": _RED, "marker": "v"},
    "private_knn_one": {"color": _RED, "marker": "", "linestyle": ":", "alpha": 0.7},
    "noisy_sgd": {"color": _GREY, "marker": "^"},
    "noisy_sgd_slow": {"color": _GREY, "marker": "^", "linestyle": "--"},
    "hash": {"color": _ORANGE, "marker": "x"},
    "hash10": {"color": "#f3c08b", "marker": "x"},
    "hash20": {"color": "#e89a4c", "marker": "x"},
    "hash30": {"color": _ORANGE, "marker": "x"},
}
_LINES = (_BLUE, _GREEN, _ORANGE, _RED, _PURPLE, "#2a9fb0", "#8c6d31", _GREY)
_MARKERS = "osDv^x*P"
_RC: dict[str, Any] = {
    "font.size": 9, "axes.titlesize": 10, "legend.fontsize": 7.5, "legend.frameon": False,
    "axes.grid": True, "grid.alpha": 0.25, "axes.spines.top": False, "axes.spines.right": False,
    "lines.linewidth": 1.6, "lines.markersize": 5, "svg.fonttype": "none", "svg.hashsalt": "indknn",
}  # fmt: skip


def style_of(role: str) -> dict[str, Any]:
    """The style of a role. Roles `line0`, `line1`, ... have different styles and no other meaning.

    >>> style_of("indknn")["marker"], style_of("line1")["marker"]
    ('o', 's')
    """
    if role.startswith("line"):
        i = int(role.removeprefix("line"))
        return {"color": _LINES[i % len(_LINES)], "marker": _MARKERS[i % len(_MARKERS)]}
    own = {"color": "#2a9fb0", "marker": "*"}  # the user's own method
    return STYLES.get(role, own if role.startswith("own_") else {"color": _GREY, "marker": "."})


def draw(outcome: dict[str, Any], folder: Path) -> list[Path]:
    """Draw the panels of an outcome side by side, as PNG and SVG. Returns no files if there is nothing to draw."""
    panels = outcome["panels"]
    if not panels:
        return []
    try:
        import matplotlib as mpl  # noqa: PLC0415 - an extra
        from matplotlib.figure import Figure  # noqa: PLC0415
    except ModuleNotFoundError:
        raise IndKNNError("pictures need matplotlib: pip install 'indknn[plot]'") from None
    folder.mkdir(parents=True, exist_ok=True)
    with mpl.rc_context(cast(Any, _RC)):
        figure = Figure(figsize=(_WIDTH * len(panels), _HEIGHT), layout="constrained")
        for axes, panel in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
            _panel(axes, panel)
        paths = [folder / f"{outcome['name']}.{suffix}" for suffix in ("png", "svg")]
        figure.savefig(paths[0], dpi=_PNG_DPI, metadata={"Software": None})
        figure.savefig(paths[1], metadata={"Date": None})
    return paths


def _panel(axes: Any, panel: dict[str, Any]) -> None:
    for series in panel["series"]:
        style = style_of(series["role"])
        y = [value if value > 0 else nan for value in series["y"]] if panel["log_y"] else series["y"]
        axes.plot(series["x"], y, label=series["label"], **style)
        if series["low"] is not None:
            axes.fill_between(series["x"], series["low"], series["high"], color=style["color"], alpha=0.1, linewidth=0)
    axes.set(title=fill(panel["title"], _TITLE), xlabel=panel["xlabel"], ylabel=panel["ylabel"])
    axes.set_xscale("log" if panel["log_x"] else "linear")
    axes.set_yscale("log" if panel["log_y"] else "linear")
    short = max(len(series["label"]) for series in panel["series"]) < 34
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=2 if short and len(panel["series"]) > 3 else 1)


BUSY = 1.6
"""From this load on, a machine did more than measure times."""
VERDICTS = {True: "agrees", False: "differs", None: "undecided"}
SOURCES = ("data", "file", "private records", "public queries", "features")
GOALS = {True: "reached", False: "not reached", None: "undecided"}

_CLASSES = {True: "agrees", False: "differs", None: "open"}
_QUICK = """<p><b>A quick rehearsal:</b> few records, few queries, coarse grids. It shows that everything runs. Its
numbers mean nothing.</p>"""
_STAND_IN = "<p><b>Stand-in:</b> there were no features of {}, so the packaged Fashion-MNIST is used instead.</p>"


def write_report(out: Path) -> Path:
    """Draw all pictures of a run, and write `report.html` and `results.md`. Returns the path of `report.html`."""
    setting, outcomes = read(out)
    warnings = _QUICK if setting["quick"] else ""
    warnings += _STAND_IN.format(", ".join(setting["stand_in"])) if setting["stand_in"] else ""
    lines = (f'<a href="#{o["name"]}">{escape(o["title"])}</a>: {o["status"]}' for o in outcomes)
    page = Template((files("indknn_lab.plots") / "report.html").read_text(encoding="utf-8")).substitute(
        warnings=warnings,
        summary=escape(summary(outcomes)),
        sources=_table({"title": "Features", "columns": SOURCES, "rows": setting["sources"]}),
        contents="".join(f"<li>{line}</li>" for line in lines),
        sections="\n".join(_section(outcome, draw(outcome, out / "plots")) for outcome in outcomes),
    )
    (out / "report.html").write_text(page, encoding="utf-8")
    text = "\n".join([summary(outcomes), "", *map(markdown, outcomes)])
    (out / "results.md").write_text(text, encoding="utf-8")
    return out / "report.html"


def about_run(outcome: dict[str, Any]) -> str:
    """When, where, on which code and how long an item was run, as a sentence. Empty if that was not written down."""
    run = outcome.get("run", {})
    if not run.get("date"):
        return ""
    days, versions, commits, machines = (" and ".join(run[key]) for key in ("date", "version", "commit", "machine"))
    code = f"{versions} ({commits})" if commits else versions
    busy = f" Times were measured beside other work (load {run['load']:g})." if run["load"] >= BUSY else ""
    return (
        f"Run on {days} with indknn {code}, on {machines}: {run['seconds']:,.0f} s of computing on one core, at most "
        f"{run['memory_mb']:,} MB in one process.{busy}"
    )


def _section(outcome: dict[str, Any], pictures: list[Path]) -> str:
    parts = [f'<h2 id="{outcome["name"]}">{escape(outcome["title"])}</h2>']
    parts += [f"<p><b>Not run:</b> {escape(text)}.</p>" for text in outcome["not_run"]]
    for path in (path for path in pictures if path.suffix == ".png"):
        data = base64.b64encode(path.read_bytes()).decode()
        parts.append(f'<img alt="{escape(outcome["title"])}" src="data:image/png;base64,{data}">')
    if outcome["findings"]:
        parts.append(_findings(outcome["findings"]))
    wide = [t for t in outcome["tables"] if len(t["rows"]) > 12]
    parts += [_table(t) for t in outcome["tables"] if t not in wide]
    parts += [_table(t, "paper") for t in outcome.get("paper", ())]
    parts += [f"<details><summary>{escape(t['title'])}</summary>{_table(t)}</details>" for t in wide]
    notes = (note for note in (*outcome["notes"], about_run(outcome)) if note)
    parts += [f'<p class="note">{escape(note)}</p>' for note in notes]
    return "\n".join(parts)


def _findings(findings: list[dict[str, Any]]) -> str:
    rows = []
    for f in findings:
        word = f'<b class="v {_CLASSES[f["agrees"]]}">{verdict(f)}</b>'
        why = f"<br><i>{escape(f['why'])}</i>" if f["why"] else ""
        rows.append(f"<tr><td>{escape(f['paper'])}</td><td>{escape(f['here'])}{why}</td><td>{word}</td></tr>")
    said = "the goal" if all(of_goal(f) for f in findings) else "the paper"
    return f"<table><tr><th>{said}</th><th>here</th><th></th></tr>{''.join(rows)}</table>"


def _table(table: dict[str, Any], css: str = "") -> str:
    def row(cells: Sequence[Any], tag: str) -> str:
        texts = (f"{cell:,}" if isinstance(cell, int) else str(cell) for cell in cells)
        return "<tr>" + "".join(f"<{tag}>{escape(text)}</{tag}>" for text in texts) + "</tr>"

    rows = row(table["columns"], "th") + "".join(row(cells, "td") for cells in table["rows"])
    return f'<table class="{css}"><caption>{escape(table["title"])}</caption>{rows}</table>'


def markdown(outcome: dict[str, Any], level: int = 3) -> str:
    """One outcome in full, as Markdown under a heading of this level."""
    lines = [f"{'#' * level} {outcome['title']}", ""]
    lines += [f"Not run: {text}." for text in outcome["not_run"]] + [""] * bool(outcome["not_run"])
    for f in outcome["findings"]:
        why = f" *{f['why']}*" if f["why"] else ""
        lines.append(f"- **{verdict(f)}**. {'Goal' if of_goal(f) else 'Paper'}: {f['paper']} Here: {f['here']}{why}")
    lines.append("")
    # Results of earlier versions have the paper's numbers in tables of their own, under "paper".
    for table in (*map(_curves, outcome["panels"]), *outcome["tables"], *outcome.get("paper", ())):
        lines += [table["title"] + ":", "", as_table(table["columns"], table["rows"]), ""]
    lines += [about_run(outcome), ""] if about_run(outcome) else []
    return "\n".join(lines)


def as_table(columns: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
    """A table in Markdown."""
    header = list(columns)
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)


def _curves(panel: dict[str, Any]) -> dict[str, Any]:
    """A table of the curves of a panel. Curves with the same x get all values, others a row with the last value."""
    x = panel["series"][0]["x"]
    same = [s for s in panel["series"] if s["x"] == x]
    rows = [[s["label"], *(f"{y:.3g}" if panel["log_y"] else f"{y:.3f}" for y in s["y"])] for s in same]
    others = [s for s in panel["series"] if s not in same]
    rows += [[s["label"] + " (last)", *[""] * (len(x) - 1), f"{s['y'][-1]:.3g}"] for s in others]
    return {"title": panel["title"], "columns": [panel["xlabel"], *(f"{v:g}" for v in x)], "rows": rows}


def read(out: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The setting of a run, and its outcomes in the order of the paper."""
    try:
        setting: dict[str, Any] = json.loads((out / "setting.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        raise InvalidInputError(f"{out} holds no results: run `indknn reproduce all --out {out}` first") from None
    outcomes = []
    for name in setting["order"]:
        path = out / "items" / f"{name}.json"
        if path.is_file():
            outcomes.append(json.loads(path.read_text(encoding="utf-8")))
    return setting, outcomes


def verdict(finding: dict[str, Any]) -> str:
    """One or two words: whether the statement of the paper agrees, or whether the goal was reached. `undecided` means
    that chance explains the difference. A rehearsal judges nothing."""
    if not finding.get("judged", True):
        return "not judged"
    return (GOALS if of_goal(finding) else VERDICTS)[finding["agrees"]]


def of_goal(finding: dict[str, Any]) -> bool:
    """Whether the statement is a goal of this package. Old files have only statements of the paper."""
    return bool(finding.get("by", "paper") == "goal")


def summary(outcomes: list[dict[str, Any]]) -> str:
    """One sentence that says how many of the paper's claims hold, each counted once."""
    findings = [f for outcome in outcomes for f in outcome["findings"] if f.get("judged", True)]
    claims, goals = _by_claim(findings), [f["agrees"] for f in findings if of_goal(f)]
    words = [f"{claims.count(True)} hold", f"{claims.count(False)} do not"]
    words += [f"{claims.count(None)} cannot be told from chance"] if None in claims else []
    text = f"Of {len(claims)} claims of the paper that were looked at, {', '.join(words)}." if claims else ""
    if goals:
        text += f" Of {len(goals)} goals for queries without end {goals.count(True)} were reached."
    for status in ("failed", "not run"):
        names = [outcome["name"] for outcome in outcomes if outcome["status"] == status]
        text += f" {status.capitalize()}: {', '.join(names)}." if names else ""
    return text.strip()


def _by_claim(findings: list[dict[str, Any]]) -> list[bool | None]:
    """One verdict for each claim, however many data sets it was looked at on: it holds if it holds on all of them."""
    claims: dict[str, list[bool | None]] = {}
    for finding in (finding for finding in findings if not of_goal(finding)):
        claims.setdefault(finding["paper"], []).append(finding["agrees"])
    return [False if False in found else None if None in found else True for found in claims.values()]
