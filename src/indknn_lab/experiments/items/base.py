"""Defines an item, which is a table or a figure, and its outcome: curves, tables, and findings about claims.

Outcomes are written as JSON. `indknn_lab.plots` reads only these files.
"""

from __future__ import annotations

import tomllib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.resources import files
from math import exp, inf, isnan, log, nan, sqrt
from statistics import mean, median, stdev
from typing import Any, ClassVar, Literal

from scipy.stats import t

from indknn_lab.datasets import TABLES
from indknn_lab.experiments.data import Results, Unit
from indknn_lab.experiments.methods.base import NOT_PAID_FOR
from indknn_lab.experiments.methods.endless import REFITS
from indknn_lab.experiments.setting import Setting

LABELS = {
    "indknn": "Ind-KNN, cosine",
    "indknn_rbf": "Ind-KNN, RBF",
    "indknn_gdp": "Ind-KNN, cosine, gdp filter",
    "indknn_reuse": "Ind-KNN with reuse",
    "private_knn": "Private-kNN",
    "private_knn_one": "Private-kNN, sensitivity 1",
    "noisy_sgd": "Linear NoisySGD",
}
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "indknn_rbf": ("indknn", {"kernel": "rbf"}),
    "indknn_reuse": ("indknn", {"reuse": True}),
    "private_knn_one": ("private_knn", {"sensitivity": "one"}),
}
"""Roles that use another role's method with a different setting."""


@dataclass(frozen=True)
class Series:
    """One curve: a median for each x, and the least and the greatest value if there are several runs.

    `role` names the method. It decides colour and marker, which are the same in every figure.
    """

    label: str
    x: list[float]
    y: list[float]
    low: list[float] | None = None
    high: list[float] | None = None
    role: str = "other"

    @classmethod
    def of(cls, label: str, x: Iterable[float], runs: Sequence[Sequence[float]], role: str) -> Series:
        """Make a curve from several runs at every x."""
        y, low, high = ([of(run) for run in runs] for of in (median, min, max))
        return cls(label, list(x), y, low, high, role)


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
    """A statement of the paper and what was found here. `agrees` is None if chance explains what was found.

    If `by` is "goal", the statement is a goal of this package and not a claim of the paper. A rehearsal judges nothing.
    """

    paper: str
    here: str
    agrees: bool | None
    why: str = ""
    by: Literal["paper", "goal"] = "paper"
    judged: bool = True

    @classmethod
    def of(cls, key: str, agrees: bool | None, **values: Any) -> Finding:
        """The finding of this name in `findings.toml`, with these values."""
        item, name = key.split(".")
        texts = {part: text.format(**values) for part, text in _texts()[item][name].items()}
        why = texts.get("always") or ("" if agrees else texts.get("why", ""))
        by: Literal["paper", "goal"] = "goal" if "goal" in texts else "paper"
        return cls(texts[by], texts["here"], agrees, why, by)


@cache
def _texts() -> dict[str, dict[str, Any]]:
    return tomllib.loads((files("indknn_lab.experiments.items") / "findings.toml").read_text(encoding="utf-8"))


@dataclass(frozen=True)
class Compared:
    """Two methods: the mean difference of their accuracies, and how far chance explains it.

    `spread` is half the 95% interval of the mean over test sets (Student's t). It is the tolerance of every verdict.

    >>> [Compared.of([0.70, 0.72, 0.74], theirs).ahead for theirs in ([0.68, 0.70, 0.71], [0.72, 0.70, 0.73])]
    [True, None]
    """

    gap: float
    spread: float

    @classmethod
    def of(cls, ours: Sequence[float], theirs: Sequence[float]) -> Compared:
        """Compare the accuracies of two methods, set by set."""
        gaps = [a - b for a, b in zip(ours, theirs, strict=True)]
        return cls(mean(gaps), _student(len(gaps)) * stdev(gaps) / sqrt(len(gaps)) if len(gaps) > 1 else 0.0)

    @classmethod
    def apart(cls, ours: Sequence[float], theirs: Sequence[float]) -> Compared:
        """The same for accuracies on different test sets."""
        n = min(len(ours), len(theirs))
        deviation = sqrt((stdev(ours) ** 2 + stdev(theirs) ** 2) / n) if n > 1 else 0.0
        return cls(mean(ours) - mean(theirs), _student(2 * n - 1) * deviation if n > 1 else 0.0)

    @property
    def level(self) -> bool:
        """Whether the first is at most so far below the second as chance explains."""
        return self.gap >= -self.spread

    @property
    def ahead(self) -> bool | None:
        """Whether the first is above the second. None if chance explains the difference."""
        return None if abs(self.gap) <= self.spread else self.gap > 0

    def __str__(self) -> str:
        return f"{self.gap:+.3f} ± {self.spread:.3f}"


