"""One request to a server and its answer.

What is sent again, how long a client waits, and what goes wrong; then the bodies: from what a caller has (frames,
dicts, arrays, texts) to bytes, and from answers to arrays.
"""

from __future__ import annotations

import json
from collections.abc import Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import date, time
from decimal import Decimal
from math import isfinite
from typing import Any, TypeAlias

import httpx
import numpy as np
import numpy.typing as npt

from indknn.core.inputs import EACH_ROW, as_epsilons, refuse_unwritable, says_each_row
from indknn.errors import IndKNNError, InvalidInputError
from indknn.tables.read import Columns, Named, columns_of, is_table, rows_in, stacked
from indknn.tables.schema import ROW_IDS, Schema, from_plain
from indknn.tables.values import as_list, is_missing

LONGEST_WAIT = 10.0
"""Seconds that a client waits before it sends a request again."""
PATIENT = 600.0
"""The same for the later requests of a long prediction, which its first requests may have slowed down."""
LONGEST_ID = 256
HEADER_LENGTH = "Inference-Header-Content-Length"
Record: TypeAlias = dict[str, Any]
_DATATYPES = {"f4": "FP32", "f8": "FP64", "i8": "INT64"}
_LABELS = {"INT64": "<i8", "FP64": "<f8", "BOOL": "?"}
_BEFORE = ("busy", "not_ready")  # codes of refusals
_ROOM = 4096  # bytes for what a body has beside its rows


class ApiError(IndKNNError):
    """The server refused a request. `code` is a short name for programs, for example "rate_limit"."""

    def __init__(self, status: int, code: str, message: str):
        super().__init__(f"{message} (status {status}, {code})")
        self.status, self.code = status, code


class ConnectionLostError(IndKNNError):
    """No answer came. If `unsure` is true, the server may have done what was asked."""

    def __init__(self, message: str, unsure: bool):
        super().__init__(message)
        self.unsure = unsure


@dataclass(frozen=True)
class Call:
    """A request. `repeatable` says whether it is safe to send it again, even if the server has done it already."""

    method: str
    path: str
    content: bytes | None = None
    headers: dict[str, str] = field(default_factory=dict)
    repeatable: bool = True
    longest_wait: float = LONGEST_WAIT

    @property
    def raw_headers(self) -> httpx.Headers:
        """The headers in UTF-8, because an id may hold any letters."""
        return httpx.Headers(self.headers, encoding="utf-8")


Flow: TypeAlias = Generator[Call | float, Any, Any]
"""A generator that yields a call to make or seconds to wait, and receives the response. Both clients run the same
flows, so each is written once."""


def exchange(call: Call, address: str, retries: int) -> Flow:
    """The response. A busy server is asked again after its `Retry-After`, a lost connection after a short wait."""
    for attempt in range(retries + 1):
        found = yield call
        last = attempt == retries
        if isinstance(found, httpx.TransportError):
            unsure = not isinstance(found, httpx.ConnectError | httpx.ConnectTimeout)
            if last or (unsure and not call.repeatable):
                raise _lost(call, address, found, unsure)
            wait = 0.1 * 2**attempt
        elif found.status_code < 300:
            return found
        elif found.status_code not in {429, 503} or last or not (call.repeatable or _nothing_done(found)):
            raise _refusal(found)
        else:
            wait = _retry_after(found) or 0.1 * 2**attempt
        yield min(wait, call.longest_wait)
    raise AssertionError


def json_of(response: httpx.Response) -> Any:
    """The JSON of an answer."""
    try:
        return response.json()
    except ValueError:
        raise not_understood(response) from None


def checked_id(request_id: str) -> str:
    """A request id that a server takes."""
    if not (isinstance(request_id, str) and 0 < len(request_id) <= LONGEST_ID and request_id.isprintable()):
        raise InvalidInputError(f"request_id must be 1 to {LONGEST_ID} printable characters, got {request_id!r}")
    return request_id


def checked_address(url: str) -> str:
    """The address of a server, which must say how to reach it."""
    try:
        parts = httpx.URL(url)
        if parts.scheme in {"http", "https"} and parts.host:
            return str(parts)
    except (httpx.InvalidURL, TypeError):
        pass
    raise InvalidInputError(f"the address of a server must be like http://127.0.0.1:8080, got {url!r}")


