"""The files beside a store: a lock that names its holder, reserved space for a full disk, and a witness elsewhere."""

from __future__ import annotations

import fcntl
import json
import os
import socket
from contextlib import suppress
from pathlib import Path
from typing import Any

from indknn.core.files import private, private_file
from indknn.errors import StoreError, StoreLockedError
from indknn.store.chain import now

_HOLDER_BYTES = 256


class Lock:
    """Makes sure that only one process owns a store.

    The operating system drops the lock when the process ends, for any reason. Processes that only read share the lock,
    if there is a lock file.
    """

    def __init__(self, store: Path, read_only: bool = False):
        self.path = store.with_name(store.name + ".lock")
        self._file = -1
        try:
            self._file = os.open(self.path, os.O_RDONLY if read_only else os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            if read_only:
                return
            raise StoreError(f"{self.path} cannot be opened: {error.strerror}") from None
        try:
            fcntl.flock(self._file, (fcntl.LOCK_SH if read_only else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(self._file, 4096, 0).decode(errors="replace").strip() or "an unknown process"
            os.close(self._file)
            raise StoreLockedError(f"{store} is in use by {holder}; a store has one writer at a time") from None
        if read_only:
            return
        holder = f"process {os.getpid()} on {socket.gethostname()} since {now()}"
        with suppress(OSError):  # people must be able to be forgotten on a full disk
            os.pwrite(self._file, holder.encode().ljust(_HOLDER_BYTES), 0)

    def release(self) -> None:
        """Release the lock."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


class Ballast:
    """Reserved space beside the store. It is given up when the disk is full, so that people can still be forgotten."""

    def __init__(self, store: Path):
        self.path = store.with_name(store.name + ".ballast")

    @property
    def size(self) -> int:
        """How many bytes are reserved."""
        return self.path.stat().st_size if self.path.exists() else 0

    def fill(self, need: int) -> None:
        """Reserve at least this much, rounded up to a power of two, if there is space."""
        if self.size >= need:
            return
        left = 1 << (need - 1).bit_length()
        try:
            with open(self.path, "wb", opener=private) as file:
                while left > 0:  # random bytes, because some file systems use no space for zeros
                    left -= file.write(os.urandom(min(left, 1 << 20)))
                file.flush()
                os.fsync(file.fileno())
        except OSError:
            self.drop()  # the disk is full: try again later

    def drop(self) -> bool:
        """Give up the space. Returns whether there was any."""
        had = self.size > 0
        self.path.unlink(missing_ok=True)
        return had


class Witness:
    """A small file in another place that remembers how far the audit trail was.

    A store that was restored from an old backup would give back budgets that were spent since. Its trail does not
    contain the entry that the witness saw, so it is refused.
    """

    def __init__(self, path: Path):
        self.path = path

    def write(self, store_id: str, position: int, digest: bytes) -> None:
        """Remember this entry, atomically and durably."""
        body = json.dumps({"store": store_id, "position": position, "hash": digest.hex(), "at": now()})
        try:
            with private_file(self.path) as file:
                file.write(body)
        except OSError as error:
            raise StoreError(f"the store was written, but its witness {self.path} was not: {error}") from error

    def read(self) -> dict[str, Any] | None:
        """The entry that was seen last. None before the first."""
        if not self.path.exists():
            return None
        try:
            seen: dict[str, Any] = json.loads(self.path.read_text())
            int(seen["position"]), bytes.fromhex(seen["hash"]), str(seen["store"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise StoreError(
                f"the witness {self.path} cannot be read ({error}); it must not be lost or edited"
            ) from None
        return seen
