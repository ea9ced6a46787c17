"""Predictions: from the bytes of a body to the bytes of the answer, from top to bottom; then the wire format.

A body is in the Open Inference Protocol v2, with tensors in JSON or as bytes after the JSON (the binary tensor data
extension), or it is raw rows of float32. Every query runs through this code, so it uses no framework.
"""

from __future__ import annotations

import asyncio
import struct
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from math import ceil, prod
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import orjson
from prometheus_client import Counter

from indknn.errors import RequestConflictError
from indknn.ledger.figures import guarantee
from indknn.server.keys import OPEN, needs
from indknn.server.limits import SMALL, Receive, read_body
from indknn.server.problems import Problem, RawHeaders, shown
from indknn.server.service import Service
from indknn.server.worker import NO_RECORDS
from indknn.store.keyfile import Key
from indknn.tables.columns import Text
from indknn.types import FloatArray

Take: TypeAlias = Callable[[int], None]
Rows: TypeAlias = list[dict[str, Any]]
VERSION = "1"
"""The only version of a model. Released answers can be repeated, so no older version is kept."""
Body: TypeAlias = bytes | bytearray | memoryview
EXTENSIONS = ["binary_tensor_data"]
HEADER_LENGTH = b"inference-header-content-length"
LABEL, PROBABILITIES = "label", "probabilities"
_BITS = {"INT": "<i", "UINT": "<u", "FP": "<f"}
NUMBERS = {
    f"{kind}{8 * size}": np.dtype(f"{_BITS[kind]}{size}")
    for kind, sizes in (("FP", (2, 4, 8)), ("INT", (1, 2, 4, 8)), ("UINT", (1, 2, 4, 8)))
    for size in sizes
}
"""The datatypes of numbers, as they are in binary data."""
_KINDS = {"f": "iuf", "i": "iu", "u": "iu"}  # which numbers of JSON may stand for a datatype
_LABELS = {"i": ("INT64", "<i8"), "u": ("INT64", "<i8"), "b": ("BOOL", "?"), "f": ("FP64", "<f8")}
_NOT_HERE = ("classification", "shared_memory_region")
"""Parameters of other servers. Ignoring these would change the meaning of an answer, so they are refused. Other
parameters are ignored."""
DATATYPES = {"BOOL", "BYTES", *NUMBERS} - {"FP16"}
"""The datatypes of the columns of a table."""
_LONGEST_ID = 256
_JSON, _BYTES = b"application/json", b"application/octet-stream"


@dataclass(frozen=True)
class Asked:
    """A request: rows of features, or texts or table rows that will become features, and how to answer."""

    rows: FloatArray | list[str] | Rows
    request_id: str | None = None
    outputs: dict[str, bool] = field(default_factory=lambda: {LABEL: False})
    """The outputs in this order, and whether each is sent as bytes."""


@needs("predict")
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
        committed = time.perf_counter()
        found = {LABEL: service.classes[reply.labels], PROBABILITIES: reply.likely}
        outputs = [(name, found[name], binary) for name, binary in asked.outputs.items()]
        answer = write_answer(service.name, VERSION, request_id, outputs)
    finally:
        if service.options.tick is not None:
            await wait_for_tick(start, service.options.tick * rows, service.metrics.late)
    now = time.perf_counter()
    stage["answer"].observe(now - committed)
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
    rows: list[Any] = asked.rows
    if isinstance(rows[0], dict):
        schema = service.store.schema
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


def metadata(service: Service, key: Key) -> dict[str, Any]:
    """The public facts about the model: its parameters and the guarantee. Nothing depends on people."""
    settings = service.store.settings
    promise = guarantee(settings, None if key is OPEN else key.name)
    return {
        "name": service.name,
        "versions": [VERSION],
        "platform": "indknn",
        "inputs": _inputs(service),
        "outputs": [
            {"name": LABEL, "datatype": label_datatype(service.classes), "shape": [-1]},
            {"name": PROBABILITIES, "datatype": "FP64", "shape": [-1, len(service.classes) or -1]},
        ],
        "parameters": {
            "classes": service.classes.tolist(),
            "n_features": service.n_features,
            **({} if settings.schema is None else {"schema": settings.schema}),
            **{name: value for name, value in promise.items() if name != "words"},
            "tau": settings.tau,
            "kernel": settings.kernel,
            "max_batch": service.options.max_batch,
            "tick": service.options.tick,
        },
    }


