"""Predictions: from the bytes of a body to the bytes of the answer, from top to bottom.

Every query runs through this code, so it uses no framework. The wire format is in `wire.py`.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from math import ceil
from typing import Any

import numpy as np
import numpy.typing as npt
from prometheus_client import Counter

from indknn.errors import RequestConflictError
from indknn.ledger.figures import guarantee
from indknn.models.probabilities import Decision
from indknn.server.gate import OPEN, ReadBody, needs
from indknn.server.problems import Problem, RawHeaders, shown
from indknn.server.service import Service
from indknn.server.wire import (
    HEADER_LENGTH,
    INTERVALS,
    LABEL,
    LONGEST_ID,
    PROBABILITIES,
    ROW_ID,
    SMALL,
    Asked,
    Bounds,
    label_datatype,
    names_of,
    read_request,
    read_rows,
    write_answer,
)
from indknn.server.worker import NO_RECORDS
from indknn.store.keyfile import Key
from indknn.tables.columns import Text
from indknn.types import FloatArray

VERSION = "1"
"""The only version of a model. Released answers can be repeated, so no older version is kept."""
EXTENSIONS = ["binary_tensor_data"]
_JSON, _BYTES = b"application/json", b"application/octet-stream"


@needs("predict")
async def infer(
    service: Service,
    model: str,
    version: str | None,
    headers: dict[bytes, bytes],
    read_body: ReadBody,
    key: Key,
) -> tuple[bytes, RawHeaders]:
    """The body of the answer and its headers. With a tick, the answer or error leaves at a multiple of it (rule 8)."""
    worker, stage, start, rows = service.worker, service.metrics.stage, time.perf_counter(), 1
    analyst = None if key is OPEN else key.name
    try:
        check_model(service, model, version)
        form = _form_of(headers)
        most, bounds = await _admitted(service, headers, key, analyst)
        body = await read_body(most)
        stage["arrive"].observe(time.perf_counter() - start)
        start = time.perf_counter()  # the time in which the client sends its request does not count
        asked = await _parse(service, bounds, form, headers, body)
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
            likely = PROBABILITIES in asked.outputs or asked.decision is not None
            if likely or asked.coverage is not None:
                await _refuse_unfit(service, asked.decision, asked.coverage, analyst, likely=likely)
            reply = await worker.predict(queries, analyst, scoped, key.max_queries, likely=likely)
        except RequestConflictError:
            text = f"id {shown(request_id)} was used before for other queries; use a new one"
            raise Problem(409, text, "id_conflict") from None
        committed = time.perf_counter()
        said: tuple[Any, ...] = service.target.decode(reply.labels), reply.likely, None
        if asked.decision is not None or asked.coverage is not None:
            said = await _decided(service, asked.decision, asked.coverage, said[0], said[1], analyst)
        found: dict[str, Any] = dict(zip((LABEL, PROBABILITIES, INTERVALS, ROW_ID), (*said, asked.ids), strict=True))
        outputs = [(name, found[name], binary) for name, binary in asked.outputs.items()]
        column = None if service.schema is None else service.schema.label
        answer = write_answer(service.name, VERSION, request_id, outputs, column)
    finally:
        if service.options.tick is not None:
            await wait_for_tick(start, service.options.tick * rows, service.metrics.late)
    now = time.perf_counter()
    stage["answer"].observe(now - committed)
    service.metrics.infer_seconds.observe(now - start)
    return answer


async def _admitted(service: Service, headers: dict[bytes, bytes], key: Key, analyst: str | None) -> tuple[int, Bounds]:
    """How long the body may be, and how much structure it may have.

    Raises what can be known before reading it: rate, limits, no records, too busy.
    """
    if service.n_features is None:
        await service.worker.run(service.look)
        if service.n_features is None:
            raise Problem(409, NO_RECORDS, "no_records")
    if key.rate is not None:
        service.rate_limiter.take(key.id, key.rate, 1)
    _refuse_if_busy(service, 1)
    most, bounds = service.query_bounds
    if key.max_queries is None or service.worker.given(analyst) < key.max_queries:
        return most, bounds
    said = _request_id(headers)
    if said and service.store.knows(scoped_id(analyst, said)):
        return most, bounds  # a repeat, which costs nothing
    if key.max_queries == 0 or not headers.get(b"content-length", b"").isdigit():
        raise Problem(403, f"this key may ask no more queries: 0 of {key.max_queries} are left", "query_limit")
    return min(most, SMALL), bounds  # it may be a repeat whose id is in the body


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
    said = headers.get(HEADER_LENGTH)
    if said is not None and not (said.isdigit() and len(said) < 20):
        raise Problem(400, f"Inference-Header-Content-Length must be a number of bytes, got {shown(said)}")
    length = None if said is None else int(said)
    if length is None and kind not in {_JSON, _BYTES}:
        raise Problem(415, f"content type {shown(kind)}: must be application/json or application/octet-stream")
    return length == 0 or (length is None and kind == _BYTES), length


async def _parse(
    service: Service,
    bounds: Bounds,
    form: tuple[bool, int | None],
    headers: dict[bytes, bytes],
    body: bytes | bytearray,
) -> Asked:
    """What is asked. The worker checks the number of features, together with their values."""
    (rows_alone, length), most = form, service.options.max_batch
    if rows_alone:
        width, said = service.n_features or 1, headers.get(b"x-indknn-rows")
        asked = Asked(await service.reader.read(read_rows, body, bounds, width, said, json=0))
    else:
        names = names_of(service.schema)
        asked = await service.reader.read(read_request, body, bounds, length, most, names, json=length)
    if not 0 < len(asked.rows) <= most:
        raise Problem(422, f"a request must have 1 to {most} rows, got {len(asked.rows)}")
    return replace(asked, request_id=checked_id(asked.request_id or _request_id(headers)))


def _request_id(headers: dict[bytes, bytes]) -> str:
    return headers.get(b"x-request-id", b"").decode("utf-8", "replace")


def checked_id(request_id: str) -> str | None:
    """The id that a client has given. None if it gave none."""
    if len(request_id) > LONGEST_ID or not request_id.isprintable():
        raise Problem(422, f"an id must be 1 to {LONGEST_ID} printable characters, got {shown(request_id)}")
    return request_id or None


async def _vectors(service: Service, asked: Asked) -> FloatArray:
    """The rows as numbers. Texts are embedded in a thread, one at a time, so that others do not wait."""
    if not isinstance(asked.rows, list):
        return asked.rows
    rows: list[Any] = asked.rows
    schema = service.schema
    if isinstance(rows[0], dict):
        assert schema is not None  # `_rows_of` refuses rows of tables without one
        slow = any(isinstance(column, Text) for column in schema.used.values())
        return await asyncio.to_thread(schema.encode, rows) if slow else schema.encode(rows)
    if service.embed is None:
        raise Problem(422, "this model takes numbers: 'datatype' must be one of FP64, FP32 or INT64, got 'BYTES'")
    return await asyncio.to_thread(service.embed, rows)


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


async def _refuse_unfit(
    service: Service, decision: Decision | None, coverage: float | None, analyst: str | None, *, likely: bool
) -> None:
    """Refuse what cannot be decided, before anybody is charged. Counts and report cards come with the shared model."""

    def refuse() -> None:  # by the worker, because the store may have to be read anew
        engine = service.store.engine
        if likely:
            engine.refuse_numbers("probabilities, min_confidence and class_weight")
        if decision is not None:
            engine.refuse_unfit(decision, analyst)
        if coverage is not None:
            engine.refuse_coverage(coverage)
        if by_model:
            engine.shown_to(analyst)

    by_model = coverage is not None or (decision is not None and decision.balanced)
    await (service.told if by_model else service.worker.run)(refuse)  # settings need no sync of the disk


async def _decided(
    service: Service,
    decision: Decision | None,
    coverage: float | None,
    labels: npt.NDArray[Any],
    likely: FloatArray | None,
    analyst: str | None,
) -> tuple[npt.NDArray[Any], FloatArray | None, FloatArray | None]:
    """Labels, probabilities and intervals, from labels and probabilities as they were released.

    With a `min_confidence`, labels are texts, and empty where they are left open. Counts and cards of the shared model
    may be newer than the labels, so they are made durable before (rule 2).
    """
    if coverage is not None:
        share = coverage
        return labels, likely, await service.told(lambda: service.store.engine.intervals(labels, share, analyst))
    assert decision is not None
    assert likely is not None
    how, released = decision, (labels, likely)
    decided = service.told if decision.balanced else service.worker.run  # released already, so it may leave
    labels, likely = await decided(lambda: service.store.engine.decide(how, *released, analyst))
    if decision.min_confidence is not None:
        labels = np.array(["" if label is None else str(label) for label in labels.tolist()])
    return labels, likely, None


def metadata(service: Service, key: Key) -> dict[str, Any]:
    """The public facts about the model: its parameters and the guarantee. Nothing depends on people."""
    settings = service.store.settings
    promise = guarantee(settings, None if key is OPEN else key.name, periods=service.store.periods)
    return {
        "name": service.name,
        "versions": [VERSION],
        "platform": "indknn",
        "inputs": _inputs(service),
        "outputs": _given(service),
        "parameters": {
            **({"bounds": settings.bounds} if settings.numeric else {}),
            "classes": service.classes.tolist(),
            "n_features": service.n_features,
            **({} if settings.schema is None else {"schema": settings.schema}),
            **{name: value for name, value in promise.items() if name != "words"},
            "tau": settings.tau,
            "kernel": settings.kernel,
            "max_batch": service.options.max_batch,
            "max_records": service.options.max_records,
            "max_body": service.options.max_body,
            "tick": service.options.tick,
        },
    }


def _given(service: Service) -> list[dict[str, Any]]:
    """The outputs: labels and their probabilities, or numbers and their intervals, which the shared model knows."""
    if service.store.settings.numeric:
        shapes = {LABEL: [-1], **({INTERVALS: [-1, 2]} if service.store.settings.advised else {})}
        return [{"name": name, "datatype": "FP64", "shape": shape} for name, shape in shapes.items()]
    return [
        {"name": LABEL, "datatype": label_datatype(service.classes), "shape": [-1]},
        {"name": PROBABILITIES, "datatype": "FP64", "shape": [-1, len(service.classes) or -1]},
    ]


def _inputs(service: Service) -> list[dict[str, Any]]:
    """The inputs of a query: one tensor per column of the schema, texts, or vectors."""
    schema = service.schema
    if schema is not None:
        kinds = {name: "FP64" if column.kind == "number" else "BYTES" for name, column in schema.used.items()}
        return [{"name": name, "datatype": kind, "shape": [-1]} for name, kind in kinds.items()]
    if service.embed is not None:
        return [{"name": "text", "datatype": "BYTES", "shape": [-1]}]
    return [{"name": "features", "datatype": "FP32", "shape": [-1, service.n_features or -1]}]
