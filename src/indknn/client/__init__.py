"""A client of the HTTP service: `Client`, and `AsyncClient` with the same methods to await.

    with Client("https://predict.example", key) as client:
        labels = client.predict(table)

If a connection is lost, the client sends the request again when that is safe. Predictions and uploads are safe, because
each has a request id and the server does it only once. Other changes are not sent again. Then the error says that the
change may have been made.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any, Self

import httpx

from indknn.client.exchange import ApiError, Call, ConnectionLostError, Flow, checked_address, key_headers
from indknn.client.routes import Routes

__all__ = ["ApiError", "AsyncClient", "Client", "ConnectionLostError"]
RETRIES = 4
_TIMEOUT = 60.0  # seconds


class Client(Routes):
    """A client of one server. If you do not give `model`, the client asks the server for its name.

    `options` are passed to httpx, for example `verify`.
    """

    def __init__(
        self, url: str, key: str | None = None, *, model: str | None = None, retries: int = RETRIES, **options: Any
    ):
        super().__init__(checked_address(url), model, retries)
        self._http = httpx.Client(base_url=url, headers=key_headers(key), **{"timeout": _TIMEOUT, **options})

    def _run(self, flow: Flow) -> Any:
        done, step = _advance(flow, None)
        while not done:
            result: Any = None
            if isinstance(step, Call):
                try:
                    result = self._http.request(step.method, step.path, content=step.content, headers=step.raw_headers)
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


class AsyncClient(Routes):
    """The same as `Client`, but you must await every method."""

    def __init__(
        self, url: str, key: str | None = None, *, model: str | None = None, retries: int = RETRIES, **options: Any
    ):
        super().__init__(checked_address(url), model, retries)
        self._http = httpx.AsyncClient(base_url=url, headers=key_headers(key), **{"timeout": _TIMEOUT, **options})

    async def _run(self, flow: Flow) -> Any:
        done, step = _advance(flow, None)
        while not done:
            result: Any = None
            if isinstance(step, Call):
                sent = self._http.request(step.method, step.path, content=step.content, headers=step.raw_headers)
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


def _advance(flow: Flow, result: Any) -> tuple[bool, Any]:
    """Whether all is done, and what came of it; or else what to do next."""
    try:
        return False, flow.send(result)
    except StopIteration as end:
        return True, end.value
