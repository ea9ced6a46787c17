"""Defines a feature extractor: a *public* function from items to rows of numbers.

It must be public. The privacy guarantee starts with the features. If an extractor was trained or tuned on the private
items, every query could reveal something about them, and no budget would cover it.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any, Protocol, TypeAlias, runtime_checkable

import numpy as np
import numpy.typing as npt

from indknn.errors import IndKNNError

Items: TypeAlias = npt.NDArray[Any] | Sequence[Any]
Features: TypeAlias = npt.NDArray[np.float32]


@runtime_checkable
class Extractor(Protocol):
    """Turns images or texts into float32 features, one row per item. It gets private items one at a time (rule 1).

    Extractors that give different features must have different names, because the cache uses `name` as a key.
    """

    @property
    def name(self) -> str:
        """A short name that can be part of a file name. It says which weights, layer and preprocessing are used."""
        ...

    @property
    def n_features(self) -> int:
        """The length of a row."""
        ...

    def __call__(self, batch: Items) -> Features:
        """The features of these items."""
        ...


def needs(module: str, extra: str = "features") -> Any:
    """Import a large library when it is first used. If it is not installed, the error names the extra to install."""
    try:
        return import_module(module)
    except ImportError as error:
        raise IndKNNError(f"this extractor needs {module} ({error}): install indknn[{extra}]") from None
