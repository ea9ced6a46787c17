"""The bodies of predictions: from bytes to what is asked, and from labels to bytes. Nothing here knows the store.

A body is in the Open Inference Protocol v2, with tensors in JSON or as bytes after the JSON (the binary tensor data
extension), or it is raw rows of float32. Long JSON is read in a process beside the server, because Python reads it in
one piece, and other threads stand still meanwhile: 30 MB take seconds. The results are small: arrays instead of lists.
"""

from __future__ import annotations

import asyncio
import logging
import os
import pickle
import resource
import signal
import struct
import subprocess
import sys
import traceback
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from math import prod
from multiprocessing.connection import Connection
from pathlib import Path
from threading import Timer
from typing import Any, NamedTuple, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt
import orjson

from indknn.models.probabilities import Decision
from indknn.server.problems import Problem, RawHeaders, as_problem, shown
from indknn.tables.schema import ROW_IDS, Schema
from indknn.types import FloatArray

TableRows: TypeAlias = list[dict[str, Any]]
Body: TypeAlias = bytes | bytearray | memoryview
HEADER_LENGTH = b"inference-header-content-length"
LABEL, PROBABILITIES, INTERVALS, ROW_ID = "label", "probabilities", "intervals", "id"
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
SMALL = 64 << 10
"""The size of a small body, in bytes. Small bodies are always allowed: the limit on connections bounds their total."""
LONGEST_ID = 256
_log = logging.getLogger("indknn.server")
_SECONDS = 20.0  # for one body; then the process is ended
_QUICK = 1 << 20  # bytes of numbers that are copied faster than a thread is woken
_MEMORY = 1 << 30  # bytes beyond what the process has when it starts
T = TypeVar("T")


@dataclass(frozen=True)
class Asked:
    """A request: rows of features, or texts or table rows that will become features, and how to answer."""

    rows: FloatArray | list[str] | TableRows
    request_id: str | None = None
    outputs: dict[str, bool] = field(default_factory=lambda: {LABEL: False})
    """The outputs in this order, and whether each is sent as bytes."""
    decision: Decision | None = None
    """How labels follow from probabilities. None: as they were released."""
    coverage: float | None = None
    """How often an interval holds the number. None if no intervals are wanted."""
    ids: npt.NDArray[Any] | None = None
    """The caller's own ids of the rows. The answer repeats them."""


class Names(NamedTuple):
    """What the columns of a request are called: those of the schema if there is one, and the one with ids of rows."""

    columns: Collection[str] | None = None
    row_ids: Sequence[str] = ROW_IDS


def names_of(schema: Schema | None) -> Names:
    """The names in a store with this schema."""
    return Names() if schema is None else Names(list(schema.columns), schema.row_ids)


def read_request(body: Body, header_length: int | None, max_batch: int, names: Names) -> Asked:
    """Read a whole body. If binary data follows, its first `header_length` bytes are the JSON."""
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
    request_id = asked.get("id")
    if not isinstance(request_id, str | None):
        raise Problem(422, f"'id' must be a string, got {shown(request_id)}")
    parameters = _parameters(asked, "the request")
    binary = _flag(parameters, "binary_data_output")
    outputs = _outputs(asked.get("outputs"), binary)
    least, weight = parameters.get("min_confidence"), parameters.get("class_weight")
    decision = None if least is None and weight is None else Decision(least, weight)
    rows, ids = _rows_of(asked, rest, max_batch, names)
    if parameters.get("ids") is not None:
        if ids is not None:
            raise Problem(422, "the ids of rows must be given once: in 'parameters' or as a column")
        ids = parameters["ids"]
    how = decision, parameters.get("coverage", 0.9) if INTERVALS in outputs else None
    if ids is None:
        return Asked(rows, request_id, outputs, *how)
    return Asked(rows, request_id, {**outputs, ROW_ID: binary}, *how, _row_ids(ids, len(rows)))


