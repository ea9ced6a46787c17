"""A client of the HTTP service: `Client`, and `AsyncClient` with the same methods to await.

    with Client("https://predict.example", key) as client:
        labels = client.predict(rows)

If a connection is lost, the client sends the request again when that is safe. Predictions and uploads are safe, because
each has a request id and the server does it only once. Other changes are not sent again. Then the error says that the
change may have been made.
"""

from __future__ import annotations

import asyncio
import json
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from typing import Any, Self, TypeAlias
from urllib.parse import quote

import httpx
import numpy as np
import numpy.typing as npt

from indknn.errors import IndKNNError, InvalidInputError

RETRIES = 4
_LONGEST_WAIT = 10.0  # seconds
_HEADER_LENGTH = "Inference-Header-Content-Length"
_DATATYPES = {"f4": "FP32", "f8": "FP64", "i8": "INT64"}
_LABELS = {"INT64": "<i8", "FP64": "<f8", "BOOL": "?"}


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
class _Call:
    method: str
    path: str
    content: bytes | None = None
    headers: dict[str, str] = field(default_factory=dict)
    repeatable: bool = True  # whether it is safe to send it again, even if the server has done it already


# A flow is a generator. It yields a call to make or seconds to wait, and receives the response. Both clients run the
# same flows, so each is written once.
_Flow: TypeAlias = Generator[_Call | float, Any, Any]


class _Routes(ABC):
    """The methods of both clients. With `AsyncClient` you must await what they return."""

    def __init__(self, model: str | None, retries: int):
        self._model, self._retries = model, retries

    @abstractmethod
    def _run(self, flow: _Flow) -> Any: ...

    def predict(self, rows: npt.ArrayLike | Sequence[str], *, request_id: str | None = None) -> Any:
        """The label of each row, as an array. The same `request_id` with the same rows is charged once."""
        return self._run(self._predicted(rows, request_id or str(uuid.uuid4()), "label"))

    def predict_proba(self, rows: npt.ArrayLike | Sequence[str], *, request_id: str | None = None) -> Any:
        """The probability of each class for each row, in the order of the model's classes.

        It costs the same as `predict`.
        """
        return self._run(self._predicted(rows, request_id or str(uuid.uuid4()), "probabilities"))

    def session(self) -> Any:
        """Who you are, what you may do, and what is guaranteed."""
        return self._run(self._json("GET", "/v1/session"))

    def model(self) -> Any:
        """The public facts about the model."""
        return self._run(self._described())

    def is_ready(self) -> Any:
        """Whether the server is ready to answer."""
        return self._run(self._health())

    def add(
        self,
        features: npt.ArrayLike,
        labels: Sequence[Any],
        owners: Sequence[Any],
        record_ids: Sequence[Any] | None = None,
        *,
        request_id: str | None = None,
    ) -> Any:
        """Add records, all or none. The answer has their numbers in `ids`.

        The same `request_id` with the same records is done once.
        """
        columns: dict[str, Any] = {"features": np.asarray(features).tolist(), "label": labels, "owner": owners}
        columns |= {} if record_ids is None else {"record_id": record_ids}
        if len({len(column) for column in columns.values()}) > 1:
            lengths = {name: len(column) for name, column in columns.items()}
            raise InvalidInputError(f"features, labels, owners and record ids must be of one length, got {lengths}")
        columns = {name: np.asarray(column).tolist() for name, column in columns.items()}
        records = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
        once = {"X-Request-Id": request_id or str(uuid.uuid4())}
        return self._run(self._json("POST", "/v1/records", {"records": records}, once))

    def remove(self, ids: Sequence[int]) -> Any:
        """Remove records by their numbers, all or none."""
        body = {"ids": [int(number) for number in ids]}
        return self._run(self._json("DELETE", "/v1/records", body, repeatable=False))

    def statement(self, owner: str | int) -> Any:
        """What a person has spent, rounded up."""
        return self._run(self._json("GET", _owner(owner)))

    def forget(self, owner: str | int) -> Any:
        """Forget a person. Returns a receipt."""
        return self._run(self._json("DELETE", _owner(owner), repeatable=False))

    def purge(self) -> Any:
        """Delete all answers and the shared model. Everybody who asks again can see it."""
        return self._run(self._json("POST", "/v1/purge", repeatable=False))

    def status(self) -> Any:
        """How much people have spent."""
        return self._run(self._json("GET", "/v1/status"))

    def audit(self, after: int = 0, limit: int = 1000) -> Any:
        """The `entries` of the audit trail after a position. Pass `next` as `after` to get more."""
        return self._run(self._json("GET", f"/v1/audit?after={after}&limit={limit}"))

    # Flows

    def _predicted(self, rows: npt.ArrayLike | Sequence[str], request_id: str, output: str) -> _Flow:
        if self._model is None:
            self._model = (yield from self._json("GET", "/v1/session"))["model"]
        tensor, data = _tensor(rows)
        outputs = [{"name": output, "parameters": {"binary_data": True}}]
        asked = {"id": request_id, "inputs": [tensor], "outputs": outputs}
        head = json.dumps(asked).encode()
        headers = {
            _HEADER_LENGTH: str(len(head)),
            "Content-Type": "application/octet-stream",
            "X-Request-Id": request_id,
        }
        response = yield from self._exchange(
            _Call("POST", f"/v2/models/{quote(self._model)}/infer", head + data, headers)
        )
        return _output(response)

    def _described(self) -> _Flow:
        if self._model is None:
            self._model = (yield from self._json("GET", "/v1/session"))["model"]
        return (yield from self._json("GET", f"/v2/models/{quote(self._model)}"))

    def _health(self) -> _Flow:
        try:
            yield from self._json("GET", "/v2/health/ready")
        except (ApiError, ConnectionLostError):
            return False
        return True

    def _json(
        self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None, repeatable: bool = True
    ) -> _Flow:
        content = None if body is None else json.dumps(body).encode()
        kind = {} if body is None else {"Content-Type": "application/json"}
        response = yield from self._exchange(_Call(method, path, content, {**kind, **(headers or {})}, repeatable))
        return response.json()

    def _exchange(self, call: _Call) -> _Flow:
        """The response. A busy server is asked again after its `Retry-After`, a lost connection after a short wait."""
        for attempt in range(self._retries + 1):
            found = yield call
            last = attempt == self._retries
            if isinstance(found, httpx.TransportError):
                unsure = not isinstance(found, httpx.ConnectError | httpx.ConnectTimeout)
                if last or (unsure and not call.repeatable):
                    maybe = "; it may have been done all the same" if unsure and not call.repeatable else ""
                    name = type(found).__name__
                    raise ConnectionLostError(f"{call.method} {call.path} got no answer ({name}){maybe}", unsure)
                wait = 0.1 * 2**attempt
            elif found.status_code < 400:
                return found
            elif found.status_code not in {429, 503} or last:
                raise _refusal(found)
            else:
                wait = float(found.headers.get("Retry-After", 0.1 * 2**attempt))
            yield min(wait, _LONGEST_WAIT)
        raise AssertionError


