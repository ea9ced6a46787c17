"""Requests and replies, the interface of the journal that makes answers durable, and one scan for many requests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from indknn.core.releases import Release
from indknn.errors import InvalidInputError
from indknn.ledger import SHARED, Scope
from indknn.records.any_shard import Near
from indknn.types import FloatArray, IntArray, Vectors, joined

Scan: TypeAlias = Callable[[Vectors, int], Iterator[Near]]
"""A function from queries and τ to who is near each query."""


def checked_analyst(name: Scope) -> Scope:
    """Refuse what cannot be the name of an analyst. None is the analyst without a name, so an empty text is refused.

    Spaces around a name are refused too: nobody sees them, and they would make another analyst with a new budget. So
    are characters that cannot be printed: the ledger has names with them for what was spent in earlier periods.

    >>> checked_analyst("alice"), checked_analyst(None)
    ('alice', None)
    """
    if not (name is None or isinstance(name, str)):
        raise InvalidInputError(f"analyst must be a str or None, got {name!r}")
    if name in {"", SHARED}:
        raise InvalidInputError(f"no analyst can be called {name!r}; leave the name out to ask without one")
    if name is not None and name != name.strip():
        raise InvalidInputError(f"no analyst can be called {name!r}: take the spaces around the name away")
    if name is not None and not name.isprintable():
        raise InvalidInputError(f"no analyst can be called {name!r}: it has characters that cannot be printed")
    return name


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


@dataclass(frozen=True)
class Answer:
    """A label for one query, and what else was released.

    `scores` are the scores of each class from the model and the votes, minus 1/c. None if there is no model.
    """

    label: int
    release: Release | None = None
    scores: FloatArray | None = None


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


class ScansAhead:
    """One scan for all waiting requests, although each analyst's adviser decides about its own queries.

    Who is near a query depends only on the query, τ and the records, and records do not change while a batch is
    answered. So neighbours can be looked up in advance for all queries that will probably need them. If a query was
    not expected, or needs another τ, it is scanned later. The answers are the same either way.

    `nested` means that the records near a query at a larger τ are a subset of those at a smaller τ, with the same κ.
    This holds for an exact index. Then one scan at the smallest τ serves analysts with different τ.
    """

    def __init__(self, scan: Scan, *, nested: bool):
        self._scan = scan
        self._nested = nested
        self._found: dict[tuple[int, bytes], tuple[int, Near]] = {}

    def look_up(self, wanted: list[tuple[Vectors, int]]) -> None:
        """Scan all of these queries, each with its τ. With `nested` this is one scan, otherwise one scan for each τ."""
        least = min((tau for _, tau in wanted), default=0)
        together: dict[int, list[Vectors]] = {}
        for queries, tau in wanted:
            together.setdefault(least if self._nested else tau, []).append(queries)
        for at, parts in together.items():
            queries = joined(parts)
            for key, near in zip(_bytes_of(queries), self._scan(queries, at), strict=True):
                self._found[0 if self._nested else at, key] = at, near

    def __call__(self, queries: Vectors, tau: int) -> Iterator[Near]:
        """The selected records of each query, from an earlier scan or from a new one."""
        known = [self._found.get((0 if self._nested else tau, key)) for key in _bytes_of(queries)]
        if any(found is None or found[0] > tau for found in known):
            yield from self._scan(queries, tau)
        else:
            yield from (found[1] if found[0] == tau else found[1].within(tau) for found in known if found is not None)


def _bytes_of(queries: Vectors) -> list[bytes]:
    return [row.tobytes() + scale.tobytes() for row, scale in zip(queries.values, queries.scale, strict=True)]
