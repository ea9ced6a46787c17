"""Predictions over HTTP: the Open Inference Protocol's JSON, and raw rows of float32.

This is the road that every query takes, so it does without a framework: bytes in, rows to the worker, bytes out.
"""

from __future__ import annotations

import asyncio
import time
from math import ceil, prod
from typing import Any

import numpy as np
import orjson

from indknn.errors import RequestConflictError
from indknn.server.access import Visitor
from indknn.server.body import Receive, read_body
from indknn.server.problems import Problem
from indknn.server.rates import Rates
from indknn.server.service import Service
from indknn.types import FloatArray

_LONGEST_ID = 256
_TYPES = {"FP32": np.float32, "FP64": np.float64}
_KINDS = {"i": "INT64", "u": "INT64", "b": "BOOL", "f": "FP64"}


class Infer:
    """Answers `POST /v2/models/{name}/infer`."""

    def __init__(self, service: Service):
        self.service = service
        self.rates = Rates()

    async def __call__(self, model: str, headers: dict[bytes, bytes], receive: Receive, who: Visitor) -> bytes:
        """The JSON of the answer. With a tick, it and any error leave on a multiple of it."""
        options, start, rows = self.service.options, time.perf_counter(), 1
        try:
            if model != options.name:
                raise Problem(404, f"there is no model {model!r}; this server has {options.name!r}")
            body = await read_body(receive, headers, options.max_body)
            start = time.perf_counter()  # how long the client took to send is its own affair
            values, name = self._parsed(headers, body)
            rows = len(values)
            labels = await self._labels(values, name, who)
            answer = self._answer(labels, name)
        finally:
            if options.tick is not None:
                await self._pace(start, options.tick * rows)
        self.service.metrics.infer(time.perf_counter() - start, rows)
        return answer

    async def _labels(self, values: FloatArray, name: str | None, who: Visitor) -> Any:
        key, worker = who.key, self.service.worker
        if key is not None and key.rate is not None:
            self.rates.spend(key.id, key.rate, len(values))
        if worker.waiting + len(values) > self.service.options.max_waiting and worker.waiting:
            raise Problem(503, "too many queries are waiting; ask again later", "busy", ((b"retry-after", b"1"),))
        request = None if name is None else scoped_id(who.analyst, name)
        try:
            return await worker.predict(values, who.analyst, request, None if key is None else key.max_queries)
        except RequestConflictError:
            raise Problem(409, f"id {name!r} was used before for other queries; use a new one", "id_conflict") from None

    def _parsed(self, headers: dict[bytes, bytes], body: bytes) -> tuple[FloatArray, str | None]:
        kind = headers.get(b"content-type", b"application/json").partition(b";")[0].strip().lower()
        if kind == b"application/octet-stream":
            values, name = self._raw(headers, body), headers.get(b"x-request-id")
            return self._checked(values), None if name is None else _id(_text(name))
        if kind != b"application/json":
            text = kind.decode("latin-1")
            raise Problem(415, f"content type {text!r}: must be application/json or application/octet-stream")
        try:
            asked = orjson.loads(body)
        except ValueError as error:
            raise Problem(400, f"the body is not JSON: {error}", "bad_json") from None
        values, named = _from_json(asked)
        if named is None and b"x-request-id" in headers:
            named = _id(_text(headers[b"x-request-id"]))
        return self._checked(values), named

    def _raw(self, headers: dict[bytes, bytes], body: bytes) -> FloatArray:
        width = self.service.n_features or 1
        rows, rest = divmod(len(body), 4 * width)
        if rest:
            raise Problem(422, f"the body has {len(body)} bytes: must be rows of {width} little-endian float32")
        said = headers.get(b"x-indknn-rows", str(rows).encode())
        if said.strip() != str(rows).encode():
            raise Problem(422, f"X-Indknn-Rows is {_text(said)!r}, but the body has {rows} rows of {width} float32")
        return np.frombuffer(body, dtype="<f4").reshape(rows, width).astype(np.float64)

    def _checked(self, values: FloatArray) -> FloatArray:
        width, most = self.service.n_features, self.service.options.max_batch
        if not 0 < len(values) <= most:
            raise Problem(422, f"a request must have 1 to {most} rows, got {len(values)}")
        if width is not None and values.shape[1] != width:
            raise Problem(422, f"the queries must have {width} features per row, got {values.shape[1]}")
        return values

    def _answer(self, labels: Any, name: str | None) -> bytes:
        classes = self.service.classes
        data = classes[labels]
        output = {
            "name": "label",
            "shape": [len(labels)],
            "datatype": _KINDS.get(classes.dtype.kind, "BYTES"),
            "data": data.tolist(),
        }
        answer = {"model_name": self.service.options.name, "id": name, "outputs": [output]}
        return orjson.dumps(answer if name is not None else {k: v for k, v in answer.items() if k != "id"})

    async def _pace(self, start: float, allowed: float) -> None:
        """Wait for the next multiple of what these queries are allowed; see `indknn.answering.pacing`."""
        periods = max(1, ceil((time.perf_counter() - start) / allowed))
        self.service.metrics.late += periods > 1
        while (left := start + periods * allowed - time.perf_counter()) > 0:
            await asyncio.sleep(left)


