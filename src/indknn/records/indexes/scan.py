"""The exact index: records by slot, two scanners that give the same answers, and the scan of all records.

A record keeps its slot while it exists. New records take freed slots first, so nothing is moved or rebuilt when records
come and go. Besides its features, a record takes 4 bytes here: |x| in float32 for the scan, where NaN marks a free
slot. |x| is computed exactly for the few records that a query comes near. With many features that needs 4 more bytes:
|x|² as an integer. Kernels that use lengths also need the scale, and hashing indexes a code.

A scanner compares every record with every query by integer dot products. `native` is the C extension, which is
optional. `numpy` is always available, and tests compare `native` with it. Their speed is limited by reading memory, so
they read each record once for up to 64 queries. A scanner makes proposals: it returns the records whose dot product
reaches a bound that is a little too low. Then the kernel decides, on its grid.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import partial
from importlib import import_module
from itertools import pairwise
from typing import Any, NamedTuple, TypeAlias, cast

import numpy as np
import numpy.typing as npt

from indknn.core.kernels import Cosine, Kernel
from indknn.core.quantise import ALIGNED, EXACT_FEATURES, _votes, aligned_zeros, integer_dots, whole_product
from indknn.errors import InvalidInputError
from indknn.types import GRID, BoolArray, Float32Array, FloatArray, Int8Array, IntArray, Selection, Vectors

try:
    _native: Any = import_module("indknn.records.indexes._native")
except ImportError:
    _native = None

Int32Array: TypeAlias = npt.NDArray[np.int32]
CodeArray: TypeAlias = npt.NDArray[np.uint8]

MAX_QUERIES = 64
"""Queries per pass over the records."""
MAX_FEATURES = 1 << 17
"""With more, a dot product of int8 vectors might not fit into 32 bits."""

SCANNERS = ("auto", "native", "numpy")
_WORTH_A_THREAD = 1 << 21
"""Below this many bytes per thread, starting another thread costs more than it saves (10 to 20 microseconds)."""
Part: TypeAlias = tuple[IntArray, IntArray, Int32Array]  # which query, which slot, which dot product
_TILE = 1 << 18  # numbers per tile for one query: a float32 copy of it stays in cache
_LARGE_TILE = 1 << 21  # for a batch
_BITS_OF_BYTE = np.array([value.bit_count() for value in range(256)], dtype=np.uint8)


class Found(NamedTuple):
    """Slots, ascending, and their integer dot products with the query."""

    slots: IntArray
    dots: Int32Array


class Rows(NamedTuple):
    """The arrays that a scan reads: the rows below `used`. A slot whose root is NaN is never found."""

    values: Int8Array
    roots: Float32Array
    used: int


class Codes(NamedTuple):
    """One code per slot, and one per query."""

    stored: CodeArray
    queries: CodeArray


_SHORT = 255
"""With so few features |x|² is below 2^22. Then |x| in float32 determines it: its square is off by less than 1/2."""
_FIRST_CAPACITY = 64
_MANY_BYTES = 1 << 24
_ARRAYS = ("values", "squared", "roots", "scale", "codes")
NO_SCALES: FloatArray = np.ones(1)  # broadcasts to any length


class FreeSlots:
    """Assigns slots. Freed ones are taken first, the latest first."""

    def __init__(self) -> None:
        self.used = 0  # all slots below this have been used at least once
        self._free: list[int] = []

    def __len__(self) -> int:
        return self.used - len(self._free)

    def take(self, n: int) -> IntArray:
        """A slot for each of n records."""
        recycled = [self._free.pop() for _ in range(min(n, len(self._free)))]
        first, self.used = self.used, self.used + n - len(recycled)
        if not recycled:
            return np.arange(first, self.used)
        return np.array([*recycled, *range(first, self.used)], dtype=np.int64)

    def give_back(self, slots: IntArray) -> None:
        """Nothing is in these slots any more."""
        self._free.extend(slots.tolist())


class Slots(FreeSlots):
    """Quantised records by slot.

    >>> slots = Slots(2)
    >>> slots.add(Vectors(np.array([[3, 4]], dtype=np.int8), np.array([5.0]), np.array([1.0]))).tolist()
    [0]
    >>> slots.root_norm(np.array([0])).tolist()
    [5.0]
    """

    def __init__(self, n_features: int, *, with_scale: bool = False, code_bytes: int = 0):
        if not 1 <= n_features <= MAX_FEATURES:
            raise InvalidInputError(f"n_features must be in [1, {MAX_FEATURES}], got {n_features!r}")
        super().__init__()
        self.with_scale = with_scale
        self.values: Int8Array = np.zeros((0, n_features), dtype=np.int8)
        self.squared: Int32Array = np.zeros((0, int(n_features > _SHORT)), dtype=np.int32)
        self.roots: Float32Array = np.zeros(0, dtype=np.float32)
        self.scale: FloatArray = np.zeros((0, int(with_scale)))
        self.codes: CodeArray = np.zeros((0, code_bytes), dtype=np.uint8)

    @property
    def rows(self) -> Rows:
        """The arrays that a scan reads."""
        return Rows(self.values, self.roots, self.used)

    @property
    def bytes_per_slot(self) -> int:
        """How many bytes a record takes, including its features."""
        return sum(
            array.itemsize * int(np.prod(array.shape[1:])) for array in (getattr(self, name) for name in _ARRAYS)
        )

    def root_norm(self, slots: IntArray | slice) -> FloatArray:
        """|x| of these records, exactly as it was when they were added."""
        result: FloatArray
        if self.squared.shape[1]:
            result = np.sqrt(self.squared[slots, 0], dtype=np.float64)
        else:
            result = self.roots[slots].astype(np.float64)
            result = np.sqrt(np.rint(result * result))
        return result

    def scales(self, slots: IntArray | slice) -> FloatArray:
        """The scales of these records, if the kernel uses them."""
        return self.scale[slots, 0] if self.with_scale else NO_SCALES

    def add(self, vectors: Vectors, codes: CodeArray | None = None) -> IntArray:
        """Store the vectors and return the slot of each."""
        before, values = self.used, vectors.values
        if vectors.spare and not before and values.nbytes >= _MANY_BYTES and values.ctypes.data % ALIGNED == 0:
            self.values = values  # a copy would take as much memory again
        slots = self.take(len(values))
        self._reserve(self.used, before)
        fresh = self.used - before == len(slots)
        where: slice | IntArray = slice(before, self.used) if fresh else slots
        if self.values is not values:
            self.values[where] = values
        if self.squared.shape[1]:
            self.squared[where, 0] = np.rint(vectors.root_norm * vectors.root_norm)  # exact: a root of an integer
        self.roots[where] = vectors.root_norm
        if self.with_scale:
            self.scale[where, 0] = vectors.scale
        if codes is not None:
            self.codes[where] = codes
        return slots

    def expect(self, records: int) -> None:
        """Reserve room for this many. Pages that are never written take no memory."""
        self._reserve(records, self.used)

    def remove(self, slots: IntArray) -> None:
        """Free the slots and overwrite their contents."""
        where = int(slots[0]) if len(slots) == 1 else slots  # one index is much quicker than a list of one
        self.values[where] = 0
        self.squared[where] = 0
        self.roots[where] = np.nan
        self.scale[where] = 0.0
        self.codes[where] = 0
        self.give_back(slots)

    def _reserve(self, capacity: int, used: int) -> None:
        have = len(self.roots)
        if capacity <= have:
            return
        capacity = max(capacity, have + have // 2, _FIRST_CAPACITY)
        for name in _ARRAYS:
            old = getattr(self, name)
            if len(old) == capacity:  # just taken over
                continue
            new = aligned_zeros((capacity, *old.shape[1:]), old.dtype)
            new[:used] = old[:used]
            old[:] = 0  # the old copy would otherwise keep forgotten features in freed memory
            setattr(self, name, new)

    def __getstate__(self) -> dict[str, Any]:
        state = self.__dict__.copy()
        state.update({name: state[name][: self.used] for name in _ARRAYS})
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        for name in _ARRAYS:  # these may be read-only maps, and not aligned
            new = aligned_zeros(state[name].shape, state[name].dtype)
            new[:] = state[name]
            setattr(self, name, new)


def make_scanner(name: str = "auto", threads: int | None = None) -> Scanner:
    """The scanner with this name. `auto` is the native scanner if it was built, else the NumPy scanner.

    The environment variable INDKNN_NATIVE=0 makes `auto` the NumPy scanner.

    >>> make_scanner("numpy").name
    'numpy'
    """
    if threads is not None and threads < 1:
        raise InvalidInputError(f"threads must be None or at least 1, got {threads!r}")
    if name not in SCANNERS:
        raise InvalidInputError(f"scanner must be one of {list(SCANNERS)}, got {name!r}")
    if name == "native" and not levels():
        raise InvalidInputError("scanner 'native' needs the C extension, which was not built; use 'auto'")
    wanted = name == "native" or (name == "auto" and os.environ.get("INDKNN_NATIVE", "") != "0")
    return NativeScanner(threads=threads) if wanted and levels() else NumpyScanner()


def levels() -> tuple[str, ...]:
    """The instruction sets that the extension can use on this machine, best last.

    >>> levels() == () or levels()[0] == "scalar"
    True
    """
    return () if _native is None else cast("tuple[str, ...]", _native.levels())


class NativeScanner:
    """Scans in C. `level` names an instruction set, for tests; `threads` is at most how many cores to use."""

    def __init__(self, level: str | None = None, threads: int | None = None):
        names = levels()
        if level is not None and level not in names:
            raise InvalidInputError(f"level must be one of {list(names)} on this machine, got {level!r}")
        self.level = names[-1] if level is None else level
        self.threads = threads
        self._level = names.index(self.level)

    @property
    def name(self) -> str:
        """'native' and the instruction set."""
        return f"native ({self.level})"

    def __reduce__(self) -> tuple[Callable[[int | None], Scanner], tuple[int | None]]:
        return _restored, (self.threads,)

    def scan(self, rows: Rows, queries: Int8Array, factors: Float32Array) -> list[Found]:
        """Among all rows."""
        work = rows.used * queries.size
        return _found(_native.scan(*self._common(rows, queries, factors, work)))

    def scan_equal(
        self, rows: Rows, queries: Int8Array, factors: Float32Array, codes: Codes, width: int
    ) -> list[Found]:
        """Among rows whose code has any unit of `width` bytes in common with the query's."""
        common = self._common(rows, queries, factors, rows.used * codes.queries.size)
        return _found(_native.scan_equal(*common, *codes, codes.stored.shape[1], width))

    def scan_hamming(
        self, rows: Rows, queries: Int8Array, factors: Float32Array, codes: Codes, cut: int
    ) -> list[Found]:
        """Among rows whose code differs from the query's in at most `cut` bits."""
        common = self._common(rows, queries, factors, rows.used * codes.queries.size)
        return _found(_native.scan_hamming(*common, *codes, codes.stored.shape[1], cut))

    def signs(self, values: Int8Array, planes: Int8Array) -> CodeArray:
        """Bit p of row i: is the dot product of row i and plane p at least 0?"""
        n, d = values.shape
        threads = self._threads(n * d * (1 + len(planes) // 64))
        bits = _native.signs(np.ascontiguousarray(values), n, d, planes, threads, self._level)
        return np.frombuffer(bits, dtype=np.uint8).reshape(n, len(planes) // 8)

    def _common(self, rows: Rows, queries: Int8Array, factors: Float32Array, work: int) -> tuple[object, ...]:
        queries = np.ascontiguousarray(queries)
        n, d = rows.used, queries.shape[1]
        return rows.values, n, d, queries, rows.roots, factors, self._threads(work), self._level

    def _threads(self, work: int) -> int:
        return max(1, min(self.threads or cores(), work // _WORTH_A_THREAD))


def cores() -> int:
    """How many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return max(1, len(os.sched_getaffinity(0)))
    return os.cpu_count() or 1


def _restored(threads: int | None) -> Scanner:
    """A pickled scanner may be loaded on another machine. Then it uses the best instruction set there."""
    return NativeScanner(threads=threads) if levels() else NumpyScanner()


def _found(result: tuple[bytes, bytes, bytes]) -> list[Found]:
    counts, slots, dots = (np.frombuffer(part, dtype=kind) for part, kind in zip(result, "qqi", strict=True))
    if len(counts) == 1:
        return [Found(slots, dots)]
    ends = np.cumsum(counts).tolist()
    return [Found(slots[a:b], dots[a:b]) for a, b in pairwise([0, *ends])]  # np.split takes ten times as long


_NOTHING = Found(np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int32))


class NumpyScanner:
    """Scans tiles of rows, which are converted to float32 in the cache. It needs no compiler.

    It relies on `quantise.integer_dots`: a float32 product of int8 values is exact.
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
    size = _TILE if n_queries == 1 else _LARGE_TILE
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


Scanner: TypeAlias = NativeScanner | NumpyScanner
"""Scans for up to 64 queries. Row i is found for query j when float32(dot) >= roots[i] * factors[j]."""
Scan: TypeAlias = Callable[[Rows, Float32Array, Vectors, int], list[Found]]
_SLACK = 2.0**-20  # float32 rounds four times on the way to the bound, each by at most 2^-24


class ExactIndex:
    """Scan of all records, for up to 64 queries at a time.

    `scanner` is 'auto', 'native' or 'numpy'. `threads` limits the cores of one scan, None for all.
    """

    def __init__(self, kernel: Kernel, n_features: int, *, scanner: str = "auto", threads: int | None = None):
        self.kernel = kernel
        self.n_features = n_features
        self.scanner, self.threads = make_scanner(scanner, threads), threads
        self.slots = Slots(n_features, with_scale=kernel.uses_lengths)

    def __len__(self) -> int:
        return len(self.slots)

    def add(self, vectors: Vectors) -> IntArray:
        """Store the records; the slot of each."""
        return self.slots.add(vectors)

    def remove(self, slots: IntArray) -> None:
        """Forget the records in these slots."""
        self.slots.remove(slots)

    def search(self, queries: Vectors, tau: int) -> list[Selection]:
        """The records with κ >= tau, query by query."""
        return self._search(queries, tau, self._scan)

    def _search(self, queries: Vectors, tau: int, scan: Scan) -> list[Selection]:
        step, n = 1 if self.kernel.uses_lengths else MAX_QUERIES, len(queries.values)
        found: list[Selection] = []
        for start in range(0, n, step):
            block = queries if n <= step else queries[slice(start, start + step)]
            near = scan(*self._bounded(block, tau), block, tau)
            found += [self._decide(proposed, block, i, tau) for i, proposed in enumerate(near)]
        return found

    def _scan(self, rows: Rows, factors: Float32Array, block: Vectors, tau: int) -> list[Found]:
        """The records that may have κ >= tau, and perhaps a few more."""
        return self.scanner.scan(rows, block.values, factors)

    def _bounded(self, block: Vectors, tau: int) -> tuple[Rows, Float32Array]:
        """Row i may have κ >= tau with query j only if its dot product reaches roots[i] * factors[j]."""
        s = self.slots
        if self.kernel.uses_lengths:
            return Rows(s.values, self._bounds(block, tau), s.used), np.ones(1, dtype=np.float32)
        least = block.root_norm * self.kernel.least_cosine(tau)
        return s.rows, (least - np.abs(least) * _SLACK).astype(np.float32)

    def _bounds(self, query: Vectors, tau: int) -> Float32Array:
        """For a kernel that uses lengths: the bound of each record. NaN if there is none."""
        s, every = self.slots, slice(0, self.slots.used)
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):  # free slots have scale 0
            root_q, scale_q = float(query.root_norm[0]), float(query.scale[0])
            least = self.kernel.least_dot(tau, s.root_norm(every), s.scales(every), root_q, scale_q)
            bounds = (least - np.abs(least) * _SLACK).astype(np.float32)
        bounds[np.isnan(s.roots[every])] = np.nan
        return bounds

    def _decide(self, found: Found, block: Vectors, i: int, tau: int) -> Selection:
        s, slots = self.slots, found.slots
        root_q, scale_q = float(block.root_norm[i]), float(block.scale[i])
        if _votes is not None and isinstance(self.kernel, Cosine):
            *near, n = _votes.cosines(slots, found.dots, s.squared, s.roots, root_q, GRID, tau)
            return Selection(*(np.frombuffer(part, np.int64, n) for part in near))
        dots = found.dots.astype(np.float64)
        kappa = self.kernel.values(dots, s.root_norm(slots), s.scales(slots), root_q, scale_q)
        chosen = kappa >= tau
        return Selection(slots[chosen], kappa[chosen])
