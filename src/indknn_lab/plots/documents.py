"""Writes the results in the documents: blocks of Markdown, which are made only from the summaries.

A block is between `<!-- results: NAME -->` and `<!-- end of results -->`. `indknn reproduce write-docs` writes all
blocks again. A test fails if a document differs.
The summaries are small, and kept with the project: the documents quote results only from them.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeAlias

from indknn.errors import InvalidInputError
from indknn_lab.experiments.items import ITEMS
from indknn_lab.experiments.units import write_json
from indknn_lab.plots.audited import audit_summary, audit_tables
from indknn_lab.plots.report import markdown, of_goal, read, summary, verdict

FOLDER = Path("docs") / "results"
PICTURES = Path("docs") / "img"
SHOWN = ("figure1a", "figure2", "figure3b", "endless_figures", "endless_streams", "endless_change", "tables")
"""The items whose pictures are in the documents."""


def keep_run(out: Path, root: Path) -> None:
    """Keep the results of a run: every item that was run, and some pictures."""
    setting, outcomes = read(out)
    for outcome in outcomes:
        if outcome["status"] == "not run" or setting["quick"]:
            continue
        panels = [{**panel, "series": [_curve(series) for series in panel["series"]]} for panel in outcome["panels"]]
        write_json(root / FOLDER / f"{outcome['name']}.json", {**outcome, "panels": panels})
        picture = out / "plots" / f"{outcome['name']}.png"
        if outcome["name"] in SHOWN and picture.is_file():
            shutil.copyfile(picture, root / PICTURES / f"reproduction-{outcome['name']}.png")
    if not setting["quick"]:
        write_json(root / FOLDER / "setting.json", {"sources": setting["sources"], "order": setting["order"]})


def keep_audit(path: Path, root: Path) -> None:
    """Keep the results of an audit, without the points of its curves."""
    found = json.loads(path.read_text(encoding="utf-8"))
    curves = ("fpr", "private", "control", "bound")
    if found["membership"]:
        found["membership"] = {k: v for k, v in found["membership"].items() if k not in curves}
    found["mutants"] = [{**m, "seconds": None} for m in found["mutants"]]
    write_json(root / FOLDER / "audit.json", found)


def kept(root: Path) -> dict[str, dict[str, Any]]:
    """All summaries, by name."""
    files = sorted((root / FOLDER).glob("*.json"))
    return {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in files}


def _curve(series: dict[str, Any]) -> dict[str, Any]:
    short = {key: [float(f"{v:.4g}") for v in series[key]] for key in ("x", "y")}
    return {"label": series["label"], "role": series["role"], **short}


Summaries: TypeAlias = dict[str, dict[str, Any]]
NONE = "–"
PAGES = ("README.md", "docs/*.md", "docs/**/*.md")
_BLOCK = re.compile(r"(<!-- results: ([\w-]+) -->\n)(.*?)(<!-- end of results -->)", re.DOTALL)
_METHODS = {
    "Ind-KNN": "Ind-KNN, the default",
    "NoisySGD, trained once": "NoisySGD, trained once",
    "NoisySGD, retrained every 100 queries": "retrained every 100 queries",
    "votes alone (Algorithm 3)": "Algorithm 3",
    "Private-kNN": "Private-kNN",
    "ridge regression, no privacy": "no privacy (ridge)",
}
_OURS, _ONCE, _AGAIN, _VOTES, _KNN, _RIDGE = _METHODS
_STREAMS = {
    "Ind-KNN, first 1x": ("Ind-KNN", "1st of 1x"),
    "Ind-KNN, last 1x of 100,000": ("Ind-KNN", "last of 1x"),
    "Algorithm 3, first 1x": (_VOTES, "1st of 1x"),
    "Algorithm 3, fifth 1x": (_VOTES, "5th of 1x"),
}
_CHANGE = {_OURS: "Ind-KNN", _AGAIN: "NoisySGD, retrained", _ONCE: "NoisySGD, trained once"}
_TOOLS = {
    "endless": "Ind-KNN, {:,} queries",
    "algorithm3": "Algorithm 3, {:,} queries",
    "private_knn": "Private-kNN, {:,} queries",
    "noisy_sgd": "NoisySGD, retrained {:,} times",
}
_PAPER = {"indknn": "Ind-KNN (Algorithm 3)", "private_knn": "Private-kNN", "noisy_sgd": "Linear NoisySGD"}


def write_documents(root: Path) -> list[Path]:
    """Write every block again. Returns the pages that changed."""
    changed = []
    for path, old, new in rendered(root):
        if new != old:
            path.write_text(new, encoding="utf-8")
            changed.append(path)
    return changed


def rendered(root: Path) -> list[tuple[Path, str, str]]:
    """For every page with blocks: its path, its text, and the text that it should have."""
    summaries, found = kept(root), []
    for path in sorted({path for pattern in PAGES for path in root.glob(pattern)}):
        old = path.read_text(encoding="utf-8")
        if _BLOCK.search(old):
            found.append((path, old, _BLOCK.sub(lambda match: _fill(match, summaries), old)))
    return found


def _fill(match: re.Match[str], summaries: Summaries) -> str:
    begin, name, _, end = match.groups()
    if name not in BLOCKS:
        raise InvalidInputError(f"a block of results must be one of {', '.join(BLOCKS)}, got {name!r}")
    return f"{begin}{BLOCKS[name](summaries).strip()}\n{end}"


def table(columns: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
    """A table in Markdown."""
    header = list(columns)
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)


def over_epsilon(item: str) -> Callable[[Summaries], str]:
    """A block with one row for each data set: the medians of every method, over epsilon."""

    def block(summaries: Summaries) -> str:
        found = summaries.get(item)
        if not found:
            return _not_run(item)
        tables = found["tables"]
        ridge = "ridge regression, no privacy"
        cells = [{_plain(label): list(map(_middle, values)) for label, *values in each["rows"]} for each in tables]
        run = [i for i in range(len(tables[0]["columns"]) - 1) if any(row[_OURS][i] != NONE for row in cells)]
        cells = [{label: [values[i] for i in run] for label, values in row.items()} for row in cells]
        epsilons = " / ".join(tables[0]["columns"][1 + i].removeprefix("ε = ") for i in run)
        shown = {label: title for label, title in _METHODS.items() if any(set(row[label]) != {NONE} for row in cells)}
        texts = [[" / ".join(row[label][: 1 if label == ridge else None]) for label in shown] for row in cells]
        rows = ([each["title"], *row] for each, row in zip(tables, texts, strict=True))
        least = {label: min(_seeds(each, label) for each in tables) for label in shown}
        several = ", ".join(f"{title}: {least[label]}" for label, title in shown.items() if least[label] > 1)
        seeds = f"Medians over seeds ({several}; the others one), δ = 1e-5." if several else "One seed, δ = 1e-5."
        gaps = f" {NONE}: not run." if any(NONE in text for row in texts for text in row) else ""
        return table([f"accuracy at ε = {epsilons}", *shown.values()], rows) + f"\n\n{seeds}{gaps}"

    return block


def paper(summaries: Summaries) -> str:
    """The paper's comparison of three methods."""
    found = [summaries[name] for name in ("figure1a", "figure2") if name in summaries]
    tables = [each for outcome in found for each in outcome["tables"]]
    if not tables:
        return _not_run("figure1a, figure2")
    rows, epsilons = [], sorted({row[0] for row in tables[0]["rows"]})
    for each in tables:
        cells = {(row[0], row[1]): _middle(row[2]) for row in each["rows"]}
        values = [" / ".join(cells[e, role] for e in epsilons) for role in _PAPER]
        rows.append([each["title"].rsplit(", delta", maxsplit=1)[0], *values])
    header = f"accuracy at ε = {' / '.join(f'{e:g}' for e in epsilons)}"
    return table([header, *_PAPER.values()], rows) + "\n\nMedians of 5 query sets."


