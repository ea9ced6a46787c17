"""One request for predictions, from the bytes of its body to the bytes of its answer, top to bottom.

A body is JSON of the Open Inference Protocol, or raw rows of float32. Every query takes this road, so it does without a
framework.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection
from math import ceil, prod
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import orjson
from prometheus_client import Counter

from indknn.errors import RequestConflictError
from indknn.server.keyring import OPEN
from indknn.server.problems import Problem
from indknn.server.service import DATATYPES, Service
from indknn.server.tables import Rows, encoded, rows_of
from indknn.store.keyfile import Key
from indknn.types import FloatArray

Receive: TypeAlias = Callable[[], Awaitable[Any]]
_LONGEST_ID = 256
_FLOATS = {"FP32": np.float32, "FP64": np.float64}


async def infer(service: Service, model: str, headers: dict[bytes, bytes], receive: Receive, key: Key) -> bytes:
    """The JSON of the answer. With a tick, the answer or the error leaves on a multiple of it (rule 8)."""
    options, worker, start, rows = service.options, service.worker, time.perf_counter(), 1
    try:
        check_model(model, options.name)
        body = await read_body(receive, headers, options.max_body)
        start = time.perf_counter()  # the time that the client took to send its request does not count
        asked, request_id = _parse(service, headers, body)
        rows = len(asked)
        queries = await encoded(asked, service.store.schema)
        if key.rate is not None:
            service.rate_limiter.take(key.id, key.rate, rows)
        if worker.waiting and worker.waiting + rows > options.max_waiting:
            raise Problem(503, "too many queries are waiting; ask again later", "busy", ((b"retry-after", b"1"),))
        analyst = None if key is OPEN else key.name
        scoped = None if request_id is None else scoped_id(analyst, request_id)
        try:
            numbers = await worker.predict(queries, analyst, scoped, key.max_queries)
        except RequestConflictError:
            text = f"id {request_id!r} was used before for other queries; use a new one"
            raise Problem(409, text, "id_conflict") from None
        answer = _answer(options.name, request_id, service.store.settings.class_array, numbers)
    finally:
        if options.tick is not None:
            await wait_for_tick(start, options.tick * rows, service.metrics.late)
    service.metrics.answered.inc(rows)
    service.metrics.infer_seconds.observe(time.perf_counter() - start)
    return answer


def check_model(name: str, served: str) -> None:
    """Refuse the name of a model that is not served."""
    if name != served:
        raise Problem(404, f"there is no model {name!r}; this server has {served!r}")


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


def _parse(service: Service, headers: dict[bytes, bytes], body: bytes) -> tuple[FloatArray | Rows, str | None]:
    """The queries and the id of the request. Their number of features is checked by the worker, with their values."""
    queries: FloatArray | Rows
    kind = headers.get(b"content-type", b"application/json").partition(b";")[0].strip().lower()
    request_id = headers.get(b"x-request-id", b"").decode("utf-8", "replace")
    if kind == b"application/octet-stream":
        queries = _from_raw(headers, body, service.n_features or 1)
    elif kind == b"application/json":
        schema = service.store.schema
        queries, id_in_body = _from_json(body, None if schema is None else schema.columns)
        request_id = id_in_body or request_id
    else:
        text = kind.decode("latin-1")
        raise Problem(415, f"content type {text!r}: must be application/json or application/octet-stream")
    if not 0 < len(queries) <= service.options.max_batch:
        raise Problem(422, f"a request must have 1 to {service.options.max_batch} rows, got {len(queries)}")
    if len(request_id) > _LONGEST_ID or not request_id.isprintable():
        raise Problem(422, f"an id must be 1 to {_LONGEST_ID} printable characters, got {_short(request_id)}")
    return queries, request_id or None


def _from_raw(headers: dict[bytes, bytes], body: bytes, width: int) -> FloatArray:
    rows, rest = divmod(len(body), 4 * width)
    if rest:
        raise Problem(422, f"the body has {len(body)} bytes: must be rows of {width} little-endian float32")
    said = headers.get(b"x-indknn-rows", b"%d" % rows).strip().decode("utf-8", "replace")
    if said != str(rows):
        raise Problem(422, f"X-Indknn-Rows is {said!r}, but the body has {rows} rows of {width} float32")
    return np.frombuffer(body, dtype="<f4").reshape(rows, width).astype(np.float64)


def _from_json(body: bytes, columns: Collection[str] | None) -> tuple[FloatArray | Rows, str | None]:
    try:
        asked = orjson.loads(body)
    except ValueError as error:
        raise Problem(400, f"the body is not JSON: {error}", "bad_json") from None
    if not isinstance(asked, dict):
        raise Problem(422, "the body must be a JSON object with 'inputs'")
    inputs, request_id = asked.get("inputs"), asked.get("id")
    if not isinstance(request_id, str | None):
        raise Problem(422, f"'id' must be a string, got {_short(request_id)}")
    if (rows := rows_of(asked, columns)) is not None:
        return rows, request_id
    if not (isinstance(inputs, list) and len(inputs) == 1 and isinstance(inputs[0], dict)):
        raise Problem(422, "'inputs' must be a list of one tensor, named 'features'")
    name, kind, shape, data = (inputs[0].get(field) for field in ("name", "datatype", "shape", "data"))
    if name != "features":
        raise Problem(422, f"the name of the input must be 'features', got {_short(name)}")
    if not isinstance(kind, str) or kind not in _FLOATS:
        raise Problem(422, f"'datatype' must be 'FP32' or 'FP64', got {_short(kind)}")
    if not (isinstance(shape, list) and len(shape) == 2 and all(type(n) is int and n > 0 for n in shape)):
        raise Problem(422, f"'shape' must be [rows, features], both positive, got {_short(shape)}")
    return _numbers(data, shape, _FLOATS[kind]), request_id


def _numbers(data: Any, shape: list[int], kind: Any) -> FloatArray:
    try:
        # A sum is the fastest test for numbers. It must come before NumPy: from one long text among many numbers NumPy
        # would make an array in which every number takes as much memory as that text.
        for row in data if isinstance(data[0], list) else [data]:
            sum(row)
        array = np.array(data)
    except (TypeError, LookupError, ValueError, OverflowError):  # ValueError: rows of different lengths
        array = np.array(None)
    if array.dtype.kind not in "iuf":
        raise Problem(422, "'data' must be a list of numbers, flat or row by row")
    if array.size != prod(shape) or (array.ndim != 1 and list(array.shape) != shape):
        raise Problem(422, f"'data' has shape {list(array.shape)}, but 'shape' says {_short(shape)}")
    with np.errstate(over="ignore"):
        return array.astype(kind).astype(np.float64).reshape(shape)


def scoped_id(analyst: str | None, request_id: str) -> str:
    """A request id as the store keeps it. It differs between analysts, so they cannot meet each other's ids.

    >>> scoped_id("ann", "1"), scoped_id(None, "1")
    ('http:3:ann:1', 'http::1')
    """
    return f"http::{request_id}" if analyst is None else f"http:{len(analyst)}:{analyst}:{request_id}"


def _answer(model: str, request_id: str | None, classes: npt.NDArray[Any], numbers: Any) -> bytes:
    output = {
        "name": "label",
        "shape": [len(numbers)],
        "datatype": DATATYPES.get(classes.dtype.kind, "BYTES"),
        "data": classes[numbers].tolist(),
    }
    named = {} if request_id is None else {"id": request_id}
    return orjson.dumps({"model_name": model, **named, "outputs": [output]})


async def wait_for_tick(start: float, allowed: float, late: Counter) -> None:
    """Wait until a multiple of what these queries are allowed has passed."""
    periods = max(1, ceil((time.perf_counter() - start) / allowed))
    if periods > 1:
        late.inc()
    while (left := start + periods * allowed - time.perf_counter()) > 0:
        await asyncio.sleep(left)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
