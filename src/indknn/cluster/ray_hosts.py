"""Shards as Ray actors on many machines. They are found by name, and each new coordinator empties them.

They are plain detached actors, not Ray Serve, because each is unique and has a state. Ray never repeats a call by
itself, because a call that charges must not run twice. Ray restarts an actor that died. It is then empty and is filled
again.
"""

from __future__ import annotations

import os
import secrets
import sys
from contextlib import suppress
from ipaddress import ip_address
from pathlib import Path
from typing import Any

from indknn.cluster.coordinator import Cluster
from indknn.cluster.host import Host
from indknn.cluster.links import PATIENCE, checked_number
from indknn.errors import IndKNNError, PrivacyError, ShardError, to_install

NAMESPACE = "indknn"
QUIET = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_worker_niceness": "0"}
"""No usage statistics. Shards run at normal priority, because somebody waits for them. Ray would lower it."""
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
    ray = connected(address)
    shards = checked_number(shards)
    options = {"lifetime": "detached", "namespace": NAMESPACE, "max_restarts": -1, "max_task_retries": 0}
    kind = ray.remote(num_cpus=cpus, scheduling_strategy="SPREAD")(Host)

    ended: list[str] = []

    def connect(number: int) -> Actor:
        if not ended:  # only when this process owns the store
            ended.append(name)
            end_shards(name)
        actor = kind.options(name=f"{name}:{number}:{secrets.token_hex(4)}", **options).remote()
        return Actor(ray, actor, number, patience)

    return Cluster(connect, shards, threads=max(int(cpus), 1))


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
    try:
        import ray  # noqa: PLC0415
    except ModuleNotFoundError:
        raise IndKNNError(to_install("ray", "cluster", "a shard on Ray")) from None
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
    for one in names:
        with suppress(ValueError):  # it has ended by itself
            ray.kill(ray.get_actor(one, NAMESPACE))
    return len(names)


def shards_named(name: str) -> list[str]:
    """The names of the actors that are shards of this store. Ray must be connected."""
    from ray.util import list_named_actors  # noqa: PLC0415

    found = [one["name"] for one in list_named_actors(all_namespaces=True) if one["namespace"] == NAMESPACE]
    return sorted(one for one in found if one.rpartition(":")[0].rpartition(":")[0] == name)


class Actor:
    """A host that is a Ray actor."""

    def __init__(self, ray: Any, actor: Any, number: int, patience: float):
        self._ray, self._actor, self._number, self._patience = ray, actor, number, patience
        self._given: Any = None

    def send(self, name: str, *arguments: Any) -> None:
        """Call without waiting."""
        self._given = getattr(self._actor, name).remote(*arguments)

    def receive(self) -> Any:
        """What the latest call gave."""
        errors = self._ray.exceptions
        try:
            return self._ray.get(self._given, timeout=self._patience)
        except errors.GetTimeoutError:
            raise ShardError(f"shard {self._number} did not answer within {self._patience:g} seconds") from None
        except errors.RayTaskError as error:
            raise ShardError(f"shard {self._number} failed: {error.cause}") from error
        except errors.RayError as error:
            raise ShardError(f"shard {self._number} is gone: {type(error).__name__}") from error

    def close(self) -> None:
        """End the actor. Its records are in the store. Anything that it still sends is ignored."""
        if self._ray.is_initialized():
            self._ray.kill(self._actor)


def _is_loopback(address: str) -> bool:
    host = address.removeprefix("ray://").rpartition(":")[0].strip("[]")
    if host == "localhost":
        return True
    with suppress(ValueError):
        return ip_address(host).is_loopback
    return False
