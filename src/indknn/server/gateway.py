"""The outer application: it checks keys, answers predictions, and passes everything else to FastAPI."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from functools import partial
from typing import Any

from indknn.server.access import GO_AWAY, INFER, authorise, needed_permission
from indknn.server.bodies import Receive
from indknn.server.infer import Take, infer
from indknn.server.problems import Problem, RawHeaders, as_problem, log_error, shown
from indknn.server.service import Service
from indknn.store.keyfile import Key

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
_SAID_ONCE = frozenset(
    b"authorization content-encoding content-length content-type host inference-header-content-length origin "
    b"x-indknn-rows x-request-id".split()
)
_JSON = ((b"content-type", b"application/json"),)


class Gateway:
    """An ASGI application around another one."""

    def __init__(self, app: Any, service: Service):
        self.app = app
        self.service = service

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer one request."""
        if scope["type"] == "http":
            for message in await self._answer(scope, receive):
                await send(message)
        elif scope["type"] == "lifespan":
            await self.app(scope, receive, send)

    async def _answer(self, scope: Any, receive: Any) -> list[Any]:
        """The response, when it may leave."""
        headers: dict[bytes, bytes] = dict(scope["headers"])
        asked = INFER.fullmatch(scope["path"])
        sender = f"address {(scope.get('client') or ('',))[0]}"
        connection, paced = scope.get("indknn.connection"), False
        try:
            if len(headers) < len(scope["headers"]):
                _refuse_repeated(scope["headers"])
            permission = needed_permission(scope["method"], scope["path"])
            key = authorise(self.service.keys, permission, headers)
            if key is None:
                paced = True
                await self._turn(sender, connection)
            else:
                sender = f"key {key.id}"
                if connection is not None and not connection.show(key.id):
                    raise Problem(503, "too many connections of this key are busy", "busy", GO_AWAY)
            answer = await self._permitted(scope, receive, asked, headers, key, permission, sender)
            route = "infer" if asked else _route(scope)
        except Exception as error:
            problem = as_problem(error)
            if error is not problem and problem.status >= 500:
                log_error(error)
            route = "infer" if asked else "refused"
            answer = _problem_response(problem)
        self.service.metrics.requests.labels(route, answer[0]["status"]).inc()
        if 400 <= answer[0]["status"] < 500 and not paced:
            try:
                await self._turn(sender, connection)
            except Problem as problem:
                return _problem_response(problem)
        return answer

    async def _turn(self, sender: str, connection: Any) -> None:
        with nullcontext() if connection is None else connection.holding():
            await self.service.pace.turn(sender)

    async def _permitted(
        self,
        scope: Any,
        receive: Any,
        asked: re.Match[str] | None,
        headers: dict[bytes, bytes],
        key: Key | None,
        permission: str | None,
        sender: str,
    ) -> list[Any]:
        """The response to a request that its key permits."""
        if self.service.closing and permission is not None:
            raise Problem(503, "this server is closing", headers=GO_AWAY)
        if not (self.service.keyed or self.service.keys.is_open):
            await self.service.remember_keys()
        check_again = partial(self._check_again, permission, headers, self.service.keys.version)
        receive_all = _receive_and_then(check_again, receive)
        with self.service.bodies.holding(sender) as take:
            if asked is None:
                scope.setdefault("state", {}).update(key=key, permission=permission, take=take)
                answer = await self._framework(scope, receive_all)
            else:
                answer = await self._predict(scope, asked, headers, receive_all, key, take)
        ended = scope.get("state", {}).get("ends")  # the key that this request has ended, if any
        if key is None or ended != key.id:
            check_again()
        return answer

    async def _predict(
        self,
        scope: Any,
        asked: re.Match[str],
        headers: dict[bytes, bytes],
        receive: Receive,
        key: Key | None,
        take: Take,
    ) -> list[Any]:
        if scope["method"] != "POST":
            text = f"{shown(scope['method'])} is not allowed here; use POST"
            raise Problem(405, text, headers=((b"allow", b"POST"),))
        assert key is not None  # predictions are never public
        body, described = await infer(self.service, asked[1], asked[2], headers, receive, key, take)
        return _response(200, body, described)

    def _check_again(self, permission: str | None, headers: dict[bytes, bytes], version: int) -> None:
        """Refuse to answer a key that was revoked meanwhile. Its request may have been charged or done already."""
        self.service.keys.refresh(force=True)
        if self.service.keys.version != version:
            authorise(self.service.keys, permission, headers)

    async def _framework(self, scope: Any, receive: Any) -> list[Any]:
        """The response of FastAPI, with the headers that every response has."""
        messages: list[Any] = []

        async def collect(message: Any) -> None:
            messages.append(message)

        try:
            await self.app(scope, receive, collect)
        except Exception as error:
            if not messages:
                raise
            log_error(error)  # FastAPI has made a response for it
        more = _ON_EVERY_RESPONSE if scope["path"].startswith("/console/") else (*_ON_EVERY_RESPONSE, _NO_STORE)
        messages[0]["headers"] = [*messages[0].get("headers", ()), *more]
        return messages


def _refuse_repeated(headers: Iterable[tuple[bytes, bytes]]) -> None:
    """Refuse a header that says two things. A proxy may have believed the other one."""
    seen: set[bytes] = set()
    for name, _ in headers:
        if name in _SAID_ONCE and name in seen:
            raise Problem(400, f"the header {name.decode()} came more than once", "bad_http")
        seen.add(name)


def _problem_response(problem: Problem) -> list[Any]:
    return _response(problem.status, problem.body, (*_JSON, *problem.headers))


def _response(status: int, body: bytes, headers: RawHeaders) -> list[Any]:
    """A response that was not made by FastAPI."""
    start = [*headers, (b"content-length", b"%d" % len(body)), *_ON_EVERY_RESPONSE, _NO_STORE]
    return [
        {"type": "http.response.start", "status": status, "headers": start},
        {"type": "http.response.body", "body": body},
    ]


def _receive_and_then(check: Callable[[], None], receive: Any) -> Any:
    """Receive a body, and run a check when all of it has arrived, which may take half a minute."""

    async def receive_all() -> Any:
        message = await receive()
        if message["type"] == "http.request" and not message.get("more_body", False):
            check()
        return message

    return receive_all


def _route(scope: Any) -> str:
    return getattr(scope.get("route"), "path", "none")
