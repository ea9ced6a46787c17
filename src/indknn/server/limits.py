"""Limits, each for all senders and for each of them: connections, requests and queries a second, and HTTP itself: how
long headers may be, how long a request may take to arrive, and how many requests may wait on a connection.

If there are too many connections, the one that has waited longest for its client is closed. So idle connections never
keep others out: a client that sends a request gets in.
"""

from __future__ import annotations

import asyncio
import resource
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import ceil
from typing import Any, Protocol

from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from indknn.errors import InvalidInputError
from indknn.server.problems import Problem

BACKLOG = 128
"""How many connections the system may hold ready. All of them may be accepted before the first is counted."""
RESERVE = BACKLOG + 96
"""Descriptors that no connection may use. They are for connections accepted at one moment, the store, its witness and
the keys."""
GO_AWAY = ((b"retry-after", b"1"), (b"connection", b"close"))
"""Headers that close a connection."""
_TURNS, _AT_ONCE, _MOST_WAITING = 50.0, 20, 250  # requests a second, at once, and that may wait, for each sender
SENDERS = 10_000
"""How many senders are remembered, for each limit."""
MAX_HEADERS = 32 << 10
"""Bytes of the request line and all headers together."""
ARRIVAL = 30.0
"""Seconds that a request may take to arrive, from its first byte (or from connecting) to its last."""
MOST_QUEUED, QUEUED_WITHOUT_KEY = 8, 2
"""Requests that may wait on one connection behind the one that is being answered. The next one is refused. The second
number is for a connection that has not shown a key yet."""
_LINE = 1024  # bytes of the request line and of line ends, which `parsed` does not count
_LINGER = 5.0  # seconds in which a body may still arrive after its request was answered
_DISCARD = 1 << 20  # bytes of it
_CHECK_SECONDS = 1.0


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
        if len(self._next) > SENDERS:  # addresses come and go
            self._next.clear()
        turn = max(self._next.get(sender, now), now) + 1
        wait = turn - now - _AT_ONCE
        if wait > _MOST_WAITING:
            text = f"too many requests without a key, or that had to be refused: {_TURNS:g} a second are answered"
            raise Problem(429, text, "rate_limit", GO_AWAY)
        self._next[sender] = turn
        if wait > 0:
            await asyncio.sleep(wait / _TURNS)


# HTTP itself, as uvicorn speaks it


class TooManyQueuedError(Exception):
    """Stops the parser, which would otherwise read on to the end of the bytes that have arrived."""


class Flow(FlowControl):
    """Reads nothing while a request waits behind another one. All requests before the last have arrived whole."""

    def __init__(self, connection: LimitedProtocol):
        super().__init__(connection.transport)
        self._connection = connection

    def resume_reading(self) -> None:
        """Read on, unless what was read is not answered yet."""
        if len(self._connection.unanswered) < 2 and self._connection.refusal is None:
            super().resume_reading()


