"""The time that an audit was given, and what was left out because there was no time for it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

Clock = Callable[[], float]
Progress = Callable[[str, int, int], None]
Thing = TypeVar("Thing")


class Allowance:
    """The seconds for an audit, or None for as long as it takes.

    Work that was started is finished. Nothing starts after the time is over.

    >>> times = iter(range(100))
    >>> allowance = Allowance(4.0, lambda: next(times))
    >>> list(allowance.part("checks", [("first", 1), ("second", 2), ("third", 3), ("fourth", 4)])), allowance.missing
    ([1, 2, 3], ['checks: fourth'])
    """

    def __init__(self, seconds: float | None, clock: Clock, progress: Progress = lambda label, done, total: None):
        self._clock, self._progress = clock, progress
        self._start = clock()
        self._end = None if seconds is None else self._start + seconds
        self.missing: list[str] = []
        """The required things for which there was no time, each with its part."""
        self.fewer: list[str] = []
        """The parts that were to be repeated with more trials, and were not, or not all of them."""

    @property
    def seconds(self) -> float:
        """The seconds used so far."""
        return self._clock() - self._start

    def part(self, part: str, things: Iterable[tuple[str, Thing]], *, required: bool = True) -> Iterator[Thing]:
        """The things of a part that there is time for. The names of the others are kept, see `missing` and `fewer`."""
        named = list(things)
        for done, (name, thing) in enumerate(named):
            self._progress(part, done, len(named))
            if self._end is None or self._clock() < self._end:
                yield thing
            elif required:
                self.missing.append(f"{part}: {name}")
            elif part not in self.fewer:
                self.fewer.append(part)
        self._progress(part, len(named), len(named))
