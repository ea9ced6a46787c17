"""Finds the owner of each new record, and which record it replaces, if any (rule 13)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from unicodedata import is_normalized

import numpy as np

from indknn.core.advice import Profile
from indknn.core.inputs import (
    EACH_ROW,
    EACH_ROW_PREFIX,
    NEEDS_OWNERS,
    Numbered,
    as_epsilons,
    as_hours,
    as_owners,
    as_record_ids,
    says_each_row,
)
from indknn.engine import Engine
from indknn.errors import InvalidInputError, PrivacyError
from indknn.ledger import MemoryLedger
from indknn.ledger.promises import Wanted, refuse_two, wanted
from indknn.records.book import Match
from indknn.types import FloatArray, Given, IntArray, OwnerId, Vectors

_WHOLE = re.compile(r"[+-]?[0-9]+\.0*|\+[0-9]+")
_UNSAYABLE = re.compile("[\n\r\ud800-\udfff]")  # no request over HTTP can name such a person
_ODD = f"no space at an end, no 17.0 for 17, one line in Unicode NFC, not {EACH_ROW_PREFIX}..."


@dataclass(frozen=True)
class Item:
    """What belongs to a row of features: its label, its owner, and which record it replaces, if any.

    `id` is the number of a record. Its owner stays the same, and need not be named. `record_id` is the caller's own id.
    `expires` is when it takes no further part.
    """

    label: Any
    owner: OwnerId | int | None = None
    id: int | None = None
    record_id: str | int | None = None
    expires: str | None = None
    epsilon: float | None = None
    """The owner's own promise, if it is smaller than the store's."""


@dataclass(frozen=True)
class Added:
    """What became of some rows: the numbers of their records, and warnings.

    `copies` rows were added although their owner has an equal record. `replaced` rows replaced a record, and
    `unchanged` rows were equal to the record with their record id. `expired` rows had expired already, and their number
    is -1.
    """

    numbers: IntArray
    copies: int
    replaced: int
    unchanged: int
    advice: list[Warning]
    expired: int = 0

    @property
    def added(self) -> int:
        """How many rows are new records."""
        return len(self.numbers) - self.replaced - self.unchanged - self.expired


@dataclass(frozen=True)
class NewRows:
    """Records as a caller gives them. `prepared` rows are vectors and class numbers already.

    `items` say whose rows they are, one by one, instead of `owners` and `record_ids`.
    """

    given: Given
    prepared: bool = False
    items: Sequence[Item] | None = None


@dataclass(frozen=True)
class Ready:
    """Records in the form in which they are kept."""

    vectors: Vectors
    labels: IntArray
    owners: Sequence[OwnerId] | None
    """None if each row is a new person."""
    record_ids: Sequence[str | None] | None
    until: IntArray
    """When each row takes no further part."""
    match: Match | None
    """Which rows are here already, if that is known."""
    replaced: IntArray
    """The slots of records that rows replace because they name them by number."""
    replacing: IntArray
    """The rows that name a record by number."""
    epsilons: FloatArray | None = None
    """The promises of the owners, one for each row, NaN where there is none."""
    wanted: Wanted | None = None
    """The promises by owner, if owners are named."""


class Intake:
    """Prepares rows that come in batches. `people` were here before, and `profile` has seen all rows.

    Each row may be a new person only if nobody is here, or with `instead`, when all earlier records go, if nobody has
    spent anything.
    """

    def __init__(self, ledger: MemoryLedger, *, instead: bool = False):
        self.profile, self.people = Profile(), ledger.n_owners
        self._rows, self._instead = 0, instead
        self._promised: dict[OwnerId, float] = {}  # what earlier batches promised
        self._vacant = (instead or not self.people) and not ledger.anything_spent()

    def ready(self, engine: Engine, rows: NewRows) -> Ready:
        """Records in the form in which they are kept, or an error that names the row, counted over all batches."""
        try:
            given = rows.given
            vectors, labels = given.X, given.y
            if not rows.prepared:
                vectors, labels = engine.settings.prepare(vectors, labels, self.profile.see)
            replaced = replacing = np.zeros(0, dtype=np.int64)
            if rows.items is None:
                names = people_of(given.owners, len(labels), engine.ledger, self._vacant)
                chosen: Sequence[str | None] | None = as_record_ids(given.record_ids, len(labels))
                until = as_hours(given.expires, len(labels))
            else:
                names, replaced = people_of_items(rows, engine, self._vacant)
                chosen = record_ids_of(rows.items)
                until = as_hours([item.expires for item in rows.items], len(labels))
                replacing = np.flatnonzero([item.id is not None for item in rows.items])
            epsilons = as_epsilons(given.epsilons, len(labels))
            asked = None if names is None or epsilons is None else self._wanted(engine, names, epsilons)
            match = None
            if names is not None and not self._rows and not self._instead:
                match = engine.match(vectors, labels, names, chosen, until)
        except InvalidInputError as error:
            if not self._rows:
                raise
            raise InvalidInputError(f"{error}, counting from row {self._rows}") from None
        self._rows += len(labels)
        self._vacant &= names is None
        return Ready(vectors, labels, names, chosen, until, match, replaced, replacing, epsilons, asked)

    def _wanted(self, engine: Engine, names: Sequence[OwnerId], epsilons: FloatArray) -> Wanted | None:
        asked = wanted(engine.settings, engine.ledger, names, epsilons)
        for name, epsilon in () if asked is None else zip(asked.names, asked.epsilons.tolist(), strict=True):
            refuse_two(name, self._promised.setdefault(name, epsilon), epsilon)
        return asked


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
    odd = [name for name in names if _is_odd(name)]
    for name in ledger.strangers(odd) if odd else ():
        if ledger.tombstone(name) is None:
            raise InvalidInputError(f"owner {name!r} is new here, and must have a name of another form: {_ODD}")
    return names


def _is_odd(name: OwnerId) -> bool:
    """Whether another person may have this name, or this person another name that looks the same.

    Or nobody could ask for this person by HTTP.
    """
    alike = name != name.strip() or not (name.isascii() or is_normalized("NFC", name)) or _WHOLE.fullmatch(name)
    return bool(alike or _UNSAYABLE.search(name)) or name.startswith(EACH_ROW_PREFIX)


def people_of_items(rows: NewRows, engine: Engine, vacant: bool) -> tuple[Sequence[OwnerId] | None, IntArray]:
    """The same for items that come one by one, and the slots of the records that they replace by number.

    `rows.given.owners` may say that each row is a new person.
    """
    items, shard = rows.items or (), engine.shard
    replaced = shard.slots_of_records([item.id for item in items if item.id is not None])
    if says_each_row(rows.given.owners):
        if any(item.owner is not None or item.id is not None for item in items):
            raise InvalidInputError("each_row is for new people: a record must name neither an owner nor an id")
        return people_of(EACH_ROW, len(items), engine.ledger, vacant), replaced
    owners: list[Any] = [item.owner for item in items]
    known: dict[int, OwnerId] = {}
    for i, item in enumerate(items):
        if item.id is not None:
            (slot,) = shard.owners_of(shard.slots_of_records([item.id])).tolist()
            known[i] = engine.ledger.name_of(slot)
            owners[i] = known[i] if item.owner is None else item.owner
        elif item.owner is None:
            raise InvalidInputError(f"record {i} must name its owner; use each_row if every record is a new person")
    names = people_of(owners, len(items), engine.ledger, vacant)
    for i, owner in known.items():
        if names is not None and names[i] != owner:
            raise InvalidInputError(
                f"record {i} has the id {items[i].id} of a record of another owner: a record never changes its owner, "
                "who has paid for what was released about it; forget it first, then add it without the id"
            )
    return names, replaced


def record_ids_of(items: Sequence[Item]) -> list[str | None] | None:
    """The callers' own ids, None for a row without one. No record may be named twice, by id or by number."""
    numbers = [item.id for item in items if item.id is not None]
    if len(set(numbers)) < len(numbers):
        raise InvalidInputError("a record id must not be given twice")
    rows = [i for i, item in enumerate(items) if item.record_id is not None]
    chosen = as_record_ids([items[i].record_id for i in rows], len(rows)) or []
    ids: list[str | None] = [None] * len(items)
    for i, name in zip(rows, chosen, strict=True):
        ids[i] = name
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
