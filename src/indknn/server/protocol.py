"""HTTP as uvicorn speaks it, with limits on headers and on how long a request may take to arrive."""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from indknn.server.problems import Problem

MAX_HEADERS = 32 << 10
"""Bytes of the request line and all headers together."""
ARRIVAL = 30.0
"""Seconds that a request may take to arrive, from its first byte (or from connecting) to its last."""
_LINE = 1024  # of the request line and line ends, which `size` does not count
_LINGER = 5.0  # seconds that a body may go on coming in after it was answered
_SWEEP = 1.0


class Protocol(HttpToolsProtocol):
    """A connection. `since` is when something began that has not arrived yet, None while there is nothing to wait for.

    One sweep a second looks at all connections, so that an ordinary request pays for no timer.
    """

    since: float | None = None
    size = 0
    head = 0  # bytes of a request whose headers have not ended yet
    in_head = True
    limit = ARRIVAL

    def connection_made(self, transport: Any) -> None:
        """Somebody connects, and has so long to say something."""
        super().connection_made(transport)
        self.since = self.loop.time()

    def on_message_begin(self) -> None:
        """A request begins."""
        super().on_message_begin()
        self.since, self.size, self.limit = self.loop.time(), 0, ARRIVAL
        self.head, self.in_head = 0, True

    def on_url(self, url: bytes) -> None:
        """A part of the request line."""
        self.size += len(url)
        if self.size <= MAX_HEADERS:
            super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header."""
        self.size += len(name) + len(value) + 4
        if self.size <= MAX_HEADERS:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """All headers are here."""
        self.in_head = False
        if self.size > MAX_HEADERS:
            self.refuse(Problem(431, f"the headers must have at most {MAX_HEADERS} bytes"))
        elif not self.transport.is_closing():
            super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """A part of the body."""
        if self.cycle is not None and not self.transport.is_closing():
            super().on_body(body)

    def on_message_complete(self) -> None:
        """The whole request is here."""
        self.since = None
        if self.cycle is not None and not self.transport.is_closing():
            super().on_message_complete()

    def on_response_complete(self) -> None:
        """It was answered, perhaps before all of it was here."""
        if self.since is not None:
            self.since, self.limit = self.loop.time(), _LINGER
        super().on_response_complete()

    def data_received(self, data: bytes) -> None:
        """Bytes. Headers that never end are noticed here: the parser keeps one until it is whole, however long."""
        if self.transport.is_closing():  # it was refused, and what was on its way still comes in
            return
        before = self.in_head
        super().data_received(data)
        if before and self.in_head:
            self.head += len(data)
        size = max(self.size, self.head - _LINE)
        if self.since is not None and size > MAX_HEADERS and not self.transport.is_closing():
            self.refuse(Problem(431, f"the headers must have at most {MAX_HEADERS} bytes"))

    def send_400_response(self, msg: str) -> None:
        """What is not HTTP gets the one error shape too."""
        self.refuse(Problem(400, "this is not a valid HTTP request", "bad_http"))

    def refuse(self, problem: Problem) -> None:
        """Answer without the application, and hang up."""
        head = f"HTTP/1.1 {problem.status} Refused\r\ncontent-type: application/json\r\n"
        head += f"content-length: {len(problem.body)}\r\nconnection: close\r\n\r\n"
        self.transport.write(head.encode() + problem.body)
        self.transport.close()

    def overdue(self, now: float) -> None:
        """Hang up on who takes too long."""
        if self.since is None or now - self.since < self.limit or self.transport.is_closing():
            return
        if self.cycle is None or not self.cycle.response_started:
            self.refuse(Problem(408, f"a request must arrive within {self.limit:g} s"))
        else:
            self.transport.close()


async def sweep(connections: set[Any]) -> None:
    """Look at all connections once a second, for ever."""
    while True:
        await asyncio.sleep(_SWEEP)
        now = asyncio.get_running_loop().time()
        for connection in list(connections):
            connection.overdue(now)
