"""Promises of single people: a smaller ε than the public default, for whoever asked for it.

Who has which promise is private (rule 8). So noise, schedules, prices and everything else that leaves follow the public
default. A smaller promise only changes how much of what that person holds can take part.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from indknn.core import accounting
from indknn.errors import InvalidInputError
from indknn.types import BoolArray, FloatArray, IntArray, OwnerId

if TYPE_CHECKING:
    from indknn.ledger.memory import MemoryLedger
    from indknn.settings import Settings

STEPS = 50
"""A person is told a whole number of B/STEPS (rule 8)."""
PROMISE = np.dtype([("epsilon", "<f8"), *((name, "<i8") for name in ("whole", "part", "before", "over"))])
"""The promise of one person. `core/_votes.c` reads it too. All are 0 if the public default holds.

`whole` is the budget of ε, in units, and `part` the part of it for what all analysts see. `before` is what counted for
one analyst in this period when the promise was made. Nobody spends more than `whole`, or else `before`, in a period.
`over` is the most that counts from the periods that are over, made of rounded figures, so that the person may see it.
"""


@dataclass(frozen=True)
class Wanted:
    """Promises that some people are to have, each person once. `new` people were never here before."""

    names: Sequence[OwnerId]
    epsilons: FloatArray
    units: IntArray
    new: BoolArray

    def only(self, keep: BoolArray) -> Wanted:
        """The same without the others."""
        names = [name for name, kept in zip(self.names, keep.tolist(), strict=True) if kept]
        return Wanted(names, self.epsilons[keep], self.units[keep], self.new[keep])


def wanted(
    settings: Settings, ledger: MemoryLedger, names: Sequence[OwnerId], epsilons: FloatArray | None, row: str = "row {}"
) -> Wanted | None:
    """The promises that these rows ask for, one ε per row, NaN for none. None if there is none at all.

    A promise is above 0 and at most the store's. Rows of one person must agree, and nobody's promise is ever raised.
    """
    most = settings.global_epsilon or settings.epsilon
    given: dict[OwnerId, float] = {}
    if epsilons is None:
        return None
    for i in np.flatnonzero(~np.isnan(epsilons)).tolist():
        name, epsilon = names[i], float(epsilons[i])
        if not accounting.MIN_EPSILON <= epsilon <= most:
            least = f"at least {accounting.MIN_EPSILON:g} and at most the store's, {most:g}: it may only be lower"
            raise InvalidInputError(f"epsilon of {row.format(i)} must be {least}, got {epsilon:g}")
        refuse_two(name, given.setdefault(name, epsilon), epsilon)
    if not given:
        return None
    everyone, values = list(given), np.array(list(given.values()))
    sizes = {e: accounting.to_units(accounting.budget(e, settings.delta, settings.accountant)) for e in set(values)}
    units = np.array([sizes[epsilon] for epsilon in values], dtype=np.int64)
    present = ledger.promises_of(everyone)
    raised = np.flatnonzero((present["whole"] > 0) & (units > present["whole"]))
    if len(raised):
        name, was, now = everyone[raised[0]], present["epsilon"][raised[0]], values[raised[0]]
        raise InvalidInputError(f"epsilon of owner {name!r} may only be lower: {was:g} was promised, got {now:g}")
    new = ledger.find(everyone) < 0
    if ledger.tombstones:
        new &= np.array([ledger.tombstone(name) is None for name in everyone])
    return Wanted(everyone, values, units, new)


def refuse_two(name: OwnerId, one: float, other: float) -> None:
    """Refuse two different promises for one person."""
    if one != other:
        raise InvalidInputError(f"owner {name!r} has rows with epsilon {one:g} and {other:g}: give one")


def parts_of(whole: IntArray, budget: int, shared_budget: int) -> IntArray:
    """The parts of these budgets for what all analysts see, in the proportion of the public default.

    >>> parts_of(np.array([50, 7]), 100, 90).tolist()
    [45, 6]
    """
    sizes, where = np.unique(whole, return_inverse=True)
    parts = [min(size, budget) * shared_budget // budget for size in sizes.tolist()]  # Python's integers: no overflow
    return np.array(parts, dtype=np.int64)[where]


def rounded_up(units: IntArray, budget: int) -> IntArray:
    """The same, rounded up to whole parts of the budget, as a person may see it (rule 8).

    >>> rounded_up(np.array([0, 1, 2, 3]), 100).tolist()
    [0, 2, 2, 4]
    """
    sizes, where = np.unique(units, return_inverse=True)
    steps = [-(-size * STEPS // budget) for size in sizes.tolist()]  # Python's integers, as above
    return np.array([min(-(-n * budget // STEPS), accounting.MAX_UNITS) for n in steps], dtype=np.int64)[where]


def in_new_period(promises: npt.NDArray[np.void], budget: int, shared_budget: int) -> None:
    """Let promises hold for a new period, in which nobody has spent anything."""
    whole = promises["whole"]
    most = np.where(whole > 0, np.maximum(whole, rounded_up(promises["before"], budget)), 0)
    promises["over"] = np.minimum(promises["over"] + most, accounting.MAX_UNITS)
    promises["part"], promises["before"] = parts_of(whole, budget, shared_budget), 0


def keep_promises(settings: Settings, ledger: MemoryLedger) -> None:
    """Keep promises under other settings, when everybody was just forgotten. Their budgets can only become smaller."""
    for digest, grave in ledger.tombstones.items():
        if grave.promise is not None:
            epsilon, was, part, before, over = grave.promise
            whole = min(was, accounting.to_units(accounting.budget(epsilon, settings.delta, settings.accountant)))
            if whole < was:  # what was spent was within the old budget, and may not be within the new one
                spent = {scope: np.array([grave.spent.get(scope, 0)]) for scope in ledger.scopes}
                before = int(ledger.observed(spent)[0][0])
            (most,) = parts_of(np.array([whole]), ledger.budget, ledger.shared_budget).tolist()
            promise = epsilon, whole, min(part, most) if ledger.used else most, before, over
            ledger.tombstones[digest] = replace(grave, promise=promise)
