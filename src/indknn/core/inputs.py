"""Names, labels and parameters from callers: checked and brought into one form before anything is changed.

One description of a parameter serves all interfaces. It checks values from Python, from the command line and from
files, and the documentation of all of them is written from it.
"""

from __future__ import annotations

import contextlib
import operator
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import UTC, date, datetime, time
from functools import cache, lru_cache
from math import floor
from numbers import Integral, Real
from textwrap import fill
from types import NoneType, UnionType
from typing import Any, Literal, get_args, get_origin, get_type_hints, overload

import numpy as np
import numpy.typing as npt

from indknn.errors import InvalidInputError, meant
from indknn.types import IntArray, OwnerId

EACH_ROW = "each-row"
"""The value of `owners=` which says that every row is a new person."""
EACH_ROW_PREFIX = EACH_ROW + ":"
"""The prefix of the names that a store makes for such people. Newcomers may not be given such a name."""
NEEDS_OWNERS = f"a store needs the owner of every row; or owners={EACH_ROW!r}, if each is a new person"
NEVER = (1 << 31) - 1
"""The date of a record that does not expire. Dates of records are whole hours since 1970."""
DUE = 1
"""The date of a record that expired long ago."""
_LONGEST_NUMBER = 4096
_WHOLE = re.compile(r"0|-?[1-9][0-9]{0,17}")
AT_CREATION = "when the store is made"
_LIMITS = {"above": operator.gt, "at_least": operator.ge, "at_most": operator.le, "below": operator.lt}


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
    kinds, where = set(map(type, items)), f"{what} {{}}" if length is None else f"row {{}}: the {what}"
    if not kinds <= {str, int}:  # a gap makes floats of all whole numbers in its column, so it is named first
        gap = next((i for i, item in enumerate(items) if _is_gap(item)), None)
        if gap is not None:
            _as_name(items[gap], gap, where)
    names = items if kinds <= {str} else [_as_name(item, i, where) for i, item in enumerate(items)]
    if length is not None and "" in names:
        raise InvalidInputError(f"{where.format(names.index(''))} must not be empty")
    return names


def _is_gap(item: Any) -> bool:
    """Whether this is what a table has where nothing is: None, NaN, NaT or NA."""
    return item is None or type(item).__name__ == "NAType" or bool(np.ndim(item) == 0 and item != item)  # noqa: PLR0124


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
        raise InvalidInputError(f"row {rows[0]}: the label must not be empty")


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
        row, listed = int(np.argmin(known)), classes.tolist()
        stranger = labels[row].item() if isinstance(labels[row], np.generic) else labels[row]
        hint = meant(stranger, listed) if isinstance(stranger, str) else ""
        raise InvalidInputError(f"row {row}: unknown label {stranger!r}: the classes are {listed}{hint}")
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


def as_epsilons(epsilons: Any, length: int) -> npt.NDArray[np.float64] | None:
    """The ε that was promised to the owner of each row, NaN where nothing was. None if nothing is given.

    >>> as_epsilons(["0.25", "", None, 1], 4).tolist()
    [0.25, nan, nan, 1.0]
    """
    if epsilons is None:
        return None
    items = list(epsilons) if isinstance(epsilons, Iterable) and not isinstance(epsilons, str | bytes) else None
    if items is None or len(items) != length:
        got = repr(epsilons) if items is None else len(items)
        raise InvalidInputError(f"epsilons must be one number per row: {length} rows, got {got}")
    found = np.full(length, np.nan)
    for i, item in enumerate(items):
        if not (_is_gap(item) or (isinstance(item, str) and not item.strip())):
            with contextlib.suppress(TypeError, ValueError):
                found[i] = float(item) if not isinstance(item, bool | np.bool_) else np.nan
            if not np.isfinite(found[i]):
                raise InvalidInputError(f"epsilon of row {i} must be a number, got {item!r}")
    return found


def as_hours(expires: Any, length: int) -> IntArray:
    """The moments from which records take no further part, as hours since 1970, rounded down. NEVER for gaps.

    Values are dates, times, or ISO text, one per row or one for all. A date means its beginning. Without a time zone,
    it is UTC.

    >>> as_hours(["1970-01-02", None, "1970-01-01T05:59:00+02:00"], 3).tolist() == [24, NEVER, 3]
    True
    """
    if expires is None:
        return np.full(length, NEVER, dtype=np.int64)
    if isinstance(expires, str | date | np.datetime64) or not isinstance(expires, Iterable):
        return np.full(length, _hour(expires, 0), dtype=np.int64)
    values = expires.to_numpy() if hasattr(expires, "to_numpy") else expires
    if len(values := values if isinstance(values, np.ndarray) else list(values)) != length:
        raise InvalidInputError(f"expires must have one date per row: {length} rows, got {len(values)}")
    return np.array([_hour(value, i) for i, value in enumerate(values)], dtype=np.int64)


@lru_cache(1 << 14)
def _hour_of_text(text: str) -> int:
    return _hour_of(datetime.fromisoformat(text))


