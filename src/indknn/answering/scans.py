"""One scan for all waiting requests, although each analyst's adviser decides about its own queries.

Which records are near a query depends only on the query, τ and the records, and records do not change while a batch is
answered. So neighbours can be looked up in advance for all queries that will probably need them. If a query was not
expected, or needs another τ, it is scanned later. The answers are the same either way.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from indknn.answering.by_models import Scan
from indknn.answering.transcript import keys_of
from indknn.types import Selection, Vectors


class ScansAhead:
    """The results of scans, by query. `scan` makes a new one.

    `nested` means that the records near a query at a larger τ are a subset of those at a smaller τ, with the same κ.
    This holds for an exact index. Then one scan at the smallest τ serves analysts with different τ.
    """

    def __init__(self, scan: Scan, *, nested: bool):
        self._scan = scan
        self._nested = nested
        self._found: dict[tuple[int, bytes], tuple[int, Sequence[Selection]]] = {}

    def look_up(self, wanted: list[tuple[Vectors, int]]) -> None:
        """Scan all of these queries, each with its τ. With `nested` this is one scan, otherwise one scan for each τ."""
        least = min((tau for _, tau in wanted), default=0)
        together: dict[int, list[Vectors]] = {}
        for queries, tau in wanted:
            together.setdefault(least if self._nested else tau, []).append(queries)
        for at, parts in together.items():
            queries = joined(parts)
            for key, near in zip(keys_of(queries), self._scan(queries, at), strict=True):
                self._found[0 if self._nested else at, key] = at, near

    def __call__(self, queries: Vectors, tau: int) -> Iterator[Sequence[Selection]]:
        """The selected records of each query, from an earlier scan or from a new one."""
        known = [self._found.get((0 if self._nested else tau, key)) for key in keys_of(queries)]
        if any(one is None or one[0] > tau for one in known):
            yield from self._scan(queries, tau)
        else:
            yield from (_within(*one, tau) for one in known if one is not None)


def _within(found_at: int, near: Sequence[Selection], tau: int) -> Sequence[Selection]:
    """From the records near at a smaller τ, those that are also near at this τ."""
    if found_at == tau:
        return near
    chosen = [one.kappa >= tau for one in near]
    return [Selection(one.slots[some], one.kappa[some]) for one, some in zip(near, chosen, strict=True)]


def joined(parts: list[Vectors]) -> Vectors:
    """All rows of some queries."""
    if len(parts) == 1:
        return parts[0]
    return Vectors(
        np.concatenate([part.values for part in parts]),
        np.concatenate([part.root_norm for part in parts]),
        np.concatenate([part.scale for part in parts]),
    )
