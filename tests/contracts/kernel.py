"""What every kernel must keep: near the real-valued one, exact on the grid, the same wherever a record sits (rule 1).

Inherit, and provide `kernels`, `real(kernel, x, q)` and `slope(kernel)`.
"""

from typing import ClassVar

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from contracts.index import selected
from indknn.core.kernels import Kernel
from indknn.core.quantise import quantise
from indknn.records.indexes import make_index
from indknn.types import GRID, tau_on_grid

seeds = st.integers(0, 2**32)


def sides(X, q):
    """The integer dot products of the records with the query, and what else a kernel looks at."""
    x, y = quantise(X), quantise(q)
    dot = (x.values.astype(np.int64) @ y.values[0].astype(np.int64)).astype(float)
    return dot, (x.root_norm, x.scale, float(y.root_norm[0]), float(y.scale[0]))


def around(rng, d):
    """A query, and records equal to it, longer, near and anywhere."""
    q = rng.normal(size=(1, d))
    return q, np.concatenate([q, q * 3, q + 0.1 * rng.normal(size=(30, d)), rng.normal(size=(30, d))])


class KernelContract:
    kernels: ClassVar[list[Kernel]] = []

    def real(self, kernel, x, q):
        """The kernel of two vectors in floating point."""
        raise NotImplementedError

    def slope(self, kernel):
        """At most how much the kernel changes per unit of length that a vector moves."""
        raise NotImplementedError

    def pytest_generate_tests(self, metafunc):
        if "kernel" in metafunc.fixturenames:
            metafunc.parametrize("kernel", self.kernels)

    @given(seeds, st.integers(2, 100))
    def test_close_to_the_real_kernel(self, kernel, seed, d):
        rng = np.random.default_rng(seed)
        X, q = rng.normal(size=(8, d)), rng.normal(size=(1, d))
        dot, others = sides(X, q)
        kappa = kernel.values(dot, *others)
        # the kernel of what is stored, to the grid
        x, y = quantise(X), quantise(q)
        rows = [v * s for v, s in zip(x.values, x.scale, strict=True)]
        stored = [self.real(kernel, row, y.values[0] * y.scale[0]) for row in rows]
        assert kappa / GRID == pytest.approx(stored, abs=3 / GRID)
        # and of what was given, to quantisation
        given_ = [self.real(kernel, v, q[0]) for v in X]
        length = np.abs(X).max() + np.abs(q).max() if kernel.uses_lengths else 1.0
        assert kappa / GRID == pytest.approx(given_, abs=2 * self.slope(kernel) * length * np.sqrt(d) / 127 + 1e-5)

    @given(seeds, st.integers(1, 40))
    def test_values_are_integers_from_zero_to_one_on_the_grid(self, kernel, seed, d):
        q, X = around(np.random.default_rng(seed), d)
        dot, others = sides(X, q)
        kappa = kernel.values(dot, *others)
        assert kappa.dtype == np.int64
        assert ((kappa >= 0) & (kappa <= GRID)).all()

    @given(seeds, st.integers(1, 40))
    def test_a_record_has_the_same_value_wherever_it_sits(self, kernel, seed, d):
        rng = np.random.default_rng(seed)
        q, X = around(rng, d)
        dot, (root, scale, *query) = sides(X, q)
        whole = kernel.values(dot, root, scale, *query)
        order = rng.permutation(len(X))
        assert (kernel.values(dot[order], root[order], scale[order], *query) == whole[order]).all()
        for i in range(len(X)):
            one = slice(i, i + 1)
            assert kernel.values(dot[one], root[one], scale[one], *query) == whole[i]

    @given(seeds, st.integers(1, 40), st.floats(0.001, 1.0))
    def test_the_quick_bound_never_hides_a_neighbour(self, kernel, seed, d, tau):
        q, X = around(np.random.default_rng(seed), d)
        dot, others = sides(X, q)
        tau = tau_on_grid(tau)
        near = kernel.values(dot, *others) >= tau
        assert (dot[near] >= kernel.least_dot(tau, *others)[near]).all()
        root_x, _, root_q, _ = others
        assert (dot[near] >= root_x[near] * root_q * kernel.least_cosine(tau)).all()

    def test_the_same_direction_has_kernel_one(self, kernel):
        x = quantise([[0.3, -0.2, 0.9]])
        index = make_index("exact", kernel, 3)
        index.add(x)
        assert selected(index, x, GRID) == [{0: GRID}]
