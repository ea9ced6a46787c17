"""Who somebody at a keyboard, or in an address, means by a name."""

from __future__ import annotations

from indknn.errors import UnknownOwnerError
from indknn.store.store import Store
from indknn.types import OwnerId

_DIGITS = 1000


def find_owner(store: Store, text: str) -> OwnerId:
    """The owner of this name: text is tried first, then a number; int:7 and str:7 say which."""
    kind, _, rest = text.partition(":")
    if kind == "int" and _is_number(rest):
        return int(rest)
    if kind == "str" and rest:
        return rest
    candidates: list[OwnerId] = [text, int(text)] if _is_number(text) else [text]
    for name in candidates:
        try:
            store.engine.ledger.slots_of([name])
        except UnknownOwnerError:
            continue
        return name
    raise UnknownOwnerError(f"unknown owner {text!r}: no record of theirs was ever here")


def _is_number(text: str) -> bool:
    digits = text.removeprefix("-")
    return digits.isascii() and digits.isdigit() and len(digits) <= _DIGITS
