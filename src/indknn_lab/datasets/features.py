"""Reads feature files: a table of your own, or the paper's data sets, which are found in a folder by name."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from indknn.cli.demonstration import Dataset, load_features
from indknn.errors import InvalidInputError
from indknn.tables.read import Named, labelled

TITLES = {"cifar10": "CIFAR-10", "fmnist": "Fashion-MNIST", "agnews": "AG News", "dbpedia": "DBpedia-14"}
"""The paper's data sets by short name. Features are in files named `<short name>-<extractor>.npz`."""


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

    >>> from importlib.resources import as_file, files
    >>> with as_file(files("indknn.cli.demonstration")) as folder:
    ...     found = find_datasets(folder)
    >>> list(found.present), found.missing
    (['fmnist'], ('cifar10', 'agnews', 'dbpedia'))
    """
    base = Path(folder)
    if not base.is_dir():
        raise InvalidInputError(f"{base} is not a folder, and no file of your own (npz, csv, parquet) either")
    # A name that ends in -mini is a small copy for demonstrations. It is the main file only if there is no other.
    found = {
        name: tuple(sorted(base.glob(f"{name}-*.npz"), key=lambda p: (p.stem.endswith("-mini"), p.name)))
        for name in TITLES
    }
    present = {name: paths for name, paths in found.items() if paths}
    taken = {path for paths in present.values() for path in paths}
    strangers = tuple(path for path in sorted(base.glob("*.npz")) if path not in taken)
    return FeatureFolder(present, tuple(name for name in TITLES if name not in present), strangers)


def load_table(path: Path | str, label: str = "label") -> tuple[npt.NDArray[np.float32], npt.NDArray[Any]]:
    """X and y of one table: an npz with X and y, or a parquet or csv file with a column `label`."""
    X, y = labelled(Path(path), Named(label=label))
    X = X.astype(np.float32)
    if not np.isfinite(X).all():
        raise InvalidInputError(f"{path}: holds NaN or infinity")
    with suppress(ValueError):  # csv has only text, so labels become numbers if all are whole numbers
        y = y.astype(np.int64) if y.dtype.kind == "U" else y
    return X, y
