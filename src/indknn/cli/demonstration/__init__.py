"""The demonstration data: Fashion-MNIST as 64 features per image. Its provenance lies beside it."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.resources import as_file, files
from typing import Any

import numpy as np
import numpy.typing as npt

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


def load_npz(path: Any, name: str) -> Dataset:
    """A feature file: X_train, y_train, X_test, y_test, the X as int8 with scale_train, scale_test."""
    with np.load(path, allow_pickle=False) as npz:
        features = {
            part: npz[f"X_{part}"].astype(np.float32) * npz[f"scale_{part}"][:, None] for part in ("train", "test")
        }
        return Dataset(name, features["train"], npz["y_train"], features["test"], npz["y_test"])


def load_fashion_mini() -> Dataset:
    """50,000 private and 10,000 public Fashion-MNIST images, 64 features each (Xiao, Rasul & Vollgraf 2017).

    >>> data = load_fashion_mini()
    >>> data.X_train.shape, data.X_test.shape, data.y_test[:3].tolist()
    ((50000, 64), (10000, 64), [9, 2, 1])
    """
    with as_file(files("indknn.cli.demonstration") / "fmnist-r50-mini.npz") as path:
        return load_npz(path, "fashion-mini")
