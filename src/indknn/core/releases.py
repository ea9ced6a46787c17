"""What leaves the private side, as values that can be written down: all of it was paid for and is public.

Besides a label, an answer may have released its noisy centred votes; and there are sums over all records.
`encode` and `decode` give them as bytes, for the journal.
"""

from __future__ import annotations

from dataclasses import dataclass
from struct import calcsize, pack, unpack_from
from typing import ClassVar, TypeAlias

import numpy as np

from indknn.errors import StoreError
from indknn.types import IntArray


@dataclass(frozen=True)
class ModelOnly:
    """Answered by models alone, without asking anybody."""

    kind: ClassVar[bytes] = b"A"

    def body(self) -> bytes:
        """Nothing."""
        return b""

    @staticmethod
    def read(body: bytes) -> ModelOnly:
        """What `body` wrote."""
        return ModelOnly()


@dataclass(frozen=True)
class Votes:
    """The noisy votes of one answer, centred (P·v in units of 1/(c·GRID)), with the scale of their noise in grid units.

    K, in grid units, is what the noise was scaled by; `count` is the noisy count where one was released, else 0.
    `share` is the share of the earlier queries that are near, `kappa` how near they are: both public.
    """

    kind: ClassVar[bytes] = b"V"
    K: int
    scale: int
    count: int
    share: float
    kappa: float
    centred: IntArray

    def body(self) -> bytes:
        """As bytes."""
        return pack("<qqqdd", self.K, self.scale, self.count, self.share, self.kappa) + _ints(self.centred)

    @staticmethod
    def read(body: bytes) -> Votes:
        """What `body` wrote."""
        K, scale, count, share, kappa = unpack_from("<qqqdd", body)
        return Votes(K, scale, count, share, kappa, _array(body, calcsize("<qqqdd")))


@dataclass(frozen=True)
class MomentsRelease:
    """Noisy A (its upper half, row by row) and b, on the grids of `sums`; records of `since` and later are in it."""

    kind: ClassVar[bytes] = b"M"
    since: int
    epoch: int
    scale_a: int
    scale_b: int
    n_features: int
    upper: IntArray
    b: IntArray

    def body(self) -> bytes:
        """As bytes."""
        head = pack("<iiqqi", self.since, self.epoch, self.scale_a, self.scale_b, self.n_features)
        return head + _ints(self.upper) + _ints(self.b)

    @staticmethod
    def read(body: bytes) -> MomentsRelease:
        """What `body` wrote."""
        since, epoch, scale_a, scale_b, d = unpack_from("<iiqqi", body)
        values = _array(body, calcsize("<iiqqi"))
        half = d * (d + 1) // 2
        return MomentsRelease(since, epoch, scale_a, scale_b, d, values[:half], values[half:])


@dataclass(frozen=True)
class TallyRelease:
    """Noisy counts of cells in units of 1/GRID: the report card of `tables` models, or the number of fresh records."""

    kind: ClassVar[bytes] = b"T"
    tables: int
    scale: int
    cells: IntArray

    def body(self) -> bytes:
        """As bytes."""
        return pack("<iq", self.tables, self.scale) + _ints(self.cells)

    @staticmethod
    def read(body: bytes) -> TallyRelease:
        """What `body` wrote."""
        tables, scale = unpack_from("<iq", body)
        return TallyRelease(tables, scale, _array(body, calcsize("<iq")))


Release: TypeAlias = ModelOnly | Votes | MomentsRelease | TallyRelease
_KINDS: dict[bytes, type[Release]] = {k.kind: k for k in (ModelOnly, Votes, MomentsRelease, TallyRelease)}


def encode(release: Release) -> bytes:
    """A letter and the body.

    >>> decode(encode(TallyRelease(1, 7, np.array([1, 2])))).cells.tolist()
    [1, 2]
    """
    return release.kind + release.body()


def decode(text: bytes) -> Release:
    """What `encode` wrote."""
    if text[:1] not in _KINDS:
        raise StoreError(f"a release of unknown kind {text[:1]!r}")
    return _KINDS[text[:1]].read(text[1:])


def _ints(values: IntArray) -> bytes:
    return values.astype("<i8").tobytes()


def _array(body: bytes, start: int) -> IntArray:
    return np.frombuffer(body, "<i8", offset=start).astype(np.int64)
