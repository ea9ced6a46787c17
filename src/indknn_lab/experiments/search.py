"""Search on a grid that grows where the best value sits on its edge.

Nothing here is paid for. The paper tuned on validation queries answered by the private data itself, outside of
every budget, and so do the experiments; their results say so.
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
    """Values to try, ascending. It grows by what comes below the least and above the greatest, within limits."""

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
    """The point with the highest score; of equals, the first.

    A score that is cheap but noisy can be confirmed: the best few points are then scored again, by `confirm`,
    which is told the first score, and decides.

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
    """Lengthen the axis by one value if the best sits at an end of it; what was done, in words."""
    least, most = axis.within
    if at == axis.values[0] and axis.below and least <= (value := axis.below(at)) < at:
        axis.values.insert(0, value)
        return f"{axis.name} below {edges[0]:g}"
    if at == axis.values[-1] and axis.above and most >= (value := axis.above(at)) > at:
        axis.values.append(value)
        return f"{axis.name} above {edges[1]:g}"
    return None


def _around(values: list[float], at: float) -> list[float]:
    """The value and two neighbours on either side: a grid that grew is only filled near its best point."""
    i = values.index(at)
    return values[max(i - 2, 0) : i + 3]