def ahead(compared: Iterable[Compared]) -> bool | None:
    """Whether one method is above another everywhere: nowhere below, and somewhere above, by more than chance."""
    told = [pair.ahead for pair in compared]
    return False if False in told else True if True in told else None


def _student(n: int) -> float:
    """The factor of a standard error that makes a 95% interval of the mean of n values."""
    return float(t.ppf(0.975, n - 1))


@dataclass(frozen=True)
class Body:
    """What an item finds. The rest of an outcome follows from the item and from what is missing."""

    panels: list[Panel] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class Outcome(Body):
    """Everything about an item: what it found, its title, and what is missing."""

    name: str
    title: str
    status: Literal["done", "partly", "not run", "failed"]
    not_run: list[str]
    broken: int = 0
    """How many of its units failed."""
    run: dict[str, Any] = field(default_factory=dict, compare=False)
    """How long its units took, on one core each, and when, where and on which code (`Results.about`)."""


class Item(ABC):
    """One table or figure. It knows the data sets it needs, its units of work, and what their results show.

    It runs on those data sets that are present.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    needs: ClassVar[tuple[str, ...]] = ("cifar10",)
    in_part: ClassVar[bool] = False
    """Whether the item can show something if only some of its units are done."""
    varies: ClassVar[tuple[str, ...]] = ()
    """Fields of units that the item varies itself, so that `--set` does not change them."""

    def __init__(self, setting: Setting, results: Results):
        kept = {name: value for name, value in setting.changed.items() if name not in self.varies}
        self.setting, self.results = replace(setting, changed=kept), results

    @abstractmethod
    def lines(self) -> Mapping[Any, list[Unit]]:
        """The units to measure, by their meaning for the item."""

    def units(self) -> list[Unit]:
        """All units."""
        return [unit for line in self.lines().values() for unit in line]

    @abstractmethod
    def body(self) -> Body:
        """What the item finds, after all units are done."""

    @property
    def present(self) -> list[str]:
        """The data sets that are present. The user's own data take the place of the first one, and of no other."""
        wanted = self.needs[:1] if self.setting.own is not None else self.needs
        return [name for name in wanted if self.setting.has(name)]

    def outcome(self) -> Outcome:
        """What the item finds, and what is missing."""
        lacking, units = self.lacking(), list(dict.fromkeys(self.units())) if self.present else []
        done = sum(self.results.get(unit) is not None for unit in units)
        broken = [self.results.failures[unit] for unit in units if unit in self.results.failures]
        if broken:
            lacking.append(f"{len(broken):,} of {len(units):,} units, which failed: {broken[0]}")
        elif done < len(units):
            lacking.append(f"{len(units) - done:,} of {len(units):,} units, which are not done yet")
        whole = bool(units) and (done == len(units) or (self.in_part and done > 0))
        status: Any = "not run" if not whole else "partly" if lacking else "done"
        body = self.body() if whole else Body()
        if self.setting.quick:  # a rehearsal judges nothing
            body = replace(body, findings=[replace(f, agrees=None, why="", judged=False) for f in body.findings])
        about = self.results.about(units)
        more: dict[str, Any] = {"not_run": lacking, "broken": len(broken), "run": about}
        return Outcome(name=self.name, title=self.title, status=status, **more, **vars(body))

    @classmethod
    def failed(cls, error: Exception) -> Outcome:
        """The outcome of an item that could not be made."""
        text = f"it failed: {type(error).__name__}: {error}"
        return Outcome(name=cls.name, title=cls.title, status="failed", not_run=[text])

    def lacking(self) -> list[str]:
        """What was not run, and why."""
        own, gone = self.setting.own, [name for name in self.needs if name not in self.present]
        if own is not None and self.present:
            place = f"{own} takes the place of {self.needs[0]}"
            return [f"{place}; {', '.join(gone)} need a folder with their files"] if gone else []
        return [f"needs {name}{'.csv.gz' if name in TABLES else '-*.npz'}" for name in gone]

    def notes(self, **values: Any) -> list[str]:
        """The notes of this item in `findings.toml`, with these values."""
        notes, values = _texts()["notes"], {"refits": REFITS, "not_paid_for": NOT_PAID_FOR, **values}
        shared = {name: text.format(**values) for name, text in notes["shared"].items()}
        return [text.format(**shared, **values) for text in notes["by_item"][self.name]]

    def unit(self, role: str, name: str, T: int, epsilon: float, **more: Any) -> Unit:
        """The unit for a role at one epsilon, on one data set."""
        kind, variant = VARIANTS.get(role, (role, {}))
        return replace(self.setting.unit(kind, name, T, epsilon, **more), **variant)

    def accuracies(self, unit: Unit, key: str = "accuracies") -> list[float]:
        """The accuracies on all test sets."""
        return list(self.results[unit][key])

    def pairs(self, ours: Iterable[Unit], theirs: Iterable[Unit]) -> list[Compared]:
        """The units of two methods, pair by pair."""
        pairs = zip(ours, theirs, strict=True)
        return [Compared.of(self.accuracies(a), self.accuracies(b)) for a, b in pairs]

    def medians(self, units: Iterable[Unit]) -> list[float]:
        """The median accuracy of each unit."""
        return [median(self.accuracies(unit)) for unit in units]

    def series(
        self, role: str, x: Iterable[float], units: Iterable[Unit], *, label: str = "", key: str = "accuracies"
    ) -> Series:
        """The accuracies of these units over x."""
        return Series.of(
            label or (LABELS | self.setting.roles)[role], x, [self.accuracies(unit, key) for unit in units], role
        )

    @property
    def own(self) -> tuple[str, ...]:
        """The user's own methods."""
        return tuple(self.setting.roles)

    def by_epsilon(self, values: Iterable[Compared]) -> str:
        """One difference for each epsilon of the setting, in words."""
        return ", ".join(f"{v} at ε = {e:g}" for v, e in zip(values, self.setting.epsilons, strict=True))


