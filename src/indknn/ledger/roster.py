"""Who has which slot: a small, quick two-way table of owner names and slots.

Most stores number their owners 0, 1, 2, ... as they come. Such a name is its own slot and takes one byte
here; a dict entry and a Python int would take a hundred. Other names are kept in two dicts.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from indknn.types import IntArray, OwnerId


class Roster:
    """Names to slots and back. Freed slots are given out again.

    >>> roster = Roster()
    >>> [roster.add(name) for name in (0, "ann", 2)]
    [0, 1, 2]
    >>> roster.remove(1)
    'ann'
    >>> roster.add("bob"), list(roster), roster.slot("ann")
    (1, [0, 'bob', 2], -1)
    """

    def __init__(self) -> None:
        self._taken = bytearray()
        self._free: list[int] = []
        self._slot: dict[OwnerId, int] = {}  # names that are not their own slot
        self._name: dict[int, OwnerId] = {}

    @property
    def capacity(self) -> int:
        """Slots below this have been given out."""
        return len(self._taken)

    @property
    def next_slot(self) -> int:
        """The slot that the next name will get."""
        return self._free[-1] if self._free else len(self._taken)

    def __len__(self) -> int:
        return len(self._taken) - len(self._free)

    def __iter__(self) -> Iterator[OwnerId]:
        """The names, by slot."""
        for slot, taken in enumerate(self._taken):
            if taken:
                yield self._name.get(slot, slot)

    def restore(self, names: dict[int, OwnerId]) -> None:
        """Take up the given names by slot; the slots between them are free."""
        self._taken = bytearray(max(names, default=-1) + 1)
        for slot in names:
            self._taken[slot] = 1
        self._free = [slot for slot, taken in enumerate(self._taken) if not taken]
        self._name = {slot: name for slot, name in names.items() if name != slot}
        self._slot = {name: slot for slot, name in self._name.items()}

    def name(self, slot: int) -> OwnerId:
        """Who has this slot."""
        return self._name.get(slot, slot)

    def slot(self, name: OwnerId) -> int:
        """The slot of this name, or -1."""
        found = self._slot.get(name, -1)
        if found < 0 and isinstance(name, int) and 0 <= name < len(self._taken):
            return name if self._taken[name] and name not in self._name else -1
        return found

    def taken(self) -> IntArray:
        """The slots that are somebody's, ascending."""
        return np.flatnonzero(np.frombuffer(bytes(self._taken), dtype=np.uint8))

    def add(self, name: OwnerId) -> int:
        """A slot for a name that has none."""
        slot = self._free.pop() if self._free else len(self._taken)
        if slot == len(self._taken):
            self._taken.append(1)
        else:
            self._taken[slot] = 1
        if name != slot:
            self._slot[name] = slot
            self._name[slot] = name
        return slot

    def remove(self, slot: int) -> OwnerId:
        """Free the slot; the name that had it."""
        if not (0 <= slot < len(self._taken) and self._taken[slot]):
            raise KeyError(slot)
        name = self._name.pop(slot, slot)
        self._slot.pop(name, None)
        self._taken[slot] = 0
        self._free.append(slot)
        if not len(self):  # start over, so that a store filled anew numbers its owners in order
            self._taken.clear()
            self._free.clear()
        return name