def read_rows(body: Body, width: int, said: bytes | None) -> FloatArray:
    """Rows of float32 and nothing else. `said` is the number of rows, if the client gives it."""
    rows, rest = divmod(len(body), 4 * width)
    if rest:
        raise Problem(422, f"the body has {len(body)} bytes: must be rows of {width} little-endian float32")
    if said is not None and said.strip() != b"%d" % rows:
        raise Problem(422, f"X-Indknn-Rows is {shown(said)}, but the body has {rows} rows of {width} float32")
    return np.frombuffer(body, dtype="<f4").reshape(rows, width).astype(np.float64)


def write_answer(
    model: str,
    version: str,
    request_id: str | None,
    outputs: Sequence[tuple[str, npt.NDArray[Any], bool]],
    column: str | None = None,
) -> tuple[bytes, RawHeaders]:
    """The body of an answer, and its headers. Each output is a name, an array, and whether it is sent as bytes.

    `column` is the name of the label in the schema.
    """
    described, data = [], b""
    for name, array, binary in outputs:
        output: dict[str, Any] = {"name": name, "shape": list(array.shape), "datatype": label_datatype(array)}
        if name == LABEL and column is not None:
            output["parameters"] = {"column": column}
        if binary:
            part = _as_bytes(array)
            output["parameters"], data = {**output.get("parameters", {}), "binary_data_size": len(part)}, data + part
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
    names = f"{LABEL!r}, {PROBABILITIES!r} or {INTERVALS!r}"
    if not (isinstance(outputs, list) and len(outputs) <= 2 and all(isinstance(output, dict) for output in outputs)):
        raise Problem(422, f"'outputs' must be a list of one or two objects, named {names}")
    wanted: dict[str, bool] = {}
    for output in outputs:
        name = output.get("name")
        if name not in (LABEL, PROBABILITIES, INTERVALS) or name in wanted:
            raise Problem(422, f"the name of an output must be {names}, each once, got {shown(name)}")
        parameters = _parameters(output, "the output")
        wanted[name] = _flag(parameters, "binary_data") if "binary_data" in parameters else by_default
    return wanted


def _rows_of(
    asked: dict[str, Any], rest: memoryview, max_batch: int, names: Names
) -> tuple[FloatArray | list[str] | TableRows, Any]:
    """The rows of a request, and their ids if it has any.

    They come from `rows`, from `inputs` that are named like columns, or from one tensor of vectors or texts.
    """
    if "rows" in asked:
        return _objects(asked, names)
    tensors = _tensors(asked.get("inputs"), rest, 1 + len(names.columns or (1,)))
    row_id = next((name for name in names.row_ids if any(one.get("name") == name for one, _ in tensors)), None)
    ids = [_column(*one, max_batch) for one in tensors if row_id is not None and one[0].get("name") == row_id]
    tensors = [one for one in tensors if row_id is None or one[0].get("name") != row_id]
    vectors = names.columns is None or any(tensor.get("name") == "features" for tensor, _ in tensors)
    if vectors and "features" not in (names.columns or ()):
        if len(tensors) != 1 or len(ids) > 1:
            raise Problem(422, "'inputs' must be a list of one tensor, named 'features', and 'id' for the ids of rows")
        return _tensor(*tensors[0], max_batch), ids[0] if ids else None
    found = {str(tensor.get("name")): _column(tensor, part, max_batch) for tensor, part in tensors}
    lengths = {len(data) for data in found.values()}
    if len(found) < len(tensors) or len(ids) > 1 or len(lengths) != 1:
        raise Problem(422, "'inputs' must have every column once, all with the same number of rows")
    rows = [dict(zip(found, values, strict=True)) for values in zip(*found.values(), strict=True)]
    return rows, ids[0] if ids else None


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


def _objects(asked: dict[str, Any], names: Names) -> tuple[TableRows, list[Any] | None]:
    """Rows that are objects with column names, and their ids."""
    rows = asked["rows"]
    if names.columns is None:
        raise Problem(422, "this store has no schema, so it takes 'inputs' and no 'rows'")
    if "inputs" in asked or not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise Problem(422, "'rows' must be a list of objects with column names, without 'inputs' beside it")
    row_id = next((name for name in names.row_ids if any(name in row for row in rows)), None)
    return rows, None if row_id is None else [row.pop(row_id, None) for row in rows]


