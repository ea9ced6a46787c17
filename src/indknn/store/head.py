"""The head of a store file: a small file beside it that knows how far the audit trail must reach.

SQLite reads its log up to the first bad frame and silently drops the rest. So a bit that flips in the log, a log that
is cut or lost, or a copy without its log would give back budgets. The head finds that. It holds the position and hash
of the newest entry of the audit trail, under a keyed hash, and is on disk before an answer leaves.

A commit waits for the disk once, as without a head. SQLite writes its frames into the log but does not sync them. The
head gets a copy of these frames, and then log and head are synced at the same time. A power cut may keep either of
them. If it keeps the head, opening writes the frames into the log again. If it keeps the log, the log is ahead, which
is fine. So a log that is behind its head even then is damaged. A transaction that is too long to be copied syncs the
log first, then the head.

The head has two places that are written in turn, so that a torn write leaves the one before.
"""

from __future__ import annotations

import hashlib
import os
import struct
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from indknn.core.files import private_file, sync_file

_FIELDS = struct.Struct("<16sQQ32sQQ32s32s")  # what, count, position, hash, start, size, header of the log, digest
_WHAT = b"indknn head 1\0\0\0"
_SUM = 32
_BODY = 4096  # where the frames begin in a place
MOST = 256 << 10
"""The longest transaction that is copied into the head, in bytes of the log."""
_PLACE = _BODY + MOST
_LOG_HEADER, _FRAME_HEADER = 32, 24
_UNKNOWN, _EMPTY = -1, 0  # the end of the log, if it is not known or there is no log


@dataclass(frozen=True)
class Mark:
    """What one place of a head says: how far the audit trail is, and the frames of the log that took it there."""

    count: int
    position: int
    hash: bytes
    start: int = 0
    """Where in the log the frames are. 0 if there is no copy of them."""
    header: bytes = bytes(_LOG_HEADER)
    """The header of the log."""
    frames: bytes = b""

    def packed(self, key: bytes) -> tuple[bytes, bytes]:
        """The mark as bytes, and the digest of its frames."""
        digest = _digest(self.frames)
        fields = (_WHAT, self.count, self.position, self.hash, self.start, len(self.frames), self.header, digest)
        text = _FIELDS.pack(*fields)
        return (text + _sum(text, key)).ljust(_BODY, b"\0") + self.frames, digest

    @staticmethod
    def unpacked(body: bytes, key: bytes) -> Mark | None:
        """The mark in these bytes. None if it is damaged, torn, empty or of another store."""
        text, told = body[: _FIELDS.size], body[_FIELDS.size : _FIELDS.size + _SUM]
        if len(text) < _FIELDS.size or told != _sum(text, key):
            return None
        what, count, position, digest_of_entry, start, size, header, digest = _FIELDS.unpack(text)
        frames = body[_BODY : _BODY + size]
        if what != _WHAT or _digest(frames) != digest:
            return None
        return Mark(count, position, digest_of_entry, start, header, frames)


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
    try:
        body = head_path(store).read_bytes()
    except FileNotFoundError:
        return None
    marks = (Mark.unpacked(body[at : at + _PLACE], key) for at in (0, _PLACE))
    return max((mark for mark in marks if mark is not None), key=lambda mark: mark.count, default=None)