class Client(_Routes):
    """A client of one server. If you do not give `model`, the client asks the server for its name.

    `options` are passed to httpx, for example `verify`.
    """

    def __init__(
        self, url: str, key: str | None = None, *, model: str | None = None, retries: int = RETRIES, **options: Any
    ):
        super().__init__(model, retries)
        self._http = httpx.Client(base_url=url, headers=_key(key), **{"timeout": 60.0, **options})

    def _run(self, flow: _Flow) -> Any:
        done, step = _advance(flow, None)
        while not done:
            result: Any = None
            if isinstance(step, _Call):
                try:
                    result = self._http.request(step.method, step.path, content=step.content, headers=step.headers)
                except httpx.TransportError as error:
                    result = error
            else:
                time.sleep(step)
            done, step = _advance(flow, result)
        return step

    def close(self) -> None:
        """Close all connections."""
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class AsyncClient(_Routes):
    """The same as `Client`, but you must await every method."""

    def __init__(
        self, url: str, key: str | None = None, *, model: str | None = None, retries: int = RETRIES, **options: Any
    ):
        super().__init__(model, retries)
        self._http = httpx.AsyncClient(base_url=url, headers=_key(key), **{"timeout": 60.0, **options})

    async def _run(self, flow: _Flow) -> Any:
        done, step = _advance(flow, None)
        while not done:
            result: Any = None
            if isinstance(step, _Call):
                sent = self._http.request(step.method, step.path, content=step.content, headers=step.headers)
                try:
                    result = await sent
                except httpx.TransportError as error:
                    result = error
            else:
                await asyncio.sleep(step)
            done, step = _advance(flow, result)
        return step

    async def close(self) -> None:
        """Close all connections."""
        await self._http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


def _advance(flow: _Flow, result: Any) -> tuple[bool, Any]:
    """Whether all is done, and what came of it; or else what to do next."""
    try:
        return False, flow.send(result)
    except StopIteration as end:
        return True, end.value


def _key(key: str | None) -> dict[str, str]:
    return {} if key is None else {"Authorization": f"Bearer {key}"}


def _owner(owner: str | int) -> str:
    return f"/v1/owners/{quote(str(owner), safe='')}"


def _refusal(response: httpx.Response) -> ApiError:
    try:
        told = response.json()
        return ApiError(response.status_code, told["code"], told["error"])
    except (ValueError, LookupError, TypeError):  # not our server's form: a proxy may have answered
        return ApiError(response.status_code, "unknown", response.reason_phrase)


def _tensor(rows: Any) -> tuple[dict[str, Any], bytes]:
    """Rows in the form of the protocol: a description of the tensor, and its bytes."""
    if not isinstance(rows, np.ndarray) and len(rows) and isinstance(rows[0], str):
        texts = [text.encode() for text in rows]
        data = b"".join(len(text).to_bytes(4, "little") + text for text in texts)
        facts: dict[str, Any] = {"name": "text", "shape": [len(texts)], "datatype": "BYTES"}
    else:
        array = np.asarray(rows)
        kind = array.dtype.str[1:] if array.dtype.str[1:] in _DATATYPES else "f8"
        data = array.astype(f"<{kind}").tobytes()
        facts = {"name": "features", "shape": list(array.shape), "datatype": _DATATYPES[kind]}
    return {**facts, "parameters": {"binary_data_size": len(data)}}, data


def _output(response: httpx.Response) -> npt.NDArray[Any]:
    length = int(response.headers[_HEADER_LENGTH])
    (output,) = json.loads(response.content[:length])["outputs"]
    data = response.content[length:]
    if output["datatype"] in _LABELS:
        return np.frombuffer(data, _LABELS[output["datatype"]]).reshape(output["shape"]).copy()
    texts, at = [], 0
    while at < len(data):
        end = at + 4 + int.from_bytes(data[at : at + 4], "little")
        texts.append(data[at + 4 : end].decode())
        at = end
    return np.array(texts)
