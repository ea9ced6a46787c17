"""A data set as its authors publish it: images or texts, before any feature extraction."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from indknn.errors import InvalidInputError

Items: TypeAlias = npt.NDArray[np.uint8] | Sequence[str]


@dataclass(frozen=True)
class RawDataset:
    """Private items (train) and public items (test): images of shape (n, height, width[, 3]), or texts."""

    name: str
    train: Items
    y_train: npt.NDArray[np.int64]
    test: Items
    y_test: npt.NDArray[np.int64]
    class_names: tuple[str, ...]


def existing(folder: Path | str, *names: str) -> Path:
    """The first of these names that is a file in the folder; otherwise an error that lists them."""
    base = Path(folder)
    if not base.is_dir():
        raise InvalidInputError(f"{base} is not a folder")
    for name in names:
        if (base / name).is_file():
            return base / name
    raise InvalidInputError(f"{base} has no {' nor '.join(names)}")


def broken(path: Path, what: Any) -> InvalidInputError:
    """The one form in which a damaged or foreign file is reported."""
    return InvalidInputError(f"{path}: {what}")
