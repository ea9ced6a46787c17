"""Indexes find the records near a query. They know records and nothing of people or budgets."""

from __future__ import annotations

from typing import Any

from indknn.errors import InvalidInputError
from indknn.indexes.base import Index
from indknn.indexes.exact import ExactIndex
from indknn.kernels import Kernel

INDEXES = {"exact": ExactIndex}


def make_index(name: str, kernel: Kernel, n_features: int, **options: Any) -> Index:
    """The index of that name, empty."""
    if name not in INDEXES:
        raise InvalidInputError(f"index must be one of {sorted(INDEXES)}, got {name!r}")
    return INDEXES[name](kernel, n_features, **options)


__all__ = ["INDEXES", "ExactIndex", "Index", "make_index"]
