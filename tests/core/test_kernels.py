"""Quantisation and kernels: near the real-valued ones, and exact on the grid."""

from typing import ClassVar

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from contracts.kernel import KernelContract
from indknn.core.kernels import RBF, Cosine, make_kernel
from indknn.core.quantise import quantise
from indknn.errors import InvalidInputError
from indknn.records.indexes import make_index
from indknn.types import GRID, tau_on_grid


class TestCosine(KernelContract):
    kernels: ClassVar = [Cosine()]

    def real(self, kernel, x, q):
        return max(float(x @ q) / (np.linalg.norm(x) * np.linalg.norm(q)), 0.0)

    def slope(self, kernel):
        return 1.0


class TestRBF(KernelContract):
    kernels: ClassVar = [RBF(), RBF(0.3), RBF(2.0, normalize=False), RBF(40.0, normalize=False)]

    def real(self, kernel, x, q):
        if kernel.normalize:
            x, q = x / np.linalg.norm(x), q / np.linalg.norm(q)
        return float(np.exp(-((x - q) ** 2).sum() / kernel.bandwidth**2))

    def slope(self, kernel):
        return np.sqrt(2 / np.e) / kernel.bandwidth


def test_tau_is_never_zero_on_the_grid():
    assert tau_on_grid(1e-12) == 1
    assert tau_on_grid(1.0) == GRID
    for bad in (0.0, -0.1, 1.1, float("nan")):
        with pytest.raises(InvalidInputError, match="tau must be in"):
            tau_on_grid(bad)


@given(st.integers(0, 2**32), st.floats(1e-200, 1e200))
def test_quantisation_sees_direction_and_remembers_length(seed, factor):
    x = np.random.default_rng(seed).normal(size=(3, 7))
    a, b = quantise(x), quantise(x * factor)
    assert (np.abs(a.values.astype(int) - b.values) <= 1).all()
    assert (np.abs(a.values).max(axis=1) == 127).all()
    assert b.scale == pytest.approx(a.scale * factor)


def test_tiny_and_huge_numbers_survive():
    v = quantise([[5e-324, 0.0], [1.7e308, -1.7e308]])
    assert v.values.tolist() == [[127, 0], [127, -127]]


def test_bad_rows_are_named():
    for rows, words in (
        ([[1.0, 2.0], [0.0, 0.0]], "row 1 of Q is a zero vector"),
        ([[1.0, np.nan]], "row 0 of Q holds NaN or infinity"),
        ([[1.0, np.inf]], "row 0 of Q holds NaN"),
        ([1.0, 2.0], r"Q must be a table.*shape \(2,\)"),
    ):
        with pytest.raises(InvalidInputError, match=words):
            quantise(rows, what="Q")
    with pytest.raises(InvalidInputError, match="row 0 of X is a zero vector"):
        quantise([[1.0, 2.0]], np.array([1.0, 2.0]))  # what is left after centring
    with pytest.raises(InvalidInputError, match="center must have one entry per feature of X: 2"):
        quantise([[1.0, 2.0]], np.zeros(3))


def test_the_callers_array_is_left_alone():
    X = np.array([[1.0, 2.0]])
    quantise(X, np.array([0.5, 0.5]))
    assert X.tolist() == [[1.0, 2.0]]


def test_unknown_names_are_refused():
    with pytest.raises(InvalidInputError, match="kernel must be 'cosine' or 'rbf', got 'x'"):
        make_kernel("x")
    with pytest.raises(InvalidInputError, match="index must be one of.*got 'x'"):
        make_index("x", Cosine(), 3)
    with pytest.raises(InvalidInputError, match="bandwidth.*-1"):
        RBF(-1.0)
