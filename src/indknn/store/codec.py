"""How names, debits and balances are written as bytes."""

from __future__ import annotations

from dataclasses import dataclass
from zlib import crc32

import numpy as np

from indknn.errors import StoreError
from indknn.ledger.old_names import text_of
from indknn.types import IntArray, OwnerId

BLOCK = 4096
"""Owners per row of balances: 32 KiB of amounts."""
_LABEL_BITS = 16


@dataclass(frozen=True)
class Debits:
    """Who paid how much for one answer: distinct owner slots in ascending order, and ledger units."""

    slots: IntArray
    units: IntArray

    @property
    def total(self) -> int:
        """The sum of all."""
        return exact_sum(self.units)

    @property
    def blocks(self) -> list[int]:
        """The blocks of balances that contain these owners."""
        if not len(self.slots):
            return []
        first = int(self.slots[0]) // BLOCK
        result: list[int] = (np.flatnonzero(np.bincount(self.slots // BLOCK - first)) + first).tolist()
        return result

    def encode(self) -> bytes:
        """Slots as uint32, then units as int64, little-endian.

        >>> Debits.decode(Debits(np.array([3, 7]), np.array([10, 20])).encode()).units.tolist()
        [10, 20]
        """
        return self.slots.astype("<u4").tobytes() + self.units.astype("<i8").tobytes()

    @staticmethod
    def decode(body: bytes) -> Debits:
        """What `encode` wrote."""
        n, rest = divmod(len(body), 12)
        if rest:
            raise StoreError(f"a debit blob has {len(body)} bytes, which is no multiple of 12")
        slots = np.frombuffer(body, "<u4", n).astype(np.int64)
        return Debits(slots, np.frombuffer(body, "<i8", n, offset=4 * n).astype(np.int64))

    @staticmethod
    def merge(parts: list[tuple[IntArray, IntArray]]) -> Debits:
        """One debit per owner, from charges that were made in several steps."""
        if not parts:
            return Debits(np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64))
        first = parts[0][0]
        if all(s is first for s, _ in parts):  # usually the same people in every step
            return Debits(first, sum((u for _, u in parts[1:]), start=parts[0][1]))
        slots, where = np.unique(np.concatenate([s for s, _ in parts]), return_inverse=True)
        units = np.zeros(len(slots), dtype=np.int64)
        np.add.at(units, where, np.concatenate([u for _, u in parts]))
        return Debits(slots, units)


def exact_sum(units: IntArray) -> int:
    """The sum as a Python integer: over many people it may exceed 63 bits.

    >>> exact_sum(np.array([1 << 62, 1 << 62, 1])) == (1 << 63) + 1
    True
    """
    if float(units.sum(dtype=np.float64)) < 2.0**62:
        return int(units.sum())
    return sum(units.tolist())


def record_type(n_features: int) -> np.dtype[np.void]:
    """How a record is written: 20 bytes and the features. Owner -1 marks a free slot."""
    head = [("generation", "<i4"), ("owner", "<i4"), ("label", "<i4"), ("scale", "<f8")]
    return np.dtype([*head, ("features", "i1", (n_features,))])


def pack_label(labels: IntArray, epochs: IntArray) -> IntArray:
    """A label, and how many rounds of training had begun when its record came, in the 32 bits of the label.

    >>> packed = pack_label(np.array([3]), np.array([2]))
    >>> [part.tolist() for part in unpack_label(packed)]
    [[3], [2]]
    """
    return labels | epochs << _LABEL_BITS


def unpack_label(packed: IntArray) -> tuple[IntArray, IntArray]:
    """The values that `pack_label` packed. A free slot has label -1."""
    free = packed < 0
    return np.where(free, -1, packed & ((1 << _LABEL_BITS) - 1)), np.where(free, 0, packed >> _LABEL_BITS)


def encode_name(name: OwnerId, slot: int) -> bytes:
    """A letter, the name, and a checksum over both and the slot. A damaged name would be a lost ledger.

    >>> encode_name("ann", 5)[:-4], decode_name(encode_name("7", 5), 5)
    (b'sann', '7')
    """
    body = b"s" + name.encode(errors="surrogatepass")
    return body + crc32(body, slot).to_bytes(4, "little")


def decode_name(text: bytes, slot: int) -> OwnerId:
    """The name that `encode_name` wrote. In older files, the letters i and b mark names that were numbers or bytes."""
    body, kind = text[:-4], text[:1]
    if crc32(body, slot) != int.from_bytes(text[-4:], "little"):
        raise StoreError(f"the name of the owner in slot {slot} is damaged")
    if kind == b"s":
        return str(body[1:], "utf-8", "surrogatepass")
    return text_of(int(body[1:]) if kind == b"i" else body[1:])
