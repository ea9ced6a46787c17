"""Labels from files, as a store has them."""

from __future__ import annotations

from typing import Any

import numpy as np

from indknn.engine import Settings
from indknn.errors import InvalidInputError


def as_stored(y: Any, settings: Settings) -> Any:
    """Text from a csv file becomes numbers where the labels are numbers."""
    if np.asarray(y).dtype.kind == "U" and settings.class_array.dtype.kind in "iu":
        try:
            return np.array([int(label) for label in y])
        except ValueError as error:
            raise InvalidInputError(f"labels must be integers here: {error}") from None
    return y
