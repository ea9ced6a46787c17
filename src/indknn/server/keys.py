"""API keys, in a file of their own beside the store, so that `indknn keys` works while a server uses the store.

A key is 256 random bits, shown once. The file holds only a keyed hash of it, under a secret of the file. The server
reads the file again when it has changed, so a revoked key is refused within a second.
"""

from __future__ import annotations

import fcntl
import hashlib
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

from indknn.core.inputs import as_owner_list
from indknn.errors import InvalidInputError, StoreError
from indknn.store.chain import now
from indknn.store.files import sync_file
from indknn.types import OwnerId

ROLES = ("analyst", "curator", "owner", "auditor", "admin")
PREFIX = "indknn_"
_REFRESH_SECONDS = 1.0
_LONGEST_NAME = 128


@dataclass(frozen=True)
class Key:
    """Who holds a key, and what they may do. `digest` is the keyed hash of the key's text."""

    id: str
    name: str
    role: str
    created: str
    digest: str
    owner: str | None = None
    rate: float | None = None
    max_queries: int | None = None
    revoked: str | None = None


OPEN = Key(id="", name="", role="open", created="", digest="")
"""Stands for the key of every caller of a server that has no keys: everything is allowed."""


@dataclass(frozen=True)
class KeyFile:
    """The contents of a file of keys: the secret of the keyed hash, and all keys that were ever made."""

    secret: bytes = b""
    keys: tuple[Key, ...] = ()


def keys_path(store: str | Path) -> Path:
    """The file of keys that goes with a store."""
    path = Path(store).resolve()
    return path.with_name(path.name + ".keys")


def read_key_file(path: Path) -> KeyFile:
    """The keys in a file; no keys and no secret where there is no file."""
    try:
        body = json.loads(path.read_text())
        return KeyFile(bytes.fromhex(body["secret"]), tuple(Key(**entry) for entry in body["keys"]))
    except FileNotFoundError:
        return KeyFile()
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise StoreError(f"{path} cannot be read as a file of keys: {error}") from None


def create(
    path: Path,
    role: str,
    name: str,
    *,
    owner: OwnerId | int | None = None,
    rate: float | None = None,
    max_queries: int | None = None,
) -> tuple[Key, str]:
    """A new key and its text, which cannot be read again later."""
    _check(role, name, owner, rate, max_queries)
    owner = None if owner is None else as_owner_list([owner], length=1)[0]  # the one name of that person (rule 13)
    with _locked(path) as file:
        text = PREFIX + secrets.token_urlsafe(32)
        taken = {key.id for key in file.keys}
        number = next(i for i in iter(lambda: secrets.token_hex(4), None) if i not in taken)
        key = Key(number, name, role, now(), _digest(file.secret, text), owner, rate, max_queries)
        _write(path, KeyFile(file.secret, (*file.keys, key)))
    return key, text


def revoke(path: Path, which: str) -> list[Key]:
    """Revoke the key with this id, or all keys with this name, and return them. They stay in the file."""
    with _locked(path) as file:
        hit = {k.id for k in file.keys if which in {k.id, k.name} and k.revoked is None}
        if not hit:
            known = [k.id for k in file.keys if k.revoked is None]
            raise InvalidInputError(f"no key in use has the id or name {which!r}; in use are {known}")
        keys = tuple(replace(k, revoked=now()) if k.id in hit else k for k in file.keys)
        _write(path, KeyFile(file.secret, keys))
    return [k for k in keys if k.id in hit]


def _check(role: str, name: str, owner: OwnerId | int | None, rate: float | None, max_queries: int | None) -> None:
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
def _locked(path: Path) -> Iterator[KeyFile]:
    """The contents of the file, while no other process can change it."""
    lock = os.open(path.with_name(path.name + ".lock"), os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        file = read_key_file(path)
        yield file if file.secret else KeyFile(secrets.token_bytes(32))
    finally:
        os.close(lock)


def _write(path: Path, file: KeyFile) -> None:
    """Replace the file, atomically and durably. Only its owner may read it."""
    body: dict[str, Any] = {"version": 1, "secret": file.secret.hex(), "keys": [asdict(k) for k in file.keys]}
    temporary = path.with_name(path.name + ".new")
    temporary.unlink(missing_ok=True)
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(handle, "w") as stream:
        json.dump(body, stream, indent=1)
        stream.flush()
        os.fsync(stream.fileno())
    temporary.replace(path)
    sync_file(path.parent)


class Keyring:
    """The keys as a running server sees them.

    It is open while the file has no entries. Once there was an entry it never opens again: if the file is lost or
    damaged, nobody is let in.
    """

    def __init__(self, path: Path | None):
        self.path = path
        self.is_open = True
        self._secret = b""
        self._by_digest: dict[str, Key] = {}
        self._seen: object = None
        self._next_refresh = 0.0
        self.refresh(force=True)

    def find(self, text: str) -> Key | None:
        """The key with this text; None for a wrong or a revoked one."""
        key = self._find(text)
        if key is None:  # it may have been made this moment
            self.refresh(force=True)
        return key or self._find(text)

    def refresh(self, *, force: bool = False) -> None:
        """Read the file again if it has changed; look at most once a second unless forced."""
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
        self.is_open = self.is_open and not file.keys
        self._secret = file.secret
        self._by_digest = {k.digest: k for k in file.keys if k.revoked is None}

    def _find(self, text: str) -> Key | None:
        return self._by_digest.get(_digest(self._secret, text)) if self._secret else None