def _inputs(service: Service) -> list[dict[str, Any]]:
    """The inputs of a query: one tensor per column of the schema, texts, or vectors."""
    schema = service.store.schema
    if schema is not None:
        kinds = {name: "FP64" if column.kind == "number" else "BYTES" for name, column in schema.used.items()}
        return [{"name": name, "datatype": kind, "shape": [-1]} for name, kind in kinds.items()]
    if service.embed is not None:
        return [{"name": "text", "datatype": "BYTES", "shape": [-1]}]
    return [{"name": "features", "datatype": "FP32", "shape": [-1, service.n_features or -1]}]


# The wire format. Nothing below knows the store


def read_request(
    body: Body, header_length: int | None, max_batch: int, columns: Collection[str] | None = None
) -> Asked:
    """Read a whole body. If binary data follows, its first `header_length` bytes are the JSON.

    `columns` are the names of a store's schema, if it has one.
    """
    head, rest = memoryview(body), memoryview(b"")
    if header_length is not None:
        if header_length > len(body):
            raise Problem(400, f"the header says {header_length} bytes of JSON, but the body has {len(body)} bytes")
        head, rest = head[:header_length], head[header_length:]
    try:
        asked = orjson.loads(head)
    except ValueError as error:
        raise Problem(400, f"the body is not JSON: {error}", "bad_json") from None
    if not isinstance(asked, dict):
        raise Problem(422, "the body must be a JSON object with 'inputs'")
    inputs, request_id = asked.get("inputs"), asked.get("id")
    if not isinstance(request_id, str | None):
        raise Problem(422, f"'id' must be a string, got {shown(request_id)}")
    parameters = _parameters(asked, "the request")
    outputs = _outputs(asked.get("outputs"), _flag(parameters, "binary_data_output"))
    if columns is not None and isinstance(inputs, list) and len(inputs) <= len(columns):
        asked["inputs"] = _unpacked(inputs, rest, max_batch)
    if (rows := _rows_of(asked, columns)) is not None:
        return Asked(rows, request_id, outputs)
    if not (isinstance(inputs, list) and len(inputs) == 1 and isinstance(inputs[0], dict)):
        raise Problem(422, "'inputs' must be a list of one tensor, named 'features'")
    return Asked(_tensor(inputs[0], rest, max_batch), request_id, outputs)


def read_rows(body: Body, width: int, said: bytes | None) -> FloatArray:
    """Rows of float32 and nothing else. `said` is the number of rows, if the client gives it."""
    rows, rest = divmod(len(body), 4 * width)
    if rest:
        raise Problem(422, f"the body has {len(body)} bytes: must be rows of {width} little-endian float32")
    if said is not None and said.strip() != b"%d" % rows:
        raise Problem(422, f"X-Indknn-Rows is {shown(said)}, but the body has {rows} rows of {width} float32")
    return np.frombuffer(body, dtype="<f4").reshape(rows, width).astype(np.float64)


def write_answer(
    model: str, version: str, request_id: str | None, outputs: Sequence[tuple[str, npt.NDArray[Any], bool]]
) -> tuple[bytes, RawHeaders]:
    """The body of an answer, and its headers. Each output is a name, an array, and whether it is sent as bytes."""
    described, data = [], b""
    for name, array, binary in outputs:
        output: dict[str, Any] = {"name": name, "shape": list(array.shape), "datatype": label_datatype(array)}
        if binary:
            part = _as_bytes(array)
            output["parameters"], data = {"binary_data_size": len(part)}, data + part
        else:
            output["data"] = array.ravel().tolist()
        described.append(output)
    named = {} if request_id is None else {"id": request_id}
    head = orjson.dumps({"model_name": model, "model_version": version, **named, "outputs": described})
    if not any(binary for _, _, binary in outputs):
        return head, ((b"content-type", b"application/json"),)
    return head + data, ((b"content-type", b"application/octet-stream"), (HEADER_LENGTH, b"%d" % len(head)))


def label_datatype(classes: npt.NDArray[Any]) -> str:
    """The protocol's name for the kind of these labels."""
    return _LABELS.get(classes.dtype.kind, ("BYTES", ""))[0]


def _as_bytes(labels: npt.NDArray[Any]) -> bytes:
    if labels.dtype.kind in _LABELS:
        return labels.astype(_LABELS[labels.dtype.kind][1]).tobytes()
    texts = [str(label).encode() for label in labels.tolist()]
    return b"".join(struct.pack("<I", len(text)) + text for text in texts)


def _parameters(holder: dict[str, Any], where: str) -> dict[str, Any]:
    parameters = holder.get("parameters")
    if not isinstance(parameters, dict | None):
        raise Problem(422, f"'parameters' of {where} must be an object, got {shown(parameters)}")
    for name in _NOT_HERE:
        if parameters and name in parameters:
            raise Problem(422, f"'parameters' of {where}: {name!r} is of an extension that this server does not have")
    return parameters or {}