def write_again(store: Path, mark: Mark | None) -> bool:
    """Write the frames of a mark into the log again, if they fit in there. Returns whether they were written."""
    if mark is None or not mark.frames:
        return False
    log, first = log_path(store), mark.start == _LOG_HEADER
    old = log.read_bytes() if log.exists() else b""
    if not first and (old[:_LOG_HEADER] != mark.header or len(old) < mark.start):
        return False
    body, at = (mark.header + mark.frames, 0) if first else (mark.frames, mark.start)
    handle = os.open(log, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        _write(handle, log, body, at)
        _sync(handle, log)
    finally:
        os.close(handle)
    sync_file(log.parent)
    return True


class Head:
    """The head of a store that is open for writing, and the end of its log."""

    def __init__(self, store: Path, key: bytes, *, synced: bool = True):
        self._path, self._log_path, self._key, self._synced = head_path(store), log_path(store), key, synced
        self._mark = read_mark(store, key) or Mark(0, 0, bytes(32))
        if not self._path.exists() or self._path.stat().st_size != 2 * _PLACE:
            self._make()
        self._file, self._log = os.open(self._path, os.O_RDWR), -1
        both = os.pread(self._file, 2 * _PLACE, 0)
        self._header, self._end = b"", _UNKNOWN  # of the log
        self._has_frames = any(both[at + _BODY : at + _PLACE].strip(b"\0") for at in (0, _PLACE))
        self._written: list[tuple[int, int, bytes]] = []  # transactions in the log: start, size, digest of the frames
        self._beside = ThreadPoolExecutor(1, "indknn-head")

    def _make(self) -> None:
        """A file with both places, completely or not at all. The mark that there is, is kept."""
        body = self._mark.packed(self._key)[0] if self._mark.count else b""
        with private_file(self._path, "wb") as file:
            file.write((bytes(_PLACE * (self._mark.count % 2)) + body).ljust(2 * _PLACE, b"\0"))

    def close(self) -> None:
        """Close the files."""
        self._beside.shutdown()
        for handle in (self._file, self._log):
            if handle >= 0:
                os.close(handle)
        self._file = self._log = -1

    def is_here(self) -> bool:
        """Whether the file is still where it was opened."""
        return _same_file(self._path, self._file)

    def begin(self, position: int, digest: bytes, *, log_is_empty: bool) -> None:
        """Everything up to this entry was found, and is durable."""
        self._put(Mark(self._mark.count + 1, position, digest))
        self._sync_head()
        if log_is_empty:
            self.drop_frames()

    def drop_frames(self) -> None:
        """Overwrite the copied frames, which may hold what was erased. All of it is in the file, and the log empty."""
        for _ in range(2 * self._has_frames):
            self._put(Mark(self._mark.count + 1, self._mark.position, self._mark.hash), bytes(MOST))
            self._sync_head()  # each: a power cut may tear one of them, not both
        self._has_frames = False
        self._header, self._end = b"", _EMPTY
        self._written.clear()

    def follow(self, position: int, digest: bytes) -> None:
        """Return when the transaction that SQLite has just written into the log is durable, and so is this head."""
        frames = self._new_frames()
        if frames is None:  # long, or not known where it begins
            self._sync_log()
            self._put(Mark(self._mark.count + 1, position, digest))
            self._sync_head()
        elif frames:
            start, self._has_frames = self._end, True
            told = self._put(Mark(self._mark.count + 1, position, digest, start, self._header, frames))
            self._written.append((start, len(frames), told))
            self._end += len(frames)
            self._sync_both()

    def _put(self, mark: Mark, rest: bytes = b"") -> bytes:
        body, digest = mark.packed(self._key)
        _write(self._file, self._path, body + rest, _PLACE * (mark.count % 2))
        self._mark = mark
        return digest

    def _sync_both(self) -> None:
        try:
            head = self._beside.submit(self._sync_head)
        except RuntimeError:  # the interpreter is about to end and starts no more threads
            self._sync_head()
            self._sync_log()
            return
        try:
            self._sync_log()
        finally:
            head.result()

    def _sync_head(self) -> None:
        if self._synced:
            _sync(self._file, self._path)

    def _sync_log(self) -> None:
        if self._synced:
            _sync(self._log, self._log_path)

    def _new_frames(self) -> bytes | None:
        """The frames of the newest transaction. Empty if it wrote nothing, None if its ends are not known."""
        if self._log < 0:
            self._log = os.open(self._log_path, os.O_RDONLY)
        elif not _same_file(self._log_path, self._log):
            raise OSError(f"{self._log_path} was moved, deleted or replaced while it was open")
        header = os.pread(self._log, _LOG_HEADER, 0)
        if header != self._header:
            anew = self._end == _EMPTY or self._header != b""
            self._header, self._end = header, _LOG_HEADER if anew else _UNKNOWN
            self._written.clear()
        if self._end == _UNKNOWN:
            return None
        body = os.pread(self._log, MOST, self._end)
        size = _transaction_size(body, header)
        if size is None:
            self._end = _UNKNOWN
            return None
        return body[:size]

    def defects(self) -> Iterator[str]:
        """What is wrong with the head and the log on disk, while nobody writes."""
        if not self.is_here():
            yield f"{self._path.name} was moved, deleted or replaced"
            return
        body = os.pread(self._file, 2 * _PLACE, 0)
        at = _PLACE * (self._mark.count % 2)
        if Mark.unpacked(body[at : at + _PLACE], self._key) != self._mark:
            yield f"{self._path.name} is damaged"
        if not self._written:
            return
        if not _same_file(self._log_path, self._log):
            yield f"{self._log_path.name} was moved, deleted or replaced"
        elif os.pread(self._log, _LOG_HEADER, 0) != self._header or any(
            _digest(os.pread(self._log, size, start)) != told for start, size, told in self._written
        ):
            yield f"{self._log_path.name} is damaged"


def _transaction_size(body: bytes, header: bytes) -> int | None:
    """How many bytes the transaction takes at the beginning of `body`. None if its end is not in there."""
    salt, step = header[16:24], _FRAME_HEADER + int.from_bytes(header[8:12], "big")
    for at in range(0, len(body) - step + 1, step):
        if body[at + 8 : at + 16] != salt:
            return 0 if at == 0 else None
        if body[at + 4 : at + 8] != b"\0\0\0\0":  # the size of the file after a commit
            return at + step
    return None if len(body) >= step else 0


def _digest(body: bytes) -> bytes:
    return hashlib.blake2b(body, digest_size=32).digest()


def _sum(text: bytes, key: bytes) -> bytes:
    return hashlib.blake2b(text, key=key, digest_size=_SUM, person=b"head").digest()


def _same_file(path: Path, handle: int) -> bool:
    try:
        return os.path.samestat(os.stat(path), os.fstat(handle))
    except OSError:
        return False


def _write(handle: int, path: Path, body: bytes, at: int) -> None:
    """Write to an open file. `path` says which."""
    if os.pwrite(handle, body, at) != len(body):
        raise OSError(f"{path} was not written to its end")


def _sync(handle: int, path: Path) -> None:
    """Make an open file durable. `path` says which."""
    os.fdatasync(handle)
