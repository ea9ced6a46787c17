"""A client of the HTTP service: `Client`, and `AsyncClient` with the same methods to await.

    with Client("https://predict.example", key) as client:
        labels = client.predict(rows)

Whatever can be sent again without being done twice is sent again when a connection is lost. That includes predictions
and uploads: each is given a request id. What cannot be, is not, and the error says that it may have been done.
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
    """The server has refused a request. `code` is for programs, for example "rate_limit"."""

    def __init__(self, status: int, code: str, message: str):
        super().__init__(f"{message} (status {status}, {code})")
        self.status, self.code = status, code


class ConnectionLostError(IndKNNError):
    """No answer came. `unsure` says whether the request may have been done all the same."""

    def __init__(self, message: str, unsure: bool):
        super().__init__(message)
        self.unsure = unsure


@dataclass(frozen=True)
class _Call:
    method: str
    path: str
    content: bytes | None = None
    headers: dict[str, str] = field(default_factory=dict)
    repeatable: bool = True  # whether it may be sent again though it may have been done


# A flow yields a call to be made, or seconds to be waited, and is sent what came of it. So it is written once.
_Flow: TypeAlias = Generator[_Call | float, Any, Any]


class _Routes(ABC):
    """The methods of both clients. They return what they say, or with `AsyncClient` something to await that does."""

    def __init__(self, model: str | None, retries: int):
        self._model, self._retries = model, retries

    @abstractmethod
    def _run(self, flow: _Flow) -> Any: ...

    def predict(self, rows: npt.ArrayLike | Sequence[str], *, request_id: str | None = None) -> Any:
        """The label of each row, as an array. The same id with the same rows is charged once."""
        return self._run(self._predicted(rows, request_id or str(uuid.uuid4()), "label"))

    def predict_proba(self, rows: npt.ArrayLike | Sequence[str], *, request_id: str | None = None) -> Any:
        """How likely each class is for each row, in the order of the model's classes, at the price of `predict`."""
        return self._run(self._predicted(rows, request_id or str(uuid.uuid4()), "probabilities"))

    def session(self) -> Any:
        """Who you are, what you may do, and what is guaranteed."""
        return self._run(self._json("GET", "/v1/session"))

    def model(self) -> Any:
        """The public facts about the model."""
        return self._run(self._described())

    def is_ready(self) -> Any:
        """Whether the server can be asked."""
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
        """Add records, all or none; their numbers are in `ids`. The same id with the same records is done once."""
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
        """Forget a person; gives a receipt."""
        return self._run(self._json("DELETE", _owner(owner), repeatable=False))

    def purge(self) -> Any:
        """Drop all that was released. Everybody who asks again can see it."""
        return self._run(self._json("POST", "/v1/purge", repeatable=False))

    def status(self) -> Any:
        """How much people have spent."""
        return self._run(self._json("GET", "/v1/status"))

    def audit(self, after: int = 0, limit: int = 1000) -> Any:
        """The audit trail after a position: `entries`, and in `next` where to go on."""
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
        """The response. A server that is busy is asked again when it says, a lost connection soon."""
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
    """Talks to a server. `model` is asked for if it is not given; `options` go to httpx, for example `verify`."""

    def __init__(
        self, url: str, key: str | None = None, *, model: str | None = None, retries: int = RETRIES, **options: Any
    ):
        super().__init__(model, retries)
        self._http = httpx.Client(base_url=url, headers=_key(key), **{"timeout": 60.0, **options})

    def _run(self, flow: _Flow) -> Any:
        result: Any = None
        while True:
            try:
                step = flow.send(result)
            except StopIteration as end:
                return end.value
            if isinstance(step, _Call):
                try:
                    result = self._http.request(step.method, step.path, content=step.content, headers=step.headers)
                except httpx.TransportError as error:
                    result = error
            else:
                time.sleep(step)
                result = None

    def close(self) -> None:
        """Close all connections."""
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class AsyncClient(_Routes):
    """The same as `Client`; every method is to be awaited."""

    def __init__(
        self, url: str, key: str | None = None, *, model: str | None = None, retries: int = RETRIES, **options: Any
    ):
        super().__init__(model, retries)
        self._http = httpx.AsyncClient(base_url=url, headers=_key(key), **{"timeout": 60.0, **options})

    async def _run(self, flow: _Flow) -> Any:
        result: Any = None
        while True:
            try:
                step = flow.send(result)
            except StopIteration as end:
                return end.value
            if isinstance(step, _Call):
                try:
                    result = await self._http.request(
                        step.method, step.path, content=step.content, headers=step.headers
                    )
                except httpx.TransportError as error:
                    result = error
            else:
                await asyncio.sleep(step)
                result = None

    async def close(self) -> None:
        """Close all connections."""
        await self._http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


def _key(key: str | None) -> dict[str, str]:
    return {} if key is None else {"Authorization": f"Bearer {key}"}


def _owner(owner: str | int) -> str:
    return f"/v1/owners/{quote(str(owner), safe='')}"


def _refusal(response: httpx.Response) -> ApiError:
    try:
        told = response.json()
        return ApiError(response.status_code, told["code"], told["error"])
    except (ValueError, LookupError, TypeError):  # something between us and the server has answered
        return ApiError(response.status_code, "unknown", response.reason_phrase)


def _tensor(rows: Any) -> tuple[dict[str, Any], bytes]:
    """Rows as the protocol has them: what they are, and their bytes."""
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
