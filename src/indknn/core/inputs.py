"""Names and labels from callers: checked and brought into one form before anything is changed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, overload

import numpy as np
import numpy.typing as npt

from indknn.errors import InvalidInputError
from indknn.types import IntArray, OwnerId

EACH_ROW = "each-row"
"""The value of `owners=` which says that every row is a new person."""
EACH_ROW_PREFIX = EACH_ROW + ":"
"""The prefix of the names that a store makes for such people. Newcomers may not be given such a name."""
NEEDS_OWNERS = f"a store needs the owner of every row; or owners={EACH_ROW!r}, if each is a new person"
_LONGEST_NUMBER = 4096


class Numbered(Sequence[OwnerId]):
    """Names that are numbers behind one prefix. They are kept as numbers, because text would take ten times the memory.

    >>> names = Numbered(np.array([7, 8]), "each-row:")
    >>> list(names), names[-1], list(names[np.array([1])])
    (['each-row:7', 'each-row:8'], 'each-row:8', ['each-row:8'])
    """

    def __init__(self, numbers: IntArray, prefix: str = ""):
        self.numbers, self.prefix = numbers, prefix

    def __len__(self) -> int:
        return len(self.numbers)

    @overload
    def __getitem__(self, rows: int) -> OwnerId: ...
    @overload
    def __getitem__(self, rows: slice | IntArray) -> Numbered: ...
    def __getitem__(self, rows: int | slice | IntArray) -> OwnerId | Numbered:
        if isinstance(rows, slice | np.ndarray):
            return Numbered(self.numbers[rows], self.prefix)
        return f"{self.prefix}{self.numbers[rows]}"

    def __iter__(self) -> Iterator[OwnerId]:
        return (f"{self.prefix}{number}" for number in self.numbers.tolist())


def as_owners(owners: Any, *, length: int) -> Sequence[OwnerId]:
    """The owners of this many records, in the form of `as_owner_list`. An array of numbers stays an array.

    >>> as_owners(np.array([3, 4]), length=2).numbers.tolist(), as_owners([3, 4], length=2)
    ([3, 4], ['3', '4'])
    """
    if isinstance(owners, Numbered) and len(owners) == length:
        return owners
    numbers = owners.to_numpy() if hasattr(owners, "to_numpy") else owners
    if isinstance(numbers, np.ndarray) and numbers.dtype.kind in "iu" and numbers.shape == (length,):
        whole = numbers.astype(np.int64, copy=False)
        if not len(whole) or whole.min() >= 0:  # otherwise they are below 0, or were above 63 bits
            return Numbered(whole)
    return as_owner_list(owners, length=length)


def picked(names: Sequence[OwnerId], rows: IntArray) -> Sequence[OwnerId]:
    """The names in these rows."""
    return names[rows] if isinstance(names, Numbered) else [names[i] for i in rows.tolist()]


def as_owner_list(owners: Any, *, length: int | None = None, what: str = "owner") -> list[OwnerId]:
    """Names as plain text, their only form everywhere (rule 13). A single name counts as a list of one.

    A whole number becomes the text of its digits. Anything else is refused: a float, None or NaN is usually a missing
    name, and the encoding of bytes is not known. With `length`, for records that are added, there must be this many
    names and none may be empty.

    >>> as_owner_list([3, np.int64(4), "4"]), as_owner_list("ann")
    (['3', '4', '4'], ['ann'])
    """
    if isinstance(owners, str | bytes) or not isinstance(owners, Iterable):
        owners = [owners]
    if isinstance(owners, np.ndarray):
        owners = np.atleast_1d(owners)
        owners = owners.tolist() if owners.dtype.kind in "iuU" else owners  # tolist() would make numbers of times
    items = list(owners)
    if length is not None and len(items) != length:
        raise InvalidInputError(f"{what}s must name one {what} per row: {length} rows, got {len(items)} {what}s")
    names = items if set(map(type, items)) <= {str} else [_as_name(item, i, what) for i, item in enumerate(items)]
    if length is not None and "" in names:
        raise InvalidInputError(f"{what} {names.index('')} must not be empty")
    return names


def says_each_row(owners: Any) -> bool:
    """Whether `owners` is the word "each-row", not a name."""
    return isinstance(owners, str) and owners == EACH_ROW


def number_in(name: OwnerId) -> int:
    """The number that this name is the text of. -1 for other names.

    >>> number_in("17"), number_in("017"), number_in("ann")
    (17, -1, -1)
    """
    if name.isdigit() and name.isascii() and len(name) < _LONGEST_NUMBER // 4 and (name[0] != "0" or name == "0"):
        return int(name)
    return -1


def as_owner_array(owners: list[OwnerId]) -> npt.NDArray[Any]:
    """The names as an array of text."""
    if any(name.endswith("\0") for name in owners):  # NumPy would remove these from its own kind of text
        array = np.empty(len(owners), dtype=object)
        array[:] = owners
        return array
    return np.array(owners, dtype=np.str_)


def encode_labels(y: npt.NDArray[Any], classes: npt.NDArray[Any]) -> IntArray:
    """The position of every label in the sorted, non-empty `classes`.

    >>> encode_labels(np.array(["b", "a"]), np.array(["a", "b"])).tolist()
    [1, 0]
    """
    try:
        codes = np.searchsorted(classes, y)
        known = classes[np.minimum(codes, len(classes) - 1)] == y
    except TypeError as error:
        raise InvalidInputError(f"labels must be of the type of the classes {classes.tolist()}: {error}") from None
    if not np.all(known):
        stranger = y[np.argmin(known)]
        raise InvalidInputError(f"unknown label {stranger!r}: the classes are {classes.tolist()}")
    return codes.astype(np.int64)


def as_record_ids(record_ids: Any, length: int) -> list[str] | None:
    """Record ids that callers choose, in the form of names. Each may occur once."""
    if record_ids is None:
        return None
    ids = as_owner_list(record_ids, length=length, what="record id")
    if len(set(ids)) < len(ids):
        raise InvalidInputError(f"record id {Counter(ids).most_common(1)[0][0]!r} must not be given twice")
    return ids


def as_record_numbers(records: Any) -> list[int]:
    """The numbers that a store gave to records, as a list of ints. A single number counts as a list of one."""
    ids = np.atleast_1d(np.asarray(records))
    if ids.size and ids.dtype.kind not in "iu":
        raise InvalidInputError(f"records must be given by their numbers, got {records!r}")
    return [int(i) for i in ids.ravel()]


def _as_name(item: Any, position: int, what: str) -> OwnerId:
    # Plain text only: a subclass could compare equal to a name here and differ elsewhere.
    if isinstance(item, str):
        return str.__str__(item)
    whole = item.dtype.kind in "iu" if isinstance(item, np.generic) else isinstance(item, int)
    if not whole or isinstance(item, bool):
        hint = "; decode bytes yourself" if isinstance(item, bytes) else ""
        raise InvalidInputError(f"{what} {position} must be text or a whole number, got {item!r}{hint}")
    number = int.__index__(item) if isinstance(item, int) else int(item)
    if number.bit_length() > _LONGEST_NUMBER:
        raise InvalidInputError(f"{what} {position} must be a number below 2^{_LONGEST_NUMBER}")
    return str(number)


def as_classes(classes: Any) -> npt.NDArray[Any]:
    """A label set, sorted: at least one int, str, bool or bytes, all comparable.

    >>> as_classes(["b", "a", "b"]).tolist()
    ['a', 'b']
    """
    array = np.asarray(classes)
    try:
        labels = np.unique(array)
        bad = labels.size == 0 or (labels.dtype.kind in "fc" and not np.isfinite(labels).all())
    except TypeError:
        bad = True
    if bad:
        raise InvalidInputError(f"classes must be one or more labels of one kind, without NaN, got {classes!r}")
    return labels


def as_center(center: Any) -> tuple[float, ...] | None:
    """A public centre as plain numbers."""
    if center is None:
        return None
    try:
        array = np.asarray(center, dtype=np.float64)
    except (TypeError, ValueError):
        array = np.array([np.nan])
    if array.ndim != 1 or not np.isfinite(array).all():
        raise InvalidInputError(f"center must be a vector of finite numbers, got {center!r}")
    return tuple(array.tolist())


def refuse_unwritable(name: str, text: Any) -> None:
    """Refuse a text that cannot be encoded, because it goes into a file."""
    try:
        if text is None or text.encode():
            return
    except (AttributeError, UnicodeEncodeError):
        pass
    if text != "":
        raise InvalidInputError(f"{name} must be None or a str without lone surrogates, got {text!r}")
