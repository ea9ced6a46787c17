"""Raw features to int8, one row at a time.

What a record becomes may depend on nothing but the record itself and public constants (rule 1). So a row is
scaled by its own largest entry: a maximum is the same in whatever order it is taken, which a sum of squares
in floating point is not, and everything else is one operation per entry. So rows are taken in blocks, in the type in
which they came, and only a block at a time is held in float64.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from indknn.errors import InvalidInputError
from indknn.types import Float32Array, FloatArray, Int8Array, Vectors

LEVELS = 127
EXACT_FEATURES = (1 << 24) // (LEVELS * LEVELS)
"""Over so many features a float32 product of int8 vectors is exact: |dot| and every partial sum stay below 2^24."""
ALIGNED = 64
"""A row that starts on a cache line is read without straddling two."""
_BLOCK = 1 << 17  # entries in float64 that stay in the cache of a core


def quantise(
    X: npt.ArrayLike,
    center: FloatArray | None = None,
    *,
    what: str = "X",
    see: Callable[[FloatArray], None] | None = None,
) -> Vectors:
    """Rows of X, less the public `center`, as int8 vectors with their scale and norm.

    `see` is shown the raw rows, a block at a time, so that nobody has to read X twice.

    >>> v = quantise([[3.0, -1.5, 0.0]])
    >>> v.values.tolist()
    [[127, -64, 0]]
    """
    rows = _numbers(X)
    if rows.ndim != 2:
        raise InvalidInputError(f"{what} must be a table of shape (rows, features), got shape {rows.shape}")
    n, d = rows.shape
    if center is not None and center.shape != (d,):
        raise InvalidInputError(f"center must have one entry per feature of {what}: {d}, got shape {center.shape}")
    step = max(_BLOCK // max(d, 1), 1)
    values: Int8Array = np.empty((n, d), dtype=np.int8) if n <= step else aligned_zeros((n, d), np.int8)
    squares, largest = np.empty(n), np.empty(n)
    work = np.empty((min(n, step), d))
    with np.errstate(all="ignore"):  # rows that are no numbers, or all zero, are refused below
        for low in range(0, n, step):
            part = slice(low, low + step)
            block = work[: min(step, n - low)]
            np.copyto(block, rows[part], casting="unsafe")
            if see is not None:
                see(block)
            if center is not None:
                block -= center
            np.maximum(block.max(axis=1, initial=0.0), -block.min(axis=1, initial=0.0), out=largest[part])
            block /= largest[part, None]
            block *= LEVELS
            np.rint(block, out=block)
            values[part] = block
            np.einsum("ij,ij->i", block, block, out=squares[part])  # of whole numbers below 2^53: exact
    _refuse(what, ~np.isfinite(largest), "holds NaN or infinity", "every feature must be finite")
    _refuse(what, largest == 0.0, "is a zero vector", "a direction is needed to compare it")
    return Vectors(values, np.sqrt(squares), largest / LEVELS)


def _numbers(X: npt.ArrayLike) -> npt.NDArray[Any]:
    """An array of numbers as it is, a memory map too; anything else as float64."""
    rows = np.asarray(X)
    return rows if rows.dtype.kind in "biuf" else np.array(X, dtype=np.float64)


def aligned_zeros(shape: tuple[int, ...], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """Zeros that start on a cache line. Pages that are never written take no memory."""
    kind = np.dtype(dtype)
    size = int(np.prod(shape)) * kind.itemsize
    raw = np.zeros(size + ALIGNED, dtype=np.uint8)
    start = -raw.ctypes.data % ALIGNED
    return raw[start : start + size].view(kind).reshape(shape)


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
