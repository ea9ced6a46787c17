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
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from indknn.core.files import private_file, sync_file

_FIELDS = struct.Struct("<16sQQ32sQQQ32s32s")
# what, count, position, hash, before, start, size, header of the log, digest of the frames
_WHAT = b"indknn head 1\0\0\0"
_SUM = 32
_BODY = 4096  # where the frames begin in a place
MOST = 1 << 20
"""The longest transaction that is copied into the head, in bytes of the log."""
_PLACE = _BODY + MOST
_LOG_HEADER, _FRAME_HEADER = 32, 24
_SOON, _LONGER = 256 << 10, 1 << 20
_FAR = 1 << 14  # frames, after which nobody looks for the end of a transaction
_UNKNOWN, _EMPTY = -1, 0  # the end of the log, if it is not known or there is no log


@dataclass(frozen=True)
class Mark:
    """What one place of a head says: how far the audit trail is, and the frames of the log that took it there."""

    count: int
    position: int
    hash: bytes
    before: int = 0
    """The position before this transaction."""
    start: int = 0
    """Where in the log the frames are. 0 if there is no copy of them."""
    header: bytes = bytes(_LOG_HEADER)
    """The header of the log."""
    frames: bytes = b""

    def packed(self, key: bytes) -> bytes:
        """The mark as bytes."""
        entry = self.count, self.position, self.hash, self.before
        text = _FIELDS.pack(_WHAT, *entry, self.start, len(self.frames), self.header, _digest(self.frames))
        return (text + _sum(text, key)).ljust(_BODY, b"\0") + self.frames

    @staticmethod
    def unpacked(body: bytes, key: bytes) -> Mark | None:
        """The mark in these bytes. None if it is damaged, torn, empty or of another store."""
        text, told = body[: _FIELDS.size], body[_FIELDS.size : _FIELDS.size + _SUM]
        if len(text) < _FIELDS.size or told != _sum(text, key):
            return None
        what, count, position, entry, before, start, size, header, digest = _FIELDS.unpack(text)
        frames = body[_BODY : _BODY + size]
        if what != _WHAT or _digest(frames) != digest:
            return None
        return Mark(count, position, entry, before, start, header, frames)


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


def write_again(store: Path, mark: Mark, position: int) -> bool:
    """Write the frames of a mark into the log again, if the audit trail reaches to where they begin.

    Returns whether they were written.
    """
    if not mark.frames or mark.before != position:
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

    def __init__(self, store: Path, key: bytes, position: int, digest: bytes, *, synced: bool = True):
        """Begin with this entry: everything up to it was found, and is durable."""
        self._path, self._log_path, self._key, self._synced = head_path(store), log_path(store), key, synced
        old = read_mark(store, key)
        self._mark = Mark(1 if old is None else old.count + 1, position, digest)
        if not self._path.exists() or self._path.stat().st_size != 2 * _PLACE:
            self._make()
        self._file, self._log = os.open(self._path, os.O_RDWR), -1
        both = os.pread(self._file, 2 * _PLACE, 0)
        self._has_frames = any(both[at + _BODY : at + _PLACE].strip(b"\0") for at in (0, _PLACE))
        self._header, self._end = b"", _UNKNOWN  # of the log
        self._written: list[tuple[int, int, bytes]] = []  # transactions in the log: start, size, digest of the frames
        self._beside = ThreadPoolExecutor(1, "indknn-head")
        self._put(self._mark)
        self._sync_head()

    def _make(self) -> None:
        """A file with both places, completely or not at all."""
        with private_file(self._path, "wb") as file:
            mark = self._mark.packed(self._key)
            file.write((bytes(_PLACE * (self._mark.count % 2)) + mark).ljust(2 * _PLACE, b"\0"))

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
        size, start, before = self._new_size(), self._end, self._mark.position
        if size == 0:
            return
        if size is not None:
            self._lengthen_log(start + size)
        frames = b"" if size is None else os.pread(self._log, size, start)
        mark = Mark(self._mark.count + 1, position, digest)
        if size is None or size > MOST:
            self._sync_log()
            self._put(mark)
            self._sync_head()
        else:
            self._has_frames = True
            self._put(replace(mark, before=before, start=start, header=self._header, frames=frames))
            self._sync_both()
        if size is not None:
            self._written.append((start, size, _digest(frames)))
            self._end += size

    def _lengthen_log(self, end: int) -> None:
        """Append zeros to a log that ends soon. A file that does not grow is synced in half the time."""
        length = os.fstat(self._log).st_size
        if length < end + _SOON:
            with suppress(OSError):  # the disk is full
                _write(self._log, self._log_path, bytes(_LONGER), length)

    def _put(self, mark: Mark, rest: bytes = b"") -> None:
        _write(self._file, self._path, mark.packed(self._key) + rest, _PLACE * (mark.count % 2))
        self._mark = mark

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

    def _new_size(self) -> int | None:
        """How many bytes of the log the newest transaction takes. None if nobody knows where it begins or ends."""
        if self._log < 0:
            self._log = os.open(self._log_path, os.O_RDWR)
        elif not _same_file(self._log_path, self._log):
            raise OSError(f"{self._log_path} was moved, deleted or replaced while it was open")
        header = os.pread(self._log, _LOG_HEADER, 0)
        if header != self._header:
            anew = self._end == _EMPTY or self._header != b""
            self._header, self._end = header, _LOG_HEADER if anew else _UNKNOWN
            self._written.clear()
        if self._end == _UNKNOWN:
            return None
        step = _FRAME_HEADER + int.from_bytes(header[8:12], "big")
        for at in range(0, _FAR * step, step):
            frame = os.pread(self._log, _FRAME_HEADER, self._end + at)
            if frame[8:16] != header[16:24]:  # left from before the log began anew
                if at == 0:
                    return 0
                break
            if frame[4:8] != b"\0\0\0\0":  # the size of the file after a commit
                return at + step
        self._end = _UNKNOWN
        return None

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
