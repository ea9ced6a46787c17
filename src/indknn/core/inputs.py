"""Names and labels as they come from callers, checked and made plain before anything is changed."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from indknn.errors import InvalidInputError
from indknn.types import IntArray, OwnerId

_LONGEST_NUMBER = 4096


def as_owner_list(owners: Any, *, length: int | None = None) -> list[OwnerId]:
    """The owners as plain ints, strs and bytes; a single name counts as a list of one.

    >>> as_owner_list(np.array([3, 4])), as_owner_list("ann")
    ([3, 4], ['ann'])
    """
    if isinstance(owners, str | bytes) or not isinstance(owners, Iterable):
        owners = [owners]
    items = np.atleast_1d(owners).tolist() if isinstance(owners, np.ndarray) else list(owners)
    if length is not None and len(items) != length:
        raise InvalidInputError(f"owners must name one owner per row: {length} rows, got {len(items)} owners")
    return [_as_owner(item, i) for i, item in enumerate(items)]


def as_owner_array(owners: list[OwnerId]) -> npt.NDArray[Any]:
    """An array of the names that does not change any of them: NumPy would turn 1 and "a" into strings.

    >>> as_owner_array([1, "a"]).tolist()
    [1, 'a']
    """
    kinds = {type(owner) for owner in owners}
    if kinds == {str} and not any(str(owner).endswith("\0") for owner in owners):  # NumPy strips these
        return np.array(owners, dtype=np.str_)
    if kinds == {int} and all(isinstance(o, int) and -(1 << 63) <= o < 1 << 63 for o in owners):
        return np.array(owners, dtype=np.int64)
    array = np.empty(len(owners), dtype=object)
    array[:] = owners
    return array


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


def as_record_ids(records: Any) -> list[int]:
    """Record ids as a list of ints; a single one counts as a list of one."""
    ids = np.atleast_1d(np.asarray(records))
    if ids.size and ids.dtype.kind not in "iu":
        raise InvalidInputError(f"record ids must be integers, got {records!r}")
    return [int(i) for i in ids.ravel()]


def _as_owner(item: Any, position: int) -> OwnerId:
    if isinstance(item, np.generic):
        item = item.item()
    if isinstance(item, bool) or not isinstance(item, int | str | bytes):
        raise InvalidInputError(f"owner {position} must be an int, a str or bytes, got {item!r}")
    # Plain objects only: a subclass could compare equal to a name and yet be another one elsewhere.
    if isinstance(item, int):
        if item.bit_length() > _LONGEST_NUMBER:
            raise InvalidInputError(f"owner {position} must be a number below 2^{_LONGEST_NUMBER}")
        return int.__index__(item)
    return str.__str__(item) if isinstance(item, str) else b"".join([item])


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
    """A text that goes into a file must be encodable."""
    try:
        if text is None or text.encode():
            return
    except (AttributeError, UnicodeEncodeError):
        pass
    if text != "":
        raise InvalidInputError(f"{name} must be None or a str without lone surrogates, got {text!r}")
