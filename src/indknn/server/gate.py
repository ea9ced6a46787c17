"""The gate: who may call a route is decided here, before any of the body is read.

The permission stands on the route that it guards: `@needs("status")`. The gate asks the route of a request for it. It
answers predictions without a framework, and gives everything else to FastAPI.
"""

from __future__ import annotations

import os
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar
from urllib.parse import urlsplit

from fastapi import FastAPI
from starlette.routing import Match

from indknn.errors import StoreError
from indknn.server.limits import GO_AWAY, SENDERS
from indknn.server.problems import Problem, RawHeaders, as_problem, log_error, shown
from indknn.server.telemetry import new_id
from indknn.server.wire import SMALL
from indknn.store.keyfile import ROLES, Key, KeyFile, digest_of, read_key_file

if TYPE_CHECKING:
    from indknn.server.service import Service

_LOOKING, _CURATING, _PERSONAL = ("curator", "auditor", "admin"), ("curator", "admin"), ("curator", "admin", "owner")
_ALLOWED: dict[str, tuple[str, tuple[str, ...]]] = {
    "session": ("ask who it is", ROLES),
    "model": ("ask about the model", ROLES),
    "predict": ("ask for predictions", ("analyst", "admin")),
    "status": ("see what people have spent", _LOOKING),
    "audit": ("see the audit trail", _LOOKING),
    "metrics": ("see metrics", _LOOKING),
    "verify": ("check the store", _LOOKING),
    "curate": ("look up or change records", _CURATING),
    "keys": ("make or see keys", ("admin",)),
    "backup": ("copy the store", ("admin",)),
    "statement": ("see a statement", _PERSONAL),
    "forget": ("forget somebody", _PERSONAL),
    "lower": ("lower what somebody is promised", _PERSONAL),
}
"""What each permission lets a caller do, for messages, and the roles that have it."""
PERMISSIONS = {permission: frozenset(roles) for permission, (_, roles) in _ALLOWED.items()}
OPEN = Key(id="", name="", role="open", created="", digest="")
"""Stands for the key of every caller of a server that has no keys. It allows everything."""
_REFRESH_SECONDS = 1.0
_FORWARDED = frozenset({b"forwarded", b"via", b"x-forwarded-for", b"x-forwarded-host", b"x-real-ip"})
_LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})
IN_VAIN = 8 << 20
"""How many bytes a second of larger bodies a sender may send that are then refused. Beyond that, they are refused
unread."""
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
_METHODS = frozenset({"DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT"})
_UNKNOWN_PATH = "session"  # the permission for paths without a route: whoever has no key is not told which exist
Bytes: TypeAlias = bytes | bytearray
Receive: TypeAlias = Callable[[], Awaitable[Any]]
ReadBody: TypeAlias = Callable[[int], Awaitable[Bytes]]
"""Reads the whole body of a request, which may have at most so many bytes."""
Infer: TypeAlias = (
    "Callable[[Service, str, str | None, dict[bytes, bytes], ReadBody, Key], Awaitable[tuple[bytes, RawHeaders]]]"
)
F = TypeVar("F", bound=Callable[..., Any])


