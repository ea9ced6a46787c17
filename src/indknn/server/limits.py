"""Limits, each for all senders and for each of them: connections, bytes of bodies, requests and queries a second.

If there are too many connections, the one that has waited longest for its client is closed. So idle connections never
keep others out: a client that sends a request gets in.
"""

from __future__ import annotations

import asyncio
import resource
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from math import ceil
from typing import Any, Protocol, TypeAlias

from indknn.errors import InvalidInputError
from indknn.server.problems import Problem

Receive: TypeAlias = Callable[[], Awaitable[Any]]
BACKLOG = 128
"""How many connections the system may hold ready. All of them may be accepted before the first is counted."""
RESERVE = BACKLOG + 96
"""Descriptors that no connection may use. They are for connections accepted at one moment, the store, its witness and
the keys."""
SMALL = 64 << 10
"""The size of a small body, in bytes. Small bodies are always allowed: the limit on connections bounds their total."""
IN_VAIN = 8 << 20
"""How many bytes a second of larger bodies a sender may send that are then refused. Beyond that, they are refused
unread."""
GO_AWAY = ((b"retry-after", b"1"), (b"connection", b"close"))
"""Headers that close a connection."""
_TURNS, _AT_ONCE, _MOST_WAITING = 50.0, 20, 250  # requests a second, at once, and that may wait, for each sender
_SENDERS = 10_000  # that are remembered


class Connection(Protocol):
    """What is asked of a connection."""

    def idle_since(self) -> float | None:
        """Since when it waits for its client. None while the client waits for an answer."""

    def drop(self) -> None:
        """Close it at once."""


