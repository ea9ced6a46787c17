"""Shards as Ray actors on many machines. They are found by name, and each new coordinator empties them.

They are plain actors, not Ray Serve, because each is unique and has a state. They end with their coordinator, however
it ends: otherwise they would keep records of people who are forgotten later. Ray never repeats a call by itself,
because a call that charges must not run twice. Ray restarts an actor that died. It is then empty and is filled again.
"""

from __future__ import annotations

import os
import secrets
import sys
from contextlib import suppress
from ipaddress import ip_address
from pathlib import Path
from time import monotonic
from typing import Any

from indknn.cluster.host import Host
from indknn.cluster.links import PATIENCE, checked_number
from indknn.cluster.shard import Cluster
from indknn.errors import PrivacyError, ShardError, needs

NAMESPACE = "indknn"
_INLINE = str(128 << 20)
QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_worker_niceness": "0",
    "RAY_max_direct_call_object_size": _INLINE,
    "RAY_task_rpc_inlined_bytes_limit": _INLINE,
}
"""No usage statistics. Shards run at normal priority, because somebody waits for them: Ray would lower it. Messages up
to 128 MB go straight to the other process. Otherwise those above 100 kB would pass through Ray's object store, which
keeps records in shared memory, and did not bring them to another host at all (tests/cluster/hosts)."""
OPENING, AGAIN, AT_MOST = 60.0, 15.0, 120.0
"""How many seconds Ray may take to start the first shards of a process, and one in place of a lost shard. Nobody is
answered meanwhile, and a lost head never answers, so that wait is short at first. Each further one is twice as long."""
LOOPBACK = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
"""Makes Ray listen on loopback only. Without it, Ray listens on all addresses of the machine. Ray reads this when it is
imported, so it must be in the environment before."""


def ray_cluster(
    address: str | None, shards: int, *, name: str = "people", patience: float = PATIENCE, cpus: float = 1.0
) -> Cluster:
    """A cluster of shards in Ray at this address. None starts Ray on this machine, on loopback only.

    `name` distinguishes the shards of one store from those of another. When the shards are first used, shards of the
    same name from an earlier coordinator are ended. By then this process must own the store. Each shard reserves `cpus`
    cores.
    """
    session = RayConnection(address, name, cpus)
    return Cluster(lambda number: session.start(number, patience), checked_number(shards), threads=max(int(cpus), 1))


class RayConnection:
    """Ray as this process is connected to it, for the shards of one store.

    If a shard cannot be started, Ray's head may have been started anew, and knows nobody of before. Then the next shard
    is started over a new connection.
    """

    connections = 0  # of this process, one after the other: its stores share one

    def __init__(self, address: str | None, name: str, cpus: float):
        self._address, self._name, self._cpus = address, name, cpus
        self.lost, self.wait = False, OPENING  # the latter for a shard that is being started
        self._connect()

    def _connect(self) -> None:
        self.ray = connected(self._address)
        self._connection, self._ended = RayConnection.connections, False

    def _connect_again(self) -> None:
        """If this connection was lost, or another store in this process has replaced it."""
        if self.lost and self._connection == RayConnection.connections:
            self.ray.shutdown()
            RayConnection.connections += 1
        if self._connection != RayConnection.connections:
            self._connect()
        self.lost = False

    def start(self, number: int, patience: float) -> Actor:
        """Start a shard. The first time on a connection, shards that an earlier coordinator left are ended.

        By then this process must own the store.
        """
        try:
            self._connect_again()
            self.lost = True  # unless all of this succeeds
            if not self._ended:
                end_shards(self._name)
                self._ended = True
            options = {"namespace": NAMESPACE, "max_restarts": -1, "max_task_retries": 0}
            name = f"{self._name}:{number}:{secrets.token_hex(4)}"
            kind = self.ray.remote(num_cpus=self._cpus, scheduling_strategy="SPREAD")(Host)
            actor = Actor(self, kind.options(name=name, **options).remote(), number, patience)
        except (OSError, RuntimeError, ValueError, self.ray.exceptions.RayError) as error:
            raise ShardError(f"Ray cannot start shard {number}: {type(error).__name__}") from error
        self.lost = False
        return actor


def connected(address: str | None) -> Any:
    """Ray, connected.

    A cluster that others can reach must require a token, because anybody who reaches it may run code.
    """
    address = resolved(address)
    if address is None or _is_loopback(address):
        _set_environment(own=address is None)
    else:
        refuse_exposed(address)
        os.environ.update(QUIET)
    ray = needs("ray", "cluster", "a shard on Ray")
    if not ray.is_initialized():
        how: dict[str, Any] = {"namespace": NAMESPACE, "log_to_driver": False, "logging_level": "error"}
        if address is None:
            how["include_dashboard"] = False
        try:
            ray.init(address=address or "local", **how)
        except (ConnectionError, RuntimeError) as error:
            raise ShardError(f"Ray cannot be reached at {address}: {error}") from error
    return ray


