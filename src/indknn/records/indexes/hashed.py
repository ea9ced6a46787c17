"""The hashing indexes: a short code per record, and an exact scan of the records with a similar code.

The code of a record is a function of the record and of public planes. Whether it is a candidate is a function of its
code and the query's code. So selection depends on (x_i, q, public randomness) alone (rule 1). There are no tables, no
buckets that fill up, and no maintenance. The selection is a subset of the exact index's selection, with the same kernel
values.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import lru_cache
from hashlib import shake_256
from math import acos, pi
from typing import Any

import numpy as np

from indknn.core.kernels import Kernel
from indknn.errors import InvalidInputError
from indknn.records.indexes.scan import Codes, ExactIndex, Found, Rows, Slots
from indknn.types import Float32Array, Int8Array, IntArray, Vectors

LSH_TABLES, MAX_LSH_TABLES = 30, 1024
LSH_BITS, MAX_LSH_BITS = 8, 16
SKETCH_BITS, MAX_SKETCH_BITS = 512, 1 << 14
SKETCH_RECALL = 0.99


def hyperplanes(count: int, n_features: int, seed: int) -> Int8Array:
    """Normal vectors of `count` planes. Each entry is a sum of four uniform bytes, which is close to Gaussian.

    They come from SHAKE-256, so a seed gives the same planes on every machine and with every version of NumPy. Their
    entries are small integers. So the side of a plane on which a record lies is the sign of an integer dot product,
    which is the same wherever the record is stored (rule 1). The rounding of a floating-point matrix product depends on
    the row's position, so it could not be used.

    >>> hyperplanes(2, 3, seed=0).shape, hyperplanes(2, 3, seed=0).dtype
    ((2, 3), dtype('int8'))
    """
    if isinstance(seed, bool) or not isinstance(seed, int):
        raise InvalidInputError(f"seed must be an integer, got {seed!r}: the planes are public and recorded")
    stream = shake_256(b"indknn hyperplanes " + str(seed).encode()).digest(4 * count * n_features)
    sums = np.frombuffer(stream, dtype=np.uint8).reshape(count, n_features, 4).sum(axis=2, dtype=np.int64)
    planes: Int8Array = np.clip(np.rint((sums - 510) / 4), -127, 127).astype(np.int8)
    return planes


class CodedIndex(ExactIndex, ABC):
    """An exact index behind a filter on codes. The bits of a code say on which side of public planes a record lies."""

    def __init__(self, kernel: Kernel, n_features: int, planes: Int8Array, **options: Any):
        super().__init__(kernel, n_features, **options)
        self.planes = planes
        self.slots = Slots(n_features, with_scale=kernel.uses_lengths, code_bytes=len(planes) // 8)

    def add(self, vectors: Vectors) -> IntArray:
        """Store the records with their codes. Returns the slot of each."""
        return self.slots.add(vectors, self.scanner.signs(vectors.values, self.planes))

    def candidates(self, queries: Vectors, tau: int) -> list[IntArray]:
        """The slots of the records whose codes are similar to each query's. For the curator and for experiments."""
        everything = np.full(1, -np.inf, dtype=np.float32)
        blocks = (queries[slice(i, i + 1)] for i in range(len(queries)))
        return [self._scan(self.slots.rows, everything, block, tau)[0].slots for block in blocks]

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


