"""Bodies that are being received: how many bytes of them the server holds, in all and for each sender."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias

from indknn.server.problems import Problem

Receive: TypeAlias = Callable[[], Awaitable[Any]]
SMALL = 64 << 10
"""The size of a small body, in bytes. Small bodies are always allowed: the limit on connections bounds their total."""
IN_VAIN = 8 << 20
"""How many bytes a second of larger bodies a sender may send that are then refused. Beyond that, they are refused
unread."""
_SENDERS = 10_000


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
