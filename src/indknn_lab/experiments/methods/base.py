"""Defines a method. It turns a unit and its data into a result.

A search on a grid is extended if the best value is at its edge. No budget covers it. The paper also tuned without a
budget, on validation queries that the private data answered. The results of the experiments say so.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from math import inf
from typing import Any, ClassVar

import numpy as np

from indknn.types import IntArray
from indknn_lab.experiments.data import Data, QuerySets, Result, Unit, query_sets, seed_for

Point = tuple[float, ...]

_FINALISTS = 10

NOT_PAID_FOR = (
    "The hyper-parameters of every method were chosen on validation queries that were answered from the private "
    "data. As in the paper, nobody paid for this search: the privacy figures cover the test queries only."
)


@dataclass
class Axis:
    """Values to try, in rising order. Below the least and above the greatest, it can be extended within limits."""

    name: str
    values: list[float]
    below: Callable[[float], float] | None = None
    above: Callable[[float], float] | None = None
    within: tuple[float, float] = (-inf, inf)


@dataclass(frozen=True)
class Found:
    """The best point, its score, how many points were tried, and where the grid had to be extended."""

    best: Point
    score: float
    tried: int
    extended: tuple[str, ...]


def search(
    axes: Sequence[Axis],
    score: Callable[[Point], float],
    *,
    confirm: Callable[[Point, float], float] = lambda _, first: first,
    max_growths: int = 12,
) -> Found:
    """The point with the highest score. If several are equal, the first of them.

    `confirm` is for scores that are cheap but noisy. It scores the best few points again, and gets their first score.
    Its scores decide.

    >>> axis = Axis("x", [1.0, 2.0, 3.0], above=lambda x: x + 1, within=(0, 9))
    >>> search([axis], lambda p: 9 - abs(p[0] - 5))
    Found(best=(5.0,), score=9.0, tried=6, extended=('x above 3',))
    """
    edges = {axis.name: (axis.values[0], axis.values[-1]) for axis in axes}
    scores = {point: score(point) for point in product(*(axis.values for axis in axes))}
    extended: dict[str, None] = {}
    for _ in range(max_growths):
        best = max(scores, key=scores.__getitem__)
        grown = [note for i, axis in enumerate(axes) if (note := _grow(axis, best[i], edges[axis.name]))]
        if not grown:
            break
        extended |= dict.fromkeys(grown)
        for point in product(*(_around(axis.values, best[i]) for i, axis in enumerate(axes))):
            if point not in scores:
                scores[point] = score(point)
    finalists = sorted(scores, key=scores.__getitem__, reverse=True)[:_FINALISTS]
    confirmed = {point: confirm(point, scores[point]) for point in finalists}
    best = max(confirmed, key=confirmed.__getitem__)
    return Found(best, confirmed[best], len(scores), tuple(extended))


def _grow(axis: Axis, at: float, edges: tuple[float, float]) -> str | None:
    """Extend the axis by one value if the best is at its end. Returns a text that says what was done, or None."""
    least, most = axis.within
    if at == axis.values[0] and axis.below and least <= (value := axis.below(at)) < at:
        axis.values.insert(0, value)
        return f"{axis.name} below {edges[0]:g}"
    if at == axis.values[-1] and axis.above and most >= (value := axis.above(at)) > at:
        axis.values.append(value)
        return f"{axis.name} above {edges[1]:g}"
    return None


def _around(values: list[float], at: float) -> list[float]:
    """The value and two neighbours on either side, because an extended grid is only filled near its best point."""
    i = values.index(at)
    return values[max(i - 2, 0) : i + 3]


METHODS: dict[tuple[str, str], type[Method]] = {}
"""The methods, by the `kind` and `method` of a unit."""


class Method(ABC):
    """One method on one unit. A subclass with a `kind` is added to `METHODS`."""

    shared: ClassVar[tuple[str, ...]] = ("name",)
    """Names of fields of a unit. Units that agree in all of them share most of their work, so one process does them."""
    alone: ClassVar[bool] = False
    """Whether nothing else may run at the same time."""

    def __init_subclass__(cls, kind: str = "", methods: tuple[str, ...] = ("",), **more: Any):
        super().__init_subclass__(**more)
        METHODS.update({(kind, method): cls for method in methods if kind})

    def __init__(self, unit: Unit, data: Data):
        self.unit, self.data = unit, data

    @cached_property
    def sets(self) -> QuerySets:
        """The validation queries and the test queries."""
        return query_sets(self.unit.data, len(self.data.truth), self.unit.T, self.unit.effort.sets)

    @classmethod
    def group(cls, unit: Unit) -> tuple[Any, ...]:
        """The values of the `shared` fields of a unit."""
        return unit.kind, *(getattr(unit, name) for name in cls.shared)

    @classmethod
    def code(cls) -> str:
        """A digest of the product's behaviour, if this method depends on it. See `data.Trial`."""
        return ""

    @abstractmethod
    def measure(self) -> Result:
        """Do the unit and return its result."""


class Tuned(Method):
    """A method whose parameters are searched on the validation queries before it answers the test sets.

    A method of your own needs `axes` and `answers`:

    >>> class Guess(Tuned, kind="guess"):
    ...     def axes(self):
    ...         return [Axis("label", [0.0, 1.0])]
    ...
    ...     def answers(self, rows, point, seed):
    ...         return np.full(len(rows), int(point[0]))
    >>> METHODS.pop(("guess", "")).__name__
    'Guess'
    """

    max_growths: ClassVar[int] = 4
    """How often a grid may grow."""

    @abstractmethod
    def axes(self) -> list[Axis]:
        """The parameters to search, with their ranges."""

    @abstractmethod
    def answers(self, rows: IntArray, point: Point, seed: int) -> IntArray:
        """The answers to these queries with these parameters."""

    def accuracy(self, rows: IntArray, point: Point, seed: int) -> float:
        """The share of right answers."""
        return share_right(self.answers(rows, point, seed), self.data.truth[rows])

    def seed(self, role: str, i: int) -> int:
        """The seed of one run."""
        return seed_for(self.unit.name, role, i)

    def score(self, point: Point) -> float:
        """How good these parameters are on the validation queries."""
        return self.accuracy(self.sets.validation, point, self.seed("validation", 0))

    def confirm(self, point: Point, first: float) -> float:
        """A more reliable score than the first one, for the few best points."""
        return first

    def test(self, point: Point) -> Result:
        """The results on the test sets: the accuracies, and for some methods more."""
        runs = enumerate(self.sets.tests)
        return {"accuracies": [self.accuracy(rows, point, self.seed("test", i)) for i, rows in runs]}

    def measure(self) -> Result:
        """Search, then answer the test sets."""
        axes = self.axes()
        found = search(axes, self.score, confirm=self.confirm, max_growths=self.max_growths)
        return {
            **self.test(found.best),
            **{axis.name: value for axis, value in zip(axes, found.best, strict=True)},
            "validation": found.score,
            "tried": found.tried,
            "extended": list(found.extended),
        }


def method_of(unit: Unit) -> type[Method]:
    """The class that does a unit."""
    return METHODS[unit.kind, unit.method]


def share_right(answers: IntArray, truth: IntArray) -> float:
    """The share of right answers."""
    return float(np.mean(answers == truth))
