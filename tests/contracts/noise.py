"""What every source of noise must keep: draws of round(scale·Z) for a standard normal Z.

Inherit, and provide `make(seed)`, which gives the same draws for the same seed. So the statistical tests pass
or fail for good.
"""

from fractions import Fraction
from math import erf, sqrt

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from indknn.errors import InvalidInputError

MANY = 60_000


def cell_probability(k, scale):
    """P(round(scale·Z) = k)."""

    def cdf(x):
        return 0.5 * (1 + erf(x / (scale * sqrt(2))))

    return cdf(k + 0.5) - cdf(k - 0.5)


class NoiseContract:
    secure = False  # whether answers made with it are private

    def make(self, seed):
        raise NotImplementedError

    def test_says_whether_it_is_secure(self):
        assert self.make(0).secure is self.secure

    def test_the_same_entropy_gives_the_same_draws(self):
        assert (self.make(1).draw(99, 50) == self.make(1).draw(99, 50)).all()
        assert (self.make(1).draw(99, 50) != self.make(2).draw(99, 50)).any()

    @pytest.mark.parametrize("size", [0, 1, 7])
    def test_as_many_integers_as_asked_for(self, size):
        values = self.make(0).draw(5, size)
        assert values.shape == (size,)
        assert values.dtype == np.int64

    @pytest.mark.parametrize("scale", [1 << 20, 3.7e9, Fraction(10**6, 7)])
    def test_moments_at_large_scale(self, scale):
        z = self.make(1).draw(scale, MANY) / float(scale)
        sd = 1 / sqrt(MANY)
        assert abs(z.mean()) < 4 * sd
        assert abs(z.var() - 1) < 4 * sqrt(2) * sd
        assert abs(stats.skew(z)) < 4 * sqrt(6) * sd
        assert abs(stats.kurtosis(z)) < 4 * sqrt(24) * sd

    def test_kolmogorov_smirnov_at_large_scale(self):
        z = self.make(2).draw(1 << 30, MANY) / float(1 << 30)  # the grid is far finer than the test can see
        assert stats.kstest(z, "norm").pvalue > 1e-3

    @pytest.mark.parametrize("scale", [0.2, 0.7, 1, Fraction(5, 3), 4.0, 25])
    def test_chi_square_cell_by_cell_at_small_scale(self, scale):
        values = self.make(3).draw(scale, MANY)
        edge = int(float(scale) * 3) + 1
        cells = range(-edge, edge + 1)
        inside = np.array([(values == k).sum() for k in cells])
        p = np.array([cell_probability(k, float(scale)) for k in cells])
        seen = np.append(inside, MANY - inside.sum())
        expected = np.append(p, 1 - p.sum()) * MANY
        enough = expected >= 5
        seen, expected = (
            np.append(seen[enough], seen[~enough].sum()),
            np.append(expected[enough], expected[~enough].sum()),
        )
        if expected[-1] == 0:
            seen, expected = seen[:-1], expected[:-1]
        assert stats.chisquare(seen, expected).pvalue > 1e-3

    def test_tails(self):
        """How often 2, 3 and 4 standard deviations are exceeded, on each side."""
        z = self.make(4).draw(1 << 20, 4 * MANY) / float(1 << 20)
        for sign in (-1, 1):
            for k in (2, 3, 4):
                count = int((sign * z > k).sum())
                low, high = stats.binom(len(z), stats.norm.sf(k)).interval(0.9999)
                assert low <= count <= high

    def test_independence_of_successive_draws(self):
        z = self.make(5).draw(1 << 20, MANY).astype(float)
        assert abs(np.corrcoef(z[:-1], z[1:])[0, 1]) < 4 / sqrt(MANY)
        assert abs(np.corrcoef(np.abs(z[:-1]), np.abs(z[1:]))[0, 1]) < 4 / sqrt(MANY)

    @given(st.floats(1e-3, 1e12), st.integers(0, 2**32))
    def test_any_real_scale(self, scale, seed):
        values = self.make(seed).draw(scale, 4)
        assert (np.abs(values) <= 9 * scale + 1).all()

    @pytest.mark.parametrize("scale", [0, -1, -0.5, float("nan"), float("inf")])
    def test_bad_scales_are_named(self, scale):
        with pytest.raises(InvalidInputError, match="noise scale must be positive and finite"):
            self.make(0).draw(scale, 1)
