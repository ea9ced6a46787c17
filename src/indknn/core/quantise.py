"""Raw features to int8, one row at a time.

What a record becomes may depend on nothing but the record itself and public constants (rule 1). So a row is
scaled by its own largest entry: a maximum is the same in whatever order it is taken, which a sum of squares
in floating point is not, and everything else is one operation per entry.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from indknn.errors import InvalidInputError
from indknn.types import Float32Array, FloatArray, Int8Array, Vectors

LEVELS = 127
EXACT_FEATURES = (1 << 24) // (LEVELS * LEVELS)
"""Over so many features a float32 product of int8 vectors is exact: |dot| and every partial sum stay below 2^24."""


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


def as_vectors(values: Int8Array) -> Vectors:
    """Rows that were quantised before, as directions."""
    return Vectors(values, root_norms(values), np.ones(len(values)))


def root_norms(values: npt.NDArray[np.int8]) -> FloatArray:
    """|v| of every row: an exact integer sum, and one correctly rounded root."""
    squares = np.einsum("ij,ij->i", values, values, dtype=np.int64, casting="safe")
    result: FloatArray = np.sqrt(squares.astype(np.float64))
    return result


def integer_dots(left: Int8Array, right: Int8Array) -> FloatArray:
    """The matrix of integer dot products, as float64: exact, in whatever order BLAS adds.

    Longer vectors than EXACT_FEATURES are summed in pieces.

    >>> integer_dots(np.array([[1, 2]], dtype=np.int8), np.array([[3, 4]], dtype=np.int8)).tolist()
    [[11.0]]
    """
    total = np.zeros((len(left), len(right)))
    for low in range(0, right.shape[1], EXACT_FEATURES):
        piece = slice(low, low + EXACT_FEATURES)
        total += whole_product(left[:, piece].astype(np.float32), right[:, piece].astype(np.float32).T)
    return total


def whole_product(left: Float32Array, right: Float32Array) -> Float32Array:
    """The product of matrices of whole numbers. BLAS may flag an invalid value in lanes that it then throws away."""
    with np.errstate(invalid="ignore"):
        result: Float32Array = left @ right
    return result


def _refuse(what: str, bad: npt.NDArray[np.bool_], wrong: str, allowed: str) -> None:
    if bad.any():
        raise InvalidInputError(f"row {int(np.argmax(bad))} of {what} {wrong}; {allowed}")
