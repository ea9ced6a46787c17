"""The keys as a running server sees them. It reads the file again when it has changed."""

from __future__ import annotations

import os
import time
from pathlib import Path

from indknn.errors import StoreError
from indknn.store.keyfile import Key, KeyFile, digest_of, read_key_file

OPEN = Key(id="", name="", role="open", created="", digest="")
"""Stands for the key of every caller of a server that has no keys. It allows everything."""
_REFRESH_SECONDS = 1.0


class Keyring:
    """The keys as a running server sees them.

    The server is open while the file has no entries. After the first entry it never opens again: if the file is lost or
    damaged, nobody is let in.
    """

    def __init__(self, path: Path | None):
        self.path = path
        self.is_open = True
        self._secret = b""
        self._by_digest: dict[str, Key] = {}
        self._seen: object = None
        self.version = 0  # increases whenever the file was read again
        self._next_refresh = 0.0
        self.refresh(force=True)

    def find(self, text: str) -> Key | None:
        """The key with this text. None for a wrong or revoked key."""
        key = self._find(text)
        if key is None:  # it may just have been made
            self.refresh(force=True)
        return key or self._find(text)

    def refresh(self, *, force: bool = False) -> None:
        """Read the file again if it has changed. Unless forced, it looks at most once a second."""
        moment = time.monotonic()
        if self.path is None or (moment < self._next_refresh and not force):
            return
        self._next_refresh = moment + _REFRESH_SECONDS
        try:
            stat = os.stat(self.path)
            mark: object = (stat.st_ino, stat.st_mtime_ns, stat.st_size)
        except OSError:
            mark = None
        if mark == self._seen:
            return
        try:
            file = read_key_file(self.path)
        except StoreError:
            file, self.is_open = KeyFile(), False  # a damaged file lets nobody in
        self._seen = mark
        self.version += 1
        self.is_open = self.is_open and not file.keys
        self._secret = file.secret
        self._by_digest = {k.digest: k for k in file.keys if k.revoked is None}

    def _find(self, text: str) -> Key | None:
        return self._by_digest.get(digest_of(self._secret, text)) if self._secret else None