def _tensors(inputs: Any, rest: memoryview, most: int) -> list[tuple[dict[str, Any], memoryview]]:
    """The tensors of a request, each with its bytes behind the JSON. These follow each other in the same order."""
    if not (isinstance(inputs, list) and inputs and all(isinstance(tensor, dict) for tensor in inputs)):
        raise Problem(422, "'inputs' must be a list of one tensor, named 'features', or of one tensor per column")
    if len(inputs) > most:
        raise Problem(422, f"'inputs' must be a list of at most {most} tensors, got {len(inputs)}")
    found, at = [], 0
    for tensor in inputs:
        size = _parameters(tensor, "the input").get("binary_data_size", 0)
        if type(size) is not int or not 0 <= size <= len(rest) - at:
            raise Problem(422, f"'binary_data_size' is {shown(size)}, but behind the JSON are {len(rest)} bytes")
        found.append((tensor, rest[at : at + size]))
        at += size
    if at < len(rest):
        raise Problem(422, f"'binary_data_size' is {at}, but behind the JSON are {len(rest)} bytes")
    return found


def _column(tensor: dict[str, Any], part: memoryview, max_batch: int) -> list[Any]:
    """The values of a column, from the JSON or from its bytes."""
    name, kind, shape, data = (tensor.get(field) for field in ("name", "datatype", "shape", "data"))
    if kind not in DATATYPES:
        raise Problem(422, f"column {name!r}: 'datatype' must be one of {', '.join(sorted(DATATYPES))}")
    if "binary_data_size" not in _parameters(tensor, "the input"):
        if not isinstance(data, list) or shape not in ([len(data)], [len(data), 1]):
            raise Problem(422, f"column {name!r}: 'data' must be a flat list, and 'shape' its length")
        return data
    if kind == "BYTES":
        return list(_tensor({**tensor, "name": "text"}, part, max_batch))
    wide = [*shape, 1][:2] if isinstance(shape, list) else shape
    array = _tensor({**tensor, "name": "features", "shape": wide}, part, max_batch)
    whole = "f8" if NUMBERS[kind].kind == "f" else "i8"  # as categories, 39 and 39.0 differ
    return np.asarray(array).astype(whole).ravel().tolist()


def _row_ids(ids: Any, rows: int) -> npt.NDArray[Any]:
    """Ids of rows as an array, which are texts or whole numbers. If both occur, all are texts (rule 13)."""
    if not (isinstance(ids, list) and len(ids) == rows and all(map(_is_row_id, ids))):
        wanted = f"a text of 1 to {LONGEST_ID} characters, or a whole number"
        raise Problem(422, f"the ids of rows must be a list with one for each of {rows} rows: {wanted}")
    if all(isinstance(one, int) for one in ids):
        return np.array(ids, dtype=np.int64)
    return np.array([str(one) for one in ids], dtype=object)  # an array of texts would be as wide as the longest


def _is_row_id(one: Any) -> bool:
    if isinstance(one, str):
        return 0 < len(one) <= LONGEST_ID
    return type(one) is int and -(1 << 63) <= one < 1 << 63


# Where bodies are read


@dataclass(frozen=True)
class Bounds:
    """How much structure a long body may have: opening brackets and commas. A valid request never has more."""

    brackets: int
    commas: int

    def check(self, body: bytes) -> None:
        """Refuse a body with more structure before it is parsed into lists, which take far more memory."""
        for what, found, most in (
            ("lists and objects", body.count(b"[") + body.count(b"{"), self.brackets),
            ("values", body.count(b","), self.commas),
        ):
            if found > most:
                raise Problem(422, f"the body has more than {most} {what}: send fewer rows, or names without commas")


