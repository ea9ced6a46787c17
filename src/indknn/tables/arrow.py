"""Rows of numbers from Arrow columns of numbers, or from a column with a list per row. Copies only when needed."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import numpy as np
import numpy.typing as npt

from indknn.errors import InvalidInputError


def needs_arrow(module: str) -> Any:
    """Import a module of pyarrow. Without pyarrow, the error says how to install it."""
    try:
        return import_module(module)
    except ModuleNotFoundError:
        raise InvalidInputError("parquet and Arrow files need pyarrow: pip install 'indknn[tables]'") from None


def rows_in(X: Any) -> Any:
    """An array of rows, if X is an Arrow table, batch or array with a list of numbers per row. Otherwise X itself."""
    if type(X).__module__.partition(".")[0] != "pyarrow":
        return X
    columns = list(X.columns) if hasattr(X, "columns") else [X]
    if not any(_holds_lists(column) for column in columns):
        return X
    return stacked({f"number {i}": column for i, column in enumerate(columns)}, "X")


def stacked(columns: dict[str, Any], what: str) -> npt.NDArray[Any]:
    """These columns side by side, in one array whose type can hold all of their numbers."""
    parts = []
    for name, column in columns.items():
        try:
            parts.append(_numbers(column))
        except (TypeError, ValueError):
            text = f"{what}: column {name!r} must hold numbers, or lists of numbers of one length"
            raise InvalidInputError(text) from None
    return parts[0] if len(parts) == 1 and parts[0].ndim == 2 else np.column_stack(parts)


def _holds_lists(column: Any) -> bool:
    kinds = import_module("pyarrow").types
    kind = getattr(column, "type", None)
    return any(test(kind) for test in (kinds.is_list, kinds.is_large_list, kinds.is_fixed_size_list))


def _numbers(column: Any) -> npt.NDArray[Any]:
    """One number or one list of numbers per row. A gap is NaN. Anything else raises ValueError."""
    pa = import_module("pyarrow")
    if isinstance(column, pa.ChunkedArray):
        parts = [_numbers(chunk) for chunk in column.chunks if len(chunk)]
        return parts[0] if len(parts) == 1 else np.concatenate(parts)
    if _holds_lists(column):
        entries = column.flatten()
        width = len(entries) // max(len(column), 1)
        even = len(entries) == width * len(column) and not column.null_count
        if even and not pa.types.is_fixed_size_list(column.type):
            even = bool((np.diff(column.offsets.to_numpy()) == width).all())
        if not even:
            raise ValueError
        return _numbers(entries).reshape(len(column), width)
    kind = column.type
    if pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind):
        return np.asarray(column.to_numpy(zero_copy_only=False))
    return np.array(column.to_pylist(), dtype=np.float64)