def _flag(parameters: dict[str, Any], name: str) -> bool:
    value = parameters.get(name, False)
    if not isinstance(value, bool):
        raise Problem(422, f"{name!r} must be true or false, got {shown(value)}")
    return value


def _outputs(outputs: Any, by_default: bool) -> dict[str, bool]:
    """The outputs that are requested, and whether as bytes. The default is the label."""
    if outputs is None or outputs == []:
        return {LABEL: by_default}
    names = f"{LABEL!r} or {PROBABILITIES!r}"
    if not (isinstance(outputs, list) and len(outputs) <= 2 and all(isinstance(output, dict) for output in outputs)):
        raise Problem(422, f"'outputs' must be a list of one or two objects, named {names}")
    wanted: dict[str, bool] = {}
    for output in outputs:
        name = output.get("name")
        if name not in (LABEL, PROBABILITIES) or name in wanted:
            raise Problem(422, f"the name of an output must be {names}, each once, got {shown(name)}")
        parameters = _parameters(output, "the output")
        wanted[name] = _flag(parameters, "binary_data") if "binary_data" in parameters else by_default
    return wanted


def _unpacked(inputs: list[Any], rest: memoryview, max_batch: int) -> list[Any]:
    """Columns of a table whose data follow the JSON, one after the other, as if they were in the JSON."""
    found, at = [], 0
    for tensor in inputs:
        size = _parameters(tensor, "the input").get("binary_data_size") if isinstance(tensor, dict) else None
        if size is None or tensor.get("name") == "features":
            found.append(tensor)
            continue
        if type(size) is not int or not 0 <= size <= len(rest) - at:
            raise Problem(422, f"'binary_data_size' is {shown(size)}, but behind the JSON are {len(rest)} bytes")
        column, shape = {**tensor, "parameters": {"binary_data_size": size}}, tensor.get("shape")
        if tensor.get("datatype") == "BYTES":
            data: list[Any] = list(_tensor({**column, "name": "text"}, rest[at : at + size], max_batch))
        else:
            wide = [*shape, 1][:2] if isinstance(shape, list) else shape
            array = _tensor({**column, "name": "features", "shape": wide}, rest[at : at + size], max_batch)
            kind = "f8" if NUMBERS[tensor["datatype"]].kind == "f" else "i8"  # as categories, 39 and 39.0 differ
            data = np.asarray(array).astype(kind).ravel().tolist()
        found.append({**tensor, "data": data})
        at += size
    return found


def _tensor(tensor: dict[str, Any], rest: memoryview, max_batch: int) -> FloatArray | list[str]:
    name, kind, data = (tensor.get(field) for field in ("name", "datatype", "data"))
    shape: Any = tensor.get("shape")
    size = _parameters(tensor, "the input").get("binary_data_size")
    if kind == "BYTES":
        _refuse_other_name(name, "text")
        if not (_is_shape(shape) and prod(shape) == shape[0]):
            raise Problem(422, f"'shape' of texts must be [rows], got {shown(shape)}")
    elif isinstance(kind, str) and kind in NUMBERS:
        _refuse_other_name(name, "features")
        if not (_is_shape(shape) and len(shape) == 2):
            raise Problem(422, f"'shape' must be [rows, features], both positive, got {shown(shape)}")
    else:
        raise Problem(422, f"'datatype' must be one of {', '.join(NUMBERS)} or BYTES, got {shown(kind)}")
    if shape[0] > max_batch:
        raise Problem(422, f"a request must have 1 to {max_batch} rows, got {shown(shape[0])}")
    if size is None and not len(rest):
        return _texts(data, shape[0]) if kind == "BYTES" else _numbers(data, shape, NUMBERS[kind])
    if type(size) is not int or size != len(rest):
        raise Problem(422, f"'binary_data_size' is {shown(size)}, but behind the JSON are {len(rest)} bytes")
    if data is not None:
        raise Problem(422, "a tensor has either 'data' or binary data, not both")
    if kind == "BYTES":
        return _texts_in(rest, shape[0])
    if size != prod(shape) * NUMBERS[kind].itemsize:
        raise Problem(422, f"'binary_data_size' is {size}, but shape {shown(shape)} of {kind} does not have that size")
    return np.frombuffer(rest, dtype=NUMBERS[kind]).astype(np.float64).reshape(shape)


def _refuse_other_name(name: Any, wanted: str) -> None:
    if name != wanted:
        raise Problem(422, f"the name of this input must be {wanted!r}, got {shown(name)}")


