"""Result files: one JSON per unit, written whole or not at all, and believed only if it is what it says."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

from indknn_lab.experiments.units import Result, Unit


class Results:
    """The units that are done, in a folder.

    A file counts if it parses, is about this very unit, and its checksum fits. Anything else (half a file, an
    edited one, one of an older version) is as good as absent, and the unit is done again.
    """

    def __init__(self, folder: Path):
        self.folder = folder

    def get(self, unit: Unit) -> Result | None:
        """The result of this unit, or None if it has to be done."""
        try:
            stored = json.loads(self._path(unit).read_text(encoding="utf-8"))
            result: Result = stored["result"]
            same = stored["config"] == json.loads(json.dumps(unit.config))
            return result if same and stored["checksum"] == _checksum(result) else None
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def put(self, unit: Unit, result: Result, seconds: float) -> None:
        """Keep a result."""
        stored = {"config": unit.config, "seconds": round(seconds, 2), "checksum": _checksum(result), "result": result}
        write_json(self._path(unit), stored)

    def discard(self, unit: Unit) -> None:
        """Forget a result, if there is one."""
        self._path(unit).unlink(missing_ok=True)

    def __getitem__(self, unit: Unit) -> Result:
        result = self.get(unit)
        if result is None:
            raise KeyError(unit.name)
        return result

    def _path(self, unit: Unit) -> Path:
        return self.folder / f"{unit.name}.json"


def write_json(path: Path, value: Any) -> None:
    """Write beside, then move into place: a reader sees the old file or the new one, never half of either."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    beside.write_text(json.dumps(value, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    beside.replace(path)


def _checksum(result: Result) -> str:
    text = json.dumps(result, sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
