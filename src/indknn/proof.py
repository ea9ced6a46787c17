"""Proof for people who do not have the store: signed receipts, and signed copies of the audit trail.

A store signs what it hands out with Ed25519. Whoever has its public key can check that a document came from the store
and was not changed. The audit trail is a chain of hashes: the hash of each entry covers the entry and the hash before
it. So the signed length and last hash of a trail (its head) prove every entry.

What is signed is `PREFIX` and the document as canonical JSON, without its signature: keys in order, no spaces, only
ASCII, and whole numbers without a decimal point.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from functools import cached_property
from itertools import chain
from typing import Any

from indknn.errors import InvalidInputError, needs

GENESIS = bytes(32)
PREFIX = b"indknn signed document 1\n"
TRAIL = "audit trail"
_PRINTED = re.compile(r"([0-9a-fA-F]{64})(?:  since ([^\s,]+)(?:, replaced (\S+))?)?")
_ED25519 = "cryptography.hazmat.primitives.asymmetric.ed25519"


@dataclass(frozen=True)
class Entry:
    """One entry of the audit trail: its position, time, kind and body, and the hash up to here."""

    position: int
    at: str
    kind: str
    body: str
    hash: bytes

    @property
    def facts(self) -> dict[str, Any]:
        """The body as a dict."""
        facts: dict[str, Any] = json.loads(self.body)
        return facts

    def shown(self) -> dict[str, Any]:
        """The entry as JSON. `text` is the exact body that the hash covers."""
        named = {"position": self.position, "at": self.at, "kind": self.kind}
        return {**named, "body": self.facts, "text": self.body, "hash": self.hash.hex()}


def link(previous: bytes, position: int, at: str, kind: str, body: str) -> bytes:
    """The hash of an entry on top of the previous one."""
    text = json.dumps([position, at, kind, body], ensure_ascii=True)
    return hashlib.blake2b(previous + text.encode(), digest_size=32).digest()


def breaks(entries: Iterable[Entry]) -> Iterator[str]:
    """What is wrong with a chain of entries. Nothing if it is intact."""
    previous, expected = GENESIS, 1
    for entry in entries:
        if entry.position != expected:
            yield f"audit trail: entry {expected} is missing"
        if link(previous, entry.position, entry.at, entry.kind, entry.body) != entry.hash:
            yield f"audit trail: the hash of entry {entry.position} does not fit"
        previous, expected = entry.hash, entry.position + 1


# Signing


@dataclass(frozen=True)
class PublicKey:
    """A public key of a store, in hexadecimal digits, and when it was in use. `until` is None while it is."""

    key: str
    since: str = ""
    until: str | None = None


@dataclass(frozen=True)
class Signer:
    """Signs documents. The secret is 32 random bytes, which nothing prints.

    >>> Signer(bytes(32))
    Signer()
    """

    secret: bytes = field(repr=False)

    @cached_property
    def _key(self) -> Any:
        return needs(_ED25519, "store", "a signature").Ed25519PrivateKey.from_private_bytes(self.secret)

    @cached_property
    def public(self) -> str:
        """The public key."""
        return str(self._key.public_key().public_bytes_raw().hex())

    def signed(self, document: dict[str, Any]) -> dict[str, Any]:
        """The document with the public key and the signature."""
        whole = {**document, "signed_with": self.public}
        return {**whole, "signature": self._key.sign(canonical(whole)).hex()}


def canonical(document: dict[str, Any]) -> bytes:
    """The bytes that are signed.

    >>> canonical({"b": 2.0, "a": [None, "ä"]})[len(PREFIX):]
    b'{"a":[null,"\\\\u00e4"],"b":2}'
    """
    return PREFIX + json.dumps(_plain(document), sort_keys=True, separators=(",", ":")).encode()


def _plain(value: Any) -> Any:
    """Programs that copy JSON may write 2.0 as 2."""
    if isinstance(value, dict):
        return {str(key): _plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


# Checking, without the store


@dataclass(frozen=True)
class Checked:
    """What a file is, and what is wrong with it. Nothing if it is genuine."""

    what: str
    problem: str | None = None
    store: str | None = None
    at: str | None = None
    entries: int | None = None


def as_published(store: str, keys: Iterable[PublicKey]) -> dict[str, Any]:
    """The public keys of a store, as JSON, for `read_keys`."""
    return {"store": store, "algorithm": "Ed25519", "keys": [asdict(key) for key in keys]}


def read_keys(text: str) -> list[PublicKey]:
    """Public keys: as a store publishes them in JSON, or as `indknn keys public` prints them, with or without dates."""
    try:
        if text.lstrip().startswith("{"):
            keys = [PublicKey(**one) for one in json.loads(text)["keys"]]
        else:
            found = [_PRINTED.fullmatch(line.strip()) for line in text.splitlines() if line.strip()]
            keys = [] if None in found else [PublicKey(one[1].lower(), one[2] or "", one[3]) for one in found if one]
    except (ValueError, KeyError, TypeError, RecursionError):
        keys = []
    if not keys or not all(re.fullmatch("[0-9a-f]{64}", str(one.key)) for one in keys):
        raise InvalidInputError("this is not a public key of a store: a key has 64 hexadecimal digits")
    return keys


def check(lines: Iterable[str], keys: list[PublicKey]) -> Checked:
    """Check a receipt or an exported audit trail, line by line. Nothing in a file makes this fail."""
    try:
        return _checked_file(iter(lines), keys)
    except RecursionError:
        return Checked("file", "it is nested too deeply to be a receipt or an exported audit trail")


def _checked_file(read: Iterator[str], keys: list[PublicKey]) -> Checked:
    first = next(read, "")
    entry = _read(first)
    if "position" in entry or entry.get("signed") == TRAIL:
        return _check_trail(first, read, keys)
    document = _read("".join([first, *read]))
    if "receipt" not in document:
        return Checked("file", "it is neither a receipt nor an exported audit trail")
    return _checked(f"receipt of {document['receipt']}", document, keys)


def _read(text: str) -> dict[str, Any]:
    """A JSON object. Empty if it is none, or names something twice: readers may differ in which one they take."""

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if len(dict(pairs)) < len(pairs):
            raise ValueError("a name occurs twice")
        return dict(pairs)

    try:
        found = json.loads(text, object_pairs_hook=once)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _check_trail(first: str, rest: Iterator[str], keys: list[PublicKey]) -> Checked:
    """The chain is compared entry by entry, and its end with the signed head, which is the last line."""
    trail = _Trail(first, rest)
    problem = next(breaks(trail), None) or trail.problem
    head = trail.head
    if problem is not None or head is None:
        return Checked(TRAIL, problem or f"it is cut off after entry {trail.length}: the signed head is missing")
    found = _checked(TRAIL, head, keys, head.get("entries"))
    if found.problem is None and (head.get("entries"), head.get("hash")) != (trail.length, trail.hash):
        length = f"it has {trail.length} entries, and its head was signed for {head.get('entries')}"
        return Checked(TRAIL, f"{length}, or for another entry {trail.length}", found.store, found.at)
    return found


class _Trail:
    """The entries in the lines of a trail, read once. Then its `head`, or the first `problem` with a line."""

    def __init__(self, first: str, rest: Iterator[str]):
        self._first, self._rest = first, rest
        self.head: dict[str, Any] | None = None
        self.problem: str | None = None
        self.length, self.hash = 0, GENESIS.hex()

    def __iter__(self) -> Iterator[Entry]:
        for line in filter(str.strip, chain([self._first], self._rest)):
            if self.head is not None:
                self.problem = "lines follow its signed head"
                return
            try:
                plain = _read(line)
                if plain.get("signed") == TRAIL:
                    self.head = plain
                    continue
                position, at, kind, text = (plain[name] for name in ("position", "at", "kind", "text"))
                entry = Entry(position, at, kind, text, bytes.fromhex(plain["hash"]))
                if entry.facts != plain["body"]:
                    raise ValueError("its body is not its text")
            except (ValueError, KeyError, TypeError) as error:
                self.problem = f"audit trail: entry {self.length + 1} cannot be read: {error!r}"
                return
            yield entry
            self.length, self.hash = entry.position, entry.hash.hex()


def _checked(what: str, document: dict[str, Any], keys: list[PublicKey], entries: int | None = None) -> Checked:
    """The verdict on the signature of a document."""
    return Checked(what, _fault(document, keys), document.get("store"), document.get("at"), entries)


def _fault(document: dict[str, Any], keys: list[PublicKey]) -> str | None:
    if not isinstance(document.get("signature"), str):
        return "it is not signed"
    key = next((one for one in keys if one.key == document.get("signed_with")), None)
    if key is None:
        return f"it is signed with another key, {document.get('signed_with')}"
    ed25519 = needs(_ED25519, "check", "a signature")
    errors = needs("cryptography.exceptions", "check", "a signature")
    unsigned = {name: value for name, value in document.items() if name != "signature"}
    try:
        known = ed25519.Ed25519PublicKey.from_public_bytes(bytes.fromhex(key.key))
        known.verify(bytes.fromhex(document["signature"]), canonical(unsigned))
    except (errors.InvalidSignature, ValueError):
        return "its signature does not fit: it was changed, or it is a forgery"
    if key.until is not None and str(document.get("at")) > key.until:
        return f"it says {document.get('at')}, and its key was replaced at {key.until}"
    return None
