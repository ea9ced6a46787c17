"""What goes down the road and what comes back, and where it is written down on the way."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from indknn.core.releases import Release
from indknn.errors import InvalidInputError
from indknn.ledger import SHARED, Scope
from indknn.types import FloatArray, IntArray, Vectors


@dataclass(frozen=True)
class Request:
    """Queries, whose ledger is charged for them, and an id that makes it safe to ask again.

    `likely` asks how likely each class is, beside the label.
    """

    queries: Vectors
    analyst: Scope = None
    request_id: str | None = None
    likely: bool = False

    def __post_init__(self) -> None:
        """Refuse the name of what is no analyst."""
        if self.analyst == SHARED:
            raise InvalidInputError(f"no analyst can be called {self.analyst!r}")


@dataclass(frozen=True)
class Reply:
    """The class number of each query, how many of the queries were new, and how likely each class is if asked for."""

    labels: IntArray
    fresh: int
    likely: FloatArray | None = None


class Journal(Protocol):
    """Where answers and their charges are written down before they leave (rule 2).

    `background` says that no answer waits for training: somebody takes the pieces of `Predictor.training` in between.
    """

    background: bool

    def note(self, analyst: Scope, query: Vectors | None, label: int, release: Release | None) -> None:
        """An answer that was just charged. A sum over records has no query, and the label -1."""
        ...

    def seal(self, request: Request, reply: Reply) -> None:
        """What was noted since the last time belongs to this request."""
        ...

    def secure(self) -> None:
        """Make what was noted durable at once."""
        ...
