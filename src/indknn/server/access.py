"""Who may do what. Decided from the method and the path, before a byte of the body is read."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import urlsplit

from indknn.server.keys import ROLES, Key, Keyring
from indknn.server.problems import Problem

CAN: dict[str, frozenset[str]] = {
    "session": frozenset(ROLES),
    "model": frozenset(ROLES),
    "predict": frozenset({"analyst", "admin"}),
    "status": frozenset({"curator", "auditor", "admin"}),
    "audit": frozenset({"curator", "auditor", "admin"}),
    "metrics": frozenset({"curator", "auditor", "admin"}),
    "curate": frozenset({"curator", "admin"}),
    "statement": frozenset({"curator", "auditor", "admin", "owner"}),
    "forget": frozenset({"curator", "admin", "owner"}),
}
_ROUTES = {"/v1/session": "session", "/v1/status": "status", "/v1/audit": "audit", "/v1/records": "curate"}
_EVERYBODY = frozenset({"/", "/v2", "/v2/health/live", "/v2/health/ready"})
_FORWARDED = frozenset({b"forwarded", b"via", b"x-forwarded-for", b"x-forwarded-host", b"x-real-ip"})
_LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})


@dataclass(frozen=True)
class Visitor:
    """Whoever sent a request. Without a key, while there are none, everything is allowed."""

    key: Key | None

    @property
    def role(self) -> str:
        """The role, `open` without keys."""
        return "open" if self.key is None else self.key.role

    @property
    def analyst(self) -> str | None:
        """Whose ledger a prediction is charged to."""
        return None if self.key is None else self.key.name

    @property
    def can(self) -> list[str]:
        """What is allowed."""
        return [what for what in CAN if self.may(what)]

    def may(self, what: str) -> bool:
        """Whether this is."""
        return self.key is None or self.key.role in CAN[what]


def needed(method: str, path: str) -> str | None:
    """What a request needs to be allowed; None for what is open to everybody.

    What is not known here needs a key. The routes' patterns end in `$`, which also matches before a last newline:
    `/metrics%0A` would be another path to us and the same to them, so no path with a newline gets there.
    """
    if "\n" in path:
        raise Problem(404, "there is nothing at a path with a newline")
    if path.startswith("/v2/models/"):
        return "predict" if path.endswith("/infer") else "model"
    if path in _ROUTES:
        return _ROUTES[path]
    if path.startswith("/v1/owners/"):
        return "forget" if method == "DELETE" else "statement"
    if path == "/metrics":
        return "metrics"
    return None if path in _EVERYBODY or path.startswith("/console/") else "session"


def visitor(ring: Keyring, authorization: bytes | None) -> Visitor:
    """Who this is, by the header `Authorization: Bearer ...`."""
    ring.look()
    if ring.open:
        return Visitor(None)
    scheme, _, text = (authorization or b"").decode("latin-1").partition(" ")
    key = ring.find(text.strip()) if scheme.lower() == "bearer" else None
    if key is None:
        wrong = "this key is not valid" if authorization else "a key is needed"
        raise Problem(
            401, f"{wrong}: send the header Authorization: Bearer KEY", headers=((b"www-authenticate", b"Bearer"),)
        )
    return Visitor(key)


def refuse(who: Visitor, what: str) -> None:
    """Raise if this visitor may not do that."""
    if not who.may(what):
        raise Problem(403, f"a key of role {who.role} may not {what}; roles that may: {sorted(CAN[what])}")


def refuse_strange_sites(headers: dict[bytes, bytes]) -> None:
    """Without keys, neither a web page of somebody else in a browser here nor who comes through a proxy is served."""
    if not _FORWARDED.isdisjoint(headers):
        raise Problem(403, "without keys no requests through a proxy are served", "not_loopback")
    host, origin = headers.get(b"host"), headers.get(b"origin")
    try:
        name = urlsplit("//" + (host or b"localhost").decode("latin-1"))
        known, site = name.hostname in _LOOPBACK, origin and urlsplit(origin.decode("latin-1")).netloc
    except ValueError:
        known, site = False, None
    if not known:
        raise Problem(403, "without keys only requests to a loopback address are served", "not_loopback")
    if origin is not None and site != name.netloc:
        raise Problem(403, "without keys no requests from other sites are served", "cross_origin")
