"""Names and labels from callers: checked and brought into one form before anything is changed."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from datetime import date
from math import floor
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
_WHOLE = re.compile(r"0|-?[1-9][0-9]{0,17}")


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


def as_labels(y: Any) -> npt.NDArray[Any]:
    """Labels as an array of one kind: text, numbers or truth values. Dates, and labels of several kinds, become text.

    >>> as_labels([date(2026, 1, 31), date(2026, 2, 1)]).tolist(), as_labels([1, "a", True]).tolist()
    (['2026-01-31', '2026-02-01'], ['1', 'a', 'True'])
    """
    array = np.asarray(y)
    if array.dtype.kind == "O" and array.ndim == 1:
        array = _of_one_kind(array)
    gaps = np.isnat(array) if array.dtype.kind == "M" else np.isnan(array) if array.dtype.kind == "f" else array[:0]
    _refuse_gaps(np.flatnonzero(gaps))
    if array.dtype.kind == "M":
        return np.datetime_as_string(array, unit="auto")  # without a time of day where that is midnight
    if array.dtype.kind == "S":
        raise InvalidInputError("labels must be text, numbers or truth values, got bytes; decode bytes yourself")
    return array


def _of_one_kind(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    values = array.tolist()
    _refuse_gaps([i for i, v in enumerate(values) if v is None or type(v).__name__ in {"NAType", "NaTType"}])
    kinds = {type(value) for value in values}
    if kinds and all(issubclass(kind, date) for kind in kinds):
        return np.array(values, dtype="datetime64[us]")
    if str in kinds and all(issubclass(kind, str | int | float) for kind in kinds):
        return np.array(values)
    return array


def _refuse_gaps(rows: Sequence[int] | IntArray) -> None:
    if len(rows):
        raise InvalidInputError(f"label {rows[0]} must not be empty")


def as_whole(texts: Iterable[str]) -> tuple[Any, ...]:
    """Labels that were written as text. If all are whole numbers in their usual form, they become numbers.

    >>> as_whole(["0", "-1"]), as_whole(["0", "x"]), as_whole(["00", "01"])
    ((0, -1), ('0', 'x'), ('00', '01'))
    """
    labels = tuple(texts)
    return tuple(map(int, labels)) if all(map(_WHOLE.fullmatch, labels)) else labels


def encode_labels(y: npt.NDArray[Any], classes: npt.NDArray[Any]) -> IntArray:
    """The position of every label in the sorted, non-empty `classes`.

    Labels and classes may have different types. Then a label is found by its text, so "1" is 1 and 1 is "1".

    >>> encode_labels(np.array(["b", "a"]), np.array(["a", "b"])).tolist()
    [1, 0]
    >>> encode_labels(np.array([1, 0]), np.array(["0", "1"])).tolist()
    [1, 0]
    """
    labels = as_labels(y)
    if (labels.dtype.kind == "U") != (classes.dtype.kind == "U"):
        found, places = np.unique(labels, return_inverse=True)
        codes_of = lookup_of(map(str, classes.tolist()))
        codes = np.array([codes_of.get(label, -1) for label in found.tolist()], dtype=np.int64)[places]
        known = codes >= 0
    else:
        try:
            codes = np.searchsorted(classes, labels)
            known = classes[np.minimum(codes, len(classes) - 1)] == labels
        except TypeError as error:
            raise InvalidInputError(f"labels must be of the type of the classes {classes.tolist()}: {error}") from None
    if not np.all(known):
        stranger = labels[np.argmin(known)]
        raise InvalidInputError(f"unknown label {stranger!r}: the classes are {classes.tolist()}")
    return codes.astype(np.int64)


def lookup_of(values: Iterable[str]) -> dict[Any, int]:
    """The position of each of these texts. The text of a number is also found by the number itself.

    >>> codes = lookup_of(["3", "x"])
    >>> codes["3"], codes[3], codes[3.0], codes["3.0"], codes["x"]
    (0, 0, 0, 0, 1)
    """
    codes: dict[Any, int] = {}
    for code, text in enumerate(values):
        for key in _spellings(text):
            if codes.setdefault(key, code) != code and not isinstance(key, bool):
                raise InvalidInputError(f"category {text!r} must not be given twice")
    return codes


def _spellings(text: str) -> list[Any]:
    if text.lower() in {"true", "false"}:
        return [text, text.lower() == "true"]
    try:
        number = float(text) if "_" not in text else np.nan
    except ValueError:
        number = np.nan
    if not np.isfinite(number):
        return [text]
    whole = [str(int(number))] if number == floor(number) and abs(number) < 1 << 53 else []
    return [text, number, *({repr(number), *whole} - {text})]


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
    """A label set, sorted: at least one, all comparable.

    >>> as_classes(["b", "a", "b"]).tolist()
    ['a', 'b']
    """
    try:
        labels = np.unique(as_labels(classes))
        bad = labels.size == 0 or (labels.dtype.kind in "fc" and not np.isfinite(labels).all())
    except (TypeError, InvalidInputError):
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
