"""The kernels κ(x, q) in [0, 1]: functions of an integer dot product and of each vector's own norm and scale.

A kernel value is an integer on the grid, and "selected" means κ >= τ *on the grid*. Every operation here is one
correctly rounded IEEE operation per record, or a table look-up. So the value of a record has the same bits wherever the
record is stored and in any batch (rule 1). Library routines such as `np.exp` do not promise this, because their vector
loops may treat the end of an array differently. This is why there is a table.

`least_dot` is a quick lower bound on the dot products that can reach τ. It only decides which records are checked,
never which are selected.
"""

from __future__ import annotations

from math import inf, log
from typing import TypeAlias

import numpy as np

from indknn.errors import InvalidInputError
from indknn.types import GRID, FloatArray, IntArray, KernelName

DEFAULT_BANDWIDTH = float(np.exp(0.75))
"""ν with ν² = e^1.5, the value behind the paper's table of τ (rule 12)."""

_SAFE = 1e-9  # far above the rounding errors of the bound, far below one step of an integer dot product


class Cosine:
    """κ = cos(x, q), and 0 for obtuse angles, which no τ > 0 selects.

    >>> one = np.array([1.0])
    >>> (Cosine().values(np.array([3.0]), np.array([5.0]), one, 1.0, 1.0) / GRID).round(3).tolist()
    [0.6]
    """

    uses_lengths = False

    def values(
        self, dot: FloatArray, root_x: FloatArray, scale_x: FloatArray, root_q: float, scale_q: float
    ) -> IntArray:
        """κ in grid units."""
        cosine = dot / (root_x * root_q)
        # Not np.clip: its checks cost more than the work on a few hundred numbers.
        return np.minimum(np.maximum(np.rint(cosine * GRID), 0), GRID).astype(np.int64)

    def least_dot(self, tau: int, root_x: FloatArray, scale_x: FloatArray, root_q: float, scale_q: float) -> FloatArray:
        """τ·|x||q|, minus half a grid step for the rounding, and a little less for safety."""
        return root_x * (root_q * self.least_cosine(tau))

    def least_cosine(self, tau: int) -> float:
        """τ, minus half a grid step for the rounding, and a little less for safety."""
        return (tau - 0.5) / GRID * (1.0 - _SAFE)


class RBF:
    """κ = exp(-|x - q|²/ν²), for unit vectors by default.

    >>> one = np.array([1.0])
    >>> bool(RBF(1.0).values(one, one, one, 1.0, 1.0)[0] == GRID)
    True
    """

    _FINE = 1 << 11  # t is cut to steps of 2^-22 and split into two table indices of 2^-11 and 2^-22
    _T_MAX = 14.0  # exp(-14) is below one grid step

    def __init__(self, bandwidth: float = DEFAULT_BANDWIDTH, *, normalize: bool = True):
        if not 1e-6 <= bandwidth <= 1e6:
            raise InvalidInputError(f"bandwidth must be between 1e-6 and 1e6, got {bandwidth!r}")
        self.bandwidth = float(bandwidth)
        self.normalize = normalize
        self.uses_lengths = not normalize
        self._coarse_table = np.exp(-np.arange(int(self._T_MAX * self._FINE) + 2) / self._FINE)
        self._fine_table = np.exp(-np.arange(self._FINE) / (self._FINE * self._FINE))

    def values(
        self, dot: FloatArray, root_x: FloatArray, scale_x: FloatArray, root_q: float, scale_q: float
    ) -> IntArray:
        """κ in grid units."""
        if self.normalize:
            squared = 2.0 - 2.0 * (dot / (root_x * root_q))
        else:
            x, q = scale_x * root_x, scale_q * root_q
            squared = x * x + q * q - 2.0 * (scale_x * scale_q) * dot
        t = squared / (self.bandwidth * self.bandwidth)
        t = np.maximum(np.where(t < self._T_MAX, t, self._T_MAX), 0.0)  # a value that overflowed to NaN is far away
        steps = np.floor(t * (self._FINE * self._FINE)).astype(np.int64)
        kappa = self._coarse_table[steps // self._FINE] * self._fine_table[steps % self._FINE]
        result: IntArray = np.floor(kappa * GRID).astype(np.int64)
        return result

    def least_dot(self, tau: int, root_x: FloatArray, scale_x: FloatArray, root_q: float, scale_q: float) -> FloatArray:
        """The dot product at the largest distance that can have κ >= τ, reduced a little for safety."""
        if self.normalize:
            return root_x * (root_q * self.least_cosine(tau))
        squared = self._widest(tau)
        x, q = scale_x * root_x, scale_q * root_q
        both = x * x + q * q
        result: FloatArray = (both * (1.0 - _SAFE) - squared) / (2.0 * (scale_x * scale_q)) - 1.0
        return result

    def least_cosine(self, tau: int) -> float:
        """The cosine at the largest distance between unit vectors, reduced a little for safety."""
        return (2.0 - self._widest(tau)) / 2.0 - _SAFE if self.normalize else -inf

    def _widest(self, tau: int) -> float:
        """The largest |x - q|² that can have κ >= τ, increased a little for safety."""
        t = log(GRID / tau) + 2.0 / (self._FINE * self._FINE)  # cutting t to steps rounds κ up a little
        return self.bandwidth**2 * t * (1.0 + _SAFE)


Kernel: TypeAlias = Cosine | RBF
"""κ(x, q) on the grid, from dot = Σ x_j q_j over int8 values, and each side's |values| and scale.

`uses_lengths`: whether κ depends on the lengths of the vectors, and so on their scales. If not, it depends only on the
angle. `least_cosine`: a cosine below this cannot have κ >= τ; -inf for a kernel that uses lengths.
"""


def make_kernel(name: KernelName, bandwidth: float | None = None, *, normalize: bool = True) -> Kernel:
    """The kernel with this name.

    >>> type(make_kernel("rbf")).__name__
    'RBF'
    """
    if name == "cosine":
        return Cosine()
    if name == "rbf":
        return RBF(DEFAULT_BANDWIDTH if bandwidth is None else bandwidth, normalize=normalize)
    raise InvalidInputError(f"kernel must be 'cosine' or 'rbf', got {name!r}")


__all__ = ["DEFAULT_BANDWIDTH", "RBF", "Cosine", "Kernel", "make_kernel"]
