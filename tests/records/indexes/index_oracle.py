"""Stores, queries and an oracle for the index tests."""

from __future__ import annotations

import numpy as np

from indknn.core.kernels import Kernel
from indknn.core.quantise import root_norms
from indknn.records.indexes import ExactIndex, LSHIndex, SketchIndex, scan
from indknn.records.indexes.scan import Codes, Found, NativeScanner, NumpyScanner, Rows, Scanner, levels
from indknn.types import Float32Array, Int8Array, Vectors

scan._WORTH_A_THREAD = 1  # so that small stores are shared among threads too
SCANNERS: dict[str, Scanner] = {"numpy": NumpyScanner()} | {
    f"{level}-{threads}": NativeScanner(level, threads) for level in levels() for threads in (1, 3)
}
INDEXES = {"exact": ExactIndex, "lsh": LSHIndex, "sketch": SketchIndex}
FEATURES = (1, 2, 3, 31, 63, 64, 65, 384, 768, 1041, 2500)


def vectors(values: Int8Array, scale: float = 0.01) -> Vectors:
    """Vectors of these values; a zero row gets one entry, since it has no direction."""
    values = values.copy()
    values[~values.any(axis=1), 0] = 1
    return Vectors(values, root_norms(values), np.full(len(values), scale))


def some(rng: np.random.Generator, n: int, d: int, *, extreme: bool = False) -> Vectors:
    """Random vectors over the whole range of int8, or all of them ±127: the largest sums there are."""
    values = rng.choice([-127, 127], (n, d)) if extreme else rng.integers(-127, 128, (n, d))
    return vectors(values.astype(np.int8))


def near(rng: np.random.Generator, centre: Int8Array, n: int, spread: float) -> Vectors:
    """Vectors about a centre."""
    values = centre.astype(np.float64) + rng.normal(0, spread, (n, len(centre)))
    return vectors(np.clip(np.rint(values), -127, 127).astype(np.int8))


def make(name: str, kernel: Kernel, d: int, scanner: Scanner, **options: object) -> ExactIndex:
    """An index that runs on that very scanner."""
    index = INDEXES[name](kernel, d, **options)  # type: ignore[arg-type]
    index.scanner = scanner
    return index


def brute_scan(store: Rows, queries: Int8Array, factors: Float32Array, passes: np.ndarray | None = None) -> list[Found]:
    """The scan by its definition, in int64."""
    rows = store.values[: store.used].astype(np.int64)
    result = []
    for j, (query, factor) in enumerate(zip(queries.astype(np.int64), factors, strict=True)):
        dots = rows @ query
        keep = dots.astype(np.float32) >= store.roots[: store.used] * factor
        if passes is not None:
            keep &= passes[j]
        result.append(Found(np.flatnonzero(keep), dots[keep].astype(np.int32)))
    return result


def bits_of(codes: Codes, used: int) -> np.ndarray:
    """Hamming distances, query by slot."""
    stored, asked = (np.unpackbits(c, axis=1) for c in (codes.stored[:used], codes.queries))
    return (asked[:, None, :] != stored[None]).sum(axis=2)


def assert_same(left: list[Found], right: list[Found]) -> None:
    """The same slots and dots, query by query."""
    assert len(left) == len(right)
    for a, b in zip(left, right, strict=True):
        np.testing.assert_array_equal(a.slots, b.slots)
        np.testing.assert_array_equal(a.dots, b.dots)
        assert a.slots.dtype == np.int64
        assert a.dots.dtype == np.int32
