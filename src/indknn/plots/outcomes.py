"""Reading what a run has written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from indknn.errors import InvalidInputError

VERDICTS = {True: "agrees", False: "differs", None: "cannot be compared"}


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


def summary(outcomes: list[dict[str, Any]]) -> str:
    """How many of the paper's statements were met, in one sentence."""
    verdicts = [finding["agrees"] for outcome in outcomes for finding in outcome["findings"]]
    agree, differ = verdicts.count(True), verdicts.count(False)
    idle = [outcome["name"] for outcome in outcomes if outcome["status"] == "not run"]
    text = f"Of {len(verdicts)} statements of the paper that were looked at, {agree} agree and {differ} do not."
    return text + (f" Not run: {', '.join(idle)}." if idle else "")
