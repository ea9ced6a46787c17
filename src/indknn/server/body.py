"""Reading a body, and not more of it than allowed."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

from indknn.server.problems import Problem

Receive: TypeAlias = Callable[[], Awaitable[dict[str, Any]]]


class Gone(Exception):  # noqa: N818
    """The client hung up; there is nobody to answer."""


async def read_body(receive: Receive, headers: dict[bytes, bytes], most: int) -> bytes:
    """The whole body. What is too long is refused by its announcement, or while it comes in."""
    announced = headers.get(b"content-length", b"")
    if announced.isdigit() and len(announced) < 20 and int(announced) > most:
        raise too_long(most)
    message = await receive()
    body: bytes = message.get("body", b"")
    parts, size = [body], len(body)
    while message["type"] == "http.request" and message.get("more_body"):
        if size > most:
            raise too_long(most)
        message = await receive()
        parts.append(message.get("body", b""))
        size += len(parts[-1])
    if message["type"] != "http.request":
        raise Gone
    if size > most:
        raise too_long(most)
    return body if len(parts) == 1 else b"".join(parts)


def too_long(most: int) -> Problem:
    """The answer to a body that is too long."""
    return Problem(413, f"a body must have at most {most} bytes", headers=((b"connection", b"close"),))
