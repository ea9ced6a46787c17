"""How many connections there may be: in all, a quarter of it for one address without a key, half of it for one key.

Where there are too many, the one closes that has waited longest for its client. So idle connections, however many,
keep nobody out: whoever sends a request gets in.
"""

from __future__ import annotations

import resource
from typing import Protocol

from indknn.errors import InvalidInputError

BACKLOG = 128
"""Connections that the system may hold ready. All of them may be accepted before the first is counted."""
RESERVE = BACKLOG + 96
"""Descriptors that no connection may take: for what is accepted at one moment, the store, its witness, the keys."""


class Connection(Protocol):
    """What is asked of a connection."""

    def idle_since(self) -> float | None:
        """Since when it waits for its client; None while the client waits for an answer."""

    def drop(self) -> None:
        """Close it at once."""


class Connections:
    """All connections, by who holds them: an address, then the key that it has shown."""

    def __init__(self, most: int):
        self.most = most
        self.without_key = max(1, most // 4)
        self._holders: dict[Connection, str] = {}
        self._by_holder: dict[str, set[Connection]] = {}

    def __len__(self) -> int:
        return len(self._holders)

    def opened(self, connection: Connection, address: str) -> None:
        """A client has connected. It, or another one, closes where there are too many."""
        self._enter(connection, f"address {address}")
        self._make_room(connection, self._by_holder[f"address {address}"], self.without_key)
        if len(self._holders) > self.most:
            self._make_room(connection, max(self._by_holder.values(), key=len), 0)

    def shown(self, connection: Connection, key: str) -> None:
        """The client has shown this key."""
        holder = f"key {key}"
        if connection in self._holders and self._holders[connection] != holder:
            self.closed(connection)
            self._enter(connection, holder)
            self._make_room(connection, self._by_holder[holder], max(1, self.most // 2))

    def closed(self, connection: Connection) -> None:
        """The connection is no more."""
        holder = self._holders.pop(connection, None)
        if holder is not None:
            held = self._by_holder[holder]
            held.discard(connection)
            if not held:
                del self._by_holder[holder]

    def _enter(self, connection: Connection, holder: str) -> None:
        self._holders[connection] = holder
        self._by_holder.setdefault(holder, set()).add(connection)

    def _make_room(self, newest: Connection, held: set[Connection], most: int) -> None:
        """Close the one of these that has been idle longest, if they are too many; the newest if none is idle."""
        if len(held) > most:
            idle = [(since, id(c), c) for c in held if c is not newest and (since := c.idle_since()) is not None]
            chosen = min(idle)[2] if idle else newest
            self.closed(chosen)
            chosen.drop()


def allowed(wanted: int) -> int:
    """How many connections there may be, by the descriptors of this process; asks the system for as many as wanted."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < wanted + RESERVE:
        soft = wanted + RESERVE if hard == resource.RLIM_INFINITY else min(wanted + RESERVE, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    if soft <= RESERVE:
        raise InvalidInputError(f"this process may have {soft} open files: a server needs more than {RESERVE}")
    return min(wanted, soft - RESERVE)
