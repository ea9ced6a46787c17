"""What stands in front of every route: who is asking, how much they may send, and what every answer carries."""

from __future__ import annotations

import logging
import traceback
from typing import Any

from indknn.server.access import Visitor, needed, refuse, refuse_strange_sites, visitor
from indknn.server.body import Gone
from indknn.server.infer import Infer
from indknn.server.problems import Problem, as_problem
from indknn.server.service import Service

log = logging.getLogger("indknn.server")

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; connect-src 'self'; "
    "font-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_ALWAYS = [
    (b"content-security-policy", POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
]
_NO_STORE = (b"cache-control", b"no-store")
_JSON = (b"content-type", b"application/json")
_INFER, _MODELS = "/infer", "/v2/models/"


class Front:
    """An ASGI application around another. Predictions are answered here, all the rest behind."""

    def __init__(self, app: Any, service: Service):
        self.app = app
        self.service = service
        self.infer = Infer(service)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """One request."""
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self.app(scope, receive, send)
            return
        path, method = scope["path"], scope["method"]
        headers: dict[bytes, bytes] = dict(scope["headers"])
        try:
            what = needed(method, path)
            who = self._enter(what, headers)
            if path.startswith(_MODELS) and path.endswith(_INFER):
                if method != "POST":
                    raise Problem(405, f"{method} is not allowed here; use POST", headers=((b"allow", b"POST"),))
                model = path[len(_MODELS) : -len(_INFER)]
                await self._send(send, 200, await self.infer(model, headers, receive, who), route="infer")
            else:
                scope.setdefault("state", {}).update(visitor=who, granted=what)
                await self._behind(scope, receive, send)
        except Gone:
            pass
        except Exception as error:
            problem = as_problem(error)
            if problem.status >= 500:
                report(error)
            route = "infer" if path.endswith(_INFER) else "refused"
            await self._send(send, problem.status, problem.body, problem.headers, route)

    def _enter(self, what: str | None, headers: dict[bytes, bytes]) -> Visitor:
        if what is None:
            return Visitor(None)
        who = visitor(self.service.keys, headers.get(b"authorization"))
        if who.key is None:
            refuse_strange_sites(headers)
        refuse(who, what)
        return who

    async def _behind(self, scope: Any, receive: Any, send: Any) -> None:
        started = False

        async def wrapped(message: Any) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                kept = [_NO_STORE] if not scope["path"].startswith("/console/") else []
                message["headers"] = [*message.get("headers", ()), *_ALWAYS, *kept]
                route = getattr(scope.get("route"), "path", "none")
                self.service.metrics.request(route, message["status"])
            await send(message)

        try:
            await self.app(scope, receive, wrapped)
        except Exception as error:
            if started:  # too late for another answer
                report(error)
                raise Gone from None
            raise

    async def _send(
        self, send: Any, status: int, body: bytes, headers: tuple[tuple[bytes, bytes], ...] = (), route: str = ""
    ) -> None:
        self.service.metrics.request(route, status)
        length = (b"content-length", str(len(body)).encode())
        start = [_JSON, length, *_ALWAYS, _NO_STORE, *headers]
        await send({"type": "http.response.start", "status": status, "headers": start})
        await send({"type": "http.response.body", "body": body})


def report(error: BaseException) -> None:
    """Log where something went wrong, without its text: that may hold features or names."""
    frames = "".join(traceback.format_tb(error.__traceback__))
    cause = "" if error.__cause__ is None else f" from {type(error.__cause__).__name__}"
    log.error("%s%s\n%s", type(error).__name__, cause, frames)
