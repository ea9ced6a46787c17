"""Defines a method. It turns a unit and its data into a result."""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from indknn.types import IntArray
from indknn_lab.experiments.data import Data, QuerySets, query_sets
from indknn_lab.experiments.search import Axis, Point, search
from indknn_lab.experiments.units import Result, Unit, seed_for

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
        """A digest of the product's behaviour, if this method depends on it. See `units.Trial`."""
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
