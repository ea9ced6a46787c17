"""The answers that a student learns from: the latest of them, and the latest queries of all."""

from __future__ import annotations

from collections import deque

import numpy as np

from indknn.types import FloatArray

_MOST = 20000
_RECENT = 2048


class Lessons:
    """Queries with the noisy votes that were released for them."""

    def __init__(self, n_features: int, n_classes: int):
        self._shape = (n_features, n_classes)
        self._asked: deque[tuple[FloatArray, FloatArray, float]] = deque(maxlen=_MOST)
        self._recent: deque[tuple[FloatArray, FloatArray | None, float]] = deque(maxlen=_RECENT)
        self._kappa = 0.0
        self.asked = 0

    def add(self, q: FloatArray, shares: FloatArray, noise: float, kappa: float) -> None:
        """A query that was answered by asking."""
        self._asked.append((q, shares, noise))
        self._recent.append((q, shares, noise))
        self._kappa += kappa
        self.asked += 1

    def seen(self, q: FloatArray) -> None:
        """A query that was answered alone."""
        self._recent.append((q, None, 1.0))

    def all(self) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Unit queries, vote shares, and the noise of each."""
        Q, shares, noise = zip(*self._asked, strict=True)
        return np.array(Q), np.array(shares), np.array(noise)

    def recent(self) -> FloatArray:
        """The latest queries."""
        return np.array([q for q, _, _ in self._recent]).reshape(-1, self._shape[0])

    def believed(self, scores: FloatArray, misfit: float) -> FloatArray:
        """What is known of the latest queries: scores, moved towards the votes where there were any."""
        known = scores.copy()
        for i, (_, shares, noise) in enumerate(self._recent):
            if shares is not None:
                known[i] += 0.5 * misfit / (misfit + noise * noise) * (shares - scores[i])
        return known

    @property
    def kappa(self) -> float:
        """How near a record that votes is on average, by the queries."""
        return self._kappa / self.asked if self.asked else 0.5
