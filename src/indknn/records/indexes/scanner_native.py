"""The C extension as a scanner. It is optional: `levels()` is empty if it was not built."""

from __future__ import annotations

import os
from collections.abc import Callable
from importlib import import_module
from itertools import pairwise
from typing import Any, cast

import numpy as np

from indknn.errors import InvalidInputError
from indknn.records.indexes.scanner import CodeArray, Codes, Found, Rows, Scanner
from indknn.records.indexes.scanner_numpy import NumpyScanner
from indknn.types import Float32Array, Int8Array

try:
    _native: Any = import_module("indknn.records.indexes._native")
except ImportError:
    _native = None

_WORTH_A_THREAD = 1 << 21
"""Below this many bytes per thread, starting another thread costs more than it saves (10 to 20 microseconds)."""


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
