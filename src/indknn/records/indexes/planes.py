"""Public random hyperplanes, made only from a recorded seed.

The planes come from SHAKE-256, so a seed gives the same planes on every machine and with every version of NumPy. Their
entries are small integers. So the side of a plane on which a record lies is the sign of an integer dot product, which
is the same wherever the record is stored (rule 1). The rounding of a floating-point matrix product depends on the row's
position, so it could not be used.
"""

from __future__ import annotations

from hashlib import shake_256

import numpy as np

from indknn.errors import InvalidInputError
from indknn.types import Int8Array


def hyperplanes(count: int, n_features: int, seed: int) -> Int8Array:
    """Normal vectors of `count` planes. Each entry is a sum of four uniform bytes, which is close to Gaussian.

    >>> hyperplanes(2, 3, seed=0).shape, hyperplanes(2, 3, seed=0).dtype
    ((2, 3), dtype('int8'))
    """
    if isinstance(seed, bool) or not isinstance(seed, int):
        raise InvalidInputError(f"seed must be an integer, got {seed!r}: the planes are public and recorded")
    stream = shake_256(b"indknn hyperplanes " + str(seed).encode()).digest(4 * count * n_features)
    sums = np.frombuffer(stream, dtype=np.uint8).reshape(count, n_features, 4).sum(axis=2, dtype=np.int64)
    planes: Int8Array = np.clip(np.rint((sums - 510) / 4), -127, 127).astype(np.int8)
    return planes
