"""Arrays of whole numbers: features as int8, one row at a time, exact products of them, and what is handed to C.

The result for a record may depend only on the record itself and on public constants (rule 1). So each row is scaled by
its own largest entry. A maximum is the same in any order of computation, and a sum of squares in floating point is not.
Everything else is one operation per entry. Rows are read in blocks, in their own type, and only one block at a time is
held in float64.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from importlib import import_module
from typing import Any

import numpy as np
import numpy.typing as npt

from indknn.errors import InvalidInputError
from indknn.types import Float32Array, FloatArray, Int8Array, IntArray, Vectors

LEVELS = 127
EXACT_FEATURES = (1 << 24) // (LEVELS * LEVELS)
"""Up to this many features, a float32 product of int8 vectors is exact: |dot| and every partial sum stay below 2^24."""
ALIGNED = 64
"""A row that starts on a cache line does not touch one line more than it needs."""
_BLOCK = 1 << 17  # entries in float64 that stay in the cache of a core


def quantise(
    X: npt.ArrayLike,
    center: FloatArray | None = None,
    *,
    what: str = "X",
    see: Callable[[FloatArray], None] | None = None,
) -> Vectors:
    """Rows of X, minus the public `center`, as int8 vectors with their scale and norm.

    `see` is called with the raw rows, one block at a time, so that X is read only once.

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
    with np.errstate(all="ignore"):  # rows with NaN, and rows of zeros, are refused below
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
            np.einsum("ij,ij->i", block, block, out=squares[part])  # exact: whole numbers below 2^53
    _refuse(what, ~np.isfinite(largest), "holds NaN or infinity", "every feature must be finite")
    _refuse(what, largest == 0.0, "is a zero vector", "a direction is needed to compare it")
    return Vectors(values, np.sqrt(squares), largest / LEVELS)


def _numbers(X: npt.ArrayLike) -> npt.NDArray[Any]:
    """An array of numbers unchanged, also a memory map. Anything else as float64."""
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
    """Rows that were quantised before, as vectors of scale 1."""
    return Vectors(values, root_norms(values), np.ones(len(values)))


def root_norms(values: npt.NDArray[np.int8]) -> FloatArray:
    """|v| of every row, from an exact integer sum and one correctly rounded root."""
    squares = np.einsum("ij,ij->i", values, values, dtype=np.int64, casting="safe")
    result: FloatArray = np.sqrt(squares.astype(np.float64))
    return result


def unit_rows(values: Int8Array) -> Float32Array:
    """Rows of length 1. The shared model only sees directions."""
    return np.asarray(values / np.maximum(root_norms(values), 1.0)[:, None], dtype=np.float32)


def integer_dots(left: Int8Array, right: Int8Array) -> FloatArray:
    """The matrix of integer dot products, as float64. It is exact in any order of summation.

    Vectors longer than EXACT_FEATURES are summed in pieces.

    >>> integer_dots(np.array([[1, 2]], dtype=np.int8), np.array([[3, 4]], dtype=np.int8)).tolist()
    [[11.0]]
    """
    if len(left) == 1 and _votes is not None and left.dtype == right.dtype == np.int8:
        row = np.empty((1, len(right)))  # without a copy of `right` in float32, which takes ten times as long
        if _votes.dots(np.ascontiguousarray(left), np.ascontiguousarray(right), row):
            return row
    total = np.zeros((len(left), len(right)))
    for low in range(0, right.shape[1], EXACT_FEATURES):
        piece = slice(low, low + EXACT_FEATURES)
        total += whole_product(left[:, piece].astype(np.float32), right[:, piece].astype(np.float32).T)
    return total


def whole_product(left: Float32Array, right: Float32Array) -> Float32Array:
    """The product of matrices of whole numbers. BLAS may flag an invalid value in results that it does not use."""
    with np.errstate(invalid="ignore"):
        result: Float32Array = left @ right
    return result


def load_native(name: str) -> Any:
    """The extension in C with this name, which gives the same bits as the Python in its place.

    None if it was not built, or if INDKNN_NATIVE=0 is in the environment.
    """
    if os.environ.get("INDKNN_NATIVE") != "0":
        with suppress(ImportError):
            return import_module(name)
    return None


_votes = load_native("indknn.core._votes")
as_int64: Callable[[IntArray], IntArray] = partial(np.ascontiguousarray, dtype=np.int64)
"""The array in the form that C reads: contiguous 64-bit integers."""


def _refuse(what: str, bad: npt.NDArray[np.bool_], wrong: str, allowed: str) -> None:
    if bad.any():
        raise InvalidInputError(f"row {int(np.argmax(bad))} of {what} {wrong}; {allowed}")
