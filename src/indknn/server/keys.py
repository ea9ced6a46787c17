"""API keys, in a file of their own beside the store, so that `indknn keys` works while a server has the store.

A key is 256 random bits, shown once. The file holds only a keyed hash of it, under a secret of the file. The server
looks at the file again when it has changed, so a revoked key is refused within a second.
"""

from __future__ import annotations

import fcntl
import hashlib
import hmac
import json
import math
import os
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from indknn.errors import InvalidInputError, StoreError
from indknn.store.chain import now
from indknn.store.files import sync_file

ROLES = ("analyst", "curator", "owner", "auditor", "admin")
PREFIX = "indknn_"
_LOOK_AGAIN = 1.0  # seconds
_LONGEST_NAME = 128


@dataclass(frozen=True)
class Key:
    """Who holds a key, and what they may do. `digest` is the keyed hash of the key."""

    id: str
    name: str
    role: str
    created: str
    digest: str
    owner: str | None = None
    rate: float | None = None
    max_queries: int | None = None
    revoked: str | None = None


@dataclass(frozen=True)
class Book:
    """What the file holds."""

    secret: bytes
    keys: tuple[Key, ...]


def keys_path(store: str | Path) -> Path:
    """The file of keys that goes with a store."""
    path = Path(store).resolve()
    return path.with_name(path.name + ".keys")


def read_book(path: Path) -> Book | None:
    """The keys in a file; None where there is no file."""
    try:
        body = json.loads(path.read_text())
        return Book(bytes.fromhex(body["secret"]), tuple(Key(**entry) for entry in body["keys"]))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise StoreError(f"{path} cannot be read as a file of keys: {error}") from None


def create(
    path: Path,
    role: str,
    name: str,
    *,
    owner: str | None = None,
    rate: float | None = None,
    max_queries: int | None = None,
) -> tuple[Key, str]:
    """A new key, and its text: the only time that it is seen."""
    _check(role, name, owner, rate, max_queries)
    with _changing(path) as book:
        text = PREFIX + secrets.token_urlsafe(32)
        taken = {key.id for key in book.keys}
        number = next(i for i in iter(lambda: secrets.token_hex(4), None) if i not in taken)
        key = Key(number, name, role, now(), _digest(book.secret, text), owner, rate, max_queries)
        _write(path, Book(book.secret, (*book.keys, key)))
    return key, text


def revoke(path: Path, which: str) -> list[Key]:
    """Revoke the key with this id, or all with this name; those that were. They stay listed."""
    with _changing(path) as book:
        hit = {k.id for k in book.keys if which in {k.id, k.name} and k.revoked is None}
        if not hit:
            known = [k.id for k in book.keys if k.revoked is None]
            raise InvalidInputError(f"no key in use has the id or name {which!r}; in use are {known}")
        keys = tuple(replace(k, revoked=now()) if k.id in hit else k for k in book.keys)
        _write(path, Book(book.secret, keys))
    return [k for k in keys if k.id in hit]


def _check(role: str, name: str, owner: str | None, rate: float | None, max_queries: int | None) -> None:
    if role not in ROLES:
        raise InvalidInputError(f"role must be one of {list(ROLES)}, got {role!r}")
    if not (0 < len(name) <= _LONGEST_NAME and name.isprintable() and name.strip() == name):
        raise InvalidInputError(f"name must be 1 to {_LONGEST_NAME} printable characters, got {name!r}")
    if (owner is not None) != (role == "owner"):
        raise InvalidInputError("an owner key needs --owner, and only an owner key has one")
    if rate is not None and not (math.isfinite(rate) and rate > 0):
        raise InvalidInputError(f"rate must be a positive number of queries per second, got {rate!r}")
    if max_queries is not None and max_queries < 0:
        raise InvalidInputError(f"max_queries must be at least 0, got {max_queries!r}")


def _digest(secret: bytes, text: str) -> str:
    return hashlib.blake2b(text.encode(errors="replace"), key=secret, digest_size=32).hexdigest()


@contextmanager
def _changing(path: Path) -> Iterator[Book]:
    """The book as it is, while nobody else changes it."""
    lock = os.open(path.with_name(path.name + ".lock"), os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield read_book(path) or Book(secrets.token_bytes(32), ())
    finally:
        os.close(lock)


def _write(path: Path, book: Book) -> None:
    """Atomic, durable, and for nobody else to read."""
    body: dict[str, Any] = {"version": 1, "secret": book.secret.hex(), "keys": [asdict(k) for k in book.keys]}
    temporary = path.with_name(path.name + ".new")
    temporary.unlink(missing_ok=True)
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(handle, "w") as file:
        json.dump(body, file, indent=1)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    sync_file(path.parent)


class Keyring:
    """The keys as a running server sees them.

    Without any entry it is `open`. Once there was one it never opens again, even if the file is lost or damaged:
    then nobody is let in.
    """

    def __init__(self, path: Path | None):
        self.path = path
        self.open = True
        self._book: Book | None = None
        self._by_digest: dict[str, Key] = {}
        self._seen: object = None
        self._next_look = 0.0
        self.look(force=True)

    def find(self, text: str) -> Key | None:
        """Whose key this is; None for a wrong or a revoked one."""
        key = self._find(text)
        if key is None:  # it may have been made this moment
            self.look(force=True)
            key = self._find(text)
        return key

    def look(self, *, force: bool = False) -> None:
        """Read the file again if it has changed; at most once a second unless forced."""
        moment = time.monotonic()
        if self.path is None or (moment < self._next_look and not force):
            return
        self._next_look = moment + _LOOK_AGAIN
        try:
            stat = os.stat(self.path)
            mark: object = (stat.st_ino, stat.st_mtime_ns, stat.st_size)
        except OSError:
            mark = None
        if mark == self._seen:
            return
        try:
            self._book = read_book(self.path)
        except StoreError:
            self._book, self.open = Book(b"", ()), False  # fail closed
        self._seen = mark
        keys = self._book.keys if self._book is not None else ()
        self.open = self.open and not keys
        self._by_digest = {k.digest: k for k in keys if k.revoked is None}

    def _find(self, text: str) -> Key | None:
        if self._book is None or not self._book.secret:
            return None
        digest = _digest(self._book.secret, text)
        key = self._by_digest.get(digest)
        return key if key is not None and hmac.compare_digest(key.digest, digest) else None
