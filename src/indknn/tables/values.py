"""Reads columns in the forms that callers use: text from a csv file, NumPy, pandas, polars, Arrow, JSON.

A value means the same in all of them: 39, 39.0 and the text "39" are the same number and the same category. The result
for a value depends only on that value (rule 1).
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Mapping
from datetime import date, datetime
from decimal import Decimal
from itertools import repeat
from math import floor, isnan
from numbers import Real
from typing import Any

import numpy as np

from indknn.errors import InvalidInputError
from indknn.types import FloatArray, IntArray

_EPOCH = date(1970, 1, 1).toordinal()
_ISO_DATE = re.compile(r"\d{4}-\d{2}-\d{2}([T ].*)?")
_PLAIN = {str, int, float, type(None)}


def as_list(column: Any) -> list[Any]:
    """The values of a column as a list of plain Python values."""
    if isinstance(column, list):
        return column
    for method in ("to_pylist", "to_list", "tolist"):
        if hasattr(column, method):
            values = getattr(column, method)()
            return values if isinstance(values, list) else [values]
    return list(column)


def is_missing(value: Any, blanks: Collection[str]) -> bool:
    """Whether a value is a gap: None, NaN, or one of the texts in `blanks`."""
    if isinstance(value, str):
        return value in blanks
    if value is None or type(value).__name__ in {"NAType", "NaTType"}:  # of pandas
        return True
    if isinstance(value, np.datetime64):
        return bool(np.isnat(value))
    return isinstance(value, float | np.floating) and isnan(value)


def as_numbers(column: Any, name: str, blanks: Collection[str]) -> FloatArray:
    """Numbers, with NaN for gaps. Numbers may be written as text.

    >>> as_numbers(["39", "", 1e3], "age", ("",)).tolist()
    [39.0, nan, 1000.0]
    """
    array = None if isinstance(column, list) else np.asarray(column)
    if array is not None and array.dtype.kind in "iuf":
        return array.astype(np.float64)
    values = as_list(column)
    if set(map(type, values)) <= _PLAIN:
        try:
            plain = [None if value in blanks else value for value in values]
            if not any("_" in value for value in plain if type(value) is str):  # float() would accept 1_000
                return np.array(plain, dtype=object).astype(np.float64)
        except (ValueError, OverflowError):
            pass  # the error is raised below, with the row
    return np.array([_number(value, name, i, blanks) for i, value in enumerate(values)], dtype=np.float64)


def _number(value: Any, name: str, row: int, blanks: Collection[str]) -> float:
    if is_missing(value, blanks):
        return float("nan")
    text = isinstance(value, str) and "_" not in value
    if text or (isinstance(value, Real | Decimal) and not isinstance(value, bool)):
        try:
            return float(value)
        except (ValueError, OverflowError):
            pass
    dotted = value.replace(",", ".") if isinstance(value, str) else ""
    hint = f"; write {dotted}" if dotted != value and number_or_none(dotted) is not None else ""
    raise InvalidInputError(f"row {row}: column {name!r} must be a number, got {_short(value)}{hint}")


def number_or_none(value: Any) -> float | None:
    """The number, which may be written as text. None for anything else."""
    try:
        return _number(value, "", 0, ())
    except InvalidInputError:
        return None


def bucket_of(value: Any, buckets: int) -> int:
    """The bucket of a text, a number or a truth value, by a public hash. All spellings of a value get the same bucket.

    >>> bucket_of("cook", 256), bucket_of("3", 256) == bucket_of(3.0, 256)
    (181, True)
    """
    number = number_or_none(value)
    text = str(value) if number is None else repr(number)
    text = text.lower() if text.lower() in {"true", "false"} else text
    body = text.encode(errors="surrogatepass")
    return int.from_bytes(hashlib.blake2b(body, digest_size=8).digest(), "little") % buckets


def bucket_name(bucket: int) -> str:
    """The name of a bucket in a schema."""
    return f"#{bucket}"


def as_buckets(column: Any, blanks: Collection[str], buckets: int) -> list[Any]:
    """The name of each value's bucket. Gaps, and anything that is neither text nor a number, stay unchanged."""
    named: list[Any] = []
    known: dict[Any, str] = {}
    for value in as_list(column):
        if not isinstance(value, str | Real) or is_missing(value, blanks):
            named.append(value)
            continue
        key = (type(value), value)  # with the type, because True == 1 in Python
        if key not in known:
            known[key] = bucket_name(bucket_of(value, buckets))
        named.append(known[key])
    return named


