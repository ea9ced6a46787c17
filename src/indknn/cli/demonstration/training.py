"""Private training for comparison: a linear model trained with noisy gradients, with one budget for everybody.

It uses full batches, so its privacy loss is known exactly. Each of n steps is a Gaussian mechanism. All of them
together are μ-GDP if the noise is sqrt(n)/μ times the clip. Use it only for the demonstration.
`indknn_lab.baselines` has other methods with exact noise.
"""

from __future__ import annotations

from math import sqrt

import numpy as np
import numpy.typing as npt

from indknn.types import Float32Array

STEPS, CLIP, RATE, MOMENTUM = 40, 0.1, 80.0, 0.8
"""These values are good on this data. No budget covers the search for them, so private training looks a little better
than it is."""


def train(X: Float32Array, y: npt.NDArray[np.int_], classes: int, mu: float, center: Float32Array) -> LinearModel:
    """Train a model once, for μ in total. `center` must be public."""
    features, rng = _features(X, center), np.random.default_rng()
    lengths, truth = np.linalg.norm(features, axis=1), np.eye(classes, dtype=np.float32)[y]
    weights = np.zeros((features.shape[1], classes), dtype=np.float32)
    mean, velocity = np.zeros_like(weights), np.zeros_like(weights)
    for step in range(STEPS):
        logits = features @ weights
        shares = np.exp(logits - logits.max(axis=1, keepdims=True))
        residuals = shares / shares.sum(axis=1, keepdims=True) - truth
        sizes = lengths * np.linalg.norm(residuals, axis=1)
        residuals *= np.minimum(1.0, CLIP / np.maximum(sizes, 1e-9))[:, None]
        noise = rng.normal(scale=CLIP * sqrt(STEPS) / mu, size=weights.shape)
        velocity = MOMENTUM * velocity + (features.T @ residuals + noise) / len(X)
        weights = (weights - RATE / CLIP * velocity).astype(np.float32)
        if step >= STEPS // 2:
            mean += weights
    return LinearModel(mean, center)


class LinearModel:
    """The weights, and the center that is subtracted from every row."""

    def __init__(self, weights: Float32Array, center: Float32Array):
        self._weights, self._center = weights, center

    def predict(self, Q: Float32Array) -> npt.NDArray[np.int_]:
        """The most likely class of each row. It costs no budget, however often it is called."""
        return np.asarray((_features(Q, self._center) @ self._weights).argmax(axis=1))


def _features(X: Float32Array, center: Float32Array) -> Float32Array:
    moved = X - center
    moved /= np.linalg.norm(moved, axis=1, keepdims=True)
    return np.hstack([moved, np.full((len(X), 1), 0.5, dtype=np.float32)])
