"""A sketch of each record: on which side of some hundred public hyperplanes it lies.

Two vectors at the angle θ lie on different sides of a random plane with probability θ/π. So the number of bits in which
two sketches differ is Binomial(n_bits, θ/π). A record is a candidate if its sketch differs from the query's in at most
`cut` bits. The cut is a public number. The kernel and τ give the widest angle that is selected. At that angle a record
is missed with probability at most 1 - `recall`, over the draw of the planes. Nearer records are missed less often.
"""

from __future__ import annotations

from functools import lru_cache
from math import acos, pi

import numpy as np
from scipy.special import bdtr

from indknn.core.kernels import Kernel
from indknn.errors import InvalidInputError
from indknn.records.indexes.coded import CodedIndex
from indknn.records.indexes.planes import hyperplanes
from indknn.records.indexes.scanner import Found, Rows
from indknn.types import Float32Array, Vectors

DEFAULT_BITS = 512
DEFAULT_RECALL = 0.99
MAX_BITS = 1 << 14


class SketchIndex(CodedIndex):
    """`n_bits` sign bits by public hyperplanes drawn from `seed`. For kernels that depend only on the angle.

    >>> from indknn.core.kernels import Cosine, tau_on_grid
    >>> from indknn.core.quantise import quantise
    >>> index = SketchIndex(Cosine(), 3, seed=1)
    >>> slots = index.add(quantise([[1.0, 0.0, 0.1], [0.0, 1.0, 0.0]]))
    >>> [s.slots.tolist() for s in index.search(quantise([[1.0, 0.0, 0.1]]), tau_on_grid(0.5))]
    [[0]]
    """

    def __init__(
        self,
        kernel: Kernel,
        n_features: int,
        *,
        n_bits: int = DEFAULT_BITS,
        recall: float = DEFAULT_RECALL,
        seed: int = 0,
        scanner: str = "auto",
        threads: int | None = None,
    ):
        if kernel.uses_lengths:
            raise InvalidInputError(
                "index 'sketch' compares angles, got a kernel of distances (rbf with normalize=False); "
                "use kernel 'cosine', or 'rbf' with normalize=True, or index 'exact'"
            )
        if not (64 <= n_bits <= MAX_BITS and n_bits % 64 == 0):
            raise InvalidInputError(f"n_bits must be a multiple of 64 in [64, {MAX_BITS}], got {n_bits!r}")
        if not 0.0 < recall < 1.0:
            raise InvalidInputError(f"recall must be in (0, 1), got {recall!r}")
        self.n_bits, self.target_recall, self.seed = n_bits, recall, seed
        planes = hyperplanes(n_bits, n_features, seed)
        super().__init__(kernel, n_features, planes, scanner=scanner, threads=threads)

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
    within = bdtr(np.arange(n_bits + 1), n_bits, p)
    return min(int(np.searchsorted(within, recall)), n_bits)
