"""The head of a store file: a small file beside it that knows how far the audit trail must reach.

SQLite reads its log up to the first bad frame and silently drops the rest. So a bit that flips in the log, a log that
is cut or lost, or a copy without its log would give back budgets. The head finds that. It holds the position and hash
of the newest entry of the audit trail, under a keyed hash.

The head is written after SQLite has synced a transaction and before an answer leaves. So a file that opens is at its
head or ahead of it, and one that is behind has lost something. A process that is killed leaves the head as it was
written. A second wait for the disk in each commit would make answers much slower, so the head is synced once a second
at most, and between that the system is only told to write it. So a power cut may set the head back by milliseconds.
The answers of that time are in the log, which was synced. With `strict`, every transaction waits for the head too.

The head has two places. One of them holds the mark that was synced last, so that a torn write leaves that one.
"""

from __future__ import annotations

import hashlib
import math
import os
import struct
import time
from dataclasses import dataclass
from pathlib import Path

from indknn.core.files import private_file

_FIELDS = struct.Struct("<16sQQ32s")  # what, count, position, hash
_WHAT = b"indknn head 1\0\0\0"
_SUM = 32
_PLACE = 4096
_SECONDS = 1.0  # after which the head is synced again


@dataclass(frozen=True)
class Mark:
    """What one place of a head says: how far the audit trail is. `count` grows by one with each mark."""

    count: int
    position: int
    hash: bytes

    def packed(self, key: bytes) -> bytes:
        """The mark as bytes."""
        text = _FIELDS.pack(_WHAT, self.count, self.position, self.hash)
        return (text + _sum(text, key)).ljust(_PLACE, b"\0")

    @staticmethod
    def unpacked(body: bytes, key: bytes) -> Mark | None:
        """The mark in these bytes. None if it is damaged, torn, empty or of another store."""
        text, digest = body[: _FIELDS.size], body[_FIELDS.size : _FIELDS.size + _SUM]
        if len(text) < _FIELDS.size or digest != _sum(text, key):
            return None
        what, count, position, entry = _FIELDS.unpack(text)
        return Mark(count, position, entry) if what == _WHAT else None


def head_path(store: Path) -> Path:
    """The head that belongs to a store."""
    return store.with_name(store.name + "-head")


def log_path(store: Path) -> Path:
    """SQLite's log of a store."""
    return store.with_name(store.name + "-wal")


def has_log(store: Path) -> bool:
    """Whether there is anything in the log of a store."""
    return log_path(store).exists() and log_path(store).stat().st_size > 0


def read_mark(store: Path, key: bytes) -> Mark | None:
    """The newest mark in the head of a store. None if no mark can be read."""
    return max((mark for mark in _marks(store, key) if mark is not None), key=lambda mark: mark.count, default=None)


def _marks(store: Path, key: bytes) -> list[Mark | None]:
    """The marks in both places."""
    try:
        body = head_path(store).read_bytes()
    except FileNotFoundError:
        body = b""
    return [Mark.unpacked(body[at : at + _PLACE], key) for at in (0, _PLACE)]


class Head:
    """The head of a store that is open for writing."""

    def __init__(
        self, store: Path, key: bytes, position: int, digest: bytes, *, synced: bool = True, strict: bool = False
    ):
        """Begin with this entry: everything up to it was found, and is durable."""
        self._path, self._log, self._key = head_path(store), log_path(store), key
        self._synced, self._strict = synced, strict
        old = read_mark(store, key)
        self._mark = Mark(1 if old is None else old.count + 1, position, digest)
        if not self._path.exists() or self._path.stat().st_size != 2 * _PLACE:
            with private_file(self._path, "wb") as file:  # both places, completely or not at all
                file.write(self._mark.packed(key) * 2)
        self._place = int(_marks(store, key)[0] == read_mark(store, key))  # not the one with the newest mark
        self._file, self._synced_at = os.open(self._path, os.O_RDWR), -math.inf
        self._found = found_at(self._path)
        self._log_found: tuple[int, int] | None = None
        self._put()

    def close(self) -> None:
        """Close the file."""
        if self._file >= 0:
            os.close(self._file)
        self._file = -1

    def follow(self, position: int, digest: bytes) -> None:
        """SQLite has synced a transaction that ends with this entry."""
        if position != self._mark.position:
            self._refuse_if_moved()
            self._mark = Mark(self._mark.count + 1, position, digest)
            self._put()

    def _put(self) -> None:
        _write(self._file, self._path, self._mark.packed(self._key), _PLACE * self._place)
        now = time.monotonic()
        if self._synced and (self._strict or now - self._synced_at > _SECONDS):
            _sync(self._file, self._path)
            self._synced_at, self._place = now, 1 - self._place
        else:
            _hasten(self._file)

    def _refuse_if_moved(self) -> None:
        """Refuse if the head or the log was deleted or replaced: what is written would be lost with this process."""
        log = found_at(self._log)
        if log is None or self._log_found not in (None, log) or found_at(self._path) != self._found:
            raise OSError(f"{self._path} or {self._log.name} was moved, deleted or replaced while it was open")
        self._log_found = log

    def is_intact(self) -> bool:
        """Whether the file says what was written last, while nobody writes."""
        places = (os.pread(self._file, _PLACE, at) for at in (0, _PLACE))
        return found_at(self._path) == self._found and self._mark.packed(self._key) in places


def _sum(text: bytes, key: bytes) -> bytes:
    return hashlib.blake2b(text, key=key, digest_size=_SUM, person=b"head").digest()


def found_at(path: Path) -> tuple[int, int] | None:
    """The identity of the file at this path. None if there is none."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _write(handle: int, path: Path, body: bytes, at: int) -> None:
    """Write to an open file. `path` says which."""
    if os.pwrite(handle, body, at) != len(body):
        raise OSError(f"{path} was not written to its end")


def _hasten(handle: int) -> None:
    """Let the system begin to write an open file, and do not wait."""
    if hasattr(os, "posix_fadvise"):
        os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)


def _sync(handle: int, path: Path) -> None:
    """Make an open file durable. `path` says which."""
    os.fdatasync(handle)
