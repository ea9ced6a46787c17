"""What a feature extractor is: a *public* function from items to rows of numbers.

Public matters. The promise to the owners of the data holds for the features as they are given; an extractor
trained or tuned on the private items would tell of them in every query.
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
    """Turns images or texts into float32 features, one row per item. Private items come one at a time (rule 1).

    `name` tells two extractors apart that would give different features; the cache goes by it.
    """

    @property
    def name(self) -> str:
        """Short, fit for a file name: which weights, which layer, which preprocessing."""
        ...

    @property
    def n_features(self) -> int:
        """The length of a row."""
        ...

    def __call__(self, batch: Items) -> Features:
        """The features of these items."""
        ...


def needs(module: str, extra: str = "features") -> Any:
    """Import something heavy where it is used, or say which extra has it."""
    try:
        return import_module(module)
    except ImportError as error:
        raise IndKNNError(f"this extractor needs {module} ({error}): install indknn[{extra}]") from None
