"""Reading what a run has written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from indknn.errors import InvalidInputError

VERDICTS = {True: "agrees", False: "differs", None: "cannot be compared"}
GOALS = {True: "reached", False: "not reached", None: "open"}


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
    """In a word or two: about the paper, or about a goal."""
    return (GOALS if of_goal(finding) else VERDICTS)[finding["agrees"]]


def of_goal(finding: dict[str, Any]) -> bool:
    """Whether the statement is a goal of this package and not the paper's; files of old have only the latter."""
    return bool(finding.get("by", "paper") == "goal")


def summary(outcomes: list[dict[str, Any]]) -> str:
    """How many of the paper's statements were met, in one sentence."""
    findings = [finding for outcome in outcomes for finding in outcome["findings"]]
    verdicts = [f["agrees"] for f in findings if not of_goal(f)]
    goals = [f["agrees"] for f in findings if of_goal(f)]
    agree, differ = verdicts.count(True), verdicts.count(False)
    idle = [outcome["name"] for outcome in outcomes if outcome["status"] == "not run"]
    text = f"Of {len(verdicts)} statements of the paper that were looked at, {agree} agree and {differ} do not."
    if goals:
        text += f" Of {len(goals)} goals for queries without end {goals.count(True)} were reached."
    return text + (f" Not run: {', '.join(idle)}." if idle else "")
