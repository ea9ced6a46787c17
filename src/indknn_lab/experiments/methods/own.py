"""Adds your own methods to the comparison. Subclass `OwnMethod` in a file, and give the file to `--method`."""

from __future__ import annotations

import hashlib
import inspect
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from indknn.errors import InvalidInputError
from indknn.types import IntArray
from indknn_lab.experiments.data import Result, seed_for
from indknn_lab.experiments.methods.base import METHODS, Axis, Point, Tuned, search, share_right
from indknn_lab.experiments.methods.endless import Rows, Stream, StreamMethod


class OwnMethod(ABC):
    """The base of your own classifier. It must keep (epsilon, delta) for `n_queries` answers.

    A subclass is registered when it is defined. Labels are 0, 1, ..., n_classes - 1. Take all randomness from `rng`.
    `grid` lists parameters with the values to try. Each becomes an attribute. They are searched like those of other
    methods, on validation queries or held-out records, and no budget covers the search.

    >>> class Guess(OwnMethod):
    ...     label = "a guess"
    ...
    ...     def fit(self, X, y):
    ...         pass
    ...
    ...     def predict(self, Q):
    ...         return self.rng.integers(self.n_classes, size=len(Q))
    >>> del METHODS[Guess.kind, ""], METHODS["endless", Guess.kind]
    """

    label: ClassVar[str]
    kind: ClassVar[str]
    """Set for every subclass. It changes if the file changes, so results of older code are never used for new code."""
    grid: ClassVar[Mapping[str, Sequence[float]]] = {}

    def __init_subclass__(cls, **more: Any):
        super().__init_subclass__(**more)
        source = sys.modules.get(cls.__module__)
        text = inspect.getsource(source) if source and getattr(source, "__file__", None) else cls.__qualname__
        kind = cls.kind = f"own_{cls.__name__}_{hashlib.blake2b(text.encode(), digest_size=4).hexdigest()}"
        METHODS[kind, ""] = type(cls.__name__, (_OwnTuned,), {"own": cls})
        METHODS["endless", kind] = type(cls.__name__, (_OwnStream,), {"own": cls})

    def __init__(
        self, promise: tuple[float, float], n_classes: int, n_queries: int, seed: int, parameters: Mapping[str, float]
    ):
        self.epsilon, self.delta = promise
        self.n_classes, self.n_queries = n_classes, n_queries
        self.rng = np.random.default_rng(seed)
        vars(self).update(parameters)

    @abstractmethod
    def fit(self, X: Rows, y: IntArray) -> object:
        """Learn from the private records."""

    @abstractmethod
    def predict(self, Q: Rows) -> npt.ArrayLike:
        """Answer queries."""

    @classmethod
    def axes(cls) -> list[Axis]:
        """The grid in the form that the search uses."""
        return [Axis(name, [float(value) for value in values]) for name, values in cls.grid.items()]


class _OwnTuned(Tuned):
    """The method on query sets, as in the paper's figures."""

    own: ClassVar[type[OwnMethod]]

    def axes(self) -> list[Axis]:
        return self.own.axes()

    def answers(self, rows: IntArray, point: Point, seed: int) -> IntArray:
        data, named = self.data, dict(zip(self.own.grid, point, strict=True))
        model = self.own(self.unit.promise, data.n_classes, len(rows), seed, named)
        copies = self.unit.copies
        model.fit(np.tile(data.X, (copies, 1)), np.tile(data.labels, copies))
        return np.asarray(model.predict(data.Q[rows]))


class _OwnStream(StreamMethod):
    """The method on a stream. It gets the records once, at the start."""

    own: ClassVar[type[OwnMethod]]

    def measure(self) -> Result:
        point = self.tuned(self.search, self.unit.method)
        return {
            **self.blocks(self.refitted(1, lambda X, y: self.fitted(X, y, point, self.seed).predict)),
            "point": point,
        }

    def fitted(self, X: Rows, y: IntArray, point: Point, seed: int) -> OwnMethod:
        """An object of the method that was fitted to these records."""
        named, stream = dict(zip(self.own.grid, point, strict=True)), self.stream
        model = self.own(self.unit.promise, stream.n_classes, len(stream.Q), seed, named)
        model.fit(X, y)
        return model

    def search(self, stream: Stream) -> Point:
        """The best point on held-out private records."""
        data, seed = stream.held_out(), seed_for("endless", "tuning")

        def score(point: Point) -> float:
            return share_right(np.asarray(self.fitted(data.X, data.labels, point, seed).predict(data.Q)), data.truth)

        return search(self.own.axes(), score).best


def load_methods(paths: Iterable[Path]) -> dict[str, str]:
    """The methods in these files, by kind, with their labels. A file is read once in each process."""
    found: dict[str, str] = {}
    for path in paths:
        name = f"indknn_own_{hashlib.blake2b(str(path.resolve()).encode(), digest_size=6).hexdigest()}"
        if name not in sys.modules:
            _run(path, name)
        here = [thing for thing in vars(sys.modules[name]).values() if _is_own(thing)]
        if not here:
            raise InvalidInputError(f"{path}: must define a subclass of indknn_lab.experiments.methods.own.OwnMethod")
        found |= {method.kind: method.label for method in here}
    return found


def _is_own(thing: object) -> bool:
    return isinstance(thing, type) and issubclass(thing, OwnMethod) and thing is not OwnMethod


def _run(path: Path, name: str) -> None:
    spec = spec_from_file_location(name, path) if path.is_file() and path.suffix == ".py" else None
    if spec is None or spec.loader is None:
        raise InvalidInputError(f"{path}: must be a Python file that is there")
    module = sys.modules[name] = module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception:
        del sys.modules[name]
        raise
