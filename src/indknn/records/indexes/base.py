"""The interface of an index: three calls, so that a faster index is easy to write and to test against the exact one.

Every index must keep rule 1: whether record i is selected, and its kernel value to the last bit, are functions of (x_i,
q, public constants) alone. They never depend on other records, on the slot, or on the batch of the query.
"""

from __future__ import annotations

from typing import Protocol

from indknn.records.slots import Slots
from indknn.types import IntArray, Selection, Vectors


class Index(Protocol):
    """A set of quantised records that can be searched by kernel value."""

    @property
    def slots(self) -> Slots:
        """The records themselves, by slot."""
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