def along(item: str, columns: dict[str, tuple[str, str]]) -> Callable[[Summaries], str]:
    """A block with one row for each stream: the accuracy of some methods in some windows of the stream.

    It has the epsilons at which the default was run. `columns` are pairs of a method and a window, by title.
    """
    first = next(iter(columns.values()))

    def block(summaries: Summaries) -> str:
        rows = []
        for each in summaries.get(item, {}).get("tables", []):
            windows = each["columns"][2:]
            cells = {
                (e, label, w): v for e, label, *values in each["rows"] for w, v in zip(windows, values, strict=True)
            }
            run = [e for e in dict.fromkeys(row[0] for row in each["rows"]) if cells.get((e, *first), NONE) != NONE]
            values = [" / ".join(cells[e, *where] for e in run) for where in columns.values()]
            rows += [[each["title"], " / ".join(run), *values]] if run else []
        told = [i for i in range(2 + len(columns)) if any(set(row[i].split(" / ")) != {NONE} for row in rows)]
        header = ["accuracy", "at ε", *columns]
        return table([header[i] for i in told], ([row[i] for i in told] for row in rows)) if rows else _not_run(item)

    return block


def findings(item: str) -> Callable[[Summaries], str]:
    """A list of the statements and what was found."""

    def block(summaries: Summaries) -> str:
        found = summaries.get(item, {}).get("findings", [])
        return "\n".join(f"- **{verdict(f)}**. {f['paper']} {f['here']}" for f in found) or _not_run(item)

    return block


