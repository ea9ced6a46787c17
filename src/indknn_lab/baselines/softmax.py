"""Clipped gradients of a linear softmax model, exact to the last bit. Pure functions over arrays.

The gradient of one example is (p - e_y) ⊗ x, with p = softmax(Wᵀx + b), and (p - e_y) for b: its length has a
closed form, so that a batch is clipped and summed without ever forming a gradient per example.

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


@dataclass(frozen=True)
class Coefficients:
    """Integers a (per weight) and b (per intercept): the gradient of record i is (v_i ⊗ a_i, b_i)."""

    a: FloatArray
    b: FloatArray


def logits(values: Int8Array, root_norm: FloatArray, W: FloatArray, bias: FloatArray) -> FloatArray:
    """Wᵀv/|v| + b, the same bits for a row whatever stands beside it."""
    integers, unit = _on_grid(W, values.shape[1])
    product = values.astype(np.float64) @ integers
    result: FloatArray = product * unit / root_norm[:, None] + bias
    return result


def coefficients(batch: Batch, W: FloatArray, bias: FloatArray, clip: float, *, intercept: bool) -> Coefficients:
    """What multiplies each record's v in its clipped gradient, in units of clip/CLIP."""
    z = logits(batch.values, batch.root_norm, W, bias)
    residual = np.exp(z - z.max(axis=1, keepdims=True))
    residual /= residual.sum(axis=1, keepdims=True)
    residual[np.arange(len(batch)), batch.labels] -= 1.0
    squared = (1.0 + intercept) * (residual * residual).sum(axis=1, keepdims=True)  # |x| = 1, and 1 for b
    longest = np.maximum(np.sqrt(squared), clip)
    residual *= _BELOW * CLIP / longest
    a = np.trunc(residual / batch.root_norm[:, None])
    return Coefficients(a, np.trunc(residual) if intercept else np.zeros_like(residual))


def summed(batch: Batch, c: Coefficients) -> FloatArray:
    """The sum of the clipped gradients: integers, d rows for the weights and one for the intercept."""
    weights = batch.values.astype(np.float64).T @ c.a
    return np.vstack([weights, c.b.sum(axis=0)])


def _on_grid(W: FloatArray, n_features: int) -> tuple[FloatArray, float]:
    """The weights as integers times a power of two, small enough that Σ v·W stays below 2^53."""
    bits = 52 - 7 - ceil(log2(max(n_features, 2)))
    largest = float(np.abs(W).max(initial=0.0))
    exponent = min(bits - ceil(log2(largest)) - 1, 1000) if largest > 0.0 else 0
    return np.rint(np.ldexp(W, exponent)), 2.0**-exponent
