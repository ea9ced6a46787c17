"""One prediction request, from the bytes of its body to the bytes of its answer, from top to bottom.

A body is in the Open Inference Protocol (`tensors.py`), or raw rows of float32. Every query runs through this code, so
it uses no framework.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace
from math import ceil
from typing import TypeAlias

from prometheus_client import Counter

from indknn.errors import RequestConflictError
from indknn.server.bodies import SMALL, Receive, read_body
from indknn.server.keyring import OPEN
from indknn.server.problems import Problem, RawHeaders, shown
from indknn.server.service import VERSION, Service
from indknn.server.tables import encoded
from indknn.server.tensors import (
    LABEL,
    PROBABILITIES,
    Asked,
    header_length_of,
    read_request,
    read_rows,
    write_answer,
)
from indknn.server.worker import NO_RECORDS
from indknn.store.keyfile import Key
from indknn.types import FloatArray

Take: TypeAlias = Callable[[int], None]
_LONGEST_ID = 256
_JSON, _BYTES = b"application/json", b"application/octet-stream"


async def infer(
    service: Service,
    model: str,
    version: str | None,
    headers: dict[bytes, bytes],
    receive: Receive,
    key: Key,
    take: Take,
) -> tuple[bytes, RawHeaders]:
    """The body of the answer and its headers. With a tick, the answer or error leaves at a multiple of it (rule 8).

    `take` reserves the bytes of the body within the limit for all bodies.
    """
    worker, stage, start, rows = service.worker, service.metrics.stage, time.perf_counter(), 1
    analyst = None if key is OPEN else key.name
    try:
        check_model(service, model, version)
        form = _form_of(headers)
        most = await _admitted(service, headers, key, analyst)
        body = await read_body(receive, headers, most, take)
        stage["arrive"].observe(time.perf_counter() - start)
        start = time.perf_counter()  # the time in which the client sends its request does not count
        asked = await _parse(service, form, headers, body)
        del body
        queries, request_id = await _vectors(service, asked), asked.request_id
        rows = len(queries)
        stage["read"].observe(time.perf_counter() - start)
        if key.rate is not None and rows > 1:
            service.rate_limiter.take(key.id, key.rate, rows - 1, already=1)
        if worker.waiting:
            _refuse_if_busy(service, rows)
        scoped = None if request_id is None else scoped_id(analyst, request_id)
        try:
            likely = PROBABILITIES in asked.outputs
            reply = await worker.predict(queries, analyst, scoped, key.max_queries, likely=likely)
        except RequestConflictError:
            text = f"id {shown(request_id)} was used before for other queries; use a new one"
            raise Problem(409, text, "id_conflict") from None
        told = time.perf_counter()
        found = {LABEL: service.classes[reply.labels], PROBABILITIES: reply.likely}
        outputs = [(name, found[name], binary) for name, binary in asked.outputs.items()]
        answer = write_answer(service.name, VERSION, request_id, outputs)
    finally:
        if service.options.tick is not None:
            await wait_for_tick(start, service.options.tick * rows, service.metrics.late)
    now = time.perf_counter()
    stage["answer"].observe(now - told)
    service.metrics.infer_seconds.observe(now - start)
    return answer


async def _admitted(service: Service, headers: dict[bytes, bytes], key: Key, analyst: str | None) -> int:
    """How long the body may be. Raises what can be known before reading it: rate, limits, no records, too busy."""
    if service.n_features is None:
        await service.worker.run(service.look)
        if service.n_features is None:
            raise Problem(409, NO_RECORDS, "no_records")
    if key.rate is not None:
        service.rate_limiter.take(key.id, key.rate, 1)
    _refuse_if_busy(service, 1)
    most, _ = service.query_bounds
    if key.max_queries is None or service.worker.given(analyst) < key.max_queries:
        return most
    said = _request_id(headers)
    if said and service.store.knows(scoped_id(analyst, said)):
        return most  # a repeat, which costs nothing
    if key.max_queries == 0 or not headers.get(b"content-length", b"").isdigit():
        raise Problem(403, f"this key may ask no more queries: 0 of {key.max_queries} are left", "query_limit")
    return min(most, SMALL)  # it may be a repeat whose id is in the body


def _refuse_if_busy(service: Service, rows: int) -> None:
    if service.worker.waiting + rows > service.options.max_waiting:
        raise Problem(503, "too many queries are waiting; ask again later", "busy", ((b"retry-after", b"1"),))


def check_model(service: Service, name: str, version: str | None = None) -> None:
    """Refuse a model, or a version of it, that is not served."""
    if name != service.name:
        raise Problem(404, f"there is no model {shown(name)}; this server has {service.name!r}")
    if version not in {None, VERSION}:
        raise Problem(404, f"there is no version {shown(version)} of {service.name!r}; it has {VERSION!r}")


def _form_of(headers: dict[bytes, bytes]) -> tuple[bool, int | None]:
    """Whether the body is only rows, and how many of its bytes are JSON if not all are. Refuses all other forms."""
    kind = headers.get(b"content-type", _JSON).partition(b";")[0].strip().lower()
    if b"content-encoding" in headers:
        raise Problem(415, f"content encoding {shown(headers[b'content-encoding'])}: bodies must not be compressed")
    length = header_length_of(headers)
    if length is None and kind not in {_JSON, _BYTES}:
        raise Problem(415, f"content type {shown(kind)}: must be application/json or application/octet-stream")
    return length == 0 or (length is None and kind == _BYTES), length


async def _parse(
    service: Service, form: tuple[bool, int | None], headers: dict[bytes, bytes], body: bytes | bytearray
) -> Asked:
    """What is asked. The worker checks the number of features, together with their values."""
    (rows_alone, length), most, (_, bounds) = form, service.options.max_batch, service.query_bounds
    if rows_alone:
        width, said = service.n_features or 1, headers.get(b"x-indknn-rows")
        asked = Asked(await service.reader.read(read_rows, body, bounds, width, said, json=0))
    else:
        columns = None if service.store.schema is None else list(service.store.schema.columns)
        asked = await service.reader.read(read_request, body, bounds, length, most, columns, json=length)
    if not 0 < len(asked.rows) <= most:
        raise Problem(422, f"a request must have 1 to {most} rows, got {len(asked.rows)}")
    return replace(asked, request_id=checked_id(asked.request_id or _request_id(headers)))


def _request_id(headers: dict[bytes, bytes]) -> str:
    return headers.get(b"x-request-id", b"").decode("utf-8", "replace")


def checked_id(request_id: str) -> str | None:
    """The id that a client has given. None if it gave none."""
    if len(request_id) > _LONGEST_ID or not request_id.isprintable():
        raise Problem(422, f"an id must be 1 to {_LONGEST_ID} printable characters, got {shown(request_id)}")
    return request_id or None


async def _vectors(service: Service, asked: Asked) -> FloatArray:
    """The rows as numbers. Texts are embedded in a thread, one at a time, so that others do not wait."""
    if not isinstance(asked.rows, list):
        return asked.rows
    if isinstance(asked.rows[0], dict):
        return await encoded(asked.rows, service.store.schema)
    if service.embed is None:
        raise Problem(422, "this model takes numbers: 'datatype' must be one of FP64, FP32 or INT64, got 'BYTES'")
    return await asyncio.to_thread(service.embed, asked.rows)


def scoped_id(analyst: str | None, request_id: str) -> str:
    """A request id as the store keeps it. It includes the analyst, so that ids of different analysts never collide.

    >>> scoped_id("ann", "1"), scoped_id(None, "1")
    ('http:3:ann:1', 'http::1')
    """
    return f"http::{request_id}" if analyst is None else f"http:{len(analyst)}:{analyst}:{request_id}"


async def wait_for_tick(start: float, allowed: float, late: Counter) -> None:
    """Wait until a multiple of the time allowed for these queries has passed."""
    periods = max(1, ceil((time.perf_counter() - start) / allowed))
    if periods > 1:
        late.inc()
    while (left := start + periods * allowed - time.perf_counter()) > 0:
        await asyncio.sleep(left)
