"""API keys, in a separate file beside the store.

So `indknn keys` works while a server uses the store. A key is 256 random bits, shown once. The file holds only a keyed
hash of it, under a secret of the file. The server reads the file again when it has changed, so a revoked key is refused
within a second. The store remembers that it has keys. So if the file is lost, the store is not served to everybody.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import math
import os
import secrets
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from indknn import place
from indknn.core.inputs import as_owner_list
from indknn.errors import InvalidInputError, StoreError, StoreLockedError
from indknn.place import Place, private_file
from indknn.store import chain, database
from indknn.store.analysts import check_name, declare
from indknn.store.chain import StoreConnection, now
from indknn.store.database import read_analysts
from indknn.store.home import check_books, home_of
from indknn.types import OwnerId

ROLES = ("analyst", "curator", "owner", "auditor", "admin")
ASKING = ("analyst", "admin")
"""The roles that may ask for predictions, charged to the ledger of their name."""
PREFIX = "indknn_"
keys_path = place.keys_path


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


@dataclass(frozen=True)
class KeyFile:
    """The contents of a key file: the secret of the keyed hash, and all keys that were ever made."""

    secret: bytes = b""
    keys: tuple[Key, ...] = ()


def read_key_file(path: Path) -> KeyFile:
    """The keys in a file. Without a file, no keys and no secret."""
    try:
        body = json.loads(path.read_text())
        if body.pop("sum") != _sum(body):
            raise ValueError("it was changed or damaged")
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
    """A new key and its text. The text cannot be read again later."""
    check_key(role, name, owner, rate, max_queries)
    owner = None if owner is None else as_owner_list([owner], length=1)[0]  # the one name of that person (rule 13)
    with _locked(path) as file:
        key, text = _new(file, role, name, owner, rate, max_queries)
        _write(path, KeyFile(file.secret, (*file.keys, key)))
    return key, text


def rotate(path: Path, which: str) -> tuple[Key, str]:
    """Replace the key with this id by a new one, for the same holder. The old one is revoked."""
    with _locked(path) as file:
        old = next((k for k in file.keys if k.id == which and k.revoked is None), None)
        if old is None:
            raise _unknown(file, "id", which)
        key, text = _new(file, old.role, old.name, old.owner, old.rate, old.max_queries)
        kept = tuple(replace(k, revoked=now()) if k.id == which else k for k in file.keys)
        _write(path, KeyFile(file.secret, (*kept, key)))
    return key, text


def _new(
    file: KeyFile, role: str, name: str, owner: str | None, rate: float | None, max_queries: int | None
) -> tuple[Key, str]:
    text, taken = PREFIX + secrets.token_urlsafe(32), {key.id for key in file.keys}
    number = next(i for i in iter(lambda: secrets.token_hex(4), None) if i not in taken)
    return Key(number, name, role, now(), digest_of(file.secret, text), owner, rate, max_queries), text


def _unknown(file: KeyFile, what: str, which: str) -> InvalidInputError:
    known = [k.id for k in file.keys if k.revoked is None]
    return InvalidInputError(f"no key in use has the {what} {which!r}; in use are {known}")


def revoke(path: Path, which: str) -> list[Key]:
    """Revoke the key with this id, or all keys with this name, and return them. They stay in the file."""
    with _locked(path) as file:
        hit = {k.id for k in file.keys if which in {k.id, k.name} and k.revoked is None}
        if not hit:
            raise _unknown(file, "id or name", which)
        keys = tuple(replace(k, revoked=now()) if k.id in hit else k for k in file.keys)
        _write(path, KeyFile(file.secret, keys))
    return [k for k in keys if k.id in hit]


def forget_names(path: Path, names: Iterable[OwnerId]) -> None:
    """Revoke the keys of forgotten owners and overwrite their names.

    The entries stay, without names. Otherwise a server could become open because its last key is gone.
    """
    gone = {str(name) for name in names}
    if not gone or not path.exists():
        return
    with _locked(path) as file, open(path, "r+b") as old:
        keys = tuple(
            replace(k, name="forgotten", owner=None, revoked=k.revoked or now())
            if k.role == "owner" and k.owner in gone
            else k
            for k in file.keys
        )
        if keys != file.keys:
            _write(path, KeyFile(file.secret, keys))
            old.write(bytes(os.fstat(old.fileno()).st_size))  # it has no name any more, but its bytes are on disk
            old.flush()
            os.fsync(old.fileno())


def is_keyed(db: StoreConnection) -> bool:
    """Whether this open store has, or had, keys."""
    return database.get_meta(db, "keyed") is not None


def mark_keyed(db: StoreConnection) -> None:
    """Let the store remember that it has keys. Inside a transaction."""
    if not is_keyed(db):
        database.set_meta(db, "keyed", 1)
        chain.append(db, "keys")


def remember_keys(store: Place, key: Key) -> None:
    """Let a store that nobody has open remember that it has keys, and whom this one lets ask.

    A server remembers its keys by itself, and everybody whom it answers.
    """
    home = home_of(store)
    with suppress(StoreLockedError), home.opened() as db:
        asking = key.role in ASKING and key.name not in read_analysts(db)
        if asking or not is_keyed(db):
            check_books(db, home)
            with db:
                if asking:
                    declare(db, key.name)
                mark_keyed(db)


def check_key(role: str, name: str, owner: OwnerId | int | None, rate: float | None, max_queries: int | None) -> None:
    """Refuse a key that cannot be made."""
    if role not in ROLES:
        raise InvalidInputError(f"role must be one of {list(ROLES)}, got {role!r}")
    check_name(name)
    if (owner is not None) != (role == "owner"):
        raise InvalidInputError("an owner key needs --owner, and only an owner key has one")
    if rate is not None and not (math.isfinite(rate) and rate > 0):
        raise InvalidInputError(f"rate must be a positive number of queries per second, got {rate!r}")
    if max_queries is not None and max_queries < 0:
        raise InvalidInputError(f"max_queries must be at least 0, got {max_queries!r}")


def check_may_ask(role: str) -> None:
    """Refuse an ε for a key that cannot ask for predictions."""
    if role not in ASKING:
        raise InvalidInputError(f"epsilon is for keys of the roles {list(ASKING)}, got {role!r}")


def digest_of(secret: bytes, text: str) -> str:
    """The keyed hash of a key's text."""
    return hashlib.blake2b(text.encode(errors="replace"), key=secret, digest_size=32).hexdigest()


@contextmanager
def _locked(path: Path) -> Iterator[KeyFile]:
    """The contents of the file, while no other process can change it."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
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
    with private_file(path) as stream:
        json.dump({**body, "sum": _sum(body)}, stream, indent=1)


def _sum(body: dict[str, Any]) -> str:
    """A digest of everything in the file, so that a changed bit is found: it could give a key to somebody else."""
    return hashlib.blake2b(json.dumps(body, sort_keys=True).encode(), digest_size=16).hexdigest()
