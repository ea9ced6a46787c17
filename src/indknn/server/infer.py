"""One request for predictions, from the bytes of its body to the bytes of its answer, top to bottom.

A body is of the Open Inference Protocol (`tensors.py`), or raw rows of float32. Every query takes this road, so it does
without a framework.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from math import ceil
from typing import Any, TypeAlias

from prometheus_client import Counter

from indknn.errors import RequestConflictError
from indknn.server.keyring import OPEN
from indknn.server.problems import Problem, RawHeaders, shown
from indknn.server.service import VERSION, Service
from indknn.server.tensors import Asked, header_length_of, read_request, read_rows, write_answer
from indknn.store.keyfile import Key
from indknn.types import FloatArray

Receive: TypeAlias = Callable[[], Awaitable[Any]]
_LONGEST_ID = 256
_JSON, _BYTES = b"application/json", b"application/octet-stream"


async def infer(
    service: Service, model: str, version: str | None, headers: dict[bytes, bytes], receive: Receive, key: Key
) -> tuple[bytes, RawHeaders]:
    """The body of the answer and its headers. With a tick, answer or error leaves on a multiple of it (rule 8)."""
    options, worker, start, rows = service.options, service.worker, time.perf_counter(), 1
    try:
        check_model(service, model, version)
        body = await read_body(receive, headers, options.max_body)
        start = time.perf_counter()  # the time that the client took to send its request does not count
        asked = _parse(service, headers, body)
        queries, request_id = await _vectors(service, asked), asked.request_id
        rows = len(queries)
        if key.rate is not None:
            service.rate_limiter.take(key.id, key.rate, rows)
        if worker.waiting and worker.waiting + rows > options.max_waiting:
            raise Problem(503, "too many queries are waiting; ask again later", "busy", ((b"retry-after", b"1"),))
        analyst = None if key is OPEN else key.name
        scoped = None if request_id is None else scoped_id(analyst, request_id)
        try:
            numbers = await worker.predict(queries, analyst, scoped, key.max_queries)
        except RequestConflictError:
            text = f"id {shown(request_id)} was used before for other queries; use a new one"
            raise Problem(409, text, "id_conflict") from None
        answer = write_answer(service.name, VERSION, request_id, service.classes[numbers], asked.binary)
    finally:
        if options.tick is not None:
            await wait_for_tick(start, options.tick * rows, service.metrics.late)
    service.metrics.answered.inc(rows)
    service.metrics.infer_seconds.observe(time.perf_counter() - start)
    return answer


def check_model(service: Service, name: str, version: str | None = None) -> None:
    """Refuse a model, or a version of it, that is not served."""
    if name != service.name:
        raise Problem(404, f"there is no model {shown(name)}; this server has {service.name!r}")
    if version not in {None, VERSION}:
        raise Problem(404, f"there is no version {shown(version)} of {service.name!r}; it has {VERSION!r}")


async def read_body(receive: Receive, headers: dict[bytes, bytes], most: int) -> bytes:
    """The whole body. A body that is too long is refused by its announced length, or while it arrives."""
    announced = headers.get(b"content-length", b"")
    length = int(announced) if announced.isdigit() and len(announced) < 20 else 0
    parts: list[bytes] = []
    arrived, more = 0, True
    while more and max(length, arrived) <= most:
        message = await receive()
        if message["type"] != "http.request":
            raise Problem(499, "the client hung up before its request had arrived")
        parts.append(message.get("body", b""))
        arrived += len(parts[-1])
        more = message.get("more_body", False)
    if max(length, arrived) > most:
        raise Problem(413, f"a body must have at most {most} bytes", headers=((b"connection", b"close"),))
    return b"".join(parts)


def _parse(service: Service, headers: dict[bytes, bytes], body: bytes) -> Asked:
    """What is asked. Whether the number of features is right is checked by the worker, with their values."""
    kind = headers.get(b"content-type", _JSON).partition(b";")[0].strip().lower()
    said = headers.get(b"x-request-id", b"").decode("utf-8", "replace")
    length, most = header_length_of(headers), service.options.max_batch
    if b"content-encoding" in headers:
        raise Problem(415, f"content encoding {shown(headers[b'content-encoding'])}: bodies must not be compressed")
    if length == 0 or (length is None and kind == _BYTES):
        asked = Asked(read_rows(body, service.n_features or 1, headers.get(b"x-indknn-rows")))
    elif length is not None or kind == _JSON:
        asked = read_request(body, length, most)
    else:
        raise Problem(415, f"content type {shown(kind)}: must be application/json or application/octet-stream")
    if not 0 < len(asked.rows) <= most:
        raise Problem(422, f"a request must have 1 to {most} rows, got {len(asked.rows)}")
    request_id = asked.request_id or said
    if len(request_id) > _LONGEST_ID or not request_id.isprintable():
        raise Problem(422, f"an id must be 1 to {_LONGEST_ID} printable characters, got {shown(request_id)}")
    return replace(asked, request_id=request_id or None)


async def _vectors(service: Service, asked: Asked) -> FloatArray:
    """The rows as numbers. Texts are embedded in a thread, one at a time: others go on meanwhile."""
    if not isinstance(asked.rows, list):
        return asked.rows
    if service.embed is None:
        raise Problem(422, "this model takes numbers: 'datatype' must be one of FP64, FP32 or INT64, got 'BYTES'")
    return await asyncio.to_thread(service.embed, asked.rows)


def scoped_id(analyst: str | None, request_id: str) -> str:
    """A request id as the store keeps it. It differs between analysts, so they cannot meet each other's ids.

    >>> scoped_id("ann", "1"), scoped_id(None, "1")
    ('http:3:ann:1', 'http::1')
    """
    return f"http::{request_id}" if analyst is None else f"http:{len(analyst)}:{analyst}:{request_id}"


async def wait_for_tick(start: float, allowed: float, late: Counter) -> None:
    """Wait until a multiple of what these queries are allowed has passed."""
    periods = max(1, ceil((time.perf_counter() - start) / allowed))
    if periods > 1:
        late.inc()
    while (left := start + periods * allowed - time.perf_counter()) > 0:
        await asyncio.sleep(left)
