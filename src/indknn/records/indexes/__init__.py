"""Indexes find the records near a query. They know nothing about people or budgets.

The interface is three calls, so that a faster index is easy to write and to test against the exact one. Every index
must keep rule 1: whether record i is selected, and its kernel value to the last bit, are functions of (x_i, q, public
constants) alone. They never depend on other records, on the slot, or on the batch of the query.
"""

from __future__ import annotations

from typing import Any

from indknn.core.kernels import Kernel
from indknn.errors import InvalidInputError
from indknn.records.indexes.hashed import CodedIndex, LSHIndex, SketchIndex
from indknn.records.indexes.scan import ExactIndex

INDEXES: dict[str, type[ExactIndex]] = {"exact": ExactIndex, "lsh": LSHIndex, "sketch": SketchIndex}


def make_index(name: str, kernel: Kernel, n_features: int, **options: Any) -> ExactIndex:
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


__all__ = ["INDEXES", "CodedIndex", "ExactIndex", "LSHIndex", "SketchIndex", "make_index"]
