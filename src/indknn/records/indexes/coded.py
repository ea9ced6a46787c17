"""What the hashing indexes share: a short code per record, and an exact scan of the records with a similar code.

The code of a record is a function of the record and of public planes. Whether it is a candidate is a function of its
code and the query's code. So selection depends on (x_i, q, public randomness) alone (rule 1). There are no tables, no
buckets that fill up, and no maintenance. The selection is a subset of the exact index's selection, with the same kernel
values.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np

from indknn.core.kernels import Kernel
from indknn.records.indexes.exact import ExactIndex
from indknn.records.indexes.scanner import Codes, Found, Rows
from indknn.records.slots import Slots
from indknn.types import Float32Array, Int8Array, IntArray, Vectors


class CodedIndex(ExactIndex, ABC):
    """An exact index behind a filter on codes. The bits of a code say on which side of public planes a record lies."""

    def __init__(
        self,
        kernel: Kernel,
        n_features: int,
        planes: Int8Array,
        *,
        scanner: str = "auto",
        threads: int | None = None,
    ):
        super().__init__(kernel, n_features, scanner=scanner, threads=threads)
        self.planes = planes
        self.slots = Slots(n_features, with_scale=kernel.uses_lengths, code_bytes=len(planes) // 8)

    def add(self, vectors: Vectors) -> IntArray:
        """Store the records with their codes. Returns the slot of each."""
        return self.slots.add(vectors, self.scanner.signs(vectors.values, self.planes))

    def candidates(self, queries: Vectors, tau: int) -> list[IntArray]:
        """The slots of the records whose codes are similar to each query's. For the curator and for experiments."""
        everything = np.full(1, -np.inf, dtype=np.float32)
        blocks = (queries[slice(i, i + 1)] for i in range(len(queries)))
        return [self._scan(self.slots.store, everything, block, tau)[0].slots for block in blocks]

    def recall(self, queries: Vectors, tau: int) -> float:
        """The share of the exact index's selection that this index finds, over all these queries.

        It looks at the records without charging anybody, so it is only for the curator and for experiments.
        """
        found = sum(len(selection.slots) for selection in self.search(queries, tau))
        exact = sum(len(selection.slots) for selection in self._search(queries, tau, super()._scan))
        return found / exact if exact else 1.0

    @abstractmethod
    def _scan(self, rows: Rows, factors: Float32Array, block: Vectors, tau: int) -> list[Found]: ...

    def _codes(self, block: Vectors) -> Codes:
        return Codes(self.slots.codes, self.scanner.signs(block.values, self.planes))
