"""Indexes find the records near a query. They know nothing about people or budgets."""

from __future__ import annotations

from typing import Any

from indknn.core.kernels import Kernel
from indknn.errors import InvalidInputError
from indknn.records.indexes.base import Index
from indknn.records.indexes.exact import ExactIndex
from indknn.records.indexes.lsh import LSHIndex
from indknn.records.indexes.sketch import SketchIndex

INDEXES: dict[str, type[ExactIndex]] = {"exact": ExactIndex, "lsh": LSHIndex, "sketch": SketchIndex}


def make_index(name: str, kernel: Kernel, n_features: int, **options: Any) -> Index:
    """An empty index with this name.

    Every index takes `scanner` ('auto', 'native', 'numpy') and `threads`. 'lsh' also takes `n_tables`, `n_bits` and
    `seed`. 'sketch' also takes `n_bits`, `recall` and `seed`.

    >>> from indknn.core.kernels import Cosine
    >>> len(make_index("sketch", Cosine(), 16, n_bits=256, seed=7))
    0
    """
    if name not in INDEXES:
        raise InvalidInputError(f"index must be one of {sorted(INDEXES)}, got {name!r}")
    try:
        return INDEXES[name](kernel, n_features, **options)
    except TypeError as error:
        raise InvalidInputError(f"index {name!r} does not take these options: {sorted(options)}") from error


__all__ = ["INDEXES", "ExactIndex", "Index", "LSHIndex", "SketchIndex", "make_index"]
