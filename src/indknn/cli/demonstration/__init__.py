"""The demonstration data: Fashion-MNIST as 64 features per image. A text file in this folder says how it was made."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from indknn.errors import InvalidInputError
from indknn.tables.read import Named, labelled

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
    with as_file(files("indknn.cli.demonstration") / "fmnist-r50-mini.npz") as path:
        return load_features(path, "fashion-mini")
