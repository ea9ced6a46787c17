"""Reads labelled rows from files, and converts labels to the type that a store uses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from indknn.cli.files import Columns, pieces
from indknn.errors import InvalidInputError
from indknn.settings import Settings


def as_stored(y: Any, settings: Settings) -> Any:
    """The labels in the type of the store. Text from a csv file becomes numbers if the store's labels are numbers."""
    if np.asarray(y).dtype.kind == "U" and settings.class_array.dtype.kind in "iu":
        try:
            return np.array([int(label) for label in y])
        except ValueError as error:
            raise InvalidInputError(f"labels must be integers here: {error}") from None
    return y


def labelled(path: Path, columns: Columns) -> tuple[Any, Any]:
    """All rows of a file, with their labels."""
    parts = list(pieces(path, columns))
    if not parts or any(part.y is None for part in parts):
        raise InvalidInputError(f"{path} has no labels: an array y, or a column named by --label")
    return np.concatenate([part.X for part in parts]), np.concatenate([np.asarray(part.y) for part in parts])
