"""The bulk sampler: the normal distribution, its rounding, and the branches that chance never reaches."""

from fractions import Fraction

import numpy as np
import pytest
from scipy import stats

from indknn.errors import InvalidInputError
from indknn_lab.baselines.bulk_noise import BulkNoise, _below, _bernoulli_exp_half, _less, bulk_noise_from


def source(seed):
    return np.random.default_rng(seed).bytes


@pytest.mark.parametrize("scale", [1000, 2**27 + 5, Fraction(10**7, 3)])
def test_normal(scale):
    z = BulkNoise(source(1)).draw(scale, 400_000) / float(scale)
    assert stats.kstest(z, "norm").pvalue > 1e-3
    assert abs(z.mean()) < 5 / np.sqrt(400_000)
    assert abs(z.var() - 1) < 5 * np.sqrt(2 / 400_000)
    assert abs(stats.kurtosis(z)) < 5 * np.sqrt(24 / 400_000)
    assert abs(np.corrcoef(z[1:], z[:-1])[0, 1]) < 5 / np.sqrt(400_000)


@pytest.mark.parametrize("scale", [0.3, 1.0, 2.5])
def test_rounded_to_integers(scale):
    n = 300_000
    values = BulkNoise(source(2)).draw(scale, n)
    assert values.dtype == np.int64
    for j in range(-4, 5):
        p = stats.norm.cdf((j + 0.5) / scale) - stats.norm.cdf((j - 0.5) / scale)
        assert abs(np.mean(values == j) - p) < 5 * np.sqrt(p / n) + 1e-6


def test_rounding_where_floats_cannot_decide():
    """At a scale of 2^49 nearly every value is within a float's error of a half: integers decide."""
    values = BulkNoise(source(3)).draw(2**49, 3000)
    assert stats.kstest(values / 2.0**49, "norm").pvalue > 1e-3
    assert len(np.unique(values & 7)) == 8
    k, x = np.array([0, 2]), np.array([1 << 63, 1 << 62], dtype=np.uint64)
    assert BulkNoise(lambda n: b"\0" * n)._rounded(k, x, 4, 1).tolist() == [2, 9]
    # (0 + 1/2)·3 = 1.5 plus further digits: rounds up, as nothing below the half is possible any more.
    assert BulkNoise(source(4))._rounded(k[:1], x[:1], 3, 1).tolist() == [2]


def test_bernoulli():
    words = BulkNoise(source(5))._words
    assert abs(_bernoulli_exp_half(words, 400_000).mean() - np.exp(-0.5)) < 5 * 0.5 / np.sqrt(400_000)


def test_equal_words_are_decided_by_further_ones():
    answers = iter([[5], [5], [1], [2]])  # equal once more, then less
    word = lambda n: np.array(next(answers), dtype=np.uint64)  # noqa: E731
    a = np.array([7, 9, 1], dtype=np.uint64)
    b = np.array([8, 9, 0], dtype=np.uint64)
    assert _less(word, a, b).tolist() == [True, True, False]


def test_below_rejects_the_incomplete_end():
    answers = iter([[2**64 - 1, 2**64 - 1], [7]])
    word = lambda n: np.array(next(answers), dtype=np.uint64)  # noqa: E731
    assert _below(word, np.array([6, 4])).tolist() == [1, 3]  # 2^64 mod 6 = 4: rejected; 4 divides 2^64


def test_sizes_and_scales():
    assert BulkNoise().draw(5, 0).shape == (0,)
    assert BulkNoise().draw(5, 1).shape == (1,)
    for bad in (0, -1.0, float("nan"), float("inf"), 2**51):
        with pytest.raises(InvalidInputError, match="noise scale"):
            BulkNoise().draw(bad, 3)


def test_secure_unless_seeded():
    assert bulk_noise_from(None).secure
    assert not bulk_noise_from(3).secure
    assert not np.array_equal(BulkNoise().draw(1000, 50), BulkNoise().draw(1000, 50))
