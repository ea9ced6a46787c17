"""Reads noisy counts of a number by cell: about where it is, how much it varies, and how it is distributed.

With few people, the counts of single cells are mostly noise. So normal curves are compared with them first, which two
numbers describe, and averaged by how likely they are. From that average the counts move away only as far as their known
noise cannot explain. This is post-processing.
"""

from __future__ import annotations

from functools import lru_cache
from math import erf, log, sqrt

import numpy as np

from indknn.types import FloatArray

_MEANS, _SPREADS = 49, 24
_NARROWEST = 1 / 256
"""The smallest spread that is considered, as a share of the range of all cells."""


def denoised(
    counts: FloatArray, ends: FloatArray, sigma: float, total: float, usual: float = 0.12, doubt: float = 0.8
) -> FloatArray:
    """The share of each cell, by noisy counts with noise `sigma` of about `total` records.

    `ends` are the ends of all cells, the outermost ones too. `usual` is the spread that is expected before any count,
    as a share of their range, and `doubt` is the standard deviation of its logarithm.
    """
    fit = _fitted(counts, ends, sigma, total, usual, doubt)
    away = counts - total * fit
    chance = len(counts) * sigma * sigma * (1.0 + 2.0 * sqrt(2.0 / len(counts)))  # plus two standard deviations
    real = max(1.0 - chance / max(float(away @ away), 1e-300), 0.0)
    shares = np.maximum(total * fit + real * away, 0.0)
    return np.asarray(shares / max(float(shares.sum()), 1e-300), dtype=np.float64)


def moments(shares: FloatArray, ends: FloatArray) -> tuple[float, float]:
    """The mean, and the standard deviation, of a number that is spread evenly over each cell."""
    middles, widths = (ends[1:] + ends[:-1]) / 2.0, np.diff(ends)
    mean = float(shares @ middles)
    return mean, sqrt(max(float(shares @ ((middles - mean) ** 2 + widths**2 / 12.0)), 0.0))


def quantile(shares: FloatArray, ends: FloatArray, share: float) -> float:
    """The number below which this share lies."""
    return float(np.interp(share, np.concatenate([[0.0], np.cumsum(shares)]), ends))


def _fitted(counts: FloatArray, ends: FloatArray, sigma: float, total: float, usual: float, doubt: float) -> FloatArray:
    """The shares of cells under normal curves, averaged by how likely the counts make them."""
    curves, likely = _curves(tuple(ends.tolist())), []
    for spread, shares in curves:
        misses = ((counts - total * shares) ** 2).sum(axis=1) / (sigma * sigma)
        likely.append(-0.5 * (misses + (log(spread / usual) / doubt) ** 2))
    weights = np.exp(np.concatenate(likely) - max(part.max() for part in likely))
    return np.asarray(weights @ np.concatenate([shares for _, shares in curves]) / weights.sum(), dtype=np.float64)


@lru_cache(maxsize=4)  # the first histogram of every model has the same cells
def _curves(ends: tuple[float, ...]) -> list[tuple[float, FloatArray]]:
    """By spread, the shares of cells under normal curves around every mean."""
    low, high, found = ends[0], ends[-1], []
    for spread in np.geomspace(_NARROWEST, 1.0, _SPREADS):
        z = (np.array(ends[1:-1]) - np.linspace(low, high, _MEANS)[:, None]) / (spread * (high - low))
        below = np.concatenate([np.zeros((_MEANS, 1)), _below(z), np.ones((_MEANS, 1))], axis=1)
        found.append((spread, np.diff(below, axis=1)))
    return found


def _below(z: FloatArray) -> FloatArray:
    """The share of a normal curve below each number."""
    return np.array([0.5 * (1.0 + erf(x / sqrt(2.0))) for x in z.ravel().tolist()]).reshape(z.shape)
