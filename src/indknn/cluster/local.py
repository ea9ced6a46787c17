"""Shard processes on this machine, each connected by a private socket.

A host ends when its coordinator closes the socket or dies. Nothing listens on the network.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from multiprocessing.connection import Connection
from time import monotonic
from typing import Any
from weakref import finalize

from indknn.cluster.coordinator import Cluster
from indknn.cluster.host import Host
from indknn.cluster.hosts import Link
from indknn.errors import IndKNNError, InvalidInputError, ShardError

PATIENCE = 120.0
"""How many seconds a host may take for one call."""
MOST_SHARDS = 256
_MAIN = "from indknn.cluster.local import main; main()"


def local_cluster(shards: int, *, patience: float = PATIENCE) -> Cluster:
    """A cluster of this many shard processes on this machine, which share its cores. They start when they are needed.

    >>> with local_cluster(2) as cluster:
    ...     len(cluster)
    2
    """
    shards = checked_number(shards)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return Cluster(lambda number: Process(number, patience), shards, threads=max(cores // shards, 1))


def checked_number(shards: int) -> int:
    """Check a number of shards."""
    if isinstance(shards, bool) or not isinstance(shards, int) or not 1 <= shards <= MOST_SHARDS:
        raise InvalidInputError(f"shards must be a whole number from 1 to {MOST_SHARDS}, got {shards!r}")
    return shards


class Inline:
    """A host in this same process. Tests compare the others with it."""

    def __init__(self, number: int = 0):
        self._host, self._given = Host(), None

    def send(self, name: str, *arguments: Any) -> None:
        """Call at once."""
        self._given = getattr(self._host, name)(*arguments)

    def receive(self) -> Any:
        """What it gave."""
        return self._given

    def close(self) -> None:
        """Nothing to do."""


class Process:
    """A host in its own process."""

    def __init__(self, number: int, patience: float):
        self._number, self._patience, self._sent = number, patience, 0
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _MAIN, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
            )
        self._connection = Connection(ours.detach())
        self._end = finalize(self, _end, self._connection, self._process)  # also if nobody closes it

    @property
    def pid(self) -> int:
        """The number of the process."""
        return self._process.pid

    def send(self, name: str, *arguments: Any) -> None:
        """Call without waiting."""
        self._sent += 1
        try:
            self._connection.send((self._sent, name, arguments))
        except OSError as error:
            raise ShardError(f"shard {self._number} is gone: {error!r}") from error

    def receive(self) -> Any:
        """What the latest call gave."""
        start = monotonic()
        while True:
            try:
                while not self._connection.poll(min(self._patience, 1.0)):
                    # This process may have been suspended, and the answer came meanwhile: look once more.
                    if monotonic() - start >= self._patience and not self._connection.poll(0):
                        raise ShardError(f"shard {self._number} did not answer within {self._patience:g} seconds")
                number, given, error = self._connection.recv()
            except (OSError, EOFError) as gone:
                raise ShardError(f"shard {self._number} is gone: {gone!r}") from gone
            if number == self._sent:  # an earlier number is the answer to a call that was interrupted
                break
        if error is not None:
            raise ShardError(f"shard {self._number} failed: {error}")
        return given

    def close(self) -> None:
        """Give it up. If the process is suspended, it finds its socket closed when it continues."""
        self._end()


def _end(connection: Connection, process: subprocess.Popen[bytes]) -> None:
    connection.close()
    with suppress(subprocess.TimeoutExpired):
        process.wait(0.5)
        return
    process.kill()  # everything it holds is also in the store
    process.wait()


def serve(connection: Connection) -> None:
    """Answer calls until the coordinator is gone."""
    host = Host()
    with suppress(OSError, EOFError):
        while True:
            number, name, arguments = connection.recv()
            reply: tuple[int, Any, str | None]
            try:
                reply = number, getattr(host, name)(*arguments), None
            except Exception as error:  # it is raised in the coordinator
                reply = number, None, str(error) if isinstance(error, IndKNNError) else repr(error)
            connection.send(reply)


def main() -> None:
    """The main program of a shard process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the coordinator
    serve(Connection(int(sys.argv[1])))


_LINKS: tuple[type[Link], ...] = (Inline, Process)  # mypy checks that they are links