class Connections:
    """All connections, by who holds them: an address, then the key that it has shown."""

    def __init__(self, most: int):
        self.most = most
        self.without_key = max(1, most // 4)
        self._holders: dict[Connection, str] = {}
        self._by_holder: dict[str, set[Connection]] = {}

    def __len__(self) -> int:
        return len(self._holders)

    def opened(self, connection: Connection, address: str) -> None:
        """A client has connected. If there are too many connections, this one or another one is closed."""
        self._enter(connection, f"address {address}")
        room = self._has_room(connection, self._by_holder[f"address {address}"], self.without_key)
        if room and len(self._holders) > self.most:
            room = self._has_room(connection, max(self._by_holder.values(), key=len), 0)
        if not room:
            self._close(connection)

    def shown(self, connection: Connection, key: str) -> bool:
        """The client has shown this key. Returns whether there is room for one more connection of that key."""
        holder = f"key {key}"
        if self._holders.get(connection, holder) == holder:
            return True
        self.closed(connection)
        self._enter(connection, holder)
        return self._has_room(connection, self._by_holder[holder], max(1, self.most // 2))

    def closed(self, connection: Connection) -> None:
        """The connection was closed."""
        holder = self._holders.pop(connection, None)
        if holder is not None:
            held = self._by_holder[holder]
            held.discard(connection)
            if not held:
                del self._by_holder[holder]

    def _enter(self, connection: Connection, holder: str) -> None:
        self._holders[connection] = holder
        self._by_holder.setdefault(holder, set()).add(connection)

    def _has_room(self, newest: Connection, held: set[Connection], most: int) -> bool:
        """Close the connection that was idle longest, if there are too many.

        False if only the newest could be closed.
        """
        if len(held) <= most:
            return True
        idle = [(since, id(c), c) for c in held if c is not newest and (since := c.idle_since()) is not None]
        if idle:
            self._close(min(idle)[2])
        return bool(idle)

    def _close(self, connection: Connection) -> None:
        self.closed(connection)
        connection.drop()


def allowed(wanted: int) -> int:
    """How many connections are possible with the descriptors of this process. Asks the system for as many as wanted."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < wanted + RESERVE:
        soft = wanted + RESERVE if hard == resource.RLIM_INFINITY else min(wanted + RESERVE, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    if soft <= RESERVE:
        raise InvalidInputError(f"this process may have {soft} open files: a server needs more than {RESERVE}")
    return min(wanted, soft - RESERVE)


class BodyBudget:
    """The bytes that all larger bodies may take, from their first byte until they are read.

    A sender may use a quarter of it, or one body of the largest size if that is more. So no sender can keep the others
    out.

    >>> budget = BodyBudget(total=100, largest=40)
    >>> with budget.holding("ann") as hold:
    ...     hold(40)
    ...     hold(1)
    Traceback (most recent call last):
    indknn.server.problems.Problem: too much is being sent at once; send it again later
    """

    def __init__(self, total: int, largest: int, clock: Callable[[], float] = time.monotonic):
        self._clock = clock
        self._in_vain: dict[str, tuple[float, float]] = {}  # refused bytes by sender, and when that was computed
        self._total = self._left = max(total, largest)
        self._share = max(total // 4, largest)
        self._held: dict[str, int] = {}

    @property
    def held(self) -> int:
        """The bytes in use now."""
        return self._total - self._left

    @contextmanager
    def holding(self, sender: str) -> Iterator[Callable[[int], None]]:
        """A function that reserves bytes for a body of this sender. They are given back at the end."""
        taken = 0

        def take(size: int) -> None:
            nonlocal taken
            if self._sent_in_vain(sender) > IN_VAIN:
                text = "too many large bodies were sent that had to be refused; send it again later"
                raise Problem(429, text, "rate_limit", ((b"retry-after", b"1"),))
            held = self._held.get(sender, 0)
            if size > self._left or held + size > self._share:
                text = "too much is being sent at once; send it again later"
                raise Problem(503, text, "busy", ((b"retry-after", b"1"),))
            self._left -= size
            self._held[sender] = held + size
            taken += size

        try:
            yield take
        except Problem as problem:
            if taken and 400 <= problem.status < 500:
                if len(self._in_vain) > _SENDERS:  # addresses come and go
                    self._in_vain.clear()
                self._in_vain[sender] = self._sent_in_vain(sender) + taken, self._clock()
            raise
        finally:
            self._left += taken
            if taken:
                self._held[sender] -= taken
                if not self._held[sender]:
                    del self._held[sender]

    def _sent_in_vain(self, sender: str) -> float:
        """How many bytes of this sender were refused lately."""
        size, since = self._in_vain.get(sender, (0.0, 0.0))
        return max(size - (self._clock() - since) * IN_VAIN, 0.0)


async def read_body(
    receive: Receive, headers: dict[bytes, bytes], most: int, take: Callable[[int], None]
) -> bytes | bytearray:
    """The whole body. A body that is too long is refused by its announced length, or while it arrives."""
    announced = headers.get(b"content-length", b"")
    length = int(announced) if announced.isdigit() and len(announced) < 20 else 0
    _refuse_too_long(length, most)
    if length > SMALL:
        take(length)
    message = await _next(receive)
    first: bytes = message.get("body", b"")
    if not message.get("more_body", False):
        _refuse_too_long(len(first), most)
        return first
    body, held, more = bytearray(first), max(length, SMALL), True
    while more:
        _refuse_too_long(len(body), most)
        if len(body) > held:
            take(len(body) - held if held > SMALL else len(body))
            held = len(body)
        message = await _next(receive)
        body += message.get("body", b"")
        more = message.get("more_body", False)
    _refuse_too_long(len(body), most)
    return body


async def _next(receive: Receive) -> Any:
    message = await receive()
    if message["type"] != "http.request":
        raise Problem(499, "the client hung up before its request had arrived")
    return message


def _refuse_too_long(size: int, most: int) -> None:
    if size > most:
        raise Problem(413, f"a body must have at most {most} bytes")


class RateLimiter:
    """How many queries per second each key may ask: a token bucket for each.

    A bucket holds one second's worth of queries, at least one. A request with more rows than that is let in when the
    bucket is full. It leaves a debt that must fill up before the next request.

    >>> now = [0.0]
    >>> limiter = RateLimiter(clock=lambda: now[0])
    >>> limiter.take("k", 2.0, 2)
    >>> limiter.take("k", 2.0, 1)
    Traceback (most recent call last):
    indknn.server.problems.Problem: more than 2 queries per second; ask again in 1 s
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic):
        self._clock = clock
        self._buckets: dict[str, tuple[float, float]] = {}

    def __len__(self) -> int:
        return len(self._buckets)

    def take(self, key: str, rate: float, n: int, already: int = 0) -> None:
        """Take n queries out of the bucket of a key, or refuse. `already` were taken for the same request."""
        now, full = self._clock(), max(rate, 1.0)
        content, since = self._buckets.get(key, (full, now))
        content = min(full, content + (now - since) * rate)
        needed = min(float(n), full - already)
        if content < needed - 1e-9:
            wait = str(ceil((needed - content) / rate))
            text = f"more than {rate:g} queries per second; ask again in {wait} s"
            raise Problem(429, text, "rate_limit", ((b"retry-after", wait.encode()),))
        self._buckets[key] = (content - n, now)


class Pace:
    """Serves senders one request after the other who have shown no key, or whose requests are refused.

    So they cost others next to nothing, on however many connections they come. Each sender has twenty such requests at
    once, then fifty a second. Those that come faster wait for their turn. If very many wait, the next is refused.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._next: dict[str, float] = {}  # counted in turns: the first that is free if none comes at once

    async def turn(self, sender: str) -> None:
        """Return when it is this sender's turn."""
        now = self._clock() * _TURNS
        if len(self._next) > _SENDERS:  # addresses come and go
            self._next.clear()
        turn = max(self._next.get(sender, now), now) + 1
        wait = turn - now - _AT_ONCE
        if wait > _MOST_WAITING:
            text = f"too many requests without a key, or that had to be refused: {_TURNS:g} a second are answered"
            raise Problem(429, text, "rate_limit", GO_AWAY)
        self._next[sender] = turn
        if wait > 0:
            await asyncio.sleep(wait / _TURNS)
