"""Small summaries of runs and audits, which are kept with the project. Its documents quote results only from them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from indknn_lab.experiments.units import write_json
from indknn_lab.plots.report import read

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