def key_headers(key: str | None) -> dict[str, str]:
    """The header that shows a key. The line end of a file with a key does not belong to it."""
    if key is None:
        return {}
    text = key.strip() if isinstance(key, str) else ""
    if not (text and text.isascii() and text.isprintable()):
        raise InvalidInputError("key must be the text of a key, as `indknn keys create` shows it")
    return {"Authorization": f"Bearer {text}"}


def _lost(call: Call, address: str, error: httpx.TransportError, unsure: bool) -> ConnectionLostError:
    maybe = "; it may have been done all the same" if unsure and not call.repeatable else ""
    why = f"{type(error).__name__}: {error}".rstrip(": ")
    return ConnectionLostError(f"{address} does not answer {call.method} {call.path} ({why}){maybe}", unsure)


def _retry_after(response: httpx.Response) -> float:
    """The seconds that the server names. A proxy may name a date instead, which counts as nothing."""
    said = response.headers.get("Retry-After", "")
    return float(said) if said.replace(".", "", 1).isdecimal() else 0.0


def _nothing_done(response: httpx.Response) -> bool:
    """Whether the server says that it refused before it did anything. A failed write may have been done."""
    return response.status_code == 429 or _refusal(response).code in _BEFORE


def _refusal(response: httpx.Response) -> ApiError:
    try:
        told = response.json()
        return ApiError(response.status_code, told["code"], told["error"])
    except (ValueError, LookupError, TypeError):  # not our server's form: a proxy may have answered
        return not_understood(response)


def not_understood(response: httpx.Response) -> ApiError:
    """The error for an answer that is not in the form of our server."""
    where, said = f"{response.request.method} {response.request.url}", response.reason_phrase
    return ApiError(response.status_code, "unknown", f"{where}: {said}: this is not the answer of an indknn server")


# Bodies. Columns are found by name, with the public schema that the server tells. Labels and owners of a table that is
# asked about are not sent, and neither are the ids of its rows


@dataclass(frozen=True)
class Model:
    """What a client must know about a model before it asks: the columns, and the limits of a request."""

    name: str
    schema: Schema | None
    takes_texts: bool
    n_features: int | None
    classes: list[Any]
    max_batch: int
    max_records: int
    max_body: int
    numeric: bool = False
    """Whether answers are numbers."""

    @classmethod
    def of(cls, described: Mapping[str, Any]) -> Model:
        """From what `GET /v2/models/NAME` says."""
        told = described["parameters"]
        texts = [one["name"] for one in described["inputs"]] == ["text"] and "schema" not in told
        limits = (told["max_batch"], told["max_records"], told["max_body"])
        schema = from_plain(told["schema"]) if "schema" in told else None
        return cls(described["name"], schema, texts, told["n_features"], told["classes"], *limits, "bounds" in told)

    @property
    def takes(self) -> str:
        """What it takes as queries, in words."""
        if self.schema is not None:
            return f"a table with the columns {', '.join(self.schema.used)}"
        return "a list of texts" if self.takes_texts else f"rows of {self.n_features or 'as many'} numbers"


# Queries


@dataclass(frozen=True)
class Queries:
    """Rows to ask about: columns of a table, vectors, or texts. `ids` are the caller's own, and are not sent."""

    rows: Columns | npt.NDArray[Any] | list[str]
    ids: list[Any] | None = None

    def __len__(self) -> int:
        return len(next(iter(self.rows.values()))) if isinstance(self.rows, dict) else len(self.rows)

    def pieces(self, max_batch: int, max_body: int) -> Iterator[tuple[int, dict[str, Any], bytes]]:
        """The rows in requests that a server takes. Each is where its rows end, JSON, and bytes behind the JSON."""
        for low in range(0, len(self), max_batch):
            yield from self._fitting(low, min(low + max_batch, len(self)), max_body - _ROOM)

    def _fitting(self, low: int, high: int, most: int) -> Iterator[tuple[int, dict[str, Any], bytes]]:
        asked, data = self._piece(low, high)
        size = len(data) or (len(json.dumps(asked)) if high - low > 1 else 0)
        if size <= most or high - low == 1:
            yield high, asked, data
        else:
            middle = (low + high) // 2
            yield from self._fitting(low, middle, most)
            yield from self._fitting(middle, high, most)

    def _piece(self, low: int, high: int) -> tuple[dict[str, Any], bytes]:
        if isinstance(self.rows, dict):
            columns = {name: column[low:high] for name, column in self.rows.items()}
            return {"rows": [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]}, b""
        if isinstance(self.rows, list):
            texts = [text.encode() for text in self.rows[low:high]]
            data = b"".join(len(text).to_bytes(4, "little") + text for text in texts)
            facts: dict[str, Any] = {"name": "text", "shape": [len(texts)], "datatype": "BYTES"}
        else:
            array = self.rows[low:high]
            kind = array.dtype.str[1:]
            data = array.astype(f"<{kind}").tobytes()
            facts = {"name": "features", "shape": list(array.shape), "datatype": _DATATYPES[kind]}
        return {"inputs": [{**facts, "parameters": {"binary_data_size": len(data)}}]}, data


