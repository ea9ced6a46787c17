"""Ind-KNN-Hash: candidates share a bucket with the query in at least one of L hash tables of b bits.

The buckets of a record are stored as one byte per table (two for b > 8). A scan for any equal byte replaces the tables,
so there is no maintenance and no limit. This index is in the package because it is in the paper. An exact scan finds
everything and is hardly slower, and `sketch` makes better use of the same planes: see docs/performance.md.
"""

from __future__ import annotations

import numpy as np

from indknn.core.kernels import Kernel
from indknn.errors import InvalidInputError
from indknn.records.indexes.coded import CodedIndex
from indknn.records.indexes.planes import hyperplanes
from indknn.records.indexes.scanner import Found, Rows
from indknn.types import Float32Array, Int8Array, Vectors

DEFAULT_TABLES = 30
DEFAULT_BITS = 8
MAX_TABLES = 1024
MAX_BITS = 16


class LSHIndex(CodedIndex):
    """`n_tables` hashes of `n_bits` bits each, by public hyperplanes drawn from `seed`.

    >>> from indknn.core.kernels import Cosine, tau_on_grid
    >>> from indknn.core.quantise import quantise
    >>> index = LSHIndex(Cosine(), 3, seed=1)
    >>> slots = index.add(quantise([[1.0, 0.0, 0.1], [0.0, 1.0, 0.0]]))
    >>> [s.slots.tolist() for s in index.search(quantise([[1.0, 0.0, 0.1]]), tau_on_grid(0.5))]
    [[0]]
    """

    def __init__(
        self,
        kernel: Kernel,
        n_features: int,
        *,
        n_tables: int = DEFAULT_TABLES,
        n_bits: int = DEFAULT_BITS,
        seed: int = 0,
        scanner: str = "auto",
        threads: int | None = None,
    ):
        if not 1 <= n_tables <= MAX_TABLES:
            raise InvalidInputError(f"n_tables must be in [1, {MAX_TABLES}], got {n_tables!r}")
        if not 1 <= n_bits <= MAX_BITS:
            raise InvalidInputError(f"n_bits must be in [1, {MAX_BITS}], got {n_bits!r}")
        self.n_tables, self.n_bits, self.seed = n_tables, n_bits, seed
        self._width = 1 if n_bits <= 8 else 2
        planes = _padded(n_tables, n_bits, 8 * self._width, n_features, seed)
        super().__init__(kernel, n_features, planes, scanner=scanner, threads=threads)

    def _scan(self, rows: Rows, factors: Float32Array, block: Vectors, tau: int) -> list[Found]:
        return self.scanner.scan_equal(rows, block.values, factors, self._codes(block), self._width)


def _padded(n_tables: int, n_bits: int, unit: int, n_features: int, seed: int) -> Int8Array:
    """Planes by table, padded to whole bytes with zero planes. The padded bits are the same for all records."""
    planes = np.zeros((n_tables, unit, n_features), dtype=np.int8)
    planes[:, :n_bits] = hyperplanes(n_tables * n_bits, n_features, seed).reshape(n_tables, n_bits, -1)
    return planes.reshape(n_tables * unit, n_features)