class LSHIndex(CodedIndex):
    """Ind-KNN-Hash: candidates share a bucket with the query in one or more of `n_tables` tables of `n_bits` bits.

    The buckets of a record are stored as one byte per table (two for more than 8 bits). A scan for any equal byte
    replaces the tables, so there is no maintenance and no limit. This index is in the package because it is in the
    paper. An exact scan finds everything and is hardly slower, and `sketch` makes better use of the same planes: see
    docs/performance.md.

    >>> from indknn.core.kernels import Cosine
    >>> from indknn.types import tau_on_grid
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
        n_tables: int = LSH_TABLES,
        n_bits: int = LSH_BITS,
        seed: int = 0,
        **options: Any,
    ):
        if not 1 <= n_tables <= MAX_LSH_TABLES:
            raise InvalidInputError(f"n_tables must be in [1, {MAX_LSH_TABLES}], got {n_tables!r}")
        if not 1 <= n_bits <= MAX_LSH_BITS:
            raise InvalidInputError(f"n_bits must be in [1, {MAX_LSH_BITS}], got {n_bits!r}")
        self.n_tables, self.n_bits, self.seed = n_tables, n_bits, seed
        self._width = 1 if n_bits <= 8 else 2
        planes = _padded(n_tables, n_bits, 8 * self._width, n_features, seed)
        super().__init__(kernel, n_features, planes, **options)

    def _scan(self, rows: Rows, factors: Float32Array, block: Vectors, tau: int) -> list[Found]:
        return self.scanner.scan_equal(rows, block.values, factors, self._codes(block), self._width)


def _padded(n_tables: int, n_bits: int, unit: int, n_features: int, seed: int) -> Int8Array:
    """Planes by table, padded to whole bytes with zero planes. The padded bits are the same for all records."""
    planes = np.zeros((n_tables, unit, n_features), dtype=np.int8)
    planes[:, :n_bits] = hyperplanes(n_tables * n_bits, n_features, seed).reshape(n_tables, n_bits, -1)
    return planes.reshape(n_tables * unit, n_features)


class SketchIndex(CodedIndex):
    """A sketch of each record: on which side of `n_bits` public hyperplanes it lies. For kernels of the angle alone.

    Two vectors at the angle θ lie on different sides of a random plane with probability θ/π. So the number of bits in
    which two sketches differ is Binomial(n_bits, θ/π). A record is a candidate if its sketch differs from the query's
    in at most `cut` bits. The cut is a public number. The kernel and τ give the widest angle that is selected. At that
    angle a record is missed with probability at most 1 - `recall`, over the draw of the planes. Nearer records are
    missed less often.
    """

    def __init__(
        self,
        kernel: Kernel,
        n_features: int,
        *,
        n_bits: int = SKETCH_BITS,
        recall: float = SKETCH_RECALL,
        seed: int = 0,
        **options: Any,
    ):
        if kernel.uses_lengths:
            raise InvalidInputError(
                "index 'sketch' compares angles, got a kernel of distances (rbf with normalize=False); "
                "use kernel 'cosine', or 'rbf' with normalize=True, or index 'exact'"
            )
        if not (64 <= n_bits <= MAX_SKETCH_BITS and n_bits % 64 == 0):
            raise InvalidInputError(f"n_bits must be a multiple of 64 in [64, {MAX_SKETCH_BITS}], got {n_bits!r}")
        if not 0.0 < recall < 1.0:
            raise InvalidInputError(f"recall must be in (0, 1), got {recall!r}")
        self.n_bits, self.target_recall, self.seed = n_bits, recall, seed
        planes = hyperplanes(n_bits, n_features, seed)
        super().__init__(kernel, n_features, planes, **options)

    def cut(self, tau: int) -> int:
        """In how many bits a candidate's sketch may differ from the query's. This is public."""
        return hamming_cut(self.kernel.least_cosine(tau), self.n_bits, self.target_recall)

    def _scan(self, rows: Rows, factors: Float32Array, block: Vectors, tau: int) -> list[Found]:
        return self.scanner.scan_hamming(rows, block.values, factors, self._codes(block), self.cut(tau))


@lru_cache(maxsize=64)
def hamming_cut(cosine: float, n_bits: int, recall: float) -> int:
    """The smallest h with P(Binomial(n_bits, acos(cosine)/π) <= h) >= recall.

    >>> hamming_cut(1.0, 512, 0.99), hamming_cut(-1.0, 512, 0.99)
    (0, 512)
    >>> hamming_cut(0.0, 512, 0.99)
    282
    """
    p = acos(min(max(cosine, -1.0), 1.0)) / pi
    if p in {0.0, 1.0}:
        return round(p * n_bits)
    from scipy.special import bdtr  # noqa: PLC0415 - takes long to import, and only sketches need it

    within = bdtr(np.arange(n_bits + 1), n_bits, p)
    return min(int(np.searchsorted(within, recall)), n_bits)
