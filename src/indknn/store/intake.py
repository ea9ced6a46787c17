"""Finds the owner of each new record, and which record it replaces, if any (rule 13)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias
from unicodedata import is_normalized

import numpy as np

from indknn.core.advice import Profile
from indknn.core.inputs import (
    EACH_ROW,
    EACH_ROW_PREFIX,
    NEEDS_OWNERS,
    Numbered,
    as_owners,
    as_record_ids,
    says_each_row,
)
from indknn.engine import Engine
from indknn.errors import InvalidInputError, PrivacyError
from indknn.ledger import MemoryLedger
from indknn.records.keys import Match
from indknn.types import IntArray, OwnerId, Vectors

_WHOLE = re.compile(r"[+-]?[0-9]+\.0*|\+[0-9]+")
_UNSAYABLE = re.compile("[\n\r\ud800-\udfff]")  # no request over HTTP can name such a person
_ODD = f"no space at an end, no 17.0 for 17, one line in Unicode NFC, not {EACH_ROW_PREFIX}..."
Ready: TypeAlias = tuple[Vectors, IntArray, Sequence[OwnerId] | None, list[str] | None, Match | None]
"""Features, labels, owners (None for new people), record ids, and which rows are here already, if that is known."""


@dataclass(frozen=True)
class Item:
    """What belongs to a row of features: its label, its owner, and which record it replaces, if any.

    `id` is the number of a record. Its owner stays the same, and need not be named. `record_id` is the caller's own id.
    """

    label: Any
    owner: OwnerId | int | None = None
    id: int | None = None
    record_id: str | int | None = None


@dataclass(frozen=True)
class Added:
    """The numbers of the new records, how many rows were here already, and warnings."""

    numbers: IntArray
    copies: int
    advice: list[Warning]


def is_vacant(engine: Engine) -> bool:
    """Whether nobody is here, and nobody who was here has spent anything."""
    return not engine.ledger.n_owners and not engine.ledger.anything_spent()


class Intake:
    """Prepares rows that come in batches. `profile` has seen all of them."""

    def __init__(self, engine: Engine):
        self.profile = Profile()
        self._rows = 0
        self._vacant = is_vacant(engine)  # apart from new people in earlier batches

    def __call__(self, engine: Engine, X: Any, y: Any, owners: Any = None, record_ids: Any = None) -> Ready:
        """Records in the form in which they are kept, or an error that names the row, counted over all batches."""
        try:
            vectors, labels = engine.settings.prepare(X, y, self.profile.see)
            names = people_of(owners, len(vectors), engine.ledger, self._vacant)
            chosen = as_record_ids(record_ids, len(vectors))
            match = engine.match(vectors, labels, names, chosen) if names is not None and not self._rows else None
        except InvalidInputError as error:
            raise InvalidInputError(f"{error}, counting from row {self._rows}" if self._rows else str(error)) from None
        self._rows += len(vectors)
        self._vacant &= names is None
        return vectors, labels, names, chosen, match


def people_of(owners: Any, n: int, ledger: MemoryLedger, vacant: bool) -> Sequence[OwnerId] | None:
    """The owner of each of n rows. None if each row is a new person, which only an empty store allows.

    Otherwise nobody could tell whether such a person is here already, or was charged before.
    """
    if owners is None:
        raise InvalidInputError(NEEDS_OWNERS)
    if says_each_row(owners):
        if not vacant:
            raise PrivacyError(
                f"owners={EACH_ROW!r} makes every row a new person, but this store has or had people who may be the "
                "same: name the owners"
            )
        return None
    names = as_owners(owners, length=n)
    if isinstance(names, Numbered):
        return names
    for name in ledger.strangers([name for name in names if _is_odd(name)]):
        if not ledger.graves(name):
            raise InvalidInputError(f"owner {name!r} is new here, and must have a name of another form: {_ODD}")
    return names


def _is_odd(name: OwnerId) -> bool:
    """Whether another person may have this name, or this person another name that looks the same.

    Or nobody could ask for this person by HTTP.
    """
    alike = name != name.strip() or not (name.isascii() or is_normalized("NFC", name)) or _WHOLE.fullmatch(name)
    return bool(alike or _UNSAYABLE.search(name)) or name.startswith(EACH_ROW_PREFIX)


def people_of_items(items: Sequence[Item], engine: Engine, each_row: bool) -> Sequence[OwnerId] | None:
    """The same for items that come one by one."""
    vacant = is_vacant(engine)
    if each_row:
        if any(item.owner is not None or item.id is not None for item in items):
            raise InvalidInputError("each_row is for new people: a record must name neither an owner nor an id")
        return people_of(EACH_ROW, len(items), engine.ledger, vacant)
    owners: list[Any] = [item.owner for item in items]
    held: dict[int, OwnerId] = {}
    for i, item in enumerate(items):
        if item.id is not None:
            (slot,) = engine.shard.owners_of(engine.shard.slots_of_records([item.id])).tolist()
            held[i] = engine.ledger.name_of(slot)
            owners[i] = held[i] if item.owner is None else item.owner
        elif item.owner is None:
            raise InvalidInputError(f"record {i} must name its owner; use each_row if every record is a new person")
    names = people_of(owners, len(items), engine.ledger, vacant)
    for i, owner in held.items():
        if names is not None and names[i] != owner:
            raise InvalidInputError(
                f"record {i} has the id {items[i].id} of a record of another owner: a record never changes its owner, "
                "who has paid for what was released about it; forget it first, then add it without the id"
            )
    return names


def record_ids_of(items: Sequence[Item]) -> list[str | None] | None:
    """The callers' own ids, None for a row without one. No record may be named twice, by id or by number."""
    numbers = [item.id for item in items if item.id is not None]
    if len(set(numbers)) < len(numbers):
        raise InvalidInputError("a record id must not be given twice")
    rows = [i for i, item in enumerate(items) if item.record_id is not None]
    chosen = as_record_ids([items[i].record_id for i in rows], len(rows)) or []
    ids: list[str | None] = [None] * len(items)
    for i, one in zip(rows, chosen, strict=True):
        ids[i] = one
    return ids if rows else None


def labels_of(items: Sequence[Item]) -> Any:
    """The labels, which must be of one type."""
    kinds = sorted({type(item.label).__name__ for item in items})
    if len(kinds) > 1:
        raise InvalidInputError(f"all labels must be of one type, got {kinds}")
    for item in items:
        if isinstance(item.label, int) and not -(1 << 63) <= item.label < 1 << 63:
            raise InvalidInputError(f"a label must be below 2^63, got {item.label}")
    return np.array([item.label for item in items])
