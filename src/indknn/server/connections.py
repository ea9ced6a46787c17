"""Limits on connections: in all, a quarter of that for one address without a key, and half of it for one key.

If there are too many, the connection that has waited longest for its client is closed. So idle connections never keep
others out: a client that sends a request gets in.
"""

from __future__ import annotations

import resource
from typing import Protocol

from indknn.errors import InvalidInputError

BACKLOG = 128
"""How many connections the system may hold ready. All of them may be accepted before the first is counted."""
RESERVE = BACKLOG + 96
"""Descriptors that no connection may use. They are for connections accepted at one moment, the store, its witness and
the keys."""


class Connection(Protocol):
    """What is asked of a connection."""

    def idle_since(self) -> float | None:
        """Since when it waits for its client. None while the client waits for an answer."""

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
        """A client has connected. If there are too many connections, this one or another one is closed."""
        self._enter(connection, f"address {address}")
        room = self._has_room(connection, self._by_holder[f"address {address}"], self.without_key)
        if room and len(self._holders) > self.most:
            room = self._has_room(connection, max(self._by_holder.values(), key=len), 0)
        if not room:
            self._close(connection)

    def shown(self, connection: Connection, key: str) -> bool:
        """The client has shown this key. Returns whether there is room for one more connection of that key."""
        holder = f"key {key}"
        if self._holders.get(connection, holder) == holder:
            return True
        self.closed(connection)
        self._enter(connection, holder)
        return self._has_room(connection, self._by_holder[holder], max(1, self.most // 2))

    def closed(self, connection: Connection) -> None:
        """The connection was closed."""
        holder = self._holders.pop(connection, None)
        if holder is not None:
            held = self._by_holder[holder]
            held.discard(connection)
            if not held:
                del self._by_holder[holder]

    def _enter(self, connection: Connection, holder: str) -> None:
        self._holders[connection] = holder
        self._by_holder.setdefault(holder, set()).add(connection)

    def _has_room(self, newest: Connection, held: set[Connection], most: int) -> bool:
        """Close the connection that was idle longest, if there are too many.

        False if only the newest could be closed.
        """
        if len(held) <= most:
            return True
        idle = [(since, id(c), c) for c in held if c is not newest and (since := c.idle_since()) is not None]
        if idle:
            self._close(min(idle)[2])
        return bool(idle)

    def _close(self, connection: Connection) -> None:
        self.closed(connection)
        connection.drop()


def allowed(wanted: int) -> int:
    """How many connections are possible with the descriptors of this process. Asks the system for as many as wanted."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < wanted + RESERVE:
        soft = wanted + RESERVE if hard == resource.RLIM_INFINITY else min(wanted + RESERVE, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    if soft <= RESERVE:
        raise InvalidInputError(f"this process may have {soft} open files: a server needs more than {RESERVE}")
    return min(wanted, soft - RESERVE)
