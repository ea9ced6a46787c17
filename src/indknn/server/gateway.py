"""The outer application: it checks keys, answers predictions, and hands everything else to FastAPI."""

from __future__ import annotations

import logging
import traceback
from typing import Any

from indknn.server.access import authorise, needed_permission
from indknn.server.infer import infer
from indknn.server.problems import Problem, RawHeaders, as_problem
from indknn.server.service import Service

log = logging.getLogger("indknn.server")

_CONTENT_SECURITY_POLICY = (
    b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; connect-src 'self'; "
    b"font-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_ON_EVERY_RESPONSE = (
    (b"content-security-policy", _CONTENT_SECURITY_POLICY),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
)
_NO_STORE = (b"cache-control", b"no-store")
_MODELS, _INFER = "/v2/models/", "/infer"


class Gateway:
    """An ASGI application around another one."""

    def __init__(self, app: Any, service: Service):
        self.app = app
        self.service = service

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self.app(scope, receive, send)
            return
        path, method = scope["path"], scope["method"]
        headers: dict[bytes, bytes] = dict(scope["headers"])
        is_infer = path.startswith(_MODELS) and path.endswith(_INFER)
        try:
            permission = needed_permission(method, path)
            key = authorise(self.service.keys, permission, headers)
            if not is_infer:
                scope.setdefault("state", {}).update(key=key, permission=permission)
                await self._pass_on(scope, receive, send)
                return
            if method != "POST":
                raise Problem(405, f"{method} is not allowed here; use POST", headers=((b"allow", b"POST"),))
            assert key is not None  # predictions are never public
            model = path[len(_MODELS) : -len(_INFER)]
            await self._send(send, "infer", 200, await infer(self.service, model, headers, receive, key))
        except Exception as error:
            problem = as_problem(error)
            if problem.status >= 500:
                log_error(error)
            await self._send(send, "infer" if is_infer else "refused", problem.status, problem.body, problem.headers)

    async def _pass_on(self, scope: Any, receive: Any, send: Any) -> None:
        """Let FastAPI answer, and add to its response what every response carries."""
        started = False

        async def send_with_headers(message: Any) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                cached = scope["path"].startswith("/console/")
                more = _ON_EVERY_RESPONSE if cached else (*_ON_EVERY_RESPONSE, _NO_STORE)
                message["headers"] = [*message.get("headers", ()), *more]
                route = getattr(scope.get("route"), "path", "none")
                self.service.metrics.requests.labels(route, message["status"]).inc()
            await send(message)

        try:
            await self.app(scope, receive, send_with_headers)
        except Exception as error:
            if not started:
                raise
            log_error(error)  # the response has begun, so there can be no other one

    async def _send(self, send: Any, route: str, status: int, body: bytes, headers: RawHeaders = ()) -> None:
        self.service.metrics.requests.labels(route, status).inc()
        described = ((b"content-type", b"application/json"), (b"content-length", str(len(body)).encode()))
        start = [*described, *_ON_EVERY_RESPONSE, _NO_STORE, *headers]
        await send({"type": "http.response.start", "status": status, "headers": start})
        await send({"type": "http.response.body", "body": body})


def log_error(error: BaseException) -> None:
    """Log where an error happened, without its text: that may hold features or names."""
    frames = "".join(traceback.format_tb(error.__traceback__))
    cause = "" if error.__cause__ is None else f" from {type(error.__cause__).__name__}"
    log.error("%s%s\n%s", type(error).__name__, cause, frames)
