"""Sends answers only at fixed ticks, so that the time of an answer reveals nothing.

An answer takes longer if more people are near, if fewer of them have used up their budgets, and if the scan reads more
records. All of this is private. A `Paced` model holds every answer back until a whole number of ticks after the
request. If the work fits into one tick per query, the time of an answer depends only on the request. The price is
latency, because each query takes at least one tick. Work that takes longer is answered at the next tick and counted in
`late`. Choose a tick that makes this rare, because a late answer reveals something.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from math import ceil
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from indknn.errors import InvalidInputError

_SPIN = 0.001  # busy waiting for the last millisecond, because a sleeping thread wakes up late by a varying time


class Answers(Protocol):
    """Anything that answers queries, such as an engine or a store."""

    def predict(self, Q: npt.ArrayLike, analyst: str | None = None) -> npt.NDArray[Any]:
        """The label of each query."""
        ...


class Paced:
    """A model whose answers leave at ticks of `tick` seconds per query. Errors wait as well.

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
        """The label of each query, at least one tick per query after the call. `options` are passed to the model."""
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
