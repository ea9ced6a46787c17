"""Writes the results in the documents: blocks and whole pages of Markdown, which are made only from the summaries.

A block is between `<!-- results: NAME -->` and `<!-- end of results -->`. Every item of the reproduction has a page of
its own. `indknn reproduce write-docs` writes all of them again. A test fails if a document differs.
The summaries are small, and kept with the project: the documents quote results only from them.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

from indknn.errors import InvalidInputError
from indknn_lab.experiments.data import write_json
from indknn_lab.experiments.items import ITEMS
from indknn_lab.plots.report import SOURCES, as_table, markdown, of_goal, read, summary, verdict

Summaries: TypeAlias = dict[str, dict[str, Any]]


def audit_summary(summaries: Summaries) -> str:
    """The ten lines, in plain words."""
    if "audit" not in summaries:
        return "*Not run yet: `indknn audit --minutes 60`.*"
    a = summaries["audit"]
    rows, mutants, strongest = a["scenarios"], a["mutants"], a["strongest"]
    played = sum(row["trials"] for row in rows if row["path"].startswith("product"))
    imitated = sum(row["trials"] for row in rows) - played
    limit = "" if a["minutes"] is None else f" --minutes {a['minutes']:g}"
    held = all(row["holds"] for row in rows)
    verdict = "Passed" if a["passed"] else a["verdict"]
    missing = [*a.get("missing", ()), *a["left_out"]]
    lines = [
        f"**{verdict}.** We attacked our own software for {a['seconds'] / 60:.0f} "
        f"minutes, {a['worked'] / 60:.0f} of them at work on a shared machine "
        f"(`indknn audit{limit} --seed {a['seed']}`).",
        f"We played {len(rows)} histories with one person and without them: {played:,} times with the software itself, "
        f"{imitated:,} times with a faster copy that tests hold to it. An attacker who knows everybody else's data "
        "tried to tell the two apart.",
        "The software promises a limit to how well that can work: ε. "
        + ("No attack got beyond its limit." if held else "**Some attack got beyond its limit.**"),
        f"The strongest attack came to {strongest['share_of_claim']:.0%} of its limit ({strongest['scenario']}). Had "
        "the software given away much more than it promises, such an attack would have shown it.",
        f"We broke the software on purpose in {len(mutants)} ways, each a mistake that others have made or could make. "
        f"The audit noticed {sum(m['caught'] for m in mutants)} of them.",
        _membership(a["membership"]),
        _floats(a["floats"]),
        _timing(a["timing"]),
        "All of these limits hold together with 95% confidence. An audit can show that a promise is broken. It cannot "
        "prove that it is kept: that is done by the proofs in [privacy.md](privacy.md).",
        "There was no time for: " + "; ".join(missing) + "." if missing else "Nothing was left out.",
    ]
    return "\n".join(f"{i}. {line}" for i, line in enumerate(lines, start=1))


def _membership(m: dict[str, Any] | None) -> str:
    if not m:
        return "Guessing who is in the data was not tried in this run."
    return (
        f"Guessing who is among {m['people']:,} unusual people: right in {m['auc']:.2f} of comparisons (0.5 is a blind "
        f"guess, the promise allows {m['bound_auc']:.2f}, without privacy it is {m['control_auc']:.2f})."
    )


def _floats(found: list[dict[str, Any]]) -> str:
    if not found:
        return "Attacks on rounding errors were not tried in this run."
    naive, ours = found
    return (
        f"Rounding errors of usual noise give away the secret in {naive['success']:.0%} of cases; of ours in "
        f"{ours['success']:.0%}, where {ours['allowed']:.0%} is what chance allows."
    )


def _timing(found: list[dict[str, Any]]) -> str:
    if not found:
        return "Timing attacks were not tried in this run."
    worst = max(found, key=lambda t: float(t["open_success"]))
    return (
        f"By the time of an answer alone an attacker was right in up to {worst['open_success']:.0%} of cases if "
        f"answers leave at once, and in {worst['paced_success']:.0%} if they are paced (`indknn serve --tick`). Time "
        "is outside the promise unless answers are paced."
    )


def audit_tables(summaries: Summaries) -> str:
    """Tables of every scenario and every mutant."""
    if "audit" not in summaries:
        return ""
    a = summaries["audit"]
    lines = ["| history | attacker sees | path | promised ε | proven by counting | by μ | share | trials |"]
    lines += ["| --- " * 8 + "|"]
    lines += [
        f"| {r['name']}: {r['about']} | {r['sees']} | {r['path']} | {r['claimed_epsilon']:.2f} | {r['epsilon']:.2f} | "
        f"{r['epsilon_gdp']:.2f} | {r['tightness']:.0%} | {r['trials']:,} |"
        for r in a["scenarios"]
    ]
    lines += ["", "| broken on purpose | what is wrong | noticed by |", "| --- | --- | --- |"]
    lines += [
        f"| {m['mutant']} | {m['wrong']} | {', '.join((*m['checks'], *m['probes'])) or '**nothing**'} |"
        for m in a["mutants"]
    ]
    limit = "" if a["minutes"] is None else f" of {60 * a['minutes']:.0f}"
    used = f"{a['seconds']:.0f} s{limit}, {a['worked']:.0f} s of the processor"
    about = f"Seed {a['seed']}, {used}, {a['machine']}."
    return "\n".join([*lines, "", f"{about} Each bound fails with a chance of at most {a['error_per_bound']:.1e}."])


FOLDER = Path("docs") / "results"
PICTURES = Path("docs") / "img"
ITEM_PAGES = Path("docs") / "reproduction"
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


NONE = "–"
_EARLIER = "an earlier version"
_NO_SEARCH = "---\nsearch:\n  exclude: true\n---\n"
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
_SETS = {
    "adult": "Adult", "letters": "Letters", "shuttle": "Shuttle", "digits": "digits", "cancer": "breast cancer",
    "agnews": "AG News", "lite3": "CIFAR-10, Lite3",
}  # fmt: skip
"""The data sets of `rivals.json` by name. Those that are scored by another measure than accuracy are not here."""
FEWER = "¹"
"""Marks what was measured with fewer seeds than ours."""
_RIVALS = {
    "indknn": "**indknn**",
    "indknn, public rows without labels": "indknn, public rows without labels",
    "NoisySGD": "NoisySGD, once",
    "Opacus": "Opacus",
    "public rows only": "public rows only",
    "no privacy": "no privacy",
}
_RIVAL_EPSILONS = ("0.25", "1")
_PAPER = {"indknn": "Ind-KNN (Algorithm 3)", "private_knn": "Private-kNN", "noisy_sgd": "Linear NoisySGD"}


def write_documents(root: Path) -> list[Path]:
    """Write every block and every item's page again. Returns the pages that changed."""
    changed = []
    for path, old, new in rendered(root):
        if new != old:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(new, encoding="utf-8")
            changed.append(path)
    return changed


