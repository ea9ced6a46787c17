"""The format of the Open Inference Protocol v2: it reads requests and writes answers.

Tensors come in JSON, or as bytes after the JSON (the binary tensor data extension). Nothing here knows the store.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import orjson

from indknn.server.problems import Problem, RawHeaders, shown
from indknn.server.tables import Rows, rows_of
from indknn.types import FloatArray

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


@dataclass(frozen=True)
class Asked:
    """A request: rows of features, or texts or table rows that will become features, and how to answer."""

    rows: FloatArray | list[str] | Rows
    request_id: str | None = None
    outputs: dict[str, bool] = field(default_factory=lambda: {LABEL: False})
    """The outputs in this order, and whether each is sent as bytes."""


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
    if (rows := rows_of(asked, columns)) is not None:
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
    told, data = [], b""
    for name, array, binary in outputs:
        output: dict[str, Any] = {"name": name, "shape": list(array.shape), "datatype": label_datatype(array)}
        if binary:
            part = _as_bytes(array)
            output["parameters"], data = {"binary_data_size": len(part)}, data + part
        else:
            output["data"] = array.ravel().tolist()
        told.append(output)
    named = {} if request_id is None else {"id": request_id}
    head = orjson.dumps({"model_name": model, "model_version": version, **named, "outputs": told})
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


def _outputs(outputs: Any, unless_told: bool) -> dict[str, bool]:
    """The outputs that are requested, and whether as bytes. The default is the label."""
    if outputs is None or outputs == []:
        return {LABEL: unless_told}
    names = f"{LABEL!r} or {PROBABILITIES!r}"
    if not (isinstance(outputs, list) and len(outputs) <= 2 and all(isinstance(one, dict) for one in outputs)):
        raise Problem(422, f"'outputs' must be a list of one or two objects, named {names}")
    wanted: dict[str, bool] = {}
    for one in outputs:
        name = one.get("name")
        if name not in (LABEL, PROBABILITIES) or name in wanted:
            raise Problem(422, f"the name of an output must be {names}, each once, got {shown(name)}")
        parameters = _parameters(one, "the output")
        wanted[name] = _flag(parameters, "binary_data") if "binary_data" in parameters else unless_told
    return wanted


def _unpacked(inputs: list[Any], rest: memoryview, max_batch: int) -> list[Any]:
    """Columns of a table whose data follow the JSON, one after the other, as if they were in the JSON."""
    found, at = [], 0
    for one in inputs:
        size = _parameters(one, "the input").get("binary_data_size") if isinstance(one, dict) else None
        if size is None or one.get("name") == "features":
            found.append(one)
            continue
        if type(size) is not int or not 0 <= size <= len(rest) - at:
            raise Problem(422, f"'binary_data_size' is {shown(size)}, but behind the JSON are {len(rest)} bytes")
        column, shape = {**one, "parameters": {"binary_data_size": size}}, one.get("shape")
        if one.get("datatype") == "BYTES":
            data: list[Any] = list(_tensor({**column, "name": "text"}, rest[at : at + size], max_batch))
        else:
            wide = [*shape, 1][:2] if isinstance(shape, list) else shape
            array = _tensor({**column, "name": "features", "shape": wide}, rest[at : at + size], max_batch)
            kind = "f8" if NUMBERS[one["datatype"]].kind == "f" else "i8"  # 39 and 39.0 differ if they name a category
            data = np.asarray(array).astype(kind).ravel().tolist()
        found.append({**one, "data": data})
        at += size
    return found


def _tensor(given: dict[str, Any], rest: memoryview, max_batch: int) -> FloatArray | list[str]:
    name, kind, data = (given.get(field) for field in ("name", "datatype", "data"))
    shape: Any = given.get("shape")
    size = _parameters(given, "the input").get("binary_data_size")
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
