"""The exact choice. Statistical tests run on recorded entropy, so they pass or fail for good."""

import ast
import inspect
import os
from fractions import Fraction
from itertools import count

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from indknn import choice
from indknn.baselines.bulk_noise import BulkNoise
from indknn.choice import below, bernoulli, bernoulli_exp
from indknn.errors import InvalidInputError
from indknn.noise import SecureNoise, SeededNoise

MANY = 20_000


def recorded(seed):
    """The secure source fed with reproducible bytes instead of the system's."""
    return SecureNoise(np.random.default_rng(seed).bytes)


def bulk(seed):
    return BulkNoise(np.random.default_rng(seed).bytes)


def words(seed):
    body = iter(memoryview(np.random.default_rng(seed).bytes(8 * 400_000)).cast("Q"))
    return lambda: next(body)


def exact_law(utilities, scale):
    with mpmath.workdps(60):
        weights = [mpmath.exp(mpmath.mpf(int(u) - int(max(utilities))) / scale) for u in utilities]
        return np.array([float(w / sum(weights)) for w in weights])


def chi_square(seen, law):
    """Cells with fewer than 5 expected go together; impossible ones must be empty."""
    expected = law * seen.sum()
    rare = expected < 5
    assert (seen[expected < 1e-9] == 0).all()
    seen, expected = np.append(seen[~rare], seen[rare].sum()), np.append(expected[~rare], expected[rare].sum())
    if expected[-1] < 1e-6:
        seen, expected = seen[:-1], expected[:-1]
    return 1.0 if len(seen) < 2 else stats.chisquare(seen, expected * (seen.sum() / expected.sum())).pvalue


CASES = {
    "two near each other": ([0, 1], 3),
    "equal": ([7] * 6, 1 << 20),
    "negative": ([-5, -4, -9, -5], 2),
    "scale 1": ([0, 1, 2, 3, 4], 1),
    "several scales apart": ([0, 5_000_000, 2_000_000, 4_300_000], 1_300_000),
    "huge scale": ([0, 1 << 40, 3], (1 << 200) + 1),
    "scale above a word": ([0, 1 << 62, -(1 << 62)], (1 << 63) + 12345),
    "ends of int64": ([-(1 << 63), (1 << 63) - 1, (1 << 63) - 1], 1 << 40),
    "many classes": (list(range(0, 4000, 40)), 1000),
}


@pytest.mark.parametrize("make", [recorded, SeededNoise, bulk])
@pytest.mark.parametrize("case", CASES)
def test_the_law_is_the_exact_one(make, case):
    utilities, scale = CASES[case]
    noise, row = make(11), np.array(utilities, dtype=np.int64)
    seen = np.bincount([noise.choose(row, scale) for _ in range(MANY)], minlength=len(row))
    assert chi_square(seen, exact_law(utilities, scale)) > 1e-3


def test_a_tie_asks_for_another_digit():
    """3/4 is the digit 3 << 62 and zeros for ever."""
    assert [bernoulli(lambda w=w: w << 62, 3, 4) for w in range(3)] == [True, True, True]
    digits = iter([3 << 62, 0, 0, 1])
    assert not bernoulli(lambda: next(digits), 3, 4)
    assert next(digits, None) is None


@given(st.integers(0, 2**70), st.integers(1, 2**70), st.integers(0, 2**128 - 1))
def test_a_trial_compares_with_the_fraction_itself(num, den, drawn):
    num = min(num, den)
    digits = iter([drawn >> 64, drawn & (2**64 - 1)])
    try:
        answer = bernoulli(lambda: next(digits), num, den)
    except StopIteration:  # undecided after 128 bits
        assert abs(Fraction(drawn, 2**128) - Fraction(num, den)) <= Fraction(1, 2**128)
        return
    left = sum(1 for _ in digits)
    known = Fraction(drawn >> 64 * left, 2 ** (128 - 64 * left))
    assert answer == (known < Fraction(num, den))


@pytest.mark.parametrize(
    ("num", "den"), [(0, 1), (1, 1), (1, 2), (1, 7), (5, 7), (1 << 80, (1 << 80) + 1), (1, 1 << 90)]
)
def test_trials_of_exp(num, den):
    word = words(5)
    hits = sum(bernoulli_exp(word, num, den) for _ in range(MANY))
    low, high = stats.binom(MANY, np.exp(-num / den)).interval(0.9999)
    assert low <= hits <= high
    assert hits == MANY or num > 0