def rendered(root: Path) -> list[tuple[Path, str, str]]:
    """For every page with blocks, and every item's page: its path, its text, and the text that it should have."""
    summaries, found = kept(root), []
    for name in ITEMS:
        path = root / ITEM_PAGES / f"{name}.md"
        old = path.read_text(encoding="utf-8") if path.is_file() else ""
        found.append((path, old, item_page(name, summaries)))
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


def over_epsilon(item: str, summaries: Summaries) -> str:
    """A block with one row for each data set: the medians of every method, over epsilon."""
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
    return as_table([f"accuracy at ε = {epsilons}", *shown.values()], rows) + f"\n\n{seeds}{gaps}"


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
    return as_table([header, *_PAPER.values()], rows) + "\n\nMedians of 5 query sets."


def along(item: str, columns: dict[str, tuple[str, str]], summaries: Summaries) -> str:
    """A block with one row for each stream: the accuracy of some methods in some windows of the stream.

    It has the epsilons at which the default was run. `columns` are pairs of a method and a window, by title.
    """
    first = next(iter(columns.values()))
    rows = []
    for each in summaries.get(item, {}).get("tables", []):
        windows = each["columns"][2:]
        cells = {(e, label, w): v for e, label, *values in each["rows"] for w, v in zip(windows, values, strict=True)}
        run = [e for e in dict.fromkeys(row[0] for row in each["rows"]) if cells.get((e, *first), NONE) != NONE]
        values = [" / ".join(cells[e, *where] for e in run) for where in columns.values()]
        rows += [[each["title"], " / ".join(run), *values]] if run else []
    told = [i for i in range(2 + len(columns)) if any(set(row[i].split(" / ")) != {NONE} for row in rows)]
    header = ["accuracy", "at ε", *columns]
    return as_table([header[i] for i in told], ([row[i] for i in told] for row in rows)) if rows else _not_run(item)


def findings(item: str, summaries: Summaries) -> str:
    """A list of the statements and what was found."""
    found = summaries.get(item, {}).get("findings", [])
    return "\n".join(f"- **{verdict(f)}**. {f['paper']} {f['here']}" for f in found) or _not_run(item)


def missed(summaries: Summaries) -> str:
    """Every goal that was not reached."""
    found = [f for item in summaries.values() for f in item.get("findings", ()) if of_goal(f) and f["agrees"] is False]
    return "\n".join(f"- {f['paper']} Here: {f['here']}" for f in found) or "None."


