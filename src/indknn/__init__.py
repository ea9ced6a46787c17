"""Private predictions from sensitive data that keeps changing.

>>> from indknn import IndKNNClassifier, budget
>>> round(budget(epsilon=1.0, delta=1e-5), 4)
0.0359
"""

from __future__ import annotations

from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from indknn.core.accounting import budget, epsilon
from indknn.errors import IndKNNError, InvalidInputError, PrivacyError, PrivacyWarning, UnknownOwnerError, needs

if TYPE_CHECKING:
    from indknn.estimator import IndKNNClassifier
    from indknn.place import Place
    from indknn.regressor import IndKNNRegressor
    from indknn.store import Store

__version__ = version("indknn")

__all__ = [
    "IndKNNClassifier",
    "IndKNNError",
    "IndKNNRegressor",
    "InvalidInputError",
    "PrivacyError",
    "PrivacyWarning",
    "UnknownOwnerError",
    "budget",
    "epsilon",
    "open",
]


def open(path: str | Place, **options: Any) -> Store:  # noqa: A001  (as in gzip.open)
    """Open a durable store: a file, or an address such as postgresql://user@host/database.

    The options are those of `indknn.store.Store`. Close the store with `close()`, or use it in a `with` block.
    """
    store: Store = needs("indknn.store", "store", "a durable store").Store(path, **options)
    return store


def __getattr__(name: str) -> Any:
    # scikit-learn takes a second to import, and only the estimator needs it.
    if name == "IndKNNClassifier":
        from indknn.estimator import IndKNNClassifier  # noqa: PLC0415

        return IndKNNClassifier
    if name == "IndKNNRegressor":
        from indknn.regressor import IndKNNRegressor  # noqa: PLC0415

        return IndKNNRegressor
    raise AttributeError(f"module 'indknn' has no attribute {name!r}")
