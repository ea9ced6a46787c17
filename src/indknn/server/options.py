"""The options of a server, and their allowed values."""

from __future__ import annotations

import math
from dataclasses import dataclass

from indknn.errors import InvalidInputError
from indknn.place import Place

_SAFE = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-")


def name_of(store: Place) -> str:
    """The default name of the model: the name of the store's file.

    >>> from pathlib import Path
    >>> name_of(Path("data/people (2026).store"))
    'people-2026'
    """
    parts = "".join(char if char in _SAFE else " " for char in store.stem).split()
    return "-".join(parts) or "indknn"


_AT_LEAST_ONE = (
    "max_batch",
    "max_body",
    "max_records",
    "max_waiting",
    "max_bodies",
    "max_connections",
    "keep_requests",
)


@dataclass(frozen=True)
class Options:
    """The model's name and the limits of a server.

    - `tick`: seconds per query. Answers leave at multiples of it.
    - `max_bodies`: the most bytes of all bodies that are being received at one moment.
    - `keep_requests`: for how many days a request can be repeated by its id.
    - `train_every`: hours between two checks for newcomers whom the shared model does not know.
    - `rewrite_every`: hours between two rewrites of old bytes of forgotten people in a database.
    """

    name: str = "indknn"
    tick: float | None = None
    max_batch: int = 1024
    max_body: int = 32 << 20
    max_records: int = 10_000
    max_waiting: int = 8192
    train_every: float = 24.0
    rewrite_every: float = 24.0
    max_bodies: int = 128 << 20
    max_connections: int = 1000
    keep_requests: int = 30

    def __post_init__(self) -> None:
        """Refuse values that make no sense."""
        if not self.name or not set(self.name) <= _SAFE:
            raise InvalidInputError(f"name must consist of letters, digits, '_', '.' and '-', got {self.name!r}")
        if self.tick is not None and not (math.isfinite(self.tick) and self.tick > 0):
            raise InvalidInputError(f"tick must be a positive number of seconds, got {self.tick!r}")
        for name in ("train_every", "rewrite_every"):
            if not getattr(self, name) > 0:
                raise InvalidInputError(f"{name} must be a positive number of hours, got {getattr(self, name)!r}")
        for field in _AT_LEAST_ONE:
            if getattr(self, field) < 1:
                raise InvalidInputError(f"{field} must be at least 1, got {getattr(self, field)!r}")