def _hour_of(moment: Any) -> int:
    if isinstance(moment, np.datetime64):
        moment = moment.astype("datetime64[s]").item()
    if not isinstance(moment, datetime):
        moment = datetime.combine(moment, time())
    moment = moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment
    return min(max(int(moment.timestamp() // 3600), DUE), NEVER - 1)


def _hour(value: Any, row: int) -> int:
    if _is_gap(value) or (isinstance(value, str) and not value):
        return NEVER
    try:
        return _hour_of_text(value) if isinstance(value, str) else _hour_of(value)
    except (AttributeError, TypeError, ValueError, OverflowError):
        wanted = "a date such as 2026-01-31 or 2026-01-31T17:00"
        raise InvalidInputError(f"row {row}: expires must be {wanted}, got {value!r}") from None


def as_record_numbers(records: Any) -> list[int]:
    """The numbers that a store gave to records, as a list of ints. A single number counts as a list of one."""
    if records is None:
        return []
    ids = np.atleast_1d(np.asarray(records))
    if ids.size and ids.dtype.kind not in "iu":
        raise InvalidInputError(f"records must be given by their numbers, got {records!r}")
    return [int(i) for i in ids.ravel()]


def _as_name(item: Any, position: int, where: str) -> OwnerId:
    # Plain text only: a subclass could compare equal to a name here and differ elsewhere.
    if isinstance(item, str):
        return str.__str__(item)
    whole = item.dtype.kind in "iu" if isinstance(item, np.generic) else isinstance(item, int)
    if not whole or isinstance(item, bool):
        hint = "; decode bytes yourself" if isinstance(item, bytes) else ""
        shown = item.item() if isinstance(item, np.generic) else item
        raise InvalidInputError(f"{where.format(position)} must be text or a whole number, got {shown!r}{hint}")
    number = int.__index__(item) if isinstance(item, int) else int(item)
    if number.bit_length() > _LONGEST_NUMBER:
        raise InvalidInputError(f"{where.format(position)} must be a number below 2^{_LONGEST_NUMBER}")
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


@dataclass(frozen=True)
class Parameter:
    """The description of one parameter.

    >>> Parameter("A share.", 0.5, float, limits={"above": 0, "below": 1}).check("share", 7)
    Traceback (most recent call last):
    ...
    indknn.errors.InvalidInputError: share must be above 0 and below 1, got 7
    """

    help: str
    default: Any
    kind: type
    """float, int, bool, str or tuple. The contents of a tuple are checked elsewhere."""
    choices: tuple[str, ...] = ()
    limits: Mapping[str, float] = field(default_factory=dict)
    none: str = ""
    """What None means. A parameter without this text does not take None."""
    fixed: str = AT_CREATION
    """When the operator of a store has to decide. Nobody changes a parameter after that."""

    @property
    def allowed(self) -> str:
        """The allowed values, in words."""
        if self.kind in {bool, tuple}:
            return "True or False" if self.kind is bool else "an array"
        if self.choices:
            return f"one of {', '.join(map(repr, self.choices))}"
        limits = " and ".join(f"{word.replace('_', ' ')} {limit:.12g}" for word, limit in self.limits.items())
        return ", ".join(filter(None, ["a whole number" if self.kind is int else "", limits]))

    def check(self, name: str, value: Any) -> Any:
        """The value, converted to its kind. An error names the parameter, what is allowed and what was given."""
        if (value is None and self.none) or self.kind is tuple:
            return value
        accepted = {str: str, bool: bool | np.bool_, int: Integral, float: Real}[self.kind]
        right = isinstance(value, accepted) and (self.kind is bool or not isinstance(value, bool))
        # Checked before the conversion, which may overflow, and after it, because it may round to a limit.
        if not (right and self._holds(value) and self._holds(self.kind(value))):
            raise InvalidInputError(f"{name} must be {self.allowed}, got {value!r}{meant(value, self.choices)}")
        return self.kind(value)

    def _holds(self, value: Any) -> bool:
        inside = all(_LIMITS[word](value, limit) for word, limit in self.limits.items())  # NaN is not inside
        return inside and (not self.choices or value in self.choices)


def parameter(
    help: str,  # noqa: A002
    default: Any = None,
    *,
    required: bool = False,
    none: str = "",
    fixed: str = AT_CREATION,
    **limits: float,
) -> Any:
    """A dataclass field with a description; the kind and the choices follow from its type hint."""
    about = {"help": help, "default": default, "limits": limits, "none": none, "fixed": fixed}
    return field(metadata=about) if required else field(default=default, metadata=about)


@cache
def described(cls: type) -> dict[str, Parameter]:
    """The descriptions of a dataclass whose fields were made by `parameter`."""
    hints, found = get_type_hints(cls), {}
    for one in fields(cls):
        hint = hints[one.name]
        if isinstance(hint, UnionType):
            (hint,) = (part for part in get_args(hint) if part is not NoneType)
        choices = get_args(hint) if get_origin(hint) is Literal else ()
        if one.metadata:
            kind = str if choices else get_origin(hint) or hint
            found[one.name] = Parameter(kind=kind, choices=choices, **one.metadata)
    return found


def check_fields(instance: object) -> None:
    """Check every described field of a frozen dataclass, and convert each value to its kind."""
    for name, about in described(type(instance)).items():  # type: ignore[arg-type]  # a class is hashable
        object.__setattr__(instance, name, about.check(name, getattr(instance, name)))


def numpydoc(parameters: Mapping[str, Parameter]) -> str:
    """The parameters as the section of a docstring.

    >>> print(numpydoc({"share": Parameter("A share.", 0.5, float, limits={"above": 0, "below": 1})}))
    share : float above 0 and below 1 (default 0.5)
        A share.
    """
    lines = []
    for name, p in parameters.items():
        kind = f"float {p.allowed}" if p.kind is float else p.allowed
        about = f"{p.help} None: {p.none}." if p.none else p.help
        lines.append(f"{name} : {kind}{', or None' if p.none else ''} (default {p.default!r})")
        lines.append(fill(about, 110, initial_indent="    ", subsequent_indent="    "))
    return "\n".join(lines)
