"""What to say where an optional part is not installed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from indknn.errors import InvalidInputError


@contextmanager
def wanted(extra: str) -> Iterator[None]:
    """Turn a missing package into the line that installs it."""
    try:
        yield
    except ModuleNotFoundError as missing:
        if missing.name is None or missing.name.startswith("indknn"):
            raise
        raise InvalidInputError(f"this needs {missing.name!r}: pip install 'indknn[{extra}]'") from None
