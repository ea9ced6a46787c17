"""The arithmetic of a scan, apart from what is scanned: two engines with the same answers.

`native` is the C extension, `numpy` its twin, which is always there and is what the other is tested against.
An engine proposes: it returns the records whose integer dot product reaches a bound that is a little too low.
The kernel then decides, on its own grid.
"""

from __future__ import annotations

import os
from typing import NamedTuple, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from indknn.errors import InvalidInputError
from indknn.types import Int8Array, IntArray

Int32Array: TypeAlias = npt.NDArray[np.int32]
Float32Array: TypeAlias = npt.NDArray[np.float32]
CodeArray: TypeAlias = npt.NDArray[np.uint8]

MAX_QUERIES = 64
"""Queries per pass over the store."""
MAX_FEATURES = 1 << 17
"""With more, a dot product of int8 vectors might not fit into 32 bits."""
ENGINES = ("auto", "native", "numpy")


class Found(NamedTuple):
    """Slots, ascending, and their integer dot products with the query."""

    slots: IntArray
    dots: Int32Array


class Store(NamedTuple):
    """What a scan reads: the rows below `used`. A slot whose root is NaN is never found."""

    values: Int8Array
    roots: Float32Array
    used: int


class Codes(NamedTuple):
    """One code per slot, and one per query."""

    stored: CodeArray
    queries: CodeArray


class Engine(Protocol):
    """Scans for up to 64 queries. Row i is found for query j when float32(dot) >= roots[i] * factors[j]."""

    @property
    def name(self) -> str:
        """Which engine this is, and what it runs on."""
        ...

    def scan(self, store: Store, queries: Int8Array, factors: Float32Array) -> list[Found]:
        """Among all rows."""
        ...

    def scan_equal(
        self, store: Store, queries: Int8Array, factors: Float32Array, codes: Codes, width: int
    ) -> list[Found]:
        """Among rows whose code has any unit of `width` bytes in common with the query's."""
        ...

    def scan_hamming(
        self, store: Store, queries: Int8Array, factors: Float32Array, codes: Codes, cut: int
    ) -> list[Found]:
        """Among rows whose code differs from the query's in at most `cut` bits."""
        ...

    def signs(self, values: Int8Array, planes: Int8Array) -> CodeArray:
        """Bit p of row i: is the dot product of row i and plane p at least 0? Eight planes per byte."""
        ...


def cores() -> int:
    """How many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return max(1, len(os.sched_getaffinity(0)))
    return os.cpu_count() or 1


def make_engine(name: str = "auto", threads: int | None = None) -> Engine:
    """The engine of that name; `auto` is the native one where it was built.

    The environment variable INDKNN_NATIVE=0 makes `auto` the NumPy engine.

    >>> make_engine("numpy").name
    'numpy'
    """
    from indknn.indexes import engine_native, engine_numpy  # noqa: PLC0415  (they import this module)

    if threads is not None and threads < 1:
        raise InvalidInputError(f"threads must be None or at least 1, got {threads!r}")
    if name not in ENGINES:
        raise InvalidInputError(f"engine must be one of {list(ENGINES)}, got {name!r}")
    if name == "native" and not engine_native.levels():
        raise InvalidInputError("engine 'native' was asked for, but the C extension is not built; use 'auto'")
    wanted = name == "native" or (name == "auto" and os.environ.get("INDKNN_NATIVE", "") != "0")
    if wanted and engine_native.levels():
        return engine_native.NativeEngine(threads=threads)
    return engine_numpy.NumpyEngine()
