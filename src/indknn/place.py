"""Where a store is: a file, or a schema of a PostgreSQL database."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias
from urllib.parse import parse_qsl, quote, unquote, urlsplit

from indknn.errors import InvalidInputError

_SCHEMES = ("postgresql:", "postgres:")
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
        where = (quote(user) + "@" if user else "") + host + (f":{port}" if port else "")
        ask = "&".join(f"{name}={quote(value)}" for name, value in given.items())
        return f"postgresql://{where}/{quote(self.database)}" + (f"?{ask}" if ask else "")

    @property
    def name(self) -> str:
        """Short, for a file name or a model's name."""
        return self.database if self.schema == _SCHEMA else f"{self.database}.{self.schema}"

    @property
    def stem(self) -> str:
        """As `Path.stem`."""
        return self.name


Place: TypeAlias = Path | Address


def place_of(where: str | Path | Address) -> Place:
    """The place that somebody names. A link to a store is that store.

    >>> str(place_of("postgresql://ann@db.example:5433/people?schema=trial"))
    'postgresql://ann@db.example:5433/people?schema=trial'
    """
    if isinstance(where, Address):
        return where
    if is_address(str(where)):
        return _address(str(where))
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
    """Whether this names a database and not a file."""
    return text.startswith(_SCHEMES)


def keys_path(where: str | Path | Address) -> Path:
    """The file of API keys that goes with a store: beside a file; for a database, in a folder of this user."""
    place = place_of(where)
    if isinstance(place, Path):
        return place.with_name(place.name + ".keys")
    given = dict(place.options)
    server = re.sub(r"[^A-Za-z0-9.-]+", "_", f"{given.get('host', 'local')}-{given.get('port', '5432')}")
    folder = Path(os.environ.get("INDKNN_HOME") or Path.home() / ".indknn")
    return folder / f"{server}-{place.name}.keys"


def _address(text: str) -> Address:
    text = re.sub(r"^(postgres(?:ql)?):/+", r"\1://", text) if "://" not in text else text
    parts = urlsplit(text)
    try:
        asked, port = dict(parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query))), parts.port
    except ValueError:
        raise InvalidInputError("a PostgreSQL address must be postgresql://USER@HOST:PORT/DATABASE") from None
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
    database = unquote(parts.path.removeprefix("/"))
    if not database or "/" in database:
        raise InvalidInputError(f"a PostgreSQL address must name one database behind the host, got {database!r}")
    found = {"user": unquote(parts.username or ""), "host": unquote(parts.hostname or ""), "port": str(port or "")}
    options = {**{name: value for name, value in found.items() if value}, **asked}
    return Address(database, schema, tuple(sorted(options.items())))