def _is_shape(shape: Any) -> bool:
    return isinstance(shape, list) and 0 < len(shape) <= 2 and all(type(n) is int and n > 0 for n in shape)


def _numbers(data: Any, shape: list[int], kind: np.dtype[Any]) -> FloatArray:
    try:
        # A sum is the fastest test for numbers. It must come before NumPy: if one long text is among many numbers,
        # NumPy would make an array in which every number takes as much memory as that text.
        for row in data if isinstance(data[0], list) else [data]:
            sum(row)
        array = np.array(data)
    except (TypeError, LookupError, ValueError, OverflowError):  # ValueError: rows of different lengths
        array = np.array(None)
    if array.dtype.kind not in _KINDS[kind.kind]:
        what = "numbers" if kind.kind == "f" else "whole numbers"
        raise Problem(422, f"'data' must be a list of {what}, flat or row by row")
    if array.size != prod(shape) or (array.ndim != 1 and list(array.shape) != shape):
        raise Problem(422, f"'data' has shape {shown(list(array.shape))}, but 'shape' says {shown(shape)}")
    if kind.kind != "f" and (array.min() < np.iinfo(kind).min or array.max() > np.iinfo(kind).max):
        least, most = np.iinfo(kind).min, np.iinfo(kind).max
        raise Problem(422, f"'data' must be from {least} to {most}, as 'datatype' says")
    with np.errstate(over="ignore"):
        return array.astype(kind).astype(np.float64).reshape(shape)


def _texts(data: Any, rows: int) -> list[str]:
    if isinstance(data, list) and data and isinstance(data[0], list):  # row by row
        data = [row[0] if isinstance(row, list) and len(row) == 1 else None for row in data]
    if not (isinstance(data, list) and len(data) == rows and all(isinstance(text, str) for text in data)):
        raise Problem(422, f"'data' must be a list of {rows} texts, as 'shape' says")
    return data


def _texts_in(data: memoryview, rows: int) -> list[str]:
    """Texts in binary data: the length of each as four bytes, then the text."""
    texts, at = [], 0
    for _ in range(rows):
        length = int.from_bytes(data[at : at + 4], "little")
        texts.append(data[at + 4 : at + 4 + length])
        at += 4 + length
    if at != len(data):
        raise Problem(422, f"the binary data must be {rows} texts, each behind its length in 4 bytes")
    try:
        return [str(text, "utf-8") for text in texts]
    except UnicodeDecodeError:
        raise Problem(422, "texts must be UTF-8") from None


def header_length_of(headers: dict[bytes, bytes]) -> int | None:
    """How many bytes of the body are JSON. None if the client does not say so."""
    said = headers.get(HEADER_LENGTH)
    if said is None:
        return None
    if not (said.isdigit() and len(said) < 20):
        raise Problem(400, f"Inference-Header-Content-Length must be a number of bytes, got {shown(said)}")
    return int(said)


def _rows_of(asked: dict[str, Any], columns: Collection[str] | None) -> Rows | None:
    """The rows of a request, from `rows` or from `inputs` that are named like columns. None if it sends vectors.

    `columns` are the names in the schema. None if there is no schema.
    """
    if "rows" in asked:
        rows = asked["rows"]
        if columns is None:
            raise Problem(422, "this store has no schema, so it takes 'inputs' and no 'rows'")
        if "inputs" in asked or not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
            raise Problem(422, "'rows' must be a list of objects with column names, without 'inputs' beside it")
        return rows
    inputs = asked.get("inputs")
    if columns is None or not isinstance(inputs, list) or not all(isinstance(tensor, dict) for tensor in inputs):
        return None
    if any(tensor.get("name") == "features" for tensor in inputs) and "features" not in columns:
        return None
    found = {str(tensor.get("name")): _data(tensor) for tensor in inputs}
    lengths = {len(data) for data in found.values()}
    if len(found) < len(inputs) or len(lengths) != 1:
        raise Problem(422, "'inputs' must have every column once, all with the same number of rows")
    return [dict(zip(found, values, strict=True)) for values in zip(*found.values(), strict=True)]


def _data(tensor: dict[str, Any]) -> list[Any]:
    name, kind, shape, data = (tensor.get(field) for field in ("name", "datatype", "shape", "data"))
    if kind not in DATATYPES:
        raise Problem(422, f"column {name!r}: 'datatype' must be one of {', '.join(sorted(DATATYPES))}")
    if not isinstance(data, list) or shape not in ([len(data)], [len(data), 1]):
        raise Problem(422, f"column {name!r}: 'data' must be a flat list, and 'shape' its length")
    return data
