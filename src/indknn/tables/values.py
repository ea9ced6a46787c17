"""Reads columns in the forms that callers use: text from a csv file, NumPy, pandas, polars, Arrow, JSON.

A value means the same in all of them: 39, 39.0 and the text "39" are the same number and the same category. The result
for a value depends only on that value (rule 1).
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import date, datetime
from decimal import Decimal
from itertools import repeat
from math import floor, isnan
from numbers import Real
from typing import Any, TypeAlias

import numpy as np

from indknn.errors import InvalidInputError
from indknn.types import FloatArray, IntArray

Columns: TypeAlias = dict[str, Any]
"""The columns of a table by name."""
_EPOCH = date(1970, 1, 1).toordinal()
_ISO_DATE = re.compile(r"\d{4}-\d{2}-\d{2}([T ].*)?")
_PLAIN = {str, int, float, type(None)}


def columns_of(table: Any) -> Columns:
    """The columns of a pandas, polars or Arrow frame, a dict of columns, or a list of rows that are dicts.

    >>> columns_of([{"age": 39, "job": "baker"}, {"age": 41, "job": None}])
    {'age': [39, 41], 'job': ['baker', None]}
    """
    if isinstance(table, Mapping):
        columns = dict(table)
    elif isinstance(table, Sequence) and not isinstance(table, str) and all(isinstance(r, Mapping) for r in table):
        columns = _from_rows(table)
    else:
        names = getattr(table, "column_names", None)  # a list for Arrow; other frames may have a column of this name
        names = list(getattr(table, "columns", ()) if not isinstance(names, list) else names)
        if not names or isinstance(table, np.ndarray):
            raise InvalidInputError(f"a table with column names is needed, got {type(table).__name__}")
        if len(set(names)) < len(names):
            raise InvalidInputError(f"column {max(names, key=names.count)!r} must not occur twice")
        columns = {name: table[name] for name in names}
    for name in columns:
        if not isinstance(name, str):
            raise InvalidInputError(f"column names must be text, got {name!r}")
    lengths = {name: len(column) for name, column in columns.items()}
    if len(set(lengths.values())) > 1:
        raise InvalidInputError(f"all columns must have the same number of rows, got {lengths}")
    return columns


def _from_rows(rows: Sequence[Mapping[str, Any]]) -> Columns:
    names = list(rows[0]) if rows else []
    for i, row in enumerate(rows):
        if row.keys() != rows[0].keys():
            (odd, *_) = sorted(map(str, row.keys() ^ rows[0].keys()))
            raise InvalidInputError(f"row {i}: column {odd!r} must be in every row or in none; a gap is null")
    return {name: [row[name] for row in rows] for name in names}


def is_table(X: Any) -> bool:
    """Whether X has column names. Otherwise it is an array of vectors."""
    if isinstance(X, Mapping) or hasattr(X, "columns") or hasattr(X, "column_names"):
        return True
    return isinstance(X, Sequence) and len(X) > 0 and isinstance(X[0], Mapping)


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
    raise InvalidInputError(f"row {row}: column {name!r} must be a number, got {_short(value)}")


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


def as_codes(
    column: Any, name: str, codes: Mapping[Any, int], blanks: Collection[str], unknown: int, missing: int
) -> IntArray:
    """The code of every value: `unknown` for values that are not listed, `missing` for gaps.

    >>> as_codes(["a", "c", None], "job", lookup_of(["a", "b"]), ("",), 2, 3).tolist()
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
