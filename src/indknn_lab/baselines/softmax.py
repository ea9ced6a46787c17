"""Clipped gradients of a linear softmax model, exact to the last bit. Pure functions over arrays.

The gradient of one example is (p - e_y) ⊗ x, with p = softmax(Wᵀx): its length has a closed form, so that a batch
is clipped and summed without ever forming a gradient per example.

Privacy wants more than a small rounding error. Floating-point sums depend on their order, and matrix products
round differently with the shape of the batch, so one more record could nudge the gradients of all others.
Here it cannot: a record is its int8 vector v with x = v/|v|; its coefficients (p - e_y)·clip/|v| are cut
towards zero to integers, in units of CLIP^-1 of the clipping norm; and the weights, which are public, are
integers in the product. Then all products and sums are integers below 2^53, exact in float64 in whatever
order, and a record changes the sum by its own integer gradient, of length CLIP at most, and nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, log2

import numpy as np

from indknn.core.quantise import LEVELS
from indknn.types import FloatArray, Int8Array, IntArray

CLIP = LEVELS << 20
"""The clipping norm in grid units. Every v has an entry of ±127, so coefficients stay below 2^20."""

MAX_BATCH = 1 << 25
"""Sums of this many integer gradients are still exact."""

_BELOW = 1.0 - 2.0**-40  # covers the rounding of the few operations per entry that make a coefficient


@dataclass(frozen=True)
class Batch:
    """Some records: int8 vectors, their lengths, and their labels."""

    values: Int8Array
    root_norm: FloatArray
    labels: IntArray

    def __len__(self) -> int:
        return len(self.values)


def logits(values: Int8Array, root_norm: FloatArray, W: FloatArray) -> FloatArray:
    """Wᵀv/|v|, the same bits for a row whatever stands beside it."""
    integers, unit = _on_grid(W, values.shape[1])
    result: FloatArray = values.astype(np.float64) @ integers * unit / root_norm[:, None]
    return result


def coefficients(batch: Batch, W: FloatArray, clip: float) -> FloatArray:
    """Integers a: the clipped gradient of record i is v_i ⊗ a_i, in units of clip/CLIP."""
    z = logits(batch.values, batch.root_norm, W)
    residual = np.exp(z - z.max(axis=1, keepdims=True))
    residual /= residual.sum(axis=1, keepdims=True)
    residual[np.arange(len(batch)), batch.labels] -= 1.0
    length = np.sqrt((residual * residual).sum(axis=1, keepdims=True))  # |x| = 1
    residual *= _BELOW * CLIP / np.maximum(length, clip)
    result: FloatArray = np.trunc(residual / batch.root_norm[:, None])
    return result


def summed(batch: Batch, a: FloatArray) -> FloatArray:
    """The sum of the clipped gradients: integers."""
    result: FloatArray = batch.values.astype(np.float64).T @ a
    return result


def _on_grid(W: FloatArray, n_features: int) -> tuple[FloatArray, float]:
    """The weights as integers times a power of two, small enough that Σ v·W stays below 2^53."""
    bits = 52 - 7 - ceil(log2(max(n_features, 2)))
    largest = float(np.abs(W).max(initial=0.0))
    exponent = min(bits - ceil(log2(largest)) - 1, 1000) if largest > 0.0 else 0
    return np.rint(np.ldexp(W, exponent)), 2.0**-exponent
