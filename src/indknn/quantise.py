"""Raw features to int8, one row at a time.

What a record becomes may depend on nothing but the record itself and public constants (rule 1). So a row is
scaled by its own largest entry: a maximum is the same in whatever order it is taken, which a sum of squares
in floating point is not, and everything else is one operation per entry.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from indknn.errors import InvalidInputError
from indknn.types import FloatArray, Vectors

LEVELS = 127


def quantise(X: npt.ArrayLike, center: FloatArray | None = None, *, what: str = "X") -> Vectors:
    """Rows of X, less the public `center`, as int8 vectors with their scale and norm.

    >>> v = quantise([[3.0, -1.5, 0.0]])
    >>> v.values.tolist()
    [[127, -64, 0]]
    """
    rows = np.array(X, dtype=np.float64, order="C")
    if rows.ndim != 2:
        raise InvalidInputError(f"{what} must be a table of shape (rows, features), got shape {rows.shape}")
    if center is not None:
        if center.shape != (rows.shape[1],):
            raise InvalidInputError(
                f"center must have one entry per feature of {what}: {rows.shape[1]}, got shape {center.shape}"
            )
        rows -= center
    largest = np.abs(rows).max(axis=1, initial=0.0)
    _refuse(what, ~np.isfinite(largest), "holds NaN or infinity", "every feature must be finite")
    _refuse(what, largest == 0.0, "is a zero vector", "a direction is needed to compare it")
    values = np.rint(rows / largest[:, None] * LEVELS).astype(np.int8)
    return Vectors(values, root_norms(values), largest / LEVELS)


def root_norms(values: npt.NDArray[np.int8]) -> FloatArray:
    """|v| of every row: an exact integer sum, and one correctly rounded root."""
    squares = np.einsum("ij,ij->i", values, values, dtype=np.int64, casting="safe")
    result: FloatArray = np.sqrt(squares.astype(np.float64))
    return result


def _refuse(what: str, bad: npt.NDArray[np.bool_], wrong: str, allowed: str) -> None:
    if bad.any():
        raise InvalidInputError(f"row {int(np.argmax(bad))} of {what} {wrong}; {allowed}")
