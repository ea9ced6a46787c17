"""What a reproduction runs on: which feature files, and how thoroughly."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any

import numpy as np

from indknn_lab.datasets.features import TITLES, find_datasets
from indknn_lab.experiments.units import Effort, Unit

QUICK_RECORDS, QUICK_T = 10_000, 150
FULL, QUICK = Effort(), Effort(sets=3, repeats=1, quick=True)


@dataclass(frozen=True)
class Source:
    """A feature file: the name it goes by, where it is, a digest of its bytes, how many rows it holds."""

    stem: str
    path: Path
    digest: str
    private: int
    public: int
    features: int

    @classmethod
    def of(cls, path: Path) -> Source:
        """Look into a file."""
        with np.load(path, allow_pickle=False) as npz:
            train, test = npz["y_train"], npz["y_test"]
            width = npz["X_test"].shape[1]
        digest = hashlib.blake2b(path.read_bytes(), digest_size=8).hexdigest()
        return cls(path.stem, path, digest, len(train), len(test), width)


@dataclass(frozen=True)
class Setting:
    """The sources by data set, and how thorough to be. `stand_in` names data sets played by the packaged one."""

    sources: dict[str, tuple[Source, ...]]
    quick: bool = False
    stand_in: tuple[str, ...] = ()
    epsilons: tuple[float, ...] = (0.5, 1.0, 1.5, 2.0)
    seeds: int | None = None
    only: tuple[float, ...] | None = None
    """How many seeds and which epsilons the endless items run; None for their own."""

    @property
    def effort(self) -> Effort:
        """Of every unit."""
        return QUICK if self.quick else FULL

    def has(self, name: str) -> bool:
        """Whether there are features of this data set."""
        return bool(self.sources.get(name))

    def title(self, name: str) -> str:
        """How to call it in a figure."""
        return TITLES[name] + (" (stand-in)" if name in self.stand_in else "")

    def queries(self, T: int, source: Source) -> int:
        """The paper's T, or less where the effort or the file is small."""
        return min(max(T * QUICK_T // 1000, 30) if self.quick else T, source.public // 2)

    def records(self, source: Source) -> int:
        """How many private records are used."""
        return min(QUICK_RECORDS, source.private) if self.quick else source.private

    def unit(self, kind: str, name: str, T: int, epsilon: float | None = None, **more: Any) -> Unit:
        """A unit on the main file of this data set, or on `source`."""
        source: Source = more.pop("source", None) or self.sources[name][0]
        more["records"] = self.records(source) if self.quick else None
        return Unit(kind, source.stem, source.digest, self.queries(T, source), self.effort, epsilon, **more)

    def path_of(self, unit: Unit) -> Path:
        """The file of a unit."""
        return next(s.path for many in self.sources.values() for s in many if s.digest == unit.digest)

    def describe(self) -> list[list[Any]]:
        """A table of the sources: data set, file, records, queries, features."""
        files = [(self.title(name), s) for name, many in self.sources.items() for s in many]
        return [[title, f"{s.stem}.npz", s.private, s.public, s.features] for title, s in files]


def find(
    folder: Path | None, *, quick: bool = False, seeds: int | None = None, only: tuple[float, ...] | None = None
) -> Setting:
    """The feature files in a folder; without one, or with none in it, the packaged Fashion-MNIST.

    The packaged features then also play CIFAR-10, whose items would otherwise not run at all; every result
    says so.

    >>> setting = find(None, quick=True)
    >>> setting.has("fmnist"), setting.has("agnews"), setting.stand_in
    (True, False, ('cifar10',))
    """
    sources = {}
    if folder is not None:
        present = find_datasets(folder).present
        sources = {name: tuple(Source.of(p) for p in paths) for name, paths in present.items()}
    stand_in: tuple[str, ...] = ()
    if not sources:
        with as_file(files("indknn.cli.demonstration") / "fmnist-r50-mini.npz") as path:
            packaged = Source.of(path)
        sources, stand_in = {"cifar10": (packaged,), "fmnist": (packaged,)}, ("cifar10",)
    epsilons = (1.0, 2.0) if quick else (0.5, 1.0, 1.5, 2.0)
    return Setting(sources, quick, stand_in, epsilons, seeds, only)
