"""The parts written in C, if they could be built. Each has a Python version that gives the same bits."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from importlib import import_module
from typing import Any

import numpy as np

from indknn.types import IntArray


def load(name: str) -> Any:
    """The extension with this name. None if it was not built, or if INDKNN_NATIVE=0 is in the environment."""
    if os.environ.get("INDKNN_NATIVE") != "0":
        with suppress(ImportError):
            return import_module(name)
    return None


whole: Callable[[IntArray], IntArray] = partial(np.ascontiguousarray, dtype=np.int64)
"""The array in the form that C reads: contiguous 64-bit integers."""
