"""Finds the owner of each new record, and which record it replaces, if any (rule 13)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from unicodedata import is_normalized

import numpy as np
import numpy.typing as npt

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
from indknn.records.any_shard import Match, NewRecords
from indknn.types import FloatArray, Given, IntArray, OwnerId, Vectors

_WHOLE = re.compile(r"[+-]?[0-9]+\.0*|\+[0-9]+")
_UNSAYABLE = re.compile("[\n\r\ud800-\udfff]")  # no request over HTTP can name such a person
_ODD = f"no space at an end, no 17.0 for 17, one line in Unicode NFC, not {EACH_ROW_PREFIX}..."


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
class Ready:
    """Records in the form in which they are kept, and what they mean for those that are here."""

    rows: NewRecords
    match: Match | None
    """Which rows are here already, if that is known."""
    replaced: IntArray
    """The slots of records that rows replace because they name them by number."""
    replacing: IntArray
    """The rows that name a record by number."""
    wanted: Wanted | None
    """Smaller promises of the owners, if there are any."""


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

    def ready(self, engine: Engine, given: Given, numbers: Sequence[int | None] | None = None) -> Ready:
        """Records in the form in which they are kept, or an error that names the row, counted over all batches.

        `numbers` are those of the records that rows replace, None for a row that is new. The owner of such a record
        stays the same, and need not be named. With `numbers`, rows may also lack a record id.
        """
        try:
            vectors, labels = given.X, given.y
            if not isinstance(vectors, Vectors):
                vectors, labels = engine.settings.prepare(vectors, labels, self.profile.see)
            replaced = replacing = np.zeros(0, dtype=np.int64)
            if numbers is None:
                names = people_of(given.owners, len(labels), engine.ledger, self._vacant)
                chosen: Sequence[str | None] | None = as_record_ids(given.record_ids, len(labels))
            else:
                names, replaced = people_replacing(numbers, given.owners, engine, self._vacant)
                chosen = some_record_ids(numbers, given.record_ids)
                replacing = np.flatnonzero([number is not None for number in numbers])
            until = as_hours(given.expires, len(labels))
            epsilons = as_epsilons(given.epsilons, len(labels))
            self._vacant &= names is None
            if names is None:  # each row is a new person
                names = engine.ledger.new_names(len(labels), EACH_ROW_PREFIX)
            asked = None if epsilons is None else self._wanted(engine, names, epsilons)
            new = NewRecords(vectors, labels, names, chosen, until)
            match = None if self._rows or self._instead else engine.match(new)
        except InvalidInputError as error:
            if not self._rows:
                raise
            raise InvalidInputError(f"{error}, counting from row {self._rows}") from None
        self._rows += len(labels)
        return Ready(new, match, replaced, replacing, asked)

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


def people_replacing(
    numbers: Sequence[int | None], given: Any, engine: Engine, vacant: bool
) -> tuple[Sequence[OwnerId] | None, IntArray]:
    """The same for rows that may replace records, and the slots of the records that they replace by number."""
    shard = engine.shard
    replaced = shard.slots_of_records([number for number in numbers if number is not None])
    if says_each_row(given):
        return people_of(EACH_ROW, len(numbers), engine.ledger, vacant), replaced
    owners: list[Any] = list(given)
    known: dict[int, OwnerId] = {}
    for i, number in enumerate(numbers):
        if number is not None:
            (slot,) = shard.owners_of(shard.slots_of_records([number])).tolist()
            known[i] = engine.ledger.name_of(slot)
            owners[i] = known[i] if owners[i] is None else owners[i]
        elif owners[i] is None:
            raise InvalidInputError(f"record {i} must name its owner; use each_row if every record is a new person")
    names = people_of(owners, len(numbers), engine.ledger, vacant)
    for i, owner in known.items():
        if names is not None and names[i] != owner:
            raise InvalidInputError(
                f"record {i} has the id {numbers[i]} of a record of another owner: a record never changes its owner, "
                "who has paid for what was released about it; forget it first, then add it without the id"
            )
    return names, replaced


def some_record_ids(numbers: Sequence[int | None], given: Sequence[Any] | None) -> list[str | None] | None:
    """The callers' own ids, None for a row without one. No record may be named twice, by id or by number."""
    known = [number for number in numbers if number is not None]
    if len(set(known)) < len(known):
        raise InvalidInputError("a record id must not be given twice")
    ids: list[Any] = [None] * len(numbers) if given is None else list(given)
    rows = [i for i, name in enumerate(ids) if name is not None]
    for i, name in zip(rows, as_record_ids([ids[i] for i in rows], len(rows)) or (), strict=True):
        ids[i] = name
    return ids if rows else None


def labels_of(labels: Sequence[Any]) -> npt.NDArray[Any]:
    """The labels, which must be of one type."""
    kinds = sorted({type(label).__name__ for label in labels})
    if len(kinds) > 1:
        raise InvalidInputError(f"all labels must be of one type, got {kinds}")
    for label in labels:
        if isinstance(label, int) and not -(1 << 63) <= label < 1 << 63:
            raise InvalidInputError(f"a label must be below 2^63, got {label}")
    return np.array(labels)