def rivals(summaries: Summaries) -> str:
    """The default beside private training, public rows only and no privacy: a row for each data set that was run."""
    run = summaries.get("rivals", {"sets": {}})
    rows = []
    for name, title in _SETS.items():
        scores = run["sets"].get(name)
        if not scores:
            continue
        found = {tool: [by[e] for e in _RIVAL_EPSILONS if e in by] for tool, by in scores.items()}
        found["public rows only"] = [scores["public rows only"]["0"]]
        found["no privacy"] = [max(by["0"] for tool, by in scores.items() if tool.endswith("no privacy"))]
        seeds = run["seeds"][name]
        cells = {
            tool: " / ".join(f"{score:.3f}"[1:] for score in values) + FEWER * (seeds.get(tool, 9) < seeds["indknn"])
            for tool, values in found.items()
        }
        rows.append({"": title, **cells})
    if not rows:
        return "*Not run yet: `benchmarks/rivals.py`.*"
    shown = {tool: name for tool, name in _RIVALS.items() if any(row.get(tool, NONE) != NONE for row in rows)}
    lines = as_table(
        [f"accuracy at ε = {' / '.join(_RIVAL_EPSILONS)}", *shown.values()],
        ([row.get(tool, NONE) for tool in ("", *shown)] for row in rows),
    )
    several = ", ".join(f"{_SETS[name]} {run['seeds'][name]['indknn']}" for name in _SETS if name in run["sets"])
    return (
        f"{lines}\n\nMedians over seeds ({several}; fewer where {FEWER} stands), δ = {run['delta']:g}, 1,000 "
        "public rows at most. indknn starts from their labels. No privacy: the better of logistic regression and "
        "boosted trees."
    )


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
    return as_table([header, *(f"{summaries['tools']['data'][data]['title']}, n = {n:,}" for data, n in places)], rows)


def item_page(name: str, summaries: Summaries) -> str:
    """The page of one item, in full. The search of the site leaves it out: it is mostly numbers."""
    picture = f"![{ITEMS[name].title}](../img/reproduction-{name}.png)\n\n" if name in SHOWN else ""
    found = summaries.get(name, {})
    body = markdown(found, level=1) if name in summaries else f"# {ITEMS[name].title}\n\n{_not_run(name)}"
    title, _, rest = body.partition("\n\n")
    notice = f"<!-- written by `indknn reproduce write-docs` from {FOLDER.as_posix()}/{name}.json -->"
    about = f"[How it was measured](index.md). `indknn reproduce {name} --data features` runs it again."
    about += f" These results are of {_EARLIER}." if found and not found.get("run", {}).get("commit") else ""
    return f"{_NO_SEARCH}\n{notice}\n\n{title}\n\n{about}\n\n{picture}{rest.strip()}\n"


def verdicts(summaries: Summaries) -> str:
    """A table of every statement of the paper and every goal, item by item, what came of it, and on which code."""
    rows = []
    for name, item in ITEMS.items():
        code = " ".join(summaries.get(name, {}).get("run", {}).get("commit", [])) or _EARLIER
        found, link = summaries.get(name, {}).get("findings", []), f"[{item.title}]({name}.md)"
        for statement in dict.fromkeys(f["paper"] for f in found):
            told = [verdict(f) for f in found if f["paper"] == statement]
            words = [f"{word} ({told.count(word)} of {len(told)})" for word in dict.fromkeys(told)]
            rows.append([link, statement, ", ".join(words) if len(words) > 1 else told[0], code])
            link = code = ""
        if not found:
            rows.append([link, NONE, "nothing to compare" if name in summaries else "not run yet", NONE])
    return as_table(["item", "what the paper says, or our goal", "here", "code"], rows)


def sources(summaries: Summaries) -> str:
    """A table of the data files that were used."""
    if "setting" not in summaries:
        return _not_run("all")
    found = summaries["setting"]["sources"]
    return as_table(SOURCES, ([f"{c:,}" if isinstance(c, int) else c for c in row] for row in found))


def in_short(summaries: Summaries) -> str:
    """A sentence that says how many statements agree."""
    order = summaries.get("setting", {}).get("order", [])
    return summary([summaries[name] for name in order if name in summaries])


BLOCKS: dict[str, Callable[[Summaries], str]] = {
    "rivals": rivals,
    "default": partial(over_epsilon, "endless_figures"),
    "tables": partial(over_epsilon, "tables"),
    "paper": paper,
    "level": partial(findings, "endless_figures"),
    "streams": partial(along, "endless_streams", _STREAMS),
    "change": partial(along, "endless_change", {title: (label, "all") for label, title in _CHANGE.items()}),
    "streams-goals": partial(findings, "endless_streams"),
    "change-goals": partial(findings, "endless_change"),
    "missed": missed,
    "tools": tools,
    "sources": sources,
    "in-short": in_short,
    "verdicts": verdicts,
    "audit-summary": audit_summary,
    "audit-tables": audit_tables,
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
