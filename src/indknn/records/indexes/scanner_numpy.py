"""The scan in NumPy. It needs no compiler, and tests compare the native scanner with it.

It relies on `quantise.integer_dots`: a float32 product of int8 values is exact.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from importlib import import_module
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from indknn.core.quantise import EXACT_FEATURES, integer_dots, whole_product
from indknn.records.indexes.scanner import CodeArray, Codes, Found, Int32Array, Rows
from indknn.types import BoolArray, Float32Array, FloatArray, Int8Array, IntArray

try:  # the extra "simd": wheels for many machines, and over twice as fast as NumPy for one query
    _cdist: Any = import_module("simsimd").cdist
except ImportError:
    _cdist = None

Part: TypeAlias = tuple[IntArray, IntArray, Int32Array]  # which query, which slot, which dot product
_TILE = 1 << 18  # numbers per tile for one query: a float32 copy of it stays in cache
_LARGE_TILE = 1 << 21  # for a batch, and for simsimd, which makes no copy
_BITS_OF_BYTE = np.array([value.bit_count() for value in range(256)], dtype=np.uint8)
_NOTHING = Found(np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int32))


class NumpyScanner:
    """Scans tiles of rows, which are converted to float32 in the cache.

    Extra threads for a single query were tried and did not help. BLAS divides a batch by itself.
    """

    @property
    def name(self) -> str:
        """'numpy'."""
        return "numpy"

    def scan(self, rows: Rows, queries: Int8Array, factors: Float32Array) -> list[Found]:
        """Among all rows."""

        def found(tile: slice) -> Part:
            dots = tile_dots(rows.values[tile], queries)
            passed = dots.astype(np.float32, copy=False) >= rows.roots[tile] * factors[:, None]
            flat = np.flatnonzero(passed)  # much quicker than the same in two dimensions
            which, near = np.divmod(flat, passed.shape[1])
            return which, near + tile.start, dots.reshape(-1)[flat].astype(np.int32)

        tiles = _tiles(rows.used, queries.shape[1], len(queries))
        return _by_query([found(tile) for tile in tiles], len(queries))

    def scan_equal(
        self, rows: Rows, queries: Int8Array, factors: Float32Array, codes: Codes, width: int
    ) -> list[Found]:
        """Among rows whose code has any unit of `width` bytes in common with the query's."""
        kind: type[np.unsignedinteger[Any]] = np.uint8 if width == 1 else np.uint16
        stored, asked = codes.stored.view(kind), np.ascontiguousarray(codes.queries).view(kind)

        def near(tile: slice, j: int) -> BoolArray:
            same: BoolArray = (stored[tile] == asked[j]).any(axis=1)
            return same

        return [self._among(rows, queries[j], factors[j], partial(near, j=j)) for j in range(len(queries))]

    def scan_hamming(
        self, rows: Rows, queries: Int8Array, factors: Float32Array, codes: Codes, cut: int
    ) -> list[Found]:
        """Among rows whose code differs from the query's in at most `cut` bits."""
        stored, asked = codes.stored.view(np.uint64), np.ascontiguousarray(codes.queries).view(np.uint64)

        def near(tile: slice, j: int) -> BoolArray:
            return ones(stored[tile] ^ asked[j]) <= cut

        return [self._among(rows, queries[j], factors[j], partial(near, j=j)) for j in range(len(queries))]

    def signs(self, values: Int8Array, planes: Int8Array) -> CodeArray:
        """Bit p of row i: is the dot product of row i and plane p at least 0?"""
        bits = np.empty((len(values), len(planes) // 8), dtype=np.uint8)
        for low in range(0, len(values), 4096):
            dots = integer_dots(values[low : low + 4096], planes)
            bits[low : low + 4096] = np.packbits(dots >= 0, axis=1, bitorder="little")
        return bits

    def _among(self, rows: Rows, query: Int8Array, factor: np.float32, near: Callable[[slice], BoolArray]) -> Found:
        parts = [_NOTHING]
        for tile in _tiles(rows.used, 64):
            slots = np.flatnonzero(near(tile)) + tile.start
            dots = tile_dots(rows.values[slots], query[None])[0]
            passed = dots.astype(np.float32, copy=False) >= rows.roots[slots] * factor
            parts.append(Found(slots[passed], dots[passed].astype(np.int32)))
        return Found(*(np.concatenate(arrays) for arrays in zip(*parts, strict=True)))


def tile_dots(rows: Int8Array, queries: Int8Array) -> npt.NDArray[np.floating]:
    """The dot products of each query with a tile of rows: integers, in float32 where they fit.

    >>> tile_dots(np.array([[3, 4]], dtype=np.int8), np.array([[1, 2]], dtype=np.int8)).tolist()
    [[11.0]]
    """
    if len(queries) == 1 and _cdist is not None and len(rows):
        exact: FloatArray = np.asarray(_cdist(rows, queries, "dot"), dtype=np.float64).T
        return exact
    if rows.shape[1] > EXACT_FEATURES:
        return integer_dots(queries, rows)
    if len(queries) == 1:
        return whole_product(rows.astype(np.float32), queries[0].astype(np.float32))[None]
    return whole_product(queries.astype(np.float32), rows.astype(np.float32).T)


def ones(words: npt.NDArray[np.uint64]) -> IntArray:
    """How many bits are set in each row."""
    count = getattr(np, "bitwise_count", None)  # since NumPy 2.0
    bits = _BITS_OF_BYTE[words.view(np.uint8)] if count is None else count(words)
    total: IntArray = bits.sum(axis=1, dtype=np.int64)
    return total


def _tiles(used: int, n_features: int, n_queries: int = 1) -> Iterator[slice]:
    size = _TILE if n_queries == 1 and _cdist is None else _LARGE_TILE
    step = max(64, size // n_features)
    return (slice(low, min(low + step, used)) for low in range(0, used, step))


def _by_query(parts: list[Part], n_queries: int) -> list[Found]:
    """The finds of all tiles, query by query. Within a query they stay in order."""
    if not parts:
        return [_NOTHING] * n_queries
    which, slots, dots = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    if n_queries == 1:
        return [Found(slots, dots)]
    order = np.argsort(which, kind="stable")
    ends = np.cumsum(np.bincount(which, minlength=n_queries))[:-1]
    return [Found(s, d) for s, d in zip(np.split(slots[order], ends), np.split(dots[order], ends), strict=True)]
