"""The keys as a running server sees them, what each role may do, and which permission a route needs.

A permission stands on the route that it guards: `@needs("status")`. `gate.py` asks the route of a request for it before
any of the body is read.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

from indknn.errors import StoreError
from indknn.server.problems import Problem
from indknn.store.keyfile import ROLES, Key, KeyFile, digest_of, read_key_file

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
OPEN = Key(id="", name="", role="open", created="", digest="")
"""Stands for the key of every caller of a server that has no keys. It allows everything."""
_REFRESH_SECONDS = 1.0
_FORWARDED = frozenset({b"forwarded", b"via", b"x-forwarded-for", b"x-forwarded-host", b"x-real-ip"})
_LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})
F = TypeVar("F", bound=Callable[..., Any])


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

    def __init__(self, path: Path | None):
        self.path = path
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
