"""Answers that leave on a fixed tick, so that how long they took to make tells nothing.

An answer takes longer when more people are near, when fewer of them are exhausted, and when the scan has more to
look at: all of it private. A `Paced` model holds every answer back until a whole number of ticks after the question
came; as long as the work fits into one tick per query, the time of an answer is a function of the question alone.
The cost is latency: each query takes its tick. Work that does not fit is answered on the next tick and counted in
`late`; choose a tick that makes this rare, since being late does tell something.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from math import ceil
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from indknn.errors import InvalidInputError

_SPIN = 0.001  # the last millisecond is waited for awake: a sleeper wakes up late, and by how much may vary


class Answers(Protocol):
    """An engine or a store."""

    def predict(self, Q: npt.ArrayLike, analyst: str | None = None) -> npt.NDArray[Any]:
        """The label of each query."""
        ...


class Paced:
    """The same model, whose answers leave on a tick of so many seconds per query. Errors wait as well.

    >>> from indknn.core.noise import SecureNoise
    >>> from indknn.engine import Engine
    >>> from indknn.settings import Settings
    >>> engine = Engine(Settings(n_features=2, classes=("no", "yes"), tau=0.5), SecureNoise())
    >>> paced = Paced(engine, tick=0.01)
    >>> start = time.perf_counter()
    >>> answer = paced.predict([[1.0, 0.1]])
    >>> time.perf_counter() - start >= 0.01
    True
    """

    def __init__(
        self,
        model: Answers,
        tick: float,
        *,
        clock: Callable[[], float] = time.perf_counter,
        sleep: Callable[[float], None] = time.sleep,
    ):
        if not (np.isfinite(tick) and tick > 0):
            raise InvalidInputError(f"tick must be a positive number of seconds, got {tick!r}")
        self.model = model
        self.tick = tick
        self.late = 0
        self._clock, self._sleep = clock, sleep

    def predict(self, Q: npt.ArrayLike, analyst: str | None = None, **options: Any) -> npt.NDArray[Any]:
        """The label of each query, so many ticks after the call; `options` go to the model."""
        start, allowed = self._clock(), self.tick * max(len(np.asarray(Q)), 1)
        ask: Callable[..., npt.NDArray[Any]] = self.model.predict
        try:
            return ask(Q, analyst, **options)
        finally:
            self._wait(start, allowed)

    def _wait(self, start: float, allowed: float) -> None:
        elapsed = self._clock() - start
        periods = max(1, ceil(elapsed / allowed))
        self.late += periods > 1
        until = start + periods * allowed
        if (left := until - self._clock()) > _SPIN:
            self._sleep(left - _SPIN)
        while self._clock() < until:
            pass
