"""What leaves the private side, as values that can be written down: all of it was paid for and is public.

Besides a label, an answer may have released its noisy centred votes; and there are sums over all records.
`encode` and `decode` give them as bytes, for the journal.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from struct import calcsize, pack, unpack_from
from typing import Any, ClassVar, Self, TypeAlias, get_args

import numpy as np

from indknn.errors import StoreError
from indknn.types import Int8Array, IntArray


class _Mark:
    """A release that says everything by its kind."""

    def body(self) -> bytes:
        """No bytes."""
        return b""

    @classmethod
    def read(cls, body: bytes) -> Self:
        """The release that `body` wrote."""
        return cls()


class _Numbers:
    """A release of some numbers, packed by `layout`, and an array of whole numbers."""

    layout: ClassVar[str]

    def body(self) -> bytes:
        """As bytes."""
        *numbers, array = vars(self).values()
        return pack(self.layout, *numbers) + _ints(array)

    @classmethod
    def read(cls, body: bytes) -> Any:
        """The release that `body` wrote."""
        make: Any = cls
        return make(*unpack_from(cls.layout, body), _array(body, calcsize(cls.layout)))


@dataclass(frozen=True)
class ModelOnly(_Mark):
    """Answered by the model alone. Nobody was asked."""

    kind: ClassVar[bytes] = b"A"


@dataclass(frozen=True)
class Votes(_Numbers):
    """The noisy votes of one answer, centred (P·v in units of 1/(c·GRID)), with the scale of their noise in grid units.

    K, in grid units, is what the noise was scaled by. `count` is the noisy count if one was released, else 0. `share`
    is the share of earlier queries that are near, and `kappa` their mean similarity. Both are public.
    """

    kind: ClassVar[bytes] = b"V"
    layout: ClassVar[str] = "<qqqdd"
    K: int
    scale: int
    count: int
    share: float
    kappa: float
    centred: IntArray


@dataclass(frozen=True)
class NoisyVotes(_Numbers):
    """The noisy votes of one answer of Algorithm 3, and the scale of their noise, in grid units."""

    kind: ClassVar[bytes] = b"N"
    layout: ClassVar[str] = "<q"
    scale: int
    votes: IntArray


@dataclass(frozen=True)
class PublicRows:
    """The start of a round of the shared model, with these public rows. Nobody is charged for it.

    `labels` are the numbers of the rows' classes, if the rows were declared with labels.
    `by_queries` means that the unnamed analyst's queries, or their number, started the round. From then on all analysts
    spend from one ledger (rule 11). Records of `epoch` and later came after the round began, and take no part in it.
    """

    kind: ClassVar[bytes] = b"P"
    by_queries: bool
    epoch: int
    values: Int8Array
    labels: IntArray | None = None

    def body(self) -> bytes:
        """As bytes. The first byte has one bit for `by_queries`, and one that says whether labels follow the rows."""
        labelled = self.labels is not None
        head = pack("<Bii", self.by_queries + 2 * labelled, self.epoch, self.values.shape[1])
        return head + self.values.tobytes() + (b"" if self.labels is None else _ints(self.labels))

    @staticmethod
    def read(body: bytes) -> PublicRows:
        """The release that `body` wrote."""
        bits, epoch, width = unpack_from("<Bii", body)
        start = calcsize("<Bii")
        rows = (len(body) - start) // (width + 8 * (bits // 2))
        values = np.frombuffer(body, np.int8, rows * width, start).reshape(rows, width)
        labels = _array(body, start + rows * width) if bits & 2 else None
        return PublicRows(bool(bits & 1), epoch, values, labels)


@dataclass(frozen=True)
class Gradient(_Numbers):
    """One noisy step of the shared model: its number in the round, how many steps follow, and its noise.

    `entries` and `scale` are in units of 1/STEP_GRID.
    """

    kind: ClassVar[bytes] = b"G"
    layout: ClassVar[str] = "<iiq"
    step: int
    follow: int
    scale: int
    entries: IntArray


@dataclass(frozen=True)
class ModelShown(_Mark):
    """The end of a round: from now on, queries are answered with the model that the round made."""

    kind: ClassVar[bytes] = b"S"


@dataclass(frozen=True)
class TallyRelease(_Numbers):
    """Noisy counts of cells in units of 1/GRID: the report card of the model (`tables` 1), or a number of people.

    The last cell of a number of people is the number of their records, in units of the most that one may have.
    """

    kind: ClassVar[bytes] = b"T"
    layout: ClassVar[str] = "<iq"
    tables: int
    scale: int
    cells: IntArray


@dataclass(frozen=True)
class Renewed(_Mark):
    """A new period began, and with it everybody's budget. It is an event of the clock, and nobody pays for it."""

    kind: ClassVar[bytes] = b"R"


@dataclass(frozen=True)
class TableCounts:
    """Noisy counts of the values in columns, by cells of a public grid, in units of 1/GRID. The names are public."""

    kind: ClassVar[bytes] = b"C"
    scale: int
    names: tuple[str, ...]
    cells: IntArray

    def body(self) -> bytes:
        """As bytes."""
        names = json.dumps(self.names).encode()
        return pack("<qi", self.scale, len(names)) + names + _ints(self.cells)

    @staticmethod
    def read(body: bytes) -> TableCounts:
        """The release that `body` wrote."""
        (scale, length), start = unpack_from("<qi", body), calcsize("<qi")
        return TableCounts(scale, tuple(json.loads(body[start : start + length])), _array(body, start + length))


Release: TypeAlias = (
    ModelOnly | Votes | NoisyVotes | PublicRows | Gradient | ModelShown | TallyRelease | TableCounts | Renewed
)
_KINDS: dict[bytes, type[Release]] = {kind.kind: kind for kind in get_args(Release)}


def encode(release: Release) -> bytes:
    """The release as bytes: a letter for its kind, and its body.

    >>> decode(encode(TallyRelease(1, 7, np.array([1, 2])))).cells.tolist()
    [1, 2]
    """
    return release.kind + release.body()


def decode(text: bytes) -> Release:
    """The release that `encode` wrote."""
    if text[:1] not in _KINDS:
        raise StoreError(f"a release of unknown kind {text[:1]!r}")
    return _KINDS[text[:1]].read(text[1:])


def _ints(values: IntArray) -> bytes:
    return values.astype("<i8").tobytes()


def _array(body: bytes, start: int) -> IntArray:
    return np.frombuffer(body, "<i8", offset=start).astype(np.int64)
