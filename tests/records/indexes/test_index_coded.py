"""LSH and sketch: candidates are a function of (x_i, q, seed); parameters, recall, and the public cut."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest

from contracts.index import selected
from indknn.core.kernels import RBF, Cosine
from indknn.errors import InvalidInputError
from indknn.records.indexes import make_index
from indknn.records.indexes.hashed import hamming_cut, hyperplanes
from indknn.types import tau_on_grid
from records.indexes.index_oracle import SCANNERS, make, near, some

TAU = tau_on_grid(0.7)


def test_planes_are_a_function_of_the_seed():
    planes = hyperplanes(64, 10, seed=5)
    assert planes.dtype == np.int8
    np.testing.assert_array_equal(planes, hyperplanes(64, 10, seed=5))
    np.testing.assert_array_equal(planes[:, :], hyperplanes(640, 1, seed=5).reshape(64, 10))
    assert (planes != hyperplanes(64, 10, seed=6)).any()
    # Pinned: a seed that is written down must mean the same planes for ever.
    digest = hashlib.sha256(hyperplanes(240, 384, seed=0).tobytes()).hexdigest()
    assert digest.startswith("989b2d5007a836be")


def test_planes_look_gaussian():
    planes = hyperplanes(512, 512, seed=1).astype(np.float64)
    assert abs(planes.mean()) < 0.5
    assert 35 < planes.std() < 39
    assert abs((planes**4).mean() / (planes**2).mean() ** 2 - 3) < 0.4
    with pytest.raises(InvalidInputError, match="seed"):
        hyperplanes(1, 1, seed=None)  # type: ignore[arg-type]


@pytest.mark.parametrize(("n_tables", "n_bits"), [(30, 8), (5, 3), (7, 12), (1, 16), (64, 1)])
@pytest.mark.parametrize("scanner", list(SCANNERS))
def test_lsh_candidates_share_a_bucket(scanner, n_tables, n_bits):
    rng = np.random.default_rng(0)
    held, queries = some(rng, 400, 29), some(rng, 3, 29)
    index = make("lsh", Cosine(), 29, SCANNERS[scanner], n_tables=n_tables, n_bits=n_bits, seed=3)
    index.add(held)
    planes = hyperplanes(n_tables * n_bits, 29, seed=3).astype(np.int64)

    def buckets(values):
        return (values.astype(np.int64) @ planes.T >= 0).reshape(len(values), n_tables, n_bits)

    same = (buckets(queries.values)[:, None] == buckets(held.values)[None]).all(axis=3).any(axis=2)
    for got, want in zip(index.candidates(queries, TAU), same, strict=True):
        assert got.tolist() == np.flatnonzero(want).tolist()


@pytest.mark.parametrize("scanner", list(SCANNERS))
def test_sketch_candidates_are_within_the_cut(scanner):
    rng = np.random.default_rng(0)
    held, queries = near(rng, some(rng, 1, 29).values[0], 400, 60.0), some(rng, 3, 29)
    index = make("sketch", Cosine(), 29, SCANNERS[scanner], n_bits=128, seed=3)
    index.add(held)
    planes = hyperplanes(128, 29, seed=3).astype(np.int64)
    sides = [v.astype(np.int64) @ planes.T >= 0 for v in (queries.values, held.values)]
    within = (sides[0][:, None] != sides[1][None]).sum(axis=2) <= index.cut(TAU)
    for got, want in zip(index.candidates(queries, TAU), within, strict=True):
        assert got.tolist() == np.flatnonzero(want).tolist()


@pytest.mark.parametrize("kernel", [Cosine(), RBF()], ids=["cosine", "rbf"])
def test_the_sketch_keeps_its_recall(kernel):
    rng = np.random.default_rng(2)
    centre = some(rng, 1, 96).values[0]
    index = make_index("sketch", kernel, 96, seed=11)
    index.add(near(rng, centre, 4000, 80.0))
    queries = near(rng, centre, 20, 80.0)
    tau = tau_on_grid(0.5)
    assert index.recall(queries, tau) >= 0.99
    assert 0.0 < make("lsh", kernel, 96, SCANNERS["numpy"]).recall(queries, tau) <= 1.0


def test_recall_is_that_of_the_exact_index():
    rng = np.random.default_rng(4)
    centre = some(rng, 1, 40).values[0]
    held, queries = near(rng, centre, 500, 90.0), near(rng, centre, 6, 90.0)
    lsh, exact = make_index("lsh", Cosine(), 40, n_tables=4), make_index("exact", Cosine(), 40)
    lsh.add(held)
    exact.add(held)
    tau = tau_on_grid(0.3)
    found, there = ([set(near) for near in selected(index, queries, tau)] for index in (lsh, exact))
    assert all(a <= b for a, b in zip(found, there, strict=True))
    assert lsh.recall(queries, tau) == sum(map(len, found)) / sum(map(len, there)) < 1.0


def test_the_cut_is_public_and_grows_with_the_angle():
    cuts = [hamming_cut(c, 512, 0.99) for c in (1.0, 0.9, 0.5, 0.0, -0.5, -1.0)]
    assert cuts == sorted(cuts)
    assert hamming_cut(0.5, 512, 0.9) < hamming_cut(0.5, 512, 0.999)
    empty, full = (make_index("sketch", Cosine(), 8, seed=1) for _ in range(2))
    full.add(some(np.random.default_rng(0), 50, 8))
    assert empty.cut(TAU) == full.cut(TAU)


@pytest.mark.parametrize(
    ("name", "options", "says"),
    [
        ("lsh", {"n_tables": 0}, "n_tables must be .* got 0"),
        ("lsh", {"n_bits": 17}, "n_bits must be .* got 17"),
        ("lsh", {"seed": None}, "seed must be an integer, got None"),
        ("sketch", {"n_bits": 100}, "n_bits must be .* got 100"),
        ("sketch", {"recall": 1.0}, "recall must be .* got 1.0"),
        ("exact", {"n_bits": 8}, "does not take"),
        ("hnsw", {}, "index must be one of"),
    ],
)
def test_what_is_not_allowed_is_refused(name, options, says):
    with pytest.raises(InvalidInputError, match=says):
        make_index(name, Cosine(), 8, **options)


def test_the_sketch_refuses_a_kernel_of_distances():
    with pytest.raises(InvalidInputError, match="normalize=False"):
        make_index("sketch", RBF(normalize=False), 8)