def as_days(column: Any, name: str, blanks: Collection[str]) -> FloatArray:
    """Dates as whole days since 1970, with NaN for gaps. A time of day is dropped, and time zones are not converted.

    >>> as_days(["1970-01-02", None, date(1969, 12, 31)], "born", ("",)).tolist()
    [1.0, nan, -1.0]
    """
    array = None if isinstance(column, list) else np.asarray(column)
    if array is not None and array.dtype.kind == "M":
        days = array.astype("datetime64[D]")
        return np.where(np.isnat(days), np.nan, days.astype(np.int64).astype(np.float64))
    values = as_list(column)
    return np.array([_day(value, name, i, blanks) for i, value in enumerate(values)], dtype=np.float64)


def _day(value: Any, name: str, row: int, blanks: Collection[str]) -> float:
    if is_missing(value, blanks):
        return float("nan")
    try:
        return day_of(value)
    except ValueError:
        wanted = "a date such as 2026-01-31"
        raise InvalidInputError(f"row {row}: column {name!r} must be {wanted}, got {_short(value)}") from None


def day_of(value: Any) -> float:
    """One date as days since 1970. Raises ValueError if it is not a date."""
    if isinstance(value, np.datetime64):
        value = value.astype("datetime64[D]").item()
    if isinstance(value, datetime):
        value = value.date()
    if isinstance(value, str) and _ISO_DATE.fullmatch(value):
        value = date.fromisoformat(value[:10])
    if not isinstance(value, date):
        raise ValueError(f"no date: {value!r}")
    return float(value.toordinal() - _EPOCH)


def day_text(days: float) -> str:
    """The date that is this many days after 1970-01-01.

    >>> day_text(day_of("2026-01-31"))
    '2026-01-31'
    """
    return date.fromordinal(_EPOCH + floor(days)).isoformat()


def as_codes(
    column: Any, name: str, codes: Mapping[Any, int], blanks: Collection[str], unknown: int, missing: int
) -> IntArray:
    """The code of every value: `unknown` for values that are not listed, `missing` for gaps.

    >>> as_codes(["a", "c", None], "job", {"a": 0, "b": 1}, ("",), 2, 3).tolist()
    [0, 2, 3]
    """
    known = {**codes, None: missing, **dict.fromkeys(blanks, missing)}
    rows = None
    if hasattr(column, "factorize"):  # pandas finds the distinct values faster than all can be looked up
        rows, column = column.factorize()
    values = as_list(column)
    try:
        found = np.fromiter(map(known.get, values, repeat(unknown)), dtype=np.int64, count=len(values))
    except TypeError:  # a list or a dict
        found = np.full(len(values), unknown, dtype=np.int64)
    for i in np.flatnonzero(found == unknown).tolist():
        if is_missing(values[i], blanks):
            found[i] = missing
        elif not isinstance(values[i], str | Real):
            row = i if rows is None else int(np.argmax(rows == i))
            raise InvalidInputError(f"row {row}: column {name!r} must be text or a number, got {_short(values[i])}")
    return found if rows is None else np.append(found, missing)[rows]  # pandas gives gaps the number -1


def as_texts(column: Any, name: str, blanks: Collection[str]) -> list[str | None]:
    """Texts, with None for gaps."""
    texts: list[str | None] = []
    for i, value in enumerate(as_list(column)):
        if not (is_missing(value, blanks) or isinstance(value, str)):
            raise InvalidInputError(f"row {i}: column {name!r} must be text, got {_short(value)}")
        texts.append(None if is_missing(value, blanks) else value)
    return texts


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
