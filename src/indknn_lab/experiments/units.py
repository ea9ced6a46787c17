"""A unit of work and its result. The name of a unit contains a digest of everything that could change the result."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cached_property
from math import inf
from pathlib import Path
from typing import Any, Literal, TypeAlias

Result: TypeAlias = dict[str, Any]
Part: TypeAlias = Literal["figures", "streams", "change", "drift"]

VERSION = 1
"""Part of every digest. Increase it when the meaning of a result changes. Then old results are computed again."""


@dataclass(frozen=True)
class Effort:
    """How thorough a run is: the numbers of test sets and of runs per validation score, and the size of the grids."""

    sets: int = 5
    repeats: int = 2
    quick: bool = False


@dataclass(frozen=True)
class Unit:
    """One measurement. Everything that could change its result is a field.

    `kind` and `method` name a class in `methods.METHODS`. `digest` is the digest of the feature file. The path of the
    file is not part of the unit.
    """

    kind: str
    data: str
    digest: str
    T: int
    effort: Effort
    epsilon: float | None = None
    delta: float = 1e-5
    records: int | None = None
    copies: int = 1
    kernel: Literal["cosine", "rbf"] = "cosine"
    bandwidth: float | None = None
    weights: Literal["kernel", "equal"] = "kernel"
    noise: Literal["by K", "fixed"] = "by K"
    sigma1: float = 1.0
    """σ1 as a multiple of the paper's sqrt(T/6B)."""
    reuse: bool = False
    tables: int | None = None
    bits: int = 8
    sensitivity: Literal["sqrt2", "one"] = "sqrt2"
    method: str = ""

    @property
    def config(self) -> dict[str, Any]:
        return {**asdict(self), "version": VERSION}

    @cached_property
    def name(self) -> str:
        """The name of the result file, without its suffix."""
        return f"{self.kind}-{self.data}-{_digest(self.config)}"

    @property
    def promise(self) -> tuple[float, float]:
        """(epsilon, delta). epsilon is infinite for a method without privacy."""
        return inf if self.epsilon is None else self.epsilon, self.delta


@dataclass(frozen=True)
class Trial(Unit):
    """One run over a stream of queries, with one seed.

    `code` is a digest of the product's behaviour (`methods.endless`). If that changes, the units change too. So results
    of an older version are never used for this one. For methods that do not use the product, `code` is empty.
    """

    part: Part = "figures"
    seed: int = 0
    code: str = ""

    @property
    def tuned_on(self) -> Part:
        """The part on which this one is tuned. A few records that come and go make no difference to tuning."""
        return "streams" if self.part == "streams" else "figures"


class Results:
    """The units that are done. A folder holds one JSON file per unit.

    A file counts if it can be parsed, is about this unit, and has the right checksum. Any other file (incomplete,
    edited, or of an older version) is ignored, and the unit is done again.
    """

    def __init__(self, folder: Path):
        self.folder = folder
        self.failures: dict[Unit, str] = {}
        """What went wrong in this run, by unit."""

    def get(self, unit: Unit) -> Result | None:
        """The result of this unit, or None if it has to be done."""
        try:
            stored = json.loads(self._path(unit).read_text(encoding="utf-8"))
            result: Result = stored["result"]
            same = stored["config"] == json.loads(json.dumps(unit.config))
            return result if same and stored["checksum"] == _digest(result) else None
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def put(self, unit: Unit, result: Result, seconds: float, about: dict[str, Any] | None = None) -> None:
        """Keep a result, how long it took, and `about`: when, where and on which code it was made."""
        stored = {"config": unit.config, "seconds": round(seconds, 2), "about": about or {}}
        write_json(self._path(unit), {**stored, "checksum": _digest(result), "result": result})

    def about(self, units: Iterable[Unit]) -> dict[str, Any]:
        """How long these units took, their dates, machines and commits, the most memory of a process, and the load of
        the machine while times were measured."""
        seconds, found = 0.0, []
        for unit in units:
            with suppress(OSError, ValueError, KeyError, TypeError):
                stored = json.loads(self._path(unit).read_text(encoding="utf-8"))
                seconds += float(stored["seconds"])
                found.append(stored["about"])
        said: dict[str, Any] = {
            key: sorted({about[key] for about in found if about.get(key)})
            for key in ("date", "version", "commit", "machine")
        }
        most = {key: max((about.get(key, 0) for about in found), default=0) for key in ("memory_mb", "load")}
        return {**said, **most, "seconds": round(seconds, 1)}

    def discard(self, unit: Unit) -> None:
        self._path(unit).unlink(missing_ok=True)

    def __getitem__(self, unit: Unit) -> Result:
        result = self.get(unit)
        if result is None:
            raise KeyError(unit.name)
        return result

    def _path(self, unit: Unit) -> Path:
        return self.folder / f"{unit.name}.json"


def write_json(path: Path, value: Any) -> None:
    """Write to a temporary file, then move it into place. A reader sees either the old file or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    beside.write_text(json.dumps(value, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    beside.replace(path)


def _digest(values: dict[str, Any]) -> str:
    return hashlib.blake2b(json.dumps(values, sort_keys=True).encode(), digest_size=8).hexdigest()


def seed_for(*words: object) -> int:
    """A seed made from words. Every part of an experiment has its own noise, which is the same in every run.

    >>> seed_for("noise", 1) == seed_for("noise", 1), seed_for("noise", 1) == seed_for("noise", 2)
    (True, False)
    """
    return int.from_bytes(hashlib.blake2b(repr(words).encode(), digest_size=6).digest(), "big")
