"""What an item of the paper came out as: numbers for curves and tables, and what they say about its claims.

Outcomes are written as JSON; `indknn_lab.plots` reads that and knows nothing else.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from indknn_lab.experiments.results import Results
from indknn_lab.experiments.setting import Setting
from indknn_lab.experiments.units import Unit


@dataclass(frozen=True)
class Series:
    """One curve: a median per x, with the least and the greatest of the runs where there are several."""

    label: str
    x: list[float]
    y: list[float]
    low: list[float] | None = None
    high: list[float] | None = None
    role: str = "other"
    """Which method it is: decides colour and marker, the same in every figure."""


@dataclass(frozen=True)
class Panel:
    """One set of axes."""

    title: str
    xlabel: str
    ylabel: str
    series: list[Series]
    log_x: bool = False
    log_y: bool = False


@dataclass(frozen=True)
class Table:
    """Rows under columns. Cells are text or numbers, ready to be shown."""

    title: str
    columns: list[str]
    rows: list[list[Any]]


@dataclass(frozen=True)
class Finding:
    """A statement of the paper beside what was found. `agrees` is None where the two cannot be compared.

    Where `by` is "goal" the statement is no claim of the paper but what this package set itself.
    """

    paper: str
    here: str
    agrees: bool | None
    why: str = ""
    by: Literal["paper", "goal"] = "paper"


@dataclass(frozen=True)
class Outcome:
    """All of it."""

    name: str
    title: str
    status: Literal["done", "partly", "not run"]
    panels: list[Panel] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)
    paper: list[Table] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    not_run: list[str] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)


@dataclass(frozen=True)
class Body:
    """What an item's `assemble` gives; the rest of an outcome follows from the item and what is missing."""

    panels: list[Panel] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)
    paper: list[Table] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Item:
    """One table or figure: the data it needs, the units it is made of, and how results become an outcome.

    An item with several data sets runs on those that are there; `units` and `assemble` ask the setting which.
    """

    name: str
    title: str
    needs: tuple[str, ...]
    units: Callable[[Setting], list[Unit]]
    assemble: Callable[[Setting, Results], Body]

    def runnable(self, setting: Setting) -> bool:
        """Whether any of the data sets is there."""
        return any(setting.has(name) for name in self.needs)

    def outcome(self, setting: Setting, results: Results) -> Outcome:
        """The outcome, after all units are done."""
        lacking = [f"needs {name}" for name in setting.missing(*self.needs)]
        if not self.runnable(setting):
            return Outcome(self.name, self.title, "not run", not_run=lacking)
        body = self.assemble(setting, results)
        return Outcome(
            self.name,
            self.title,
            "partly" if lacking else "done",
            body.panels,
            body.tables,
            body.paper,
            body.findings,
            body.notes,
            lacking,
        )
