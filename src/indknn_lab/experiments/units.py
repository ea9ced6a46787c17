"""A unit of work: what is measured, on what, with how much effort. Its name is a digest of exactly that."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, TypeAlias

Kind: TypeAlias = Literal["indknn", "private_knn", "noisy_sgd", "plain", "timing", "endless"]
Result: TypeAlias = dict[str, Any]

VERSION = 1
"""Part of every digest. Raise it when the meaning of a result changes: old results are then redone."""


@dataclass(frozen=True)
class Effort:
    """How thoroughly: test sets, runs per validation score, and the size of the grids."""

    sets: int = 5
    repeats: int = 2
    quick: bool = False


@dataclass(frozen=True)
class Unit:
    """One measurement. Everything that could change its result is a field.

    `digest` is that of the feature file; where the file lies is no part of the unit.
    """

    kind: Kind
    data: str
    digest: str
    T: int
    effort: Effort
    epsilon: float | None = None
    delta: float = 1e-5
    records: int | None = None
    copies: int = 1
    kernel: Literal["cosine", "rbf"] = "cosine"
    reuse: bool = False
    tables: int | None = None
    bits: int = 8
    sensitivity: Literal["sqrt2", "one"] = "sqrt2"
    method: str = ""

    @property
    def config(self) -> dict[str, Any]:
        """All fields as plain values."""
        plain = {name: value for name, value in self.__dict__.items() if name != "name"}
        return {**plain, "effort": dict(self.effort.__dict__), "version": VERSION}

    @cached_property
    def name(self) -> str:
        """The name of the result file, without its suffix."""
        text = json.dumps(self.config, sort_keys=True)
        return f"{self.kind}-{self.data}-{hashlib.blake2b(text.encode(), digest_size=8).hexdigest()}"

    @property
    def affinity(self) -> tuple[Any, ...]:
        """Units that share it share most of their work, so one process does them one after the other."""
        if self.kind == "private_knn":
            return self.kind, self.data, self.records
        if self.kind == "indknn":
            return self.kind, self.data, self.records, self.T, self.kernel, self.tables, self.bits, self.copies
        return (self.name,)