class Gate:
    """An ASGI application around FastAPI's."""

    def __init__(self, app: FastAPI, service: Service, infer: Infer):
        self.app, self.routes = app, app.routes
        self.service, self.infer = service, infer

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer one request."""
        if scope["type"] == "http":
            begun, seen = time.perf_counter(), {"role": "none", "route": "none"}
            answer = await self._answer(scope, receive, seen)
            if self.service.log.on:
                self._log(scope["method"], answer, seen, time.perf_counter() - begun)
            for message in answer:
                await send(message)
        elif scope["type"] == "lifespan":
            await self.app(scope, receive, send)

    def _log(self, method: str, answer: list[Any], seen: dict[str, str], seconds: float) -> None:
        """Log a request, and let its answer carry the id in the log."""
        name, size = new_id(), sum(len(message.get("body", b"")) for message in answer)
        facts = {"status": answer[0]["status"], "seconds": round(seconds, 6), "bytes": size}
        method = method if method in _METHODS else "other"
        self.service.log.event("request", request=name, method=method, **seen, **facts)
        answer[0]["headers"] = [*answer[0]["headers"], (b"x-indknn-request", name.encode())]

    async def _answer(self, scope: Any, receive: Any, seen: dict[str, str]) -> list[Any]:
        """The response, when it may leave. `seen` gets the role of the caller and the route, for the log."""
        headers: dict[bytes, bytes] = dict(scope["headers"])
        sender = f"address {(scope.get('client') or ('',))[0]}"
        connection, paced = scope.get("indknn.connection"), False
        route, parameters, methods = self._find(scope)
        predicts = route is not None and route.endpoint is self.infer
        seen["route"] = "none" if route is None else route.path
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
                sender, seen["role"] = f"key {key.id}", key.role
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
        state = scope.setdefault("state", {})

        def check_end() -> None:
            if key is None or state.get("ends") != key.id:  # unless this request has ended its own key
                check_again()

        try:
            with self.service.bodies.holding(sender) as take:

                async def body(most: int) -> Bytes:
                    whole = await read_body(receive, headers, most, take)
                    check_again()  # it may have taken half a minute to arrive
                    return whole

                if predicts and key is not None:  # predictions are never public
                    name, version = parameters["name"], parameters.get("version")
                    answer = _response(200, *await self.infer(self.service, name, version, headers, body, key))
                else:
                    state.update(key=key, body=body)
                    answer = await self._framework(scope, receive)
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


# Keys


def needs(permission: str | None) -> Callable[[F], F]:
    """Declare the permission that a caller of a route needs. None: the route is public."""
    assert permission is None or permission in PERMISSIONS, permission

    def mark(endpoint: F) -> F:
        endpoint.permission = permission  # type: ignore[attr-defined]
        return endpoint

    return mark


def permission_of(endpoint: Any) -> str | None:
    """The permission that a route needs. A route that does not say it is a fault of the program."""
    permission: str | None = endpoint.permission
    return permission


def may(key: Key, permission: str) -> bool:
    """Whether the holder of this key has this permission."""
    return key is OPEN or key.role in PERMISSIONS[permission]


class Keyring:
    """The keys as a running server sees them.

    The server is open while the file has no entries. After the first entry it never opens again: if the file is lost or
    damaged, nobody is let in.
    """

    def __init__(self, path: Path | None, changed: Callable[[list[Key]], None] = lambda keys: None):
        self.path = path
        self._changed = changed  # told the keys in use whenever the file was read again
        self.is_open = True
        self._secret = b""
        self._by_digest: dict[str, Key] = {}
        self._seen: object = None
        self.version = 0  # increases whenever the file was read again
        self._next_refresh = 0.0
        self.refresh(force=True)

    def find(self, text: str) -> Key | None:
        """The key with this text. None for a wrong or revoked key."""
        key = self._find(text)
        if key is None:  # it may just have been made
            self.refresh(force=True)
        return key or self._find(text)

    def refresh(self, *, force: bool = False) -> None:
        """Read the file again if it has changed. Unless forced, it looks at most once a second."""
        moment = time.monotonic()
        if self.path is None or (moment < self._next_refresh and not force):
            return
        self._next_refresh = moment + _REFRESH_SECONDS
        try:
            stat = os.stat(self.path)
            mark: object = (stat.st_ino, stat.st_mtime_ns, stat.st_size)
        except OSError:
            mark = None
        if mark == self._seen:
            return
        try:
            file = read_key_file(self.path)
        except StoreError:
            file, self.is_open = KeyFile(), False  # a damaged file lets nobody in
        self._seen = mark
        self.version += 1
        self.is_open = self.is_open and not file.keys
        self._secret = file.secret
        self._by_digest = {k.digest: k for k in file.keys if k.revoked is None}
        self._changed(list(self._by_digest.values()))

    def _find(self, text: str) -> Key | None:
        return self._by_digest.get(digest_of(self._secret, text)) if self._secret else None


def authorise(keyring: Keyring, permission: str | None, headers: dict[bytes, bytes]) -> Key | None:
    """The key of a request. Raises a `Problem` if it does not grant the permission.

    The result is None for a public request, and `OPEN` while the server has no keys.
    """
    if permission is None:
        return None
    keyring.refresh()
    if keyring.is_open:
        _refuse_other_sites(headers)
        return OPEN
    given = key_text(headers)
    key = keyring.find(given) if given else None
    if key is None:
        wrong = "this key is not valid" if headers.get(b"authorization") else "a key is needed"
        text = f"{wrong}: send the header Authorization: Bearer KEY"
        raise Problem(401, text, headers=((b"www-authenticate", b"Bearer"),))
    if key.role not in PERMISSIONS[permission]:
        roles = ", ".join(sorted(PERMISSIONS[permission]))
        raise Problem(403, f"a key of role {key.role} may not {_ALLOWED[permission][0]}; roles that may: {roles}")
    return key


def key_text(headers: dict[bytes, bytes]) -> str:
    """The text of the key that a request shows. Empty if it shows none."""
    scheme, _, text = headers.get(b"authorization", b"").decode("latin-1").partition(" ")
    return text.strip() if scheme.lower() == "bearer" else ""


def _refuse_other_sites(headers: dict[bytes, bytes]) -> None:
    """Without keys, refuse requests through a proxy, and requests that another site's web page sends from a browser."""
    if not _FORWARDED.isdisjoint(headers):
        raise Problem(403, "without keys the server takes no requests through a proxy", "not_loopback")
    host, origin = headers.get(b"host"), headers.get(b"origin")
    try:
        name = urlsplit("//" + (host or b"localhost").decode("latin-1"))
        known, site = name.hostname in _LOOPBACK, origin and urlsplit(origin.decode("latin-1")).netloc
    except ValueError:
        known, site = False, None
    if not known:
        raise Problem(403, "without keys the server takes requests to a loopback address only", "not_loopback")
    if origin is not None and site != name.netloc:
        raise Problem(403, "without keys the server takes no requests from other sites", "cross_origin")


