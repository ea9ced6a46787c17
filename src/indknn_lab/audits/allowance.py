"""The time that an audit was given, and what was left out because there was no time for it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

Clock = Callable[[], float]
Progress = Callable[[str, int, int], None]
Thing = TypeVar("Thing")

SHARES = {"checks": 0.1, "simulations": 0.1, "mutants": 0.25, "attacks": 0.15, "scenarios": 0.4}
"""The share of the time for each part, in this order. Time that a part does not need goes to later parts. Scenarios can
use any amount."""


class Allowance:
    """The seconds for all parts of an audit. Work that was started is finished. Nothing starts after the time is over.

    >>> times = iter(range(100))
    >>> allowance = Allowance(20.0, lambda: next(times))
    >>> list(allowance.part("checks", [("first", 1), ("second", 2), ("third", 3)])), allowance.left_out
    ([1], {'checks': ['second', 'third']})
    """

    def __init__(self, seconds: float, clock: Clock, progress: Progress = lambda label, done, total: None):
        self._clock, self._progress = clock, progress
        self._shares = dict(SHARES)
        self._start = clock()
        self._end = self._start + seconds
        self.left_out: dict[str, list[str]] = {}

    @property
    def seconds(self) -> float:
        """The seconds used so far."""
        return self._clock() - self._start

    def deadline(self, part: str) -> float:
        """When the part that starts now has to end."""
        now, rest = self._clock(), sum(self._shares.values())
        return now + (self._end - now) * self._shares.pop(part) / rest

    def part(self, part: str, things: Iterable[tuple[str, Thing]]) -> Iterator[Thing]:
        """The things of a part that there is time for. The names of the others are kept in `left_out`."""
        named, deadline = list(things), self.deadline(part)
        for done, (name, thing) in enumerate(named):
            self._progress(part, done, len(named))
            if self._clock() < deadline:
                yield thing
            else:
                self.left_out.setdefault(part, []).append(name)
        self._progress(part, len(named), len(named))
