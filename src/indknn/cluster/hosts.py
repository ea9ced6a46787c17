"""The hosts of a cluster as a coordinator sees them: a link to each, and one call to all of them."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from typing import Any, Protocol, Self

from indknn.cluster.messages import Form
from indknn.errors import ShardError


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


class Hosts:
    """All hosts. `connect` starts or finds the host with a number. `threads` is how many cores each may use."""

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
        for number, link in enumerate(self._links):
            self._links[number] = link or self._connect(number)
        try:
            self._gather([("begin", incarnation, form, self._threads)] * len(self))
        except ShardError:  # one had died meanwhile; the second time all of them are new
            self.close()
            self._links = [self._connect(number) for number in range(len(self))]
            self._gather([("begin", incarnation, form, self._threads)] * len(self))
        return incarnation

    def ask(self, incarnation: str, name: str, arguments: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Make the same call to every host at once, each with its own arguments. Returns all results."""
        return self._gather([("call", incarnation, name, *own) for own in arguments])

    def _gather(self, messages: Sequence[tuple[Any, ...]]) -> list[Any]:
        given: list[Any] = []
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
                    given.append(link.receive() if link else None)
                except ShardError as error:
                    given.append(None)
                    failure = error
                    self._drop(number)
        except BaseException:  # an interrupt: half of a message may be sent, so these hosts are not used again
            for number in range(len(messages)) if sending else range(len(given), len(messages)):
                self._drop(number)
            raise
        if failure is not None:
            raise failure
        return given

    def _link(self, number: int) -> Link:
        link = self._links[number]
        if link is None:
            raise ShardError(f"shard {number} is gone")
        return link

    def _drop(self, number: int) -> None:
        link, self._links[number] = self._links[number], None
        if link is not None:
            link.close()
