"""Which scanner to use on this machine."""

from __future__ import annotations

import os

from indknn.errors import InvalidInputError
from indknn.records.indexes.scanner import Scanner
from indknn.records.indexes.scanner_native import NativeScanner, levels
from indknn.records.indexes.scanner_numpy import NumpyScanner

SCANNERS = ("auto", "native", "numpy")


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