# Bodies


class BodyBudget:
    """The bytes that all larger bodies may take, from their first byte until they are read.

    A sender may use a quarter of it, or one body of the largest size if that is more. So no sender can keep the others
    out.

    >>> budget = BodyBudget(total=100, largest=40)
    >>> with budget.holding("ann") as hold:
    ...     hold(40)
    ...     hold(1)
    Traceback (most recent call last):
    indknn.server.problems.Problem: too much is being sent at once; send it again later
    """

    def __init__(self, total: int, largest: int, clock: Callable[[], float] = time.monotonic):
        self._clock = clock
        self._in_vain: dict[str, tuple[float, float]] = {}  # refused bytes by sender, and when that was computed
        self._total = self._left = max(total, largest)
        self._share = max(total // 4, largest)
        self._held: dict[str, int] = {}

    @property
    def held(self) -> int:
        """The bytes in use now."""
        return self._total - self._left

    @contextmanager
    def holding(self, sender: str) -> Iterator[Callable[[int], None]]:
        """A function that reserves bytes for a body of this sender. They are given back at the end."""
        taken = 0

        def take(size: int) -> None:
            nonlocal taken
            if self._sent_in_vain(sender) > IN_VAIN:
                text = "too many large bodies were sent that had to be refused; send it again later"
                raise Problem(429, text, "rate_limit", ((b"retry-after", b"1"),))
            held = self._held.get(sender, 0)
            if size > self._left or held + size > self._share:
                text = "too much is being sent at once; send it again later"
                raise Problem(503, text, "busy", ((b"retry-after", b"1"),))
            self._left -= size
            self._held[sender] = held + size
            taken += size

        try:
            yield take
        except Problem as problem:
            if taken and 400 <= problem.status < 500:
                if len(self._in_vain) > SENDERS:  # addresses come and go
                    self._in_vain.clear()
                self._in_vain[sender] = self._sent_in_vain(sender) + taken, self._clock()
            raise
        finally:
            self._left += taken
            if taken:
                self._held[sender] -= taken
                if not self._held[sender]:
                    del self._held[sender]

    def _sent_in_vain(self, sender: str) -> float:
        """How many bytes of this sender were refused lately."""
        size, since = self._in_vain.get(sender, (0.0, 0.0))
        return max(size - (self._clock() - since) * IN_VAIN, 0.0)


async def read_body(receive: Receive, headers: dict[bytes, bytes], most: int, take: Callable[[int], None]) -> Bytes:
    """The whole body. A body that is too long is refused by its announced length, or while it arrives."""
    announced = headers.get(b"content-length", b"")
    length = int(announced) if announced.isdigit() and len(announced) < 20 else 0
    _refuse_too_long(length, most)
    if length > SMALL:
        take(length)
    message = await _next(receive)
    first: bytes = message.get("body", b"")
    if not message.get("more_body", False):
        _refuse_too_long(len(first), most)
        return first
    body, held, more = bytearray(first), max(length, SMALL), True
    while more:
        _refuse_too_long(len(body), most)
        if len(body) > held:
            take(len(body) - held if held > SMALL else len(body))
            held = len(body)
        message = await _next(receive)
        body += message.get("body", b"")
        more = message.get("more_body", False)
    _refuse_too_long(len(body), most)
    return body


async def _next(receive: Receive) -> Any:
    message = await receive()
    if message["type"] != "http.request":
        raise Problem(499, "the client hung up before its request had arrived")
    return message


def _refuse_too_long(size: int, most: int) -> None:
    if size > most:
        raise Problem(413, f"a body must have at most {most} bytes")
