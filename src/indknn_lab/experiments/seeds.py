"""Seeds from words, so that every part of an experiment has noise of its own and the same in every run."""

from __future__ import annotations

import hashlib


def seed(*parts: object) -> int:
    """A seed for these words.

    >>> seed("noise", 1) == seed("noise", 1), seed("noise", 1) == seed("noise", 2)
    (True, False)
    """
    return int.from_bytes(hashlib.blake2b(repr(parts).encode(), digest_size=6).digest(), "big")
