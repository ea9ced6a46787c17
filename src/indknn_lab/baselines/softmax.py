"""Clipped gradients of a linear softmax model, exact to the last bit. Pure functions over arrays.

The gradient of one example is (p - e_y) ⊗ x, with p = softmax(Wᵀx). Its length has a closed form. So a batch is clipped
and summed without computing a gradient per example.

For privacy, a small rounding error is not enough. Floating-point sums depend on their order, and the rounding of matrix
products depends on the shape of the batch. So one more record could slightly change the gradients of all others. Here
this cannot happen. A record is an int8 vector v with x = v/|v|. Its coefficients (p - e_y)·clip/|v| are rounded towards
zero to integers, in units of CLIP^-1 of the clipping norm. The weights, which are public, are integers in the product.
Then all products and sums are integers below 2^53, which float64 computes exactly in any order. So a record changes the
sum only by its own integer gradient, whose length is at most CLIP.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, log2

import numpy as np

from indknn.core.quantise import LEVELS
from indknn.types import FloatArray, Int8Array, IntArray

CLIP = LEVELS << 20
"""The clipping norm in grid units. Every v has an entry of ±127, so coefficients are below 2^20."""

MAX_BATCH = 1 << 25
"""Sums of this many integer gradients are still exact."""

_BELOW = 1.0 - 2.0**-40  # covers the rounding errors of the few operations that compute a coefficient


@dataclass(frozen=True)
class Batch:
    """Some records: int8 vectors, their lengths, and their labels."""

    values: Int8Array
    root_norm: FloatArray
    labels: IntArray

    def __len__(self) -> int:
        return len(self.values)


def logits(values: Int8Array, root_norm: FloatArray, W: FloatArray) -> FloatArray:
    """Wᵀv/|v|. The bits of a row do not depend on the other rows."""
    integers, unit = _on_grid(W, values.shape[1])
    result: FloatArray = values.astype(np.float64) @ integers * unit / root_norm[:, None]
    return result


def coefficients(batch: Batch, W: FloatArray, clip: float) -> FloatArray:
    """Integers a, such that the clipped gradient of record i is v_i ⊗ a_i, in units of clip/CLIP."""
    z = logits(batch.values, batch.root_norm, W)
    residual = np.exp(z - z.max(axis=1, keepdims=True))
    residual /= residual.sum(axis=1, keepdims=True)
    residual[np.arange(len(batch)), batch.labels] -= 1.0
    length = np.sqrt((residual * residual).sum(axis=1, keepdims=True))  # |x| = 1
    residual *= _BELOW * CLIP / np.maximum(length, clip)
    result: FloatArray = np.trunc(residual / batch.root_norm[:, None])
    return result


def summed(batch: Batch, a: FloatArray) -> FloatArray:
    """The sum of the clipped gradients, as integers."""
    result: FloatArray = batch.values.astype(np.float64).T @ a
    return result


def _on_grid(W: FloatArray, n_features: int) -> tuple[FloatArray, float]:
    """The weights as integers times a power of two, small enough that Σ v·W stays below 2^53."""
    bits = 52 - 7 - ceil(log2(max(n_features, 2)))
    largest = float(np.abs(W).max(initial=0.0))
    exponent = min(bits - ceil(log2(largest)) - 1, 1000) if largest > 0.0 else 0
    return np.rint(np.ldexp(W, exponent)), 2.0**-exponent
