"""Indexes find the records near a query. They know nothing about people or budgets.

The interface is three calls, so that a faster index is easy to write and to test against the exact one. Every index
must keep rule 1: whether record i is selected, and its kernel value to the last bit, are functions of (x_i, q, public
constants) alone. They never depend on other records, on the slot, or on the batch of the query.
"""

from __future__ import annotations

from typing import Any, Protocol

from indknn.core.kernels import Kernel
from indknn.errors import InvalidInputError
from indknn.records.indexes.exact import ExactIndex
from indknn.records.indexes.hashed import CodedIndex, LSHIndex, SketchIndex
from indknn.records.slots import Slots
from indknn.types import IntArray, Selection, Vectors

INDEXES: dict[str, type[ExactIndex]] = {"exact": ExactIndex, "lsh": LSHIndex, "sketch": SketchIndex}


class Index(Protocol):
    """A set of quantised records that can be searched by kernel value."""

    @property
    def slots(self) -> Slots:
        """The records themselves, by slot."""
        ...

    @property
    def threads(self) -> int | None:
        """How many cores may be used for these records, None for all."""
        ...

    def add(self, vectors: Vectors) -> IntArray:
        """Store the records and return the slot of each. Freed slots are taken first."""
        ...

    def remove(self, slots: IntArray) -> None:
        """Forget the records in these slots and overwrite their bytes."""
        ...

    def search(self, queries: Vectors, tau: int) -> list[Selection]:
        """For each query in order, the records with κ >= tau (grid units)."""
        ...

    def __len__(self) -> int:
        """How many records are held."""
        ...


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


__all__ = ["INDEXES", "CodedIndex", "ExactIndex", "Index", "LSHIndex", "SketchIndex", "make_index"]
