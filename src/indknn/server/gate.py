"""The outer application: who may call a route is decided here, before any of the body is read.

The permission stands on the route (`needs`). Predictions are answered from here, everything else by FastAPI.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import nullcontext
from functools import partial
from typing import Annotated, Any, TypeAlias

from fastapi import Depends, FastAPI, Request
from starlette.routing import Match

from indknn.server.infer import infer
from indknn.server.keys import authorise, permission_of
from indknn.server.limits import GO_AWAY, read_body
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
_UNKNOWN_PATH = "session"  # the permission for paths without a route: whoever has no key is not told which exist


class Gate:
    """An ASGI application around FastAPI's."""

    def __init__(self, app: FastAPI, service: Service):
        self.app, self.routes = app, app.routes
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
        sender = f"address {(scope.get('client') or ('',))[0]}"
        connection, paced = scope.get("indknn.connection"), False
        route, parameters, methods = self._find(scope)
        predicts = route is not None and route.endpoint is infer
        counted_as = "infer" if predicts else "refused"
        try:
            if len(headers) < len(scope["headers"]):
                _refuse_repeated(scope["headers"])
            permission = _UNKNOWN_PATH if route is None else permission_of(route.endpoint)
            key = authorise(self.service.keys, permission, headers)
            if key is None:
                paced = True
                await self._turn(sender, connection)
            else:
                sender = f"key {key.id}"
                if connection is not None and not connection.show(key.id):
                    raise Problem(503, "too many connections of this key are busy", "busy", GO_AWAY)
            if self.service.closing and key is not None:
                raise Problem(503, "this server is closing", headers=GO_AWAY)
            if not predicts:
                counted_as = "none" if route is None else route.path
            if route is None:
                raise Problem(404, f"there is nothing at {shown(scope['path'])}")
            if methods:
                text = f"{shown(scope['method'])} is not allowed here; use {' or '.join(methods)}"
                raise Problem(405, text, headers=((b"allow", ", ".join(methods).encode()),))
            answer = await self._permitted(scope, receive, headers, key, permission, sender, predicts, parameters)
        except Exception as error:
            problem = as_problem(error)
            if error is not problem and problem.status >= 500:
                log_error(error)
            answer = _problem_response(problem)
        self.service.metrics.requests.labels(counted_as, answer[0]["status"]).inc()
        if 400 <= answer[0]["status"] < 500 and not paced:
            try:
                await self._turn(sender, connection)
            except Problem as problem:
                return _problem_response(problem)
        return answer

    def _find(self, scope: Any) -> tuple[Any, dict[str, str], list[str]]:
        """The route of a request and its parameters, as FastAPI finds it. If the method is wrong, those that are right.

        The patterns of routes end in `$`, which also matches before a final newline, so no such path has a route.
        """
        routes: list[Any] = []
        for route in self.routes if "\n" not in scope["path"] else ():
            match, found = route.matches(scope)
            if match is Match.FULL:
                return route, found["path_params"], []
            if match is Match.PARTIAL:
                routes.append(route)
        return (routes[0] if routes else None), {}, sorted(method for route in routes for method in route.methods)

    async def _turn(self, sender: str, connection: Any) -> None:
        with nullcontext() if connection is None else connection.holding():
            await self.service.pace.turn(sender)

    async def _permitted(
        self,
        scope: Any,
        receive: Any,
        headers: dict[bytes, bytes],
        key: Key | None,
        permission: str | None,
        sender: str,
        predicts: bool,
        parameters: dict[str, str],
    ) -> list[Any]:
        """The response to a request that its key permits. A key that is revoked meanwhile is refused."""
        if not (self.service.keyed or self.service.keys.is_open):
            await self.service.remember_keys()
        check_again = partial(self._check_again, permission, headers, self.service.keys.version)
        receive_all = _receive_and_then(check_again, receive)
        state = scope.setdefault("state", {})

        def check_end() -> None:
            if key is None or state.get("ends") != key.id:  # unless this request has ended its own key
                check_again()

        try:
            with self.service.bodies.holding(sender) as take:
                if predicts and key is not None:  # predictions are never public
                    name, version = parameters["name"], parameters.get("version")
                    answered = await infer(self.service, name, version, headers, receive_all, key, take)
                    answer = _response(200, *answered)
                else:
                    state.update(key=key, take=take)
                    answer = await self._framework(scope, receive_all)
        except Exception:
            check_end()
            raise
        check_end()
        return answer

    def _check_again(self, permission: str | None, headers: dict[bytes, bytes], version: int) -> None:
        """Refuse to answer a key that was revoked meanwhile. Its request may have been charged or done already."""
        self.service.keys.refresh(force=True)
        if self.service.keys.version != version:
            authorise(self.service.keys, permission, headers)

    async def _framework(self, scope: Any, receive: Any) -> list[Any]:
        """The response of FastAPI, with the headers that every response has. Errors of a route are raised."""
        messages: list[Any] = []

        async def collect(message: Any) -> None:
            messages.append(message)

        await self.app(scope, receive, collect)
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
    return _response(problem.status, problem.body, ((b"content-type", b"application/json"), *problem.headers))


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


# What a route may ask for


async def _service(request: Request) -> Any:
    return request.app.state.service


async def _key(request: Request) -> Any:
    return request.state.key


async def _body(request: Request) -> bytes | bytearray:
    most = request.app.state.service.options.max_body
    return await read_body(request.receive, dict(request.headers.raw), most, request.state.take)


Served: TypeAlias = Annotated[Service, Depends(_service)]
Caller: TypeAlias = Annotated[Key, Depends(_key)]
RequestBody: TypeAlias = Annotated[bytes | bytearray, Depends(_body)]