def missed(summaries: Summaries) -> str:
    """Every goal that was not reached."""
    found = [f for item in summaries.values() for f in item.get("findings", ()) if of_goal(f) and f["agrees"] is False]
    return "\n".join(f"- {f['paper']} Here: {f['here']}" for f in found) or "None."


def tools(summaries: Summaries) -> str:
    """Which tool for which task: the accuracy of each method by its load, on each data set and size of store."""
    if "tools" not in summaries:
        return "*Not run yet: `benchmarks/advise.py`.*"
    points = summaries["tools"]["points"]
    places = sorted({(p["data"], p["n"]) for p in points})
    epsilons = sorted({p["epsilon"] for p in points})
    known = {(p["method"], p["load"], p["data"], p["n"], p["epsilon"]): f"{p['accuracy']:.3f}"[1:] for p in points}
    rows = [
        [text.format(load), *(" / ".join(known.get((method, load, *at, e), NONE) for e in epsilons) for at in places)]
        for method, text in _TOOLS.items()
        for load in sorted({p["load"] for p in points if p["method"] == method})
    ]
    header = f"accuracy at ε = {' / '.join(f'{e:g}' for e in epsilons)}"
    return table([header, *(f"{summaries['tools']['data'][data]['title']}, n = {n:,}" for data, n in places)], rows)


def everything(item: str) -> Callable[[Summaries], str]:
    """A block with the full outcome of an item."""
    return lambda summaries: markdown(summaries[item]) if item in summaries else _not_run(item)


def sources(summaries: Summaries) -> str:
    """A table of the data files that were used."""
    if "setting" not in summaries:
        return _not_run("all")
    columns = ("data", "file", "private records", "public queries", "features")
    return table(
        columns, ([f"{c:,}" if isinstance(c, int) else c for c in row] for row in summaries["setting"]["sources"])
    )


def in_short(summaries: Summaries) -> str:
    """A sentence that says how many statements agree."""
    order = summaries.get("setting", {}).get("order", [])
    return summary([summaries[name] for name in order if name in summaries])


BLOCKS: dict[str, Callable[[Summaries], str]] = {
    "default": over_epsilon("endless_figures"),
    "tables": over_epsilon("tables"),
    "paper": paper,
    "level": findings("endless_figures"),
    "streams": along("endless_streams", _STREAMS),
    "change": along("endless_change", {title: (label, "all") for label, title in _CHANGE.items()}),
    "streams-goals": findings("endless_streams"),
    "change-goals": findings("endless_change"),
    "missed": missed,
    "tools": tools,
    "sources": sources,
    "in-short": in_short,
    "audit-summary": audit_summary,
    "audit-tables": audit_tables,
    **{f"item-{name}": everything(name) for name in ITEMS},
}


def _not_run(item: str) -> str:
    return f"*Not run yet: `indknn reproduce` {item}.*"


def _plain(label: str) -> str:
    """A label without the number of seeds."""
    return re.sub(r" \(\d+ seeds\)$", "", label)


def _seeds(shown: dict[str, Any], label: str) -> int:
    row = next(row for row in shown["rows"] if _plain(row[0]) == label)
    found = re.search(r"\((\d+) seeds\)$", row[0])
    return int(found[1]) if found else 1


def _middle(cell: str) -> str:
    return cell.split(" ", maxsplit=1)[0]
