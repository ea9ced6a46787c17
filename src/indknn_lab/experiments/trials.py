"""Units of the endless items: one run of one method over one stream, under one seed."""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from typing import Any, Literal, TypeAlias

from indknn.errors import InvalidInputError
from indknn_lab.experiments.setting import QUICK_RECORDS, Setting, Source
from indknn_lab.experiments.units import Unit

Part: TypeAlias = Literal["figures", "streams", "change", "drift"]
ADVISED = ("default", "open", "statistics", "student")
"""Ways to answer that have an adviser."""
LABELS = {
    "default": "mixture, T known",
    "open": "mixture, no end planned",
    "statistics": "without a student",
    "student": "without statistics",
    "votes": "votes alone (Algorithm 3)",
    "noisy_sgd": "NoisySGD, trained once",
    "noisy_sgd_retrained": "NoisySGD, retrained at every change",
    "ridge": "ridge regression, no privacy",
    "kernel": "kernel vote, no privacy",
}
_CORE = (
    *("accounting", "calibrate", "engine", "kernels", "mechanism", "predictor", "quantise"),
    *("releases", "roads", "shard", "sums"),
)


@dataclass(frozen=True)
class Trial(Unit):
    """A unit with a seed. `method` says who answers, `code` what the answering code was.

    A change of that code makes other units, so results of an older product are never mistaken for those of this
    one. Methods that do not use the product have no code, and keep their results.
    """

    part: Part = "figures"
    seed: int = 0
    code: str = ""

    @property
    def affinity(self) -> tuple[Any, ...]:
        """What is tuned is tuned for one data set, part and epsilon; seeds share it."""
        return self.kind, self.data, "change" if self.part == "drift" else self.part, self.epsilon


@lru_cache
def code_of(advised: bool) -> str:
    """A digest of the code that answers, comments left out."""
    package = files("indknn")
    sources = [package / f"{name}.py" for name in _CORE]
    if advised:
        sources += sorted((f for f in (package / "advice").iterdir() if f.name.endswith(".py")), key=lambda f: f.name)
    digest = hashlib.blake2b(digest_size=6)
    for source in sources:
        digest.update(ast.dump(ast.parse(source.read_text(encoding="utf-8"))).encode())
    return digest.hexdigest()


def trial(setting: Setting, part: Part, name: str, method: str, T: int, epsilon: float | None, seed: int = 0) -> Trial:
    """One of them, on the main file of this data set."""
    source = setting.sources[name][0]
    code = code_of(method in ADVISED) if method in (*ADVISED, "votes") else ""
    records = private(setting, source) if setting.quick else None
    return Trial(
        "endless",
        source.stem,
        source.digest,
        T,
        setting.effort,
        epsilon,
        records=records,
        method=method,
        part=part,
        seed=seed,
        code=code,
    )


def private(setting: Setting, source: Source) -> int:
    """How many private records are used."""
    return min(QUICK_RECORDS, source.private) if setting.quick else source.private


def seeds(setting: Setting, usual: int) -> range:
    """As many as were asked for, or as usual; one in a rehearsal."""
    return range(setting.seeds or (1 if setting.quick else usual))


def epsilons(setting: Setting, usual: Iterable[float]) -> tuple[float, ...]:
    """Those of the item, or the ones of them that were asked for; the largest one in a rehearsal."""
    wanted = tuple(e for e in usual if setting.only is None or e in setting.only)
    if not wanted:
        raise InvalidInputError(f"epsilon must be one of {', '.join(f'{e:g}' for e in usual)}, got {setting.only}")
    return wanted[-1:] if setting.quick and setting.only is None else wanted