class Reader:
    """Reads short bodies at once and long ones in the other process. Nobody else has to wait for either."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._thread = ThreadPoolExecutor(1, "reader")
        self._arrays = ThreadPoolExecutor(1, "arrays")

    async def read(
        self, read: Callable[..., T], body: bytes | bytearray, bounds: Bounds, *rest: Any, json: int | None = None
    ) -> T:
        """The result of `read(body, *rest)`, or the `Problem` that it raises. `read` must be a function of a module.

        `json` is how many bytes of the body are JSON, if not all are.
        """
        loop = asyncio.get_running_loop()
        if (len(body) if json is None else min(json, len(body))) > SMALL:
            result: T = await loop.run_in_executor(self._thread, self._elsewhere, read, body, bounds, rest)
            return result
        if len(body) > _QUICK:
            return await loop.run_in_executor(self._arrays, partial(read, body, *rest))
        return read(body, *rest)

    def close(self) -> None:
        """End the process."""
        for threads in (self._thread, self._arrays):
            threads.shutdown()
        self._end()

    def _elsewhere(
        self, read: Callable[..., Any], body: bytes | bytearray, bounds: Bounds, rest: tuple[Any, ...]
    ) -> Any:
        try:
            process = self._started()
            overdue = Timer(_SECONDS, process.kill)  # then writing or reading fails
            overdue.start()
            try:
                done, result, where = _exchange(process, pickle.dumps((read, bounds, rest)), body)
            finally:
                overdue.cancel()
        except (OSError, EOFError):
            self._end()
            text = "this body could not be read; send fewer rows at once"
            raise Problem(503, text, "busy", ((b"retry-after", b"1"),)) from None
        if where:
            _log.error("in the process that reads long bodies: %s", where)
        if not done:
            raise Problem(*result)
        return result

    def _started(self) -> subprocess.Popen[bytes]:
        if self._process is None or self._process.poll() is not None:
            command = [sys.executable, "-P", "-c", "from indknn.server.wire import main; main()"]
            paths = {
                "PYTHONPATH": os.pathsep.join(p or os.getcwd() for p in sys.path),
                "OMP_NUM_THREADS": "1",
                "OPENBLAS_NUM_THREADS": "1",
            }
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,  # a traceback may hold features or names
                env={**os.environ, **paths},
            )
        return self._process

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            with suppress(OSError), process:  # what was not sent is not sent
                process.wait()


def _exchange(process: subprocess.Popen[bytes], *parts: bytes | bytearray) -> Any:
    assert process.stdin is not None
    assert process.stdout is not None
    with Connection(os.dup(process.stdin.fileno()), readable=False) as to:
        for part in parts:
            to.send_bytes(part)
    with Connection(os.dup(process.stdout.fileno()), writable=False) as answer:
        return answer.recv()


def _attempt(read: Callable[..., Any], body: bytes, bounds: Bounds, rest: tuple[Any, ...]) -> tuple[bool, Any, str]:
    """Whether it was read, the result or the problem, and for an unexpected error where it happened."""
    try:
        bounds.check(body)
        return True, read(body, *rest), ""
    except Problem as problem:
        return False, (problem.status, problem.message, problem.code, problem.headers), ""
    except (MemoryError, RecursionError):
        return False, (413, "the body takes too much memory to read; send fewer rows at once"), ""
    except Exception as error:
        refusal = as_problem(error)
        frames = "".join(traceback.format_tb(error.__traceback__))  # without the text, which may hold features or names
        return False, (refusal.status, refusal.message, refusal.code), f"{type(error).__name__}\n{frames}"


def main() -> None:
    """The main program of the other process: read bodies from standard input until the server closes it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the terminal sends it too; the server decides when this process ends
    os.nice(5)  # short requests come first
    with suppress(FileNotFoundError):  # other systems have no limit
        has = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (has + _MEMORY, has + _MEMORY))
    asked, answers = Connection(0, writable=False), Connection(1, readable=False)
    with suppress(EOFError):
        while True:
            read, bounds, rest = asked.recv()
            answers.send(_attempt(read, asked.recv_bytes(), bounds, rest))
