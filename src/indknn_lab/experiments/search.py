"""Searches on a grid, which is extended if the best value is at its edge.

No budget covers this search. The paper also tuned without a budget, on validation queries that the private data
answered. The results of the experiments say so.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from math import inf

Point = tuple[float, ...]

_FINALISTS = 10

NOT_PAID_FOR = (
    "The hyper-parameters of every method were chosen on validation queries that were answered from the private "
    "data. As in the paper, nobody paid for this search: the privacy figures cover the test queries only."
)


@dataclass
class Axis:
    """Values to try, in rising order. Below the least and above the greatest, it can be extended within limits."""

    name: str
    values: list[float]
    below: Callable[[float], float] | None = None
    above: Callable[[float], float] | None = None
    within: tuple[float, float] = (-inf, inf)


@dataclass(frozen=True)
class Found:
    """The best point, its score, how many points were tried, and where the grid had to be extended."""

    best: Point
    score: float
    tried: int
    extended: tuple[str, ...]


def search(
    axes: Sequence[Axis],
    score: Callable[[Point], float],
    *,
    confirm: Callable[[Point, float], float] = lambda _, first: first,
    max_growths: int = 12,
) -> Found:
    """The point with the highest score. If several are equal, the first of them.

    `confirm` is for scores that are cheap but noisy. It scores the best few points again, and gets their first score.
    Its scores decide.

    >>> axis = Axis("x", [1.0, 2.0, 3.0], above=lambda x: x + 1, within=(0, 9))
    >>> search([axis], lambda p: 9 - abs(p[0] - 5))
    Found(best=(5.0,), score=9.0, tried=6, extended=('x above 3',))
    """
    edges = {axis.name: (axis.values[0], axis.values[-1]) for axis in axes}
    scores = {point: score(point) for point in product(*(axis.values for axis in axes))}
    extended: dict[str, None] = {}
    for _ in range(max_growths):
        best = max(scores, key=scores.__getitem__)
        grown = [note for i, axis in enumerate(axes) if (note := _grow(axis, best[i], edges[axis.name]))]
        if not grown:
            break
        extended |= dict.fromkeys(grown)
        for point in product(*(_around(axis.values, best[i]) for i, axis in enumerate(axes))):
            if point not in scores:
                scores[point] = score(point)
    finalists = sorted(scores, key=scores.__getitem__, reverse=True)[:_FINALISTS]
    confirmed = {point: confirm(point, scores[point]) for point in finalists}
    best = max(confirmed, key=confirmed.__getitem__)
    return Found(best, confirmed[best], len(scores), tuple(extended))


def _grow(axis: Axis, at: float, edges: tuple[float, float]) -> str | None:
    """Extend the axis by one value if the best is at its end. Returns a text that says what was done, or None."""
    least, most = axis.within
    if at == axis.values[0] and axis.below and least <= (value := axis.below(at)) < at:
        axis.values.insert(0, value)
        return f"{axis.name} below {edges[0]:g}"
    if at == axis.values[-1] and axis.above and most >= (value := axis.above(at)) > at:
        axis.values.append(value)
        return f"{axis.name} above {edges[1]:g}"
    return None


def _around(values: list[float], at: float) -> list[float]:
    """The value and two neighbours on either side, because an extended grid is only filled near its best point."""
    i = values.index(at)
    return values[max(i - 2, 0) : i + 3]
