"""Writes the results as JSON, as Markdown tables and as a picture."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

Row = dict[str, Any]


def write(folder: Path, results: dict[str, list[Row]], machine: dict[str, object]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "scan.json").write_text(json.dumps({"machine": machine, **results}, indent=1) + "\n")
    parts = ["# Scan benchmarks", "", *(f"- {key}: {value}" for key, value in machine.items()), ""]
    for title, rows in results.items():
        parts += [f"## {title}", "", *table(rows), ""]
    (folder / "scan.md").write_text("\n".join(parts))
    picture(folder / "scan.png", results)


def table(rows: list[Row]) -> list[str]:
    columns = list(dict.fromkeys(key for row in rows for key in row))
    lines = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    lines += ["| " + " | ".join(_cell(row.get(key)) for key in columns) + " |" for row in rows]
    return lines


def _cell(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.3g}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def picture(path: Path, results: dict[str, list[Row]]) -> None:
    """Growth on the left; on the right, how much faster than the exact scan the others are, with recall."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.2), layout="constrained")
    grown = results.get("growth", [])
    for column in ("ms, one query", "ms per query of 64"):
        left.loglog([r["n"] for r in grown], [r[column] for r in grown], "o-", label=column)
    left.set(xlabel="records", ylabel="ms per query", title="exact index, as the store grows")
    left.grid(alpha=0.3)
    left.legend()
    mapped = [r for r in results.get("map", []) if r["index"] != "exact"]
    for name, marker in (("lsh", "s"), ("sketch", "o")):
        mine = [r for r in mapped if r["index"] == name]
        right.scatter([r["recall"] for r in mine], [r["x exact"] for r in mine], marker=marker, label=name)
        for r in mine:
            note = f"{r['n'] // 1000}k, d={r['d']}, {r['selected']:.1%}"
            right.annotate(note, (r["recall"], r["x exact"]), fontsize=6, xytext=(3, 2), textcoords="offset points")
    right.axhline(1.0, color="grey", lw=0.8)
    right.set(xlabel="recall", ylabel="times faster than the exact scan", title="one query, hashing indexes")
    right.grid(alpha=0.3)
    right.legend()
    figure.savefig(path, dpi=130)