def scoped_id(analyst: str | None, name: str) -> str:
    """A request id as the store keeps it: nobody meets the ids of another analyst.

    >>> scoped_id("ann", "1"), scoped_id(None, "1")
    ('http:3:ann:1', 'http::1')
    """
    return f"http::{name}" if analyst is None else f"http:{len(analyst)}:{analyst}:{name}"


def _from_json(asked: Any) -> tuple[FloatArray, str | None]:
    if not isinstance(asked, dict):
        raise Problem(422, "the body must be a JSON object with 'inputs'")
    inputs = asked.get("inputs")
    if not (isinstance(inputs, list) and len(inputs) == 1 and isinstance(inputs[0], dict)):
        raise Problem(422, "'inputs' must be a list of one tensor, named 'features'")
    tensor = inputs[0]
    if tensor.get("name") != "features":
        raise Problem(422, f"the name of the input must be 'features', got {_short(tensor.get('name'))}")
    kind = tensor.get("datatype")
    if not isinstance(kind, str) or kind not in _TYPES:
        raise Problem(422, f"'datatype' must be 'FP32' or 'FP64', got {_short(kind)}")
    shape = tensor.get("shape")
    if not (isinstance(shape, list) and len(shape) == 2 and all(type(n) is int and n > 0 for n in shape)):
        raise Problem(422, f"'shape' must be [rows, features], both positive, got {_short(shape)}")
    name = asked.get("id")
    if name is not None and not isinstance(name, str):
        raise Problem(422, f"'id' must be a string, got {_short(name)}")
    return _numbers(tensor.get("data"), shape, _TYPES[kind]), None if name is None else _id(name)


def _numbers(data: Any, shape: list[int], kind: Any) -> FloatArray:
    try:
        array = np.array(data if _plain(data) else None)
    except (ValueError, OverflowError):  # rows of different lengths
        array = np.array(None)
    if array.dtype.kind not in "iuf":
        raise Problem(422, "'data' must be a list of numbers, flat or row by row")
    if array.size != prod(shape) or (array.ndim != 1 and list(array.shape) != shape):
        raise Problem(422, f"'data' has shape {list(array.shape)}, but 'shape' says {_short(shape)}")
    with np.errstate(over="ignore"):
        return array.astype(kind).astype(np.float64).reshape(shape)


def _plain(data: Any) -> bool:
    """Whether this can be summed: numbers, or rows of them. One text among many numbers would make NumPy write
    each of them as long as that text. A sum is the quickest look at all."""
    if not isinstance(data, list):
        return False
    try:
        for row in data if data and isinstance(data[0], list) else [data]:
            sum(row)
    except TypeError:
        return False
    return True


def _id(name: str) -> str | None:
    if not name:
        return None
    if len(name) > _LONGEST_ID or not name.isprintable():
        raise Problem(422, f"an id must be 1 to {_LONGEST_ID} printable characters, got {_short(name)}")
    return name


def _text(value: bytes) -> str:
    return value.decode("utf-8", "replace")


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