def queries_of(rows: Any, model: Model) -> Queries:
    """What a caller wants to know, in the form in which it is sent. One line says what is wrong."""
    queries = _table(columns_of(rows), model) if is_table(rows) else _plain_rows(rows, model)
    if not len(queries):
        raise InvalidInputError(f"there must be at least one row: this model takes {model.takes}")
    return queries


def _table(columns: Columns, model: Model) -> Queries:
    schema, left = model.schema, dict(columns)
    if schema is None:
        ids = next((left.pop(name) for name in ROW_IDS if name in left), None)
        features = {name: column for name, column in left.items() if name not in (Named.label, Named.owner)}
        if not features:
            raise InvalidInputError(f"no column for features: this model takes {model.takes}")
        return Queries(_numbers(stacked(features), model), None if ids is None else json_values("id", ids))
    split = schema.split_queries(left)
    values = {name: json_values(name, column) for name, column in schema.used_of(split.features).items()}
    return Queries(values, None if split.record_ids is None else json_values("id", split.record_ids))


def _plain_rows(rows: Any, model: Model) -> Queries:
    """Vectors or texts."""
    if isinstance(rows, str | bytes) or rows is None:
        raise InvalidInputError(f"this model takes {model.takes}, got {type(rows).__name__}: one row is a list of one")
    try:
        array = np.asarray(rows_in(rows))
    except ValueError:  # rows of different lengths
        array = np.array(None)
    texts = array.tolist() if array.ndim == 1 and array.dtype.kind in "UOT" else []
    if texts and all(isinstance(text, str) for text in texts):
        if not model.takes_texts:
            raise InvalidInputError(f"this model takes {model.takes}, got texts")
        for i, text in enumerate(texts):
            refuse_unwritable(f"text {i}", text)
        return Queries(texts)
    if array.ndim == 1 and not array.size:
        return Queries([])
    return Queries(_numbers(array, model))


def _numbers(array: npt.NDArray[Any], model: Model) -> npt.NDArray[Any]:
    wanted = model.n_features
    if (
        array.dtype.kind not in "biuf"
        or array.ndim != 2
        or (len(array) and array.shape[1] != (wanted or array.shape[1]))
    ):
        got = f"shape {array.shape}" if array.dtype.kind in "biuf" else f"values of type {array.dtype}"
        vectors = "" if model.schema is None else f", or vectors of {wanted} numbers that its schema has made"
        raise InvalidInputError(f"this model takes {model.takes}{vectors}, got {got}")
    return array if array.dtype.str[1:] in _DATATYPES else array.astype(np.float64)


# Records


