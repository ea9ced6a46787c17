"""Names in older stores, where an owner could also be a number or bytes."""

from __future__ import annotations

from contextlib import suppress

from indknn.core.inputs import number_in
from indknn.types import OwnerId


def text_of(name: int | str | bytes) -> OwnerId:
    """The text that replaces such a name: digits, UTF-8, or hexadecimal digits for bytes that are not UTF-8.

    >>> text_of(-5), text_of(b"ann"), text_of(bytes([255, 0]))
    ('-5', 'ann', 'ff00')
    """
    if not isinstance(name, bytes):
        return str(name)
    try:
        return name.decode()
    except UnicodeDecodeError:
        return name.hex()


def old_forms(name: OwnerId) -> list[bytes]:
    """The bytes that were hashed for a number or bytes that became this text.

    >>> old_forms("7"), old_forms("ff00")
    ([b'i\\x07', b'b7'], [b'bff00', b'b\\xff\\x00'])
    """
    forms: list[bytes] = []
    number = number_in(name.removeprefix("-"))
    if number >= 0 and name != "-0":
        number = -number if name[0] == "-" else number
        forms.append(b"i" + number.to_bytes(number.bit_length() // 8 + 1, "big", signed=True))
    for raw_of in (str.encode, bytes.fromhex):
        with suppress(ValueError):  # not UTF-8, or not hexadecimal digits
            raw = raw_of(name)
            forms += [b"b" + raw] if text_of(raw) == name else []
    return list(dict.fromkeys(forms))
