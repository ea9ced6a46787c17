"""Links to the hosts of a cluster: one call to all of them, and hosts in processes of this machine.

Each process is connected by a private socket. A host ends when its coordinator closes the socket or dies. Nothing
listens on the network.
"""

from __future__ import annotations

import secrets
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from time import monotonic
from typing import Any, Protocol, Self
from weakref import finalize

from indknn.cluster.host import Form, Host
from indknn.errors import IndKNNError, InvalidInputError, ShardError

PATIENCE = 120.0
"""How many seconds a host may take for one call."""
MOST_SHARDS = 256
_MAIN = "from indknn.cluster.links import main; main()"


class Link(Protocol):
    """The connection to one host. Answers come in the order of the calls."""

    def send(self, name: str, *arguments: Any) -> None:
        """Call without waiting."""
        ...

    def receive(self) -> Any:
        """The result of the latest call. ShardError if the host is gone, or does not answer in time."""
        ...

    def close(self) -> None:
        """Give up the host. Anything that it still sends is ignored."""
        ...


class Links:
    """Links to all hosts. `connect` starts or finds the host with a number. Each may use so many `threads`."""

    def __init__(self, connect: Callable[[int], Link], n: int, threads: int | None = None):
        self._connect, self._threads = connect, threads
        self._links: list[Link | None] = [None] * n

    def __len__(self) -> int:
        return len(self._links)

    def __deepcopy__(self, memo: Any) -> Self:
        return self  # scikit-learn copies the parameters of an estimator

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Give up all hosts."""
        for number in range(len(self._links)):
            self._drop(number)

    def begin(self, form: Form) -> str:
        """Empty all hosts, and return their new incarnation. From now on earlier users are refused."""
        incarnation = secrets.token_hex(16)
        for again in (True, False):
            new = [number for number, link in enumerate(self._links) if link is None]
            for number in new:
                self._links[number] = self._connect(number)
            try:
                self._gather([("begin", incarnation, form, self._threads)] * len(self))
                break
            except ShardError:  # one had died meanwhile: it is replaced, but a new one that fails is not
                if not again or any(self._links[number] is None for number in new):
                    raise
        return incarnation

    def ask(self, incarnation: str, name: str, arguments: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Make the same call to every host at once, each with its own arguments. Returns all results."""
        return self._gather([("call", incarnation, name, *own) for own in arguments])

    def _gather(self, messages: Sequence[tuple[Any, ...]]) -> list[Any]:
        answers: list[Any] = []
        failure, sending = None, True
        try:
            for number, message in enumerate(messages):
                try:
                    self._link(number).send(*message)
                except ShardError as error:
                    failure = error
                    self._drop(number)
            sending = False
            for number, link in enumerate(self._links):
                try:
                    answers.append(link.receive() if link else None)
                except ShardError as error:
                    answers.append(None)
                    failure = error
                    self._drop(number)
        except BaseException:  # an interrupt: half of a message may be sent, so these hosts are not used again
            for number in range(len(messages)) if sending else range(len(answers), len(messages)):
                self._drop(number)
            raise
        if failure is not None:
            raise failure
        return answers

    def _link(self, number: int) -> Link:
        link = self._links[number]
        if link is None:
            raise ShardError(f"shard {number} is gone")
        return link

    def _drop(self, number: int) -> None:
        link, self._links[number] = self._links[number], None
        if link is not None:
            link.close()


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
                number, answer, error = self._connection.recv()
            except (OSError, EOFError) as gone:
                raise ShardError(f"shard {self._number} is gone: {gone!r}") from gone
            if number == self._sent:  # an earlier number is the answer to a call that was interrupted
                break
        if error is not None:
            raise ShardError(f"shard {self._number} failed: {error}")
        return answer

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
