"""Where a store is: a file, or a schema of a PostgreSQL database.

Also how files that hold something private are written: only this user may read them, and they appear whole or not at
all.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import IO, Any, TypeAlias
from urllib.parse import parse_qsl, quote, unquote, urlsplit

from indknn.errors import InvalidInputError

_SCHEMES = ("postgresql", "postgres")
_ADDRESS = re.compile(r"\s*(?:postgres(?:ql)?:|[a-z][a-z0-9+.-]+:/)", re.IGNORECASE)  # C:/ is a drive
_SCHEMA = "indknn"
_OPTIONS = {
    "host", "port", "user", "connect_timeout", "sslmode", "sslrootcert", "sslcert", "sslkey", "sslcrl",
    "channel_binding", "target_session_attrs", "keepalives_idle", "tcp_user_timeout", "passfile", "service",
}  # fmt: skip
_PLAIN_NAME = re.compile(r"[a-z_][a-z0-9_]{0,62}")


@dataclass(frozen=True)
class Address:
    """A schema of a PostgreSQL database. It never holds a password."""

    database: str
    schema: str = _SCHEMA
    options: tuple[tuple[str, str], ...] = ()
    """What libpq is told besides, sorted by name."""

    def __str__(self) -> str:
        given = dict(self.options)
        user, host, port = (given.pop(name, "") for name in ("user", "host", "port"))
        if host.startswith("/"):
            given["host"], host = host, ""
        if self.schema != _SCHEMA:
            given["schema"] = self.schema
        host = f"[{host}]" if ":" in host else host
        where = (quote(user, safe="") + "@" if user else "") + host + (f":{port}" if port else "")
        ask = "&".join(f"{name}={quote(value)}" for name, value in given.items())
        return f"postgresql://{where}/{quote(self.database, safe='')}" + (f"?{ask}" if ask else "")

    @property
    def name(self) -> str:
        """Short, for the name of a model. Two stores may have the same."""
        return self.database if self.schema == _SCHEMA else f"{self.database}.{self.schema}"

    @property
    def stem(self) -> str:
        """As `Path.stem`."""
        return self.name


Place: TypeAlias = Path | Address


def place_of(where: str | Path | Address) -> Place:
    """The place that somebody names. A link to a store is that store. No error shows a password.

    >>> str(place_of("postgresql://ann@db.example:5433/people?schema=trial"))
    'postgresql://ann@db.example:5433/people?schema=trial'
    """
    if isinstance(where, Address):
        return where
    if is_address(str(where)):
        return _address(str(where).strip())
    return Path(where).resolve()


def unchanged_place(given: object, held: object) -> Place | None:
    """The place that somebody gives; None for memory. It must be where `held` is, if records are held already."""
    if not isinstance(given, str | Path | None):
        raise InvalidInputError(f"store must be a path or None, got {given!r}")
    place, before = None if given is None else place_of(given), getattr(held, "path", None)
    if held is not None and place != before:
        raise InvalidInputError(f"store must stay {before} once this object was fitted, got {given!r}")
    return place


def is_address(text: str) -> bool:
    """Whether this names a database and not a file. `password=` is in no file's name, but in libpq's other form."""
    return _ADDRESS.match(text) is not None or "password=" in text.lower()


def keys_path(where: str | Path | Address) -> Path:
    """The file of API keys that goes with a store: beside a file; for a database, in a folder of this user."""
    place = place_of(where)
    if isinstance(place, Path):
        return place.with_name(place.name + ".keys")
    folder = Path(os.environ.get("INDKNN_HOME") or Path.home() / ".indknn")
    parts = (*_server(place), place.database, place.schema)
    # Only the digest tells two stores apart: the rest is for people, and some file systems ignore capitals.
    digest = hashlib.blake2b(json.dumps(parts).encode(), digest_size=16).hexdigest()
    readable = re.sub(r"[^a-z0-9.]+", "-", "-".join(filter(None, parts)).lower()).strip("-.")
    return folder / f"{readable[:100]}-{digest}.keys"


def _server(place: Address) -> tuple[str, str, str, str]:
    """The service, numeric address, host and port of a server, as libpq completes them."""
    given, names = dict(place.options), ("service", "hostaddr", "host", "port")
    service, hostaddr, host, port = (given.get(name) or os.environ.get(f"PG{name.upper()}", "") for name in names)
    return service, hostaddr, host if host.startswith("/") else host.lower(), port or "5432"


def stays_here(place: Address) -> bool:
    """Whether what is sent to this database stays on this machine: a socket, or loopback."""
    service, hostaddr, host, _ = _server(place)
    if service or hostaddr:
        return False  # the name says nothing
    return all(_is_here(one) for one in host.split(","))


def _is_here(host: str) -> bool:
    if host in {"", "localhost"} or host.startswith(("/", "@")):
        return True
    with suppress(ValueError):
        return ip_address(host).is_loopback
    return False


def _address(text: str) -> Address:
    text = re.sub(r"^([a-z0-9+.-]+):/+", r"\1://", text, flags=re.IGNORECASE) if "://" not in text else text
    try:
        parts = urlsplit(text)
        if parts.scheme not in _SCHEMES or parts.fragment:
            raise ValueError("another kind of address, or a # that is not written as %23")
        asked, port = dict(parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query))), parts.port
    except ValueError:
        raise InvalidInputError(
            "a store must be a file, or an address postgresql://USER@HOST:PORT/DATABASE without a password"
        ) from None
    if parts.password is not None or "password" in asked:
        raise InvalidInputError(
            "a PostgreSQL address must hold no password: put it in PGPASSWORD, or in the file that PGPASSFILE names"
        )
    schema = asked.pop("schema", _SCHEMA)
    unknown = sorted(set(asked) - _OPTIONS)
    if unknown:
        raise InvalidInputError(f"{unknown[0]!r} is no option of an address; allowed are schema, {sorted(_OPTIONS)}")
    if not _PLAIN_NAME.fullmatch(schema):
        raise InvalidInputError(f"a schema must be a plain name in small letters, got {schema!r}")
    database = unquote(path := parts.path.removeprefix("/"))
    if not database or "/" in path:
        raise InvalidInputError("a PostgreSQL address must name one database behind the host, with / written as %2F")
    found = {"user": unquote(parts.username or ""), "host": unquote(parts.hostname or ""), "port": str(port or "")}
    options = {**{name: value for name, value in found.items() if value}, **asked}
    return Address(database, schema, tuple(sorted(options.items())))


@contextmanager
def private_file(path: Path, mode: str = "w") -> Iterator[IO[Any]]:
    """A file that only this user may read. It replaces what is there, atomically and durably, when `with` ends well."""
    if path.exists() and not path.is_file():  # a pipe or a device
        with path.open(mode) as file:
            yield file
        return
    path = path.resolve()
    draft = path.with_name(path.name + ".new")
    draft.unlink(missing_ok=True)
    try:
        with open(draft, mode, opener=private) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
        sync_file(path.parent)
    finally:
        draft.unlink(missing_ok=True)


def copy_private(source: Path, target: Path) -> None:
    """Copy a file. Only this user may read the copy."""
    with private_file(target, "wb") as file:
        file.write(source.read_bytes())


def private(path: str, flags: int) -> int:
    """An opener for `open`: only this user may read the file."""
    handle = os.open(path, flags, 0o600)
    if os.path.isfile(path):
        os.fchmod(handle, 0o600)  # it may have been there
    return handle


def sync_file(path: Path) -> None:
    """Make a file, or the names in a folder, durable."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
