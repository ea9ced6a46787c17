"""Names and slots: who has which slot of the ledger."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from indknn.core.inputs import EACH_ROW_PREFIX, Numbered, number_in
from indknn.types import IntArray, OwnerId

_FREE, _NUMBER, _EACH_ROW, _NAMED = range(4)  # the kinds of names that a byte can stand for
_PREFIX = {_NUMBER: "", _EACH_ROW: EACH_ROW_PREFIX}
_KINDS = {prefix: kind for kind, prefix in _PREFIX.items()}
_FIRST = "0123456789" + EACH_ROW_PREFIX[0]  # the first letters of such names


class Roster:
    """A small and fast two-way table of names and slots. Freed slots are used again.

    Many stores number their owners 0, 1, 2, ... as they come. The text of such a number follows from the slot, and so
    does the name that is made for the owner of a row without one. Such names take one byte here, where dict entries and
    a Python str would take two hundred. Other names are kept in two dicts.

    >>> roster = Roster()
    >>> [roster.add(name) for name in ("0", "ann", "2")]
    [0, 1, 2]
    >>> roster.remove(1)
    'ann'
    >>> roster.add("bob"), list(roster), roster.slot("ann")
    (1, ['0', 'bob', '2'], -1)
    """

    def __init__(self) -> None:
        self._taken = bytearray()
        self._free: list[int] = []
        self._slot: dict[OwnerId, int] = {}  # names that do not follow from their slots
        self._name: dict[int, OwnerId] = {}

    def copy(self, *, names: bool = True) -> Roster:
        """A copy. Without `names`, which take longest, it knows only which slots are taken."""
        other = Roster()
        other._taken, other._free = self._taken.copy(), self._free.copy()
        if names:
            other._slot, other._name = self._slot.copy(), self._name.copy()
        return other

    @property
    def capacity(self) -> int:
        """All slots below this have been used."""
        return len(self._taken)

    @property
    def next_slot(self) -> int:
        """The slot that the next name will get."""
        return self._free[-1] if self._free else len(self._taken)

    def __len__(self) -> int:
        return len(self._taken) - len(self._free)

    def __iter__(self) -> Iterator[OwnerId]:
        """The names, by slot."""
        return (self.name(slot) for slot, kind in enumerate(self._taken) if kind)

    def restore(self, names: Iterable[tuple[int, OwnerId]]) -> None:
        """Restore the given slots and their names. The slots between them are free."""
        self._taken, self._slot, self._name = bytearray(), {}, {}
        for slot, name in names:
            if slot >= len(self._taken):
                self._taken.extend(bytes(slot + 1 - len(self._taken)))
            self._name_slot(slot, name)
        self._free = [slot for slot, kind in enumerate(self._taken) if not kind]

    def name(self, slot: int) -> OwnerId:
        """The name of the owner in this slot."""
        kind = self._taken[slot]
        return self._name[slot] if kind == _NAMED else f"{_PREFIX[kind]}{slot}"

    def slot(self, name: OwnerId) -> int:
        """The slot of this name, or -1."""
        found = self._slot.get(name, -1)
        if found >= 0:
            return found
        kind, number = _kind_of(name)
        return number if 0 <= number < len(self._taken) and self._taken[number] == kind else -1

    def slots_of(self, names: Sequence[OwnerId]) -> IntArray:
        """The slot of each name, or -1."""
        known = self._slot.get
        if not isinstance(names, Numbered):
            found = [known(name, -1) for name in names]
            slots = np.array(found, dtype=np.int64)
            rest = [i for i in np.flatnonzero(slots < 0).tolist() if names[i][:1] in _FIRST]
            slots[rest] = [self.slot(names[i]) for i in rest]
            return slots
        numbers, taken = names.numbers, np.frombuffer(self._taken, dtype=np.uint8)
        own = numbers < len(taken)
        if len(taken):
            own &= taken[np.where(own, numbers, 0)] == _KINDS[names.prefix]
        slots = np.where(own, numbers, -1)
        if self._slot and not own.all():
            rest_of = np.flatnonzero(~own)
            slots[rest_of] = [known(name, -1) for name in names[rest_of]]
        return slots

    def strangers(self, names: Sequence[OwnerId]) -> Sequence[OwnerId]:
        """The names without a slot, each once, in order."""
        missing = np.flatnonzero(self.slots_of(names) < 0)
        if not isinstance(names, Numbered):
            return list(dict.fromkeys([names[i] for i in missing.tolist()]))
        new = names[missing]
        if (new.numbers[1:] > new.numbers[:-1]).all():  # usually they are in order, and so all different
            return new
        return new[np.sort(np.unique(new.numbers, return_index=True)[1])]

    def add_all(self, names: Sequence[OwnerId]) -> None:
        """Give a slot to each of these different new names, the same slots that `add` would give one by one."""
        recycled = [self._free.pop() for _ in range(min(len(names), len(self._free)))]
        first, fresh = len(self._taken), len(names) - len(recycled)
        self._taken.extend(bytes(fresh))
        slots = np.append(np.array(recycled, dtype=np.int64), np.arange(first, first + fresh))
        if isinstance(names, Numbered):
            own = names.numbers == slots
            np.frombuffer(self._taken, dtype=np.uint8)[slots[own]] = _KINDS[names.prefix]
            slots, names = slots[~own], names[np.flatnonzero(~own)]
        for slot, name in zip(slots.tolist(), names, strict=True):
            self._name_slot(slot, name)

    def taken(self) -> IntArray:
        """The slots in use, in ascending order."""
        return np.flatnonzero(np.frombuffer(bytes(self._taken), dtype=np.uint8))

    def add(self, name: OwnerId) -> int:
        """Give a slot to a new name."""
        slot = self._free.pop() if self._free else len(self._taken)
        if slot == len(self._taken):
            self._taken.append(_FREE)
        self._set(slot, name)
        return slot

    def remove(self, slot: int) -> OwnerId:
        """Free the slot, and return the name that had it."""
        if not (0 <= slot < len(self._taken) and self._taken[slot]):
            raise KeyError(slot)
        name = self.name(slot)
        self._name.pop(slot, None)
        self._slot.pop(name, None)
        self._taken[slot] = _FREE
        self._free.append(slot)
        if not len(self):  # start over, so that a refilled store numbers its owners in order
            self._taken.clear()
            self._free.clear()
        return name

    def _name_slot(self, slot: int, name: OwnerId) -> None:
        if name[:1] in _FIRST:
            self._set(slot, name)
        else:  # the usual case, in half the time
            self._taken[slot], self._slot[name], self._name[slot] = _NAMED, slot, name

    def _set(self, slot: int, name: OwnerId) -> None:
        kind, number = _kind_of(name)
        if number == slot:
            self._taken[slot] = kind
        else:
            self._taken[slot] = _NAMED
            self._slot[name], self._name[slot] = slot, name


def _kind_of(name: OwnerId) -> tuple[int, int]:
    """The kind and the slot of a name that follows from its slot. The slot is -1 for all other names."""
    if name.startswith(EACH_ROW_PREFIX):
        return _EACH_ROW, number_in(name.removeprefix(EACH_ROW_PREFIX))
    return _NUMBER, number_in(name)