def records_of(
    model: Model, features: Any, labels: Any, owners: Any, record_ids: Any, expires: Any = None, epsilons: Any = None
) -> tuple[list[Record], bool]:
    """Records in the form in which they are sent, and whether each row is a new person.

    A table may hold labels, owners, record ids and dates too, in the columns that the schema names, or else in y,
    owner, record_id and expires. Promises are in the column that the schema names.
    """
    given = {"label": labels, "owner": None if says_each_row(owners) else owners, "record_id": record_ids}
    given |= {"expires": expires, "epsilon": epsilons}
    parts: Columns = {}
    if is_table(features):
        left, schema = columns_of(features), model.schema
        roles = (
            (Named.label, Named.owner, Named.record, Named.expires, None)
            if schema is None
            else (schema.label, schema.owner, schema.record_id, schema.expires, schema.epsilon)
        )
        for field, name in zip(given, roles, strict=True):
            held = None if name is None else left.pop(name, None)
            if held is not None and given[field] is not None:
                raise InvalidInputError(f"{field}s must be given once: the table has a column {name!r}")
            given[field] = given[field] if held is None else held
        if schema is None:
            parts["features"] = stacked(left).tolist()
        else:
            used = {name: json_values(name, column) for name, column in schema.used_of(left).items()}
            parts["values"] = [dict(zip(used, row, strict=True)) for row in zip(*used.values(), strict=True)]
    else:
        parts["features"] = _vectors(features)
    if given["epsilon"] is not None:
        given["epsilon"] = as_epsilons(as_list(given["epsilon"]), len(given["epsilon"]))
    parts |= {field: json_values(field, column) for field, column in given.items() if column is not None}
    if "label" not in parts:
        raise InvalidInputError("records need labels: give them, or a table with a column for them")
    if "owner" not in parts and not says_each_row(owners):
        raise InvalidInputError(f"records need owners: name one for each, or say owners={EACH_ROW!r}")
    lengths = {field: len(column) for field, column in parts.items()}
    if len(set(lengths.values())) > 1:
        raise InvalidInputError(f"features, labels, owners, ids and dates must be of one length, got {lengths}")
    rows = [dict(zip(parts, row, strict=True)) for row in zip(*parts.values(), strict=True)]
    return rows, says_each_row(owners)


def _vectors(features: Any) -> list[Any]:
    try:
        array = np.asarray(rows_in(features))
    except ValueError:
        array = np.array(None)
    if array.ndim != 2 or array.dtype.kind not in "biuf" or not np.isfinite(array).all():
        raise InvalidInputError(
            f"features must be a table with column names, or rows of finite numbers of one length, got shape "
            f"{array.shape} of {array.dtype}"
        )
    rows: list[Any] = (array.astype(np.float64) if array.dtype.kind == "b" else array).tolist()
    return rows


# Values in JSON


def json_values(name: str, column: Any) -> list[Any]:
    """The values of a column as JSON has them. A gap is None, and a date is a text."""
    if isinstance(column, str | bytes):
        raise InvalidInputError(f"{name!r} must be a list of values, got {type(column).__name__}")
    if isinstance(column, np.ndarray) and column.dtype.kind == "M":
        column = column.astype("datetime64[us]")
    return [_json_value(name, i, value) for i, value in enumerate(as_list(column))]


def _json_value(name: str, row: int, value: Any) -> Any:
    value = value.item() if isinstance(value, np.generic) else value
    if is_missing(value, ()):
        return None
    if isinstance(value, str | bool) or (isinstance(value, int) and value.bit_length() < 64):
        return value
    if isinstance(value, float) and isfinite(value):
        return value
    if isinstance(value, int | float | Decimal):
        return str(value)
    if isinstance(value, date | time):
        return value.isoformat()
    allowed = "a text, a number, a truth value, a date or a gap"
    raise InvalidInputError(f"row {row}: {name!r} must be {allowed}, got {type(value).__name__}")


# Answers


def outputs_of(response: httpx.Response, wanted: Iterable[str]) -> dict[str, npt.NDArray[Any]]:
    """These outputs of an answer, by name."""
    try:
        at = int(response.headers[HEADER_LENGTH])
        found = {}
        for output in json.loads(response.content[:at])["outputs"]:
            end = at + output["parameters"]["binary_data_size"]
            found[output["name"]] = _array(output, response.content[at:end])
            at = end
        return {name: found[name] for name in wanted}
    except (LookupError, ValueError, TypeError):
        raise not_understood(response) from None


def _array(output: Mapping[str, Any], data: bytes) -> npt.NDArray[Any]:
    if output["datatype"] in _LABELS:
        return np.frombuffer(data, _LABELS[output["datatype"]]).reshape(output["shape"]).copy()
    texts, at = [], 0
    while at < len(data):
        end = at + 4 + int.from_bytes(data[at : at + 4], "little")
        texts.append(data[at + 4 : end].decode())
        at = end
    return np.array(texts)
