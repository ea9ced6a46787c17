"""The arithmetic of a scan: two scanners that give the same answers.

`native` is the C extension. `numpy` is always available, and tests compare `native` with it. A scanner makes proposals:
it returns the records whose integer dot product reaches a bound that is a little too low. Then the kernel decides, on
its grid.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from indknn.types import Float32Array, Int8Array, IntArray

Int32Array: TypeAlias = npt.NDArray[np.int32]
CodeArray: TypeAlias = npt.NDArray[np.uint8]

MAX_QUERIES = 64
"""Queries per pass over the records."""
MAX_FEATURES = 1 << 17
"""With more, a dot product of int8 vectors might not fit into 32 bits."""


class Found(NamedTuple):
    """Slots, ascending, and their integer dot products with the query."""

    slots: IntArray
    dots: Int32Array


class Rows(NamedTuple):
    """The arrays that a scan reads: the rows below `used`. A slot whose root is NaN is never found."""

    values: Int8Array
    roots: Float32Array
    used: int


class Codes(NamedTuple):
    """One code per slot, and one per query."""

    stored: CodeArray
    queries: CodeArray


class Scanner(Protocol):
    """Scans for up to 64 queries. Row i is found for query j when float32(dot) >= roots[i] * factors[j]."""

    @property
    def name(self) -> str:
        """Which scanner this is, and what it runs on."""
        ...

    def scan(self, rows: Rows, queries: Int8Array, factors: Float32Array) -> list[Found]:
        """Among all rows."""
        ...

    def scan_equal(
        self, rows: Rows, queries: Int8Array, factors: Float32Array, codes: Codes, width: int
    ) -> list[Found]:
        """Among rows whose code has any unit of `width` bytes in common with the query's."""
        ...

    def scan_hamming(
        self, rows: Rows, queries: Int8Array, factors: Float32Array, codes: Codes, cut: int
    ) -> list[Found]:
        """Among rows whose code differs from the query's in at most `cut` bits."""
        ...

    def signs(self, values: Int8Array, planes: Int8Array) -> CodeArray:
        """Bit p of row i: is the dot product of row i and plane p at least 0? Eight planes per byte."""
        ...
