"""How many queries per second a key may ask: a bucket that fills at that rate."""

from __future__ import annotations

import time
from collections.abc import Callable
from math import ceil

from indknn.server.problems import Problem


class Rates:
    """Buckets by key. A bucket holds one second's worth, at least one query.

    A request with more rows than that is let in when the bucket is full, and leaves a debt that must fill up first.

    >>> now = [0.0]
    >>> rates = Rates(clock=lambda: now[0])
    >>> rates.spend("k", 2.0, 2)
    >>> rates.spend("k", 2.0, 1)
    Traceback (most recent call last):
    indknn.server.problems.Problem: more than 2 queries per second; ask again in 1 s
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic):
        self._clock = clock
        self._buckets: dict[str, tuple[float, float]] = {}

    def spend(self, key: str, rate: float, n: int) -> None:
        """Take n queries out of the bucket, or refuse."""
        moment, most = self._clock(), max(rate, 1.0)
        content, since = self._buckets.get(key, (most, moment))
        content = min(most, content + (moment - since) * rate)
        needed = min(float(n), most)
        if content < needed - 1e-9:
            wait = str(ceil((needed - content) / rate))
            text = f"more than {rate:g} queries per second; ask again in {wait} s"
            raise Problem(429, text, "rate_limit", ((b"retry-after", wait.encode()),))
        self._buckets[key] = (content - n, moment)
