"""Reads feature files: a table of your own, or the paper's data sets, which are found in a folder by name.

Experiments read feature files, so a table with a schema is encoded and written as one.
"""

from __future__ import annotations

import hashlib
from contextlib import suppress
from dataclasses import dataclass
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from indknn.errors import InvalidInputError
from indknn.tables import infer, read_schema
from indknn.tables.read import Named, labelled, read_table

TITLES = {"cifar10": "CIFAR-10", "fmnist": "Fashion-MNIST", "agnews": "AG News", "dbpedia": "DBpedia-14"}
"""The paper's data sets by short name. Features are in files named `<short name>-<extractor>.npz`."""
BEST = ("vit", "simclr", "lite3", "r50", "r50-logits", "minilm")
"""Extractors, the best first. Where a data set has several files, items use the first of these, then others by name."""
FASHION_CLASSES = (
    "T-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot",
)  # fmt: skip


@dataclass(frozen=True)
class Dataset:
    """Private records (train) and public queries (test), as features and labels."""

    name: str
    X_train: npt.NDArray[np.float32]
    y_train: npt.NDArray[Any]
    X_test: npt.NDArray[np.float32]
    y_test: npt.NDArray[Any]


def load_features(path: Path | str, name: str | None = None) -> Dataset:
    """Read a feature file: an npz with X_train, y_train, X_test and y_test, and scales if the features are int8."""
    path = Path(path)
    parts = [labelled(path, Named(), part) for part in ("_train", "_test")]
    X_train, X_test = (X.astype(np.float32) for X, _ in parts)
    if X_train.shape[1] != X_test.shape[1]:
        raise InvalidInputError(f"{path}: X_train has {X_train.shape[1]} features and X_test {X_test.shape[1]}")
    if not (np.isfinite(X_train).all() and np.isfinite(X_test).all()):
        raise InvalidInputError(f"{path}: holds NaN or infinity")
    return Dataset(name or path.stem, X_train, parts[0][1], X_test, parts[1][1])


def load_fashion_mini() -> Dataset:
    """50,000 private and 10,000 public Fashion-MNIST images, 64 features each (Xiao, Rasul & Vollgraf 2017).

    >>> data = load_fashion_mini()
    >>> data.X_train.shape, data.X_test.shape, data.y_test[:3].tolist()
    ((50000, 64), (10000, 64), [9, 2, 1])
    """
    with as_file(files("indknn_lab.demonstration") / "fmnist-r50-mini.npz") as path:
        return load_features(path, "fashion-mini")


@dataclass(frozen=True)
class FeatureFolder:
    """The contents of a folder: feature files by data set (main file first), missing data sets, and other files."""

    present: dict[str, tuple[Path, ...]]
    missing: tuple[str, ...]
    strangers: tuple[Path, ...] = ()

    def load(self, name: str, extractor: str | None = None) -> Dataset:
        """The data set of this short name, with the features of `extractor` or of its main file."""
        for path in self.present.get(name, ()):
            if extractor is None or path.stem == f"{name}-{extractor}":
                return load_features(path)
        files = [path.name for paths in self.present.values() for path in paths]
        raise InvalidInputError(f"no file {name}-{extractor or '*'}.npz: present are {', '.join(files) or 'none'}")


def find_datasets(folder: Path | str) -> FeatureFolder:
    """Look for cifar10-*.npz, fmnist-*.npz, agnews-*.npz and dbpedia-*.npz in a folder.

    >>> with as_file(files("indknn_lab.demonstration")) as folder:
    ...     found = find_datasets(folder)
    >>> list(found.present), found.missing
    (['fmnist'], ('cifar10', 'agnews', 'dbpedia'))
    """
    base = Path(folder)
    if not base.is_dir():
        raise InvalidInputError(f"{base} is not a folder, and no file of your own (npz, csv, parquet) either")
    found = {name: tuple(sorted(base.glob(f"{name}-*.npz"), key=_quality)) for name in TITLES}
    present = {name: paths for name, paths in found.items() if paths}
    taken = {path for paths in present.values() for path in paths}
    strangers = tuple(path for path in sorted(base.glob("*.npz")) if path not in taken)
    return FeatureFolder(present, tuple(name for name in TITLES if name not in present), strangers)


