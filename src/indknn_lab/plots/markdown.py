"""The same results as Markdown, to be read in a terminal or pasted into a document."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from indknn_lab.plots.outcomes import of_goal, read, summary, verdict


def write_markdown(out: Path) -> Path:
    """Write `results.md`; its path."""
    _, outcomes = read(out)
    path = out / "results.md"
    path.write_text("\n".join([summary(outcomes), "", *(_section(o) for o in outcomes)]), encoding="utf-8")
    return path


def _section(outcome: dict[str, Any]) -> str:
    lines = [f"### {outcome['title']}", ""]
    lines += [f"Not run: {text}." for text in outcome["not_run"]]
    lines += [""] if outcome["not_run"] else []
    for f in outcome["findings"]:
        why = f" *{f['why']}*" if f["why"] else ""
        lines.append(f"- **{verdict(f)}**. {'Goal' if of_goal(f) else 'Paper'}: {f['paper']} Here: {f['here']}{why}")
    lines.append("")
    for panel in outcome["panels"]:
        lines += [_curves(panel), ""]
    for table in outcome["tables"]:
        lines += [table["title"] + ":", "", _table(table["columns"], table["rows"]), ""]
    return "\n".join(lines)


def _curves(panel: dict[str, Any]) -> str:
    """The curves of a panel that share their x as one table, the others each as a row of its last value."""
    x = panel["series"][0]["x"]
    same = [s for s in panel["series"] if s["x"] == x]
    rows = [[s["label"], *(f"{y:.3g}" if panel["log_y"] else f"{y:.3f}" for y in s["y"])] for s in same]
    rows += [
        [s["label"] + " (last)", *[""] * (len(x) - 1), f"{s['y'][-1]:.3g}"] for s in panel["series"] if s not in same
    ]
    return f"{panel['title']}:\n\n" + _table([panel["xlabel"], *(f"{v:g}" for v in x)], rows)


def _table(columns: list[Any], rows: list[list[Any]]) -> str:
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join("| " + " | ".join(str(cell) for cell in line) + " |" for line in lines)