def test_certain_trials_are_certain_whatever_the_word():
    for extreme in (0, 2**64 - 1):
        assert bernoulli(lambda e=extreme: e, 9, 9)
    assert not bernoulli(lambda: 2**64 - 1, 0, 9)
    zeros = iter([0, 0, 1])
    assert not bernoulli(lambda: next(zeros), 0, 9)


def test_below_rejects_the_incomplete_end():
    ends = iter([2**64 - 1, 2**64 - 4, 7])  # 2^64 mod 6 = 4
    assert below(lambda: next(ends), 6) == 1
    assert below(lambda: 2**64 - 1, 1 << 64) == 2**64 - 1


@pytest.mark.parametrize("make", [recorded, SeededNoise, bulk])
def test_one_class_and_a_winner_out_of_reach(make):
    noise = make(0)
    assert {noise.choose(np.array([-3]), s) for s in (1, 1 << 50, 1 << 100)} == {0}
    far = np.array([0, (1 << 40) + 1, 1, 2, 3])
    assert {noise.choose(far, 1) for _ in range(300)} == {1}
    assert {noise.choose(far, 1 << 20) for _ in range(300)} == {1}


@given(
    st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=12), st.integers(1, 2**70), st.integers(0, 2**32)
)
def test_any_integers(utilities, scale, seed):
    row = np.array(utilities, dtype=np.int64)
    index = SeededNoise(seed).choose(row, scale)
    assert 0 <= index < len(utilities)
    assert max(utilities) - utilities[index] < 60 * scale  # exp(-60) does not happen


def test_a_common_shift_changes_nothing_at_all():
    row = np.array([3, 50, 20, 41])
    for seed in range(50):
        assert SeededNoise(seed).choose(row, 17) == SeededNoise(seed).choose(row - 1000, 17)


def test_it_is_the_argmax_of_gumbel_noise():
    utilities, scale = np.array([0, 900, 1500, 1400]), 1000
    gumbel = np.random.default_rng(1).gumbel(scale=scale, size=(MANY, 4))
    table = [np.bincount((utilities + gumbel).argmax(axis=1), minlength=4)]
    noise = recorded(2)
    table.append(np.bincount([noise.choose(utilities, scale) for _ in range(MANY)], minlength=4))
    assert stats.chi2_contingency(np.array(table)).pvalue > 1e-3


def test_nothing_is_a_float():
    """No division but that of integers, no floating-point constant, nothing from math or NumPy in the module."""
    tree = list(ast.walk(ast.parse(inspect.getsource(choice))))
    assert not any(isinstance(node, ast.Div) for node in tree)
    assert not any(isinstance(node, ast.Constant) and isinstance(node.value, float) for node in tree)
    imported = {node.module for node in tree if isinstance(node, ast.ImportFrom)}
    assert imported == {"__future__", "collections.abc", "indknn.errors", "indknn.types"}
    assert not any(isinstance(node, ast.Import) for node in tree)


def test_seeds_repeat_and_the_system_is_read_every_time():
    row = np.arange(50)
    first, again = SeededNoise(4), SeededNoise(4)
    assert [first.choose(row, 100) for _ in range(50)] == [again.choose(row, 100) for _ in range(50)]
    calls = count()

    def spy(n):
        next(calls)
        return os.urandom(n)

    noise = SecureNoise(spy)
    noise.choose(row, 100)
    before = next(calls)
    noise.choose(row, 100)
    assert before >= 1
    assert next(calls) > before + 1  # nothing is kept from call to call, which a fork could repeat
    assert len({tuple(SecureNoise().choose(row, 1000) for _ in range(30)) for _ in range(3)}) == 3


@pytest.mark.parametrize("make", [recorded, SeededNoise, bulk])
@pytest.mark.parametrize("scale", [0, -1, 0.5, 2.0, float("nan"), Fraction(1, 2)])
def test_bad_scales_are_named(make, scale):
    with pytest.raises(InvalidInputError, match="scale of a choice must be a positive integer"):
        make(0).choose(np.array([1, 2]), scale)


@pytest.mark.parametrize("utilities", [np.zeros(0, int), np.zeros((2, 2), int), np.array([0.5, 1.0])])
def test_bad_utilities_are_refused_without_being_shown(utilities):
    with pytest.raises(InvalidInputError, match=r"utilities must be a row of integers, got \w+ of \("):
        SeededNoise(0).choose(utilities, 5)
