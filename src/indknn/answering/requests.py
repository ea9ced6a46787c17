"""Requests, replies, and the interface of the journal that makes answers durable."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from indknn.core.releases import Release
from indknn.ledger import Scope, checked_analyst
from indknn.types import FloatArray, IntArray, Vectors


@dataclass(frozen=True)
class Request:
    """Queries, the analyst whose ledger is charged, and an id that makes it safe to ask again.

    `likely` asks for the probability of each class besides the label.
    """

    queries: Vectors
    analyst: Scope = None
    request_id: str | None = None
    likely: bool = False

    def __post_init__(self) -> None:
        """Refuse what cannot be the name of an analyst."""
        checked_analyst(self.analyst)


@dataclass(frozen=True)
class Reply:
    """The class number of each query, how many queries were new, and if requested the probability of each class."""

    labels: IntArray
    fresh: int
    likely: FloatArray | None = None


class Journal(Protocol):
    """Where answers and their charges are written down before they leave (rule 2).

    `background` means that answers do not wait for training. Then the caller runs the pieces of `Predictor.training`
    between answers. `tau` is a threshold that the first queries chose, to be written with their answers.
    """

    background: bool
    tau: float | None

    def note(self, analyst: Scope, query: Vectors | None, label: int, release: Release | None) -> None:
        """Note an answer that was just charged. A sum over records has no query, and its label is -1."""
        ...

    def seal(self, request: Request, reply: Reply) -> None:
        """Everything noted since the last call belongs to this request."""
        ...

    def secure(self) -> None:
        """Make everything that was noted durable now."""
        ...
