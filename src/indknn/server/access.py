"""Who may do what, and how often.

Permissions are decided from the method, the path and the key, before any of the body is read.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable
from math import ceil
from urllib.parse import urlsplit

from indknn.server.keyring import OPEN, Keyring
from indknn.server.problems import Problem
from indknn.store.keyfile import ROLES, Key

PERMISSIONS: dict[str, frozenset[str]] = {
    "session": frozenset(ROLES),
    "model": frozenset(ROLES),
    "predict": frozenset({"analyst", "admin"}),
    "status": frozenset({"curator", "auditor", "admin"}),
    "audit": frozenset({"curator", "auditor", "admin"}),
    "metrics": frozenset({"curator", "auditor", "admin"}),
    "verify": frozenset({"curator", "auditor", "admin"}),
    "curate": frozenset({"curator", "admin"}),
    "keys": frozenset({"admin"}),
    "statement": frozenset({"curator", "admin", "owner"}),
    "forget": frozenset({"curator", "admin", "owner"}),
}
"""The roles that have each permission."""
_BY_PATH = {
    "/v1/session": "session",
    "/v1/status": "status",
    "/v1/audit": "audit",
    "/v1/analysts": "status",
    "/v1/verify": "verify",
    "/v1/keys": "keys",
    "/v1/owners": "curate",
    "/v1/records": "curate",
    "/v1/purge": "curate",
    "/metrics": "metrics",
}
INFER = re.compile(r"/v2/models/([^/]+)(?:/versions/([^/]+))?/infer")
"""The path of predictions: the name of the model, and optionally its version."""
_PUBLIC = frozenset({"/", "/v1/sign-in", "/v2", "/v2/health/live", "/v2/health/ready"})
GO_AWAY = ((b"retry-after", b"1"), (b"connection", b"close"))
"""Headers that close a connection."""
_TURNS, _AT_ONCE, _MOST_WAITING = 50.0, 20, 250  # requests a second, at once, and that may wait, for each sender
_SENDERS = 10_000  # that are remembered
_FORWARDED = frozenset({b"forwarded", b"via", b"x-forwarded-for", b"x-forwarded-host", b"x-real-ip"})
_LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})


def needed_permission(method: str, path: str) -> str | None:
    """The permission that a request needs. None for public paths. Unknown paths need a key.

    The patterns of the routes end in `$`, which also matches before a final newline. So `/metrics%0A` would be one path
    here and another one in the routes. Paths with a newline are refused.
    """
    if "\n" in path:
        raise Problem(404, "there is nothing at a path with a newline")
    if path.startswith("/v2/models/"):
        return "predict" if INFER.fullmatch(path) else "model"
    if path.startswith("/v1/owners/"):
        return "forget" if method == "DELETE" else "statement"
    if path.startswith("/v1/keys/"):
        return "keys"
    if path in _PUBLIC or path.startswith("/console/"):
        return None
    return _BY_PATH.get(path, "session")


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
    authorization = headers.get(b"authorization", b"")
    scheme, _, text = authorization.decode("latin-1").partition(" ")
    key = keyring.find(text.strip()) if scheme.lower() == "bearer" else None
    if key is None:
        wrong = "this key is not valid" if authorization else "a key is needed"
        text = f"{wrong}: send the header Authorization: Bearer KEY"
        raise Problem(401, text, headers=((b"www-authenticate", b"Bearer"),))
    if key.role not in PERMISSIONS[permission]:
        roles = sorted(PERMISSIONS[permission])
        raise Problem(403, f"a key of role {key.role} may not {permission}; roles that may: {roles}")
    return key


def may(key: Key, permission: str) -> bool:
    """Whether the holder of this key has this permission."""
    return key is OPEN or key.role in PERMISSIONS[permission]


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


class RateLimiter:
    """How many queries per second each key may ask: a token bucket for each.

    A bucket holds one second's worth of queries, at least one. A request with more rows than that is let in when the
    bucket is full. It leaves a debt that must fill up before the next request.

    >>> now = [0.0]
    >>> limiter = RateLimiter(clock=lambda: now[0])
    >>> limiter.take("k", 2.0, 2)
    >>> limiter.take("k", 2.0, 1)
    Traceback (most recent call last):
    indknn.server.problems.Problem: more than 2 queries per second; ask again in 1 s
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic):
        self._clock = clock
        self._buckets: dict[str, tuple[float, float]] = {}

    def __len__(self) -> int:
        return len(self._buckets)

    def take(self, key: str, rate: float, n: int, already: int = 0) -> None:
        """Take n queries out of the bucket of a key, or refuse. `already` were taken for the same request."""
        now, full = self._clock(), max(rate, 1.0)
        content, since = self._buckets.get(key, (full, now))
        content = min(full, content + (now - since) * rate)
        needed = min(float(n), full - already)
        if content < needed - 1e-9:
            wait = str(ceil((needed - content) / rate))
            text = f"more than {rate:g} queries per second; ask again in {wait} s"
            raise Problem(429, text, "rate_limit", ((b"retry-after", wait.encode()),))
        self._buckets[key] = (content - n, now)


class Pace:
    """Serves senders one request after the other who have shown no key, or whose requests are refused.

    So they cost others next to nothing, on however many connections they come. Each sender has twenty such requests at
    once, then fifty a second. Those that come faster wait for their turn. If very many wait, the next is refused.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._next: dict[str, float] = {}  # counted in turns: the first that is free if none comes at once

    async def turn(self, sender: str) -> None:
        """Return when it is this sender's turn."""
        now = self._clock() * _TURNS
        if len(self._next) > _SENDERS:  # addresses come and go
            self._next.clear()
        turn = max(self._next.get(sender, now), now) + 1
        wait = turn - now - _AT_ONCE
        if wait > _MOST_WAITING:
            text = f"too many requests without a key, or that had to be refused: {_TURNS:g} a second are answered"
            raise Problem(429, text, "rate_limit", GO_AWAY)
        self._next[sender] = turn
        if wait > 0:
            await asyncio.sleep(wait / _TURNS)
