"""Which test rows are asked: a validation set, and test sets that never touch it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from indknn.errors import InvalidInputError
from indknn.types import IntArray
from indknn_lab.experiments.seeds import seed


@dataclass(frozen=True)
class QuerySets:
    """Row numbers. `disjoint` says whether the test sets also have no query in common with each other."""

    validation: IntArray
    tests: tuple[IntArray, ...]
    disjoint: bool


def query_sets(name: str, available: int, T: int, sets: int) -> QuerySets:
    """A validation set of T queries and `sets` test sets of T, the same for every method.

    Where the rows do not suffice for disjoint test sets, each is drawn independently from all rows outside
    the validation set.

    >>> q = query_sets("toy", 100, 10, 5)
    >>> q.disjoint, len(set(q.validation) & set(np.concatenate(q.tests)))
    (True, 0)
    """
    if available < 2 * T:
        raise InvalidInputError(f"{name} has {available} queries: too few for validation and test sets of {T}")
    rng = np.random.default_rng(seed("queries", name, T))
    order = rng.permutation(available).astype(np.int64)
    validation, rest = order[:T], order[T:]
    disjoint = sets * T <= len(rest)
    if disjoint:
        tests = tuple(rest[i * T : (i + 1) * T] for i in range(sets))
    else:
        tests = tuple(rng.permutation(rest)[:T] for _ in range(sets))
    return QuerySets(validation, tests, disjoint)