class LimitedProtocol(HttpToolsProtocol):
    """One connection. Its requests are answered one after the other, in the order in which they came.

    `waiting_since` is when the server began to wait for bytes. None while it waits for nothing. `close_overdue` checks
    all connections once a second, so that an ordinary request needs no timer.
    """

    everybody = Connections(most=1 << 20)  # one for each server, see `serve`
    unanswered: deque[Any]  # uvicorn's cycles, the oldest first; only the last may not have arrived whole
    queue = QUEUED_WITHOUT_KEY
    refusal: Problem | None = None  # what the client is told at the end, after the answers to what came before
    held = False  # whether the oldest request has to wait because its sender sends too many
    active = 0.0  # when a request last began or was answered
    waiting_since: float | None = None
    limit = ARRIVAL
    in_headers = True
    parsed = 0  # bytes of whole headers
    discarded = 0  # bytes of a body that was answered before it had arrived
    received = 0  # bytes that arrived while the headers had not ended

    def connection_made(self, transport: Any) -> None:
        """A client connects. Its time to send a request begins."""
        super().connection_made(transport)
        self.unanswered = deque()
        self.flow = Flow(self)
        self.waiting_since = self.active = self.loop.time()
        self.everybody.opened(self, self.client[0] if self.client else "")

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection was closed."""
        self.everybody.closed(self)
        for cycle in self.unanswered:
            self._leave(cycle)
        super().connection_lost(exc)

    def show(self, key: str) -> bool:
        """The client has shown this key. Returns whether there is room for one more connection of that key."""
        self.queue = MOST_QUEUED
        return self.everybody.shown(self, key)

    def idle_since(self) -> float | None:
        """Since when it waits for its client. None while the client waits for an answer."""
        waits = not self.unanswered or self.unanswered[0].more_body or self.held
        return self.active if waits else None

    @contextmanager
    def holding(self) -> Iterator[None]:
        """Its client has to wait, and may be dropped to make room for others."""
        self.held = True
        try:
            yield
        finally:
            self.held = False

    def drop(self) -> None:
        """Close it at once, to make room for others."""
        self.transport.abort()

    def on_message_begin(self) -> None:
        """A request begins."""
        if len(self.unanswered) > self.queue:
            text = f"more than {self.queue} requests wait on this connection; read answers before you send more"
            self.refuse(Problem(429, text, "rate_limit"))
            raise TooManyQueuedError
        super().on_message_begin()
        self.scope["indknn.connection"] = self  # type: ignore[typeddict-unknown-key]
        self.waiting_since, self.limit = self.loop.time(), ARRIVAL
        self.active = self.waiting_since
        self.in_headers, self.parsed, self.received, self.discarded = True, 0, 0, 0

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header arrived, or a trailer behind the body."""
        self.parsed += len(name) + len(value) + 4
        if self.parsed <= MAX_HEADERS:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """All headers arrived."""
        self.in_headers = False
        self.parsed += len(self.url)
        if self.parsed > MAX_HEADERS:
            self._refuse_headers()
        elif not self.transport.is_closing():
            super().on_headers_complete()
            self.unanswered.append(self.cycle)

    def on_body(self, body: bytes) -> None:
        """A part of the body arrived. After the answer it is discarded, so that the client can read the answer."""
        if self.cycle is None or self.transport.is_closing():
            return
        if self.cycle.response_complete:
            self.discarded += len(body)
            if self.discarded > _DISCARD:
                self.transport.abort()
        else:
            super().on_body(body)

    def on_message_complete(self) -> None:
        """The whole request arrived."""
        self.waiting_since = None
        if self.cycle is not None and not self.transport.is_closing():
            super().on_message_complete()

    def on_response_complete(self) -> None:
        """The request was answered, perhaps before all of it arrived."""
        self.active = self.loop.time()
        answered = self.unanswered.popleft()
        if self.waiting_since is not None:  # the rest of it has less time, or the next one has its time from now on
            self.waiting_since, self.limit = self.active, _LINGER if answered is self.cycle else ARRIVAL
        super().on_response_complete()
        if self.refusal is not None and not self.unanswered:
            self._say(self.refusal)

    def data_received(self, data: bytes) -> None:
        """Bytes arrived.

        Endless headers are noticed here, because the parser holds a header back until it is complete.
        """
        if self.transport.is_closing() or self.refusal is not None:  # it was refused, and more of it still arrives
            return
        in_headers_before = self.in_headers
        super().data_received(data)
        if in_headers_before and self.in_headers:
            self.received += len(data)
        size = max(self.parsed, self.received - _LINE)
        if self.waiting_since is not None and size > MAX_HEADERS and not self.transport.is_closing():
            self._refuse_headers()

    def send_400_response(self, msg: str) -> None:
        """Refuse what is not HTTP."""
        self.refuse(Problem(400, "this is not a valid HTTP request", "bad_http"))

    def _refuse_headers(self) -> None:
        self.refuse(Problem(431, f"the headers must have at most {MAX_HEADERS} bytes"))

    def refuse(self, problem: Problem) -> None:
        """Answer without the application, and close the connection. Whole requests are answered before that."""
        if self.refusal is not None:
            return
        if self.unanswered and self.unanswered[-1].more_body:  # this is the one that is refused
            self._leave(self.unanswered.pop())
            if self.pipeline:
                self.pipeline.popleft()
        if self.unanswered:
            self.refusal = problem
            self.flow.pause_reading()
        else:
            self._say(problem)

    def _leave(self, cycle: Any) -> None:
        """Nobody waits any more for the answer to this request."""
        cycle.disconnected = True
        cycle.message_event.set()

    def _say(self, problem: Problem) -> None:
        head = f"HTTP/1.1 {problem.status} Refused\r\ncontent-type: application/json\r\n"
        head += f"content-length: {len(problem.body)}\r\nconnection: close\r\n\r\n"
        self.transport.write(head.encode() + problem.body)
        self.transport.close()

    def close_if_overdue(self, now: float) -> None:
        """Close the connection if the client takes too long."""
        if self.waiting_since is None or now - self.waiting_since < self.limit or self.transport.is_closing():
            return
        if len(self.unanswered) > 1 or self.refusal is not None:  # the client waits, not the server
            return
        if self.cycle is None or not self.cycle.response_started:
            self.refuse(Problem(408, f"a request must arrive within {self.limit:g} s"))
        else:
            self.transport.close()


async def close_overdue(connections: set[Any]) -> None:
    """Check all connections once a second, until it is cancelled."""
    while True:
        await asyncio.sleep(_CHECK_SECONDS)
        now = asyncio.get_running_loop().time()
        for connection in list(connections):
            connection.close_if_overdue(now)
