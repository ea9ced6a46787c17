"""Converts values that PostgreSQL does not accept: texts with a NUL, and values of any type in one column."""

from __future__ import annotations

import json
from typing import Any

import psycopg
from psycopg.abc import Buffer
from psycopg.types.string import StrBinaryDumper, StrDumper, TextBinaryLoader, TextLoader


def any_dumps(value: Any) -> str:
    """A value of `meta`: text, a number, or bytes.

    >>> any_loads(any_dumps(b"key")), any_loads(any_dumps(0.1))
    (b'key', 0.1)
    """
    return json.dumps({"hex": value.hex()} if isinstance(value, bytes) else value)


def any_loads(text: str | bytes) -> Any:
    """What `any_dumps` wrote."""
    value = json.loads(text)
    return bytes.fromhex(value["hex"]) if isinstance(value, dict) else value


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\0", "\\0") if "\\" in text or "\0" in text else text


def _plain(text: Any) -> str:
    assert isinstance(text, str)
    return text if "\\" not in text else "\\".join(part.replace("\\0", "\0") for part in text.split("\\\\"))


class _Dumper(StrDumper):
    def dump(self, obj: str) -> Buffer | None:
        return super().dump(_escaped(obj))


class _BinaryDumper(StrBinaryDumper):
    def dump(self, obj: str) -> Buffer | None:
        return super().dump(_escaped(obj))


class _Loader(TextLoader):
    def load(self, data: Buffer) -> str:
        return _plain(super().load(data))


class _BinaryLoader(TextBinaryLoader):
    def load(self, data: Buffer) -> str:
        return _plain(super().load(data))


def register_text(pg: psycopg.Connection) -> None:
    """Escape texts in both directions, so that a name with a NUL works as in a file."""
    for dumper in (_Dumper, _BinaryDumper):
        pg.adapters.register_dumper(str, dumper)
    for loader in (_Loader, _BinaryLoader):
        pg.adapters.register_loader("text", loader)
