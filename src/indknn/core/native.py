"""Parts of the product in C, where they could be built. Each has a twin in Python that gives the same bits."""

from __future__ import annotations

import os
from contextlib import suppress
from importlib import import_module
from typing import Any

import numpy as np

from indknn.types import IntArray


def load(name: str) -> Any:
    """The extension of this name, or None: where it was not built, or with INDKNN_NATIVE=0 in the environment."""
    if os.environ.get("INDKNN_NATIVE") != "0":
        with suppress(ImportError):
            return import_module(name)
    return None


def whole(array: IntArray) -> IntArray:
    """As C reads it: 64 bits each, one behind the other."""
    return np.ascontiguousarray(array, dtype=np.int64)
