"""The setting of a reproduction: which feature files are used, and how thorough it is."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any

import numpy as np

from indknn.errors import InvalidInputError, meant
from indknn.tables.read import is_table_file
from indknn_lab.datasets import LABELS, TABLES, TITLES, encoded, extractor_of, find_datasets, find_tables
from indknn_lab.experiments.data import Effort, Unit
from indknn_lab.experiments.methods.own import load_methods

QUICK_RECORDS, QUICK_T = 10_000, 150
FULL, QUICK = Effort(), Effort(sets=3, repeats=1, quick=True)


@dataclass(frozen=True)
class Source:
    """A feature file: its name, its path, a digest of its bytes, and the numbers of its rows."""

    stem: str
    path: Path
    digest: str
    private: int
    public: int
    features: int

    @property
    def extractor(self) -> str:
        """What made the features, by the name of the file."""
        return extractor_of(self.stem)

    @classmethod
    def of(cls, path: Path) -> Source:
        """Make a source from a file."""
        try:
            with np.load(path, allow_pickle=False) as npz:
                train, test = npz["y_train"], npz["y_test"]
                width = npz["X_test"].shape[1]
        except (OSError, ValueError, KeyError) as error:
            wanted = "an npz file with X_train, y_train, X_test and y_test is needed"
            raise InvalidInputError(f"{path}: {wanted} ({error})") from None
        digest = hashlib.blake2b(path.read_bytes(), digest_size=8).hexdigest()
        return cls(path.stem, path, digest, len(train), len(test), width)


@dataclass(frozen=True)
class Setting:
    """The sources by data set, and how thorough the run is.

    `stand_in` names data sets that the packaged data set replaces. `own` is the name of the user's own data, which then
    replace the first data set of every item. `notices` say what was found but is not used.
    """

    sources: dict[str, tuple[Source, ...]]
    quick: bool = False
    stand_in: tuple[str, ...] = ()
    epsilons: tuple[float, ...] = (0.5, 1.0, 1.5, 2.0)
    seeds: int | None = None
    only: tuple[float, ...] | None = None
    """How many seeds and which epsilons the endless items use. None for their defaults."""
    features: str | None = None
    """The extractor that the user has chosen. None for the best one that is there."""
    own: str | None = None
    notices: tuple[str, ...] = ()
    methods: tuple[Path, ...] = ()
    roles: dict[str, str] = field(default_factory=dict)
    """Files with the user's own methods, and the labels of these methods by kind."""
    changed: dict[str, Any] = field(default_factory=dict)
    """Fields of units that the user has set, for every unit that has an epsilon."""

    @property
    def effort(self) -> Effort:
        """The effort for every unit."""
        return QUICK if self.quick else FULL

    def has(self, name: str) -> bool:
        """Whether there are features of this data set."""
        return bool(self.sources.get(name))

    def title(self, name: str, source: Source | None = None) -> str:
        """The title of a data set in figures, with the features that are used, and with what the user has changed."""
        about = [] if self.own or name in TABLES else [(source or self.sources[name][0]).extractor]
        about += ["stand-in"] if name in self.stand_in else []
        about += [f"{key} = {value}" for key, value in self.changed.items() if key not in {"T", "epsilon", "delta"}]
        title = self.own or TABLES.get(name) or TITLES[name]
        return f"{title} ({', '.join(about)})" if about else title

    def source(self, name: str, extractor: str) -> Source:
        """The features of this extractor, or the main file if there are none, or if the user has chosen a file."""
        named = (source for source in self.sources[name] if source.extractor == extractor)
        return self.sources[name][0] if self.features else next(named, self.sources[name][0])

    def queries(self, T: int, source: Source) -> int:
        """The paper's T, or less if the run is quick or the file is small."""
        return min(max(T * QUICK_T // 1000, 30) if self.quick else T, source.public // 2)

    def records(self, source: Source) -> int:
        """How many private records are used."""
        return min(QUICK_RECORDS, source.private) if self.quick else source.private

    def unit(self, kind: str, name: str, T: int, epsilon: float | None = None, **more: Any) -> Unit:
        """A unit on the main file of this data set, or on `source`."""
        source: Source = more.pop("source", None) or self.sources[name][0]
        more["records"] = self.records(source) if self.quick else None
        if epsilon is not None:
            more |= {key: value for key, value in self.changed.items() if key not in {"T", "epsilon"}}
            T, epsilon = self.changed.get("T", T), self.changed.get("epsilon", epsilon)
        return Unit(kind, source.stem, source.digest, self.queries(T, source), self.effort, epsilon, **more)

    def path_of(self, unit: Unit) -> Path:
        """The file of a unit."""
        return next(s.path for many in self.sources.values() for s in many if s.digest == unit.digest)

    def describe(self) -> list[list[Any]]:
        """A table of the sources: data set, file, records, queries, features."""
        files = {s.digest: (self.title(name, s), s) for name, many in self.sources.items() for s in many}
        return [[title, f"{s.stem}.npz", s.private, s.public, s.features] for title, s in files.values()]


_CHANGES: dict[str, Callable[[str], Any]] = {
    "T": int, "epsilon": float, "delta": float, "kernel": str, "bandwidth": float, "weights": str, "noise": str,
    "sigma1": float, "tables": int, "bits": int,
}  # fmt: skip
_WORDS = {"kernel": ("cosine", "rbf"), "weights": ("kernel", "equal"), "noise": ("by K", "fixed")}


def as_changes(texts: Sequence[str]) -> dict[str, Any]:
    """Fields of units and their values, from texts such as "T=400".

    >>> as_changes(["T=400", "weights=equal"])
    {'T': 400, 'weights': 'equal'}
    """
    found: dict[str, Any] = {}
    for text in texts:
        name, _, value = text.partition("=")
        if name not in _CHANGES:
            raise InvalidInputError(f"--set must name one of {', '.join(_CHANGES)}, got {text!r}")
        try:
            found[name] = _CHANGES[name](value)
        except ValueError:
            raise InvalidInputError(f"--set {name} needs a number, got {value!r}") from None
        if value not in _WORDS.get(name, (value,)):
            raise InvalidInputError(f"--set {name} must be {' or '.join(map(repr, _WORDS[name]))}, got {value!r}")
    return found


def _chosen_first(sources: dict[str, tuple[Source, ...]], features: str | None) -> dict[str, tuple[Source, ...]]:
    """The sources with the features that the user has chosen before all others."""
    there = [source.extractor for many in sources.values() for source in many]
    if features is not None and features not in there:
        known = ", ".join(dict.fromkeys(there)) or "no files"
        raise InvalidInputError(f"no file has features {features!r}: there are {known}{meant(features, there)}")
    return {name: tuple(sorted(many, key=lambda s: s.extractor != features)) for name, many in sources.items()}


def find(
    data: Path | None,
    *,
    quick: bool = False,
    seeds: int | None = None,
    only: tuple[float, ...] | None = None,
    schema: Path | None = None,
    label: str | None = None,
    made: Path = Path("out/features"),
    methods: tuple[Path, ...] = (),
    features: str | None = None,
    changed: dict[str, Any] | None = None,
) -> Setting:
    """The setting for a folder of features and tables, or for one file. Without `data`, the packaged Fashion-MNIST.

    One file replaces the first data set of every item. It is an npz file with X_train, y_train, X_test and y_test, or a
    table with its schema or with the name of its label. Features that are made from tables are written to `made`. The
    packaged features also stand in for CIFAR-10, because its items could not run otherwise. Every result says so.

    >>> setting = find(None, quick=True)
    >>> setting.has("fmnist"), setting.has("agnews"), setting.stand_in
    (True, False, ('cifar10',))
    """
    usual = (1.0, 2.0) if quick else (0.5, 1.0, 1.5, 2.0)
    epsilons = (changed["epsilon"],) if changed and "epsilon" in changed else usual
    more: dict[str, Any] = {"quick": quick, "epsilons": epsilons, "seeds": seeds, "only": only}
    more |= {"methods": methods, "roles": load_methods(methods), "features": features, "changed": changed or {}}
    if features is not None and (data is None or data.is_file()):
        raise InvalidInputError("--features is for --data with a folder, where a data set may have several files")
    if data is not None and data.is_file():
        own = Source.of(encoded(data, made, label=label, schema=schema) if is_table_file(data) else data)
        return Setting(dict.fromkeys((*TITLES, *TABLES), (own,)), own=data.name.split(".", maxsplit=1)[0], **more)
    if schema is not None or label is not None:
        raise InvalidInputError("--schema and --label are for --data with the file of one table")
    sources: dict[str, tuple[Source, ...]] = {}
    if data is not None:
        folder = find_datasets(data)
        sources = {name: tuple(map(Source.of, paths)) for name, paths in folder.present.items()}
        tables = {name: encoded(path, made, label=LABELS[name]) for name, path in find_tables(data).items()}
        sources |= {name: (Source.of(path),) for name, path in tables.items()}
        names = ", ".join(f"{name}-*.npz" for name in TITLES)
        text = "{} was not taken: a folder is searched for {}; give the file itself to --data to run on it"
        more["notices"] = tuple(text.format(path.name, names) for path in folder.strangers)
    if sources:
        return Setting(_chosen_first(sources, features), **more)
    _chosen_first({}, features)
    with as_file(files("indknn_lab.demonstration") / "fmnist-r50-mini.npz") as path:
        packaged = Source.of(path)
    return Setting({"cifar10": (packaged,), "fmnist": (packaged,)}, stand_in=("cifar10",), **more)