def extractor_of(stem: str) -> str:
    """The extractor in the name of a feature file, or the name itself.

    >>> extractor_of("cifar10-r50-logits"), extractor_of("mine")
    ('r50-logits', 'mine')
    """
    name, _, extractor = stem.partition("-")
    return extractor if name in TITLES and extractor else stem


def _quality(path: Path) -> tuple[bool, int, str]:
    # A name that ends in -mini is a small copy for demonstrations. It is the main file only if there is no other.
    extractor = extractor_of(path.stem)
    place = BEST.index(extractor) if extractor in BEST else len(BEST)
    return extractor.endswith("-mini"), place, path.name


def load_table(path: Path | str, label: str = "label") -> tuple[npt.NDArray[np.float32], npt.NDArray[Any]]:
    """X and y of one table: an npz with X and y, or a parquet or csv file with a column `label`."""
    X, y = labelled(Path(path), Named(label=label))
    X = X.astype(np.float32)
    if not np.isfinite(X).all():
        raise InvalidInputError(f"{path}: holds NaN or infinity")
    with suppress(ValueError):  # csv has only text, so labels become numbers if all are whole numbers
        y = y.astype(np.int64) if y.dtype.kind == "U" else y
    return X, y


TABLES = {"adult": "Adult", "letters": "Letters", "shuttle": "Shuttle"}
"""The tables that the item `tables` uses. It looks for `<name>.csv.gz` in a folder of data or in its folder `tabular`.
"""
LABELS = {"adult": "income", "letters": "label", "shuttle": "label"}
PUBLIC, MOST_ASKED = 1000, 10_000
"""How many rows make a schema if none is given, and how many rows become queries: a fifth of all, but at most this."""
_FORM = 1  # part of the file name; increase it whenever the features of a table change


def find_tables(folder: Path) -> dict[str, Path]:
    """The known tables in a folder."""
    places = [(name, base / f"{name}.csv.gz") for name in TABLES for base in (folder / "tabular", folder)]
    return {name: path for name, path in places if path.is_file()}


def encoded(path: Path, into: Path, *, label: str | None = None, schema: Path | None = None) -> Path:
    """The feature file of a table. It is made if it does not exist yet.

    A fifth of the rows become queries, at most 10,000. The others are private records. Without a schema, one is
    inferred from 1,000 rows. These count as public and are neither queries nor records.
    """
    digest = hashlib.blake2b(repr((_FORM, label)).encode() + path.read_bytes(), digest_size=4)
    digest.update(schema.read_bytes() if schema else b"")
    made = into / f"{path.name.split('.', maxsplit=1)[0]}-{digest.hexdigest()}.npz"
    if not made.is_file():
        arrays = _encode(read_table(path), path, label, schema)
        into.mkdir(parents=True, exist_ok=True)
        beside = made.with_suffix(".part.npz")
        np.savez(beside, **arrays)
        beside.replace(made)
    return made


def _encode(columns: dict[str, Any], path: Path, label: str | None, schema: Path | None) -> dict[str, Any]:
    known = read_schema(schema) if schema else None
    label = label or (known.label if known else None)
    if label not in columns:
        raise InvalidInputError(f"{path}: the column of labels must be one of {', '.join(columns)}, got {label!r}")
    y = np.array([str(value) for value in columns[label]])
    order = np.random.default_rng(0).permutation(len(y))
    if known is None:
        public, order = order[:PUBLIC].tolist(), order[PUBLIC:]
        known = infer({name: [values[i] for i in public] for name, values in columns.items()}, label=label).schema
    X = known.encode({name: values for name, values in columns.items() if name not in known.roles}).astype(np.float32)
    asking, private = np.split(order, [min(len(order) // 5, MOST_ASKED)])
    return {"X_train": X[private], "y_train": y[private], "X_test": X[asking], "y_test": y[asking]}