def resolved(address: str | None) -> str | None:
    """The address that Ray would use, without importing Ray. None means an own Ray, on this machine.

    For "auto", that is RAY_ADDRESS, or else the cluster that was last started or joined on this machine.
    """
    if address == "auto":
        address = os.environ.get("RAY_ADDRESS") or "auto"
    if address == "auto":
        folder = os.environ.get("RAY_TMPDIR") or os.environ.get("TMPDIR") or "/tmp"
        try:
            address = (Path(folder) / "ray" / "ray_current_cluster").read_text().strip()
        except OSError:
            address = ""
        if not address:
            raise ShardError("no Ray is running on this machine: give its address, or set RAY_ADDRESS")
    return None if address in {None, "", "local"} else address


def _set_environment(own: bool) -> None:
    """Set what Ray must know before it is imported: to listen only on loopback, and a token if it is started here."""
    if "ray" in sys.modules and any(os.environ.get(name) != value for name, value in LOOPBACK.items()):
        if sys.modules["ray"].is_initialized():
            return  # the code that connected it is responsible
        (name,) = LOOPBACK
        raise PrivacyError(
            f"ray was imported before, and would listen on all addresses: set {name}=0 before, or import it later"
        )
    os.environ.update({**QUIET, **LOOPBACK})
    if own and "ray" not in sys.modules:
        os.environ.setdefault("RAY_AUTH_MODE", "token")
        os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))


def refuse_exposed(address: str) -> None:
    """Refuse Ray at an address that others can reach, unless it requires a token."""
    if os.environ.get("RAY_AUTH_MODE") != "token" and not _is_loopback(address):
        raise PrivacyError(
            f"Ray at {address} can be reached by others, who could run any code there: set RAY_AUTH_MODE=token and "
            "RAY_AUTH_TOKEN_PATH, here and on every node"
        )


def end_shards(name: str) -> int:
    """End all shards of this name. Returns how many."""
    import ray  # noqa: PLC0415

    names = shards_named(name)
    for actor in names:
        with suppress(ValueError):  # it has ended by itself
            ray.kill(ray.get_actor(actor, NAMESPACE))
    return len(names)


def shards_named(name: str) -> list[str]:
    """The names of the actors that are shards of this store. Ray must be connected."""
    from ray.util import list_named_actors  # noqa: PLC0415

    actors = [found["name"] for found in list_named_actors(all_namespaces=True) if found["namespace"] == NAMESPACE]
    return sorted(actor for actor in actors if actor.rpartition(":")[0].rpartition(":")[0] == name)


class Actor:
    """A host that is a Ray actor."""

    def __init__(self, session: RayConnection, actor: Any, number: int, patience: float):
        self._session, self._ray = session, session.ray
        self._actor, self._number, self._patience = actor, number, patience
        self._given: Any = None
        self._started = False
        self._sent = self._wait = 0.0

    def send(self, name: str, *arguments: Any) -> None:
        """Call without waiting."""
        self._sent = monotonic()
        self._wait = self._patience if self._started else min(self._patience, self._session.wait)
        try:
            self._given = getattr(self._actor, name).remote(*arguments)
        except (RuntimeError, ValueError, self._ray.exceptions.RayError) as error:  # of another connection
            raise ShardError(f"shard {self._number} is gone: {type(error).__name__}") from error

    def receive(self) -> Any:
        """What the latest call gave."""
        errors = self._ray.exceptions
        left = self._sent + self._wait - monotonic()  # all shards are awaited together, not one after the other
        try:
            answer = self._ray.get(self._given, timeout=max(left, 1.0))
        except errors.GetTimeoutError:
            if not self._started:
                self._session.lost, self._session.wait = True, min(2 * self._wait, AT_MOST)
            late = "did not answer" if self._started else "did not start (has Ray a core left for it?)"
            raise ShardError(f"shard {self._number} {late} within {self._wait:g} seconds") from None
        except errors.RayTaskError as error:
            raise ShardError(f"shard {self._number} failed: {error.cause}") from error
        except (RuntimeError, ValueError, errors.RayError) as error:
            self._session.lost |= not self._started
            raise ShardError(f"shard {self._number} is gone: {type(error).__name__}") from error
        if not self._started:
            self._started, self._session.wait = True, AGAIN
        return answer

    def close(self) -> None:
        """End the actor. Its records are in the store. Anything that it still sends is ignored."""
        with suppress(RuntimeError, ValueError, self._ray.exceptions.RayError):  # it is gone, or Ray is
            if self._ray.is_initialized():
                self._ray.kill(self._actor)


def _is_loopback(address: str) -> bool:
    host = address.removeprefix("ray://").rpartition(":")[0].strip("[]")
    if host == "localhost":
        return True
    with suppress(ValueError):
        return ip_address(host).is_loopback
    return False
