"""Records that come one by one, each new or in the place of another: labels and owners of such items."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from indknn.core.inputs import as_owner_list
from indknn.engine import Engine
from indknn.errors import InvalidInputError
from indknn.types import OwnerId


@dataclass(frozen=True)
class Item:
    """What goes with a row of features: its label, whose it is, and the id of the record that it replaces.

    Without an owner the record is a new person's, or stays with the owner of the record that it replaces.
    """

    label: Any
    owner: OwnerId | None = None
    id: int | None = None


def owners_of(items: Sequence[Item], engine: Engine) -> list[OwnerId]:
    """Whose each row is. Those without a name get numbers that were nobody's and are not given here."""
    shard, ledger = engine.shard, engine.ledger
    named = as_owner_list([item.owner for item in items if item.owner is not None])
    number = max([ledger.next_number, *(name + 1 for name in named if isinstance(name, int))])
    owners, rest = [], iter(named)
    for item in items:
        if item.owner is not None:
            owners.append(next(rest))
        elif item.id is not None:
            (slot,) = shard.owners_of(shard.slots_of_records([item.id])).tolist()
            owners.append(ledger.name_of(slot))
        else:
            owners.append(number)
            number += 1
    return owners


def labels_of(items: Sequence[Item]) -> Any:
    """The labels, which must be of one type."""
    kinds = sorted({type(item.label).__name__ for item in items})
    if len(kinds) > 1:
        raise InvalidInputError(f"all labels must be of one type, got {kinds}")
    for item in items:
        if isinstance(item.label, int) and not -(1 << 63) <= item.label < 1 << 63:
            raise InvalidInputError(f"a label must be below 2^63, got {item.label}")
    return np.array([item.label for item in items])