def first_reaching(x: Sequence[float], y: Sequence[float], level: float) -> float:
    """The x at which y first reaches the level, interpolated linearly in log x. Infinite if it never does.

    y is treated as rising. Below the first x nothing was measured. If the level is reached at the first x already, the
    result is that x, which is an upper bound.

    >>> round(first_reaching([1, 2, 4], [0.5, 0.6, 0.7], 0.65), 4), first_reaching([1, 2], [0.5, 0.6], 0.7)
    (2.8284, inf)
    """
    best, left = -1.0, None
    for right, value in zip(x, y, strict=True):
        if value >= level:
            if left is None or value == best:
                return float(right)
            share = (level - best) / (value - best)
            return exp(log(left) + share * (log(right) - log(left)))
        if value >= best:
            best, left = value, right
    return inf


def spread(values: Sequence[float]) -> str:
    """Median, least and greatest as text. A single value is shown alone, and no value as a dash.

    >>> spread([0.7, 0.8, 0.75]), spread([0.7])
    ('.750 (.700 to .800)', '.700')
    """
    if not values:
        return points(nan)
    low, middle, high = (points(of(values)) for of in (min, median, max))
    return f"{middle} ({low} to {high})" if len(values) > 1 else middle


def points(value: float) -> str:
    """An accuracy with three digits. A dash if there is none."""
    if isnan(value):
        return "–"
    return f"{value:.3f}".removeprefix("0") if value < 1 else f"{value:.3f}"
