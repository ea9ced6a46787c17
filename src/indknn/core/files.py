"""Files that hold something private: only this user may read them, and they appear whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any


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
