"""Which Ray is asked for, before any Ray is imported: one that others can reach must ask for a token."""

import sys
from contextlib import suppress

import pytest

from indknn.cluster import ray_hosts
from indknn.cluster.ray_hosts import RayConnection, connected, refuse_exposed, resolved
from indknn.errors import PrivacyError, ShardError


@pytest.fixture(autouse=True)
def environment(tmp_path, monkeypatch):
    for name in ("RAY_ADDRESS", "RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))


def joined(folder, address):
    (folder / "ray").mkdir()
    (folder / "ray" / "ray_current_cluster").write_text(address + "\n")


@pytest.mark.parametrize("env", ["10.0.0.1:6379", "ray://10.0.0.1:10001", "db.example:6379", "[2001:db8::1]:6379"])
def test_auto_is_what_the_environment_says(env, monkeypatch):
    monkeypatch.setenv("RAY_ADDRESS", env)
    assert resolved("auto") == env
    with pytest.raises(PrivacyError, match="can be reached by others"):
        connected("auto")


@pytest.mark.parametrize("env", [None, "", "auto"])
def test_auto_is_the_cluster_that_this_machine_joined(env, tmp_path, monkeypatch):
    if env is not None:
        monkeypatch.setenv("RAY_ADDRESS", env)
    with pytest.raises(ShardError, match="no Ray is running"):
        resolved("auto")
    joined(tmp_path, "10.0.0.1:6379")
    with pytest.raises(PrivacyError, match="Ray at 10"):
        connected("auto")


@pytest.mark.parametrize("address", ["10.0.0.1:6379", "127.0.0.1", "somewhere", ":6379", "ray://", "local://x"])
def test_an_address_that_is_not_surely_here_needs_a_token(address):
    with pytest.raises(PrivacyError, match="can be reached by others"):
        connected(address)


@pytest.mark.parametrize("address", ["127.0.0.1:6379", "localhost:6379", "[::1]:6379", "ray://127.0.0.1:10001"])
def test_loopback_needs_none_and_ray_is_told_the_address_that_was_checked(address, tmp_path, monkeypatch):
    monkeypatch.setattr(ray_hosts, "LOOPBACK", {})
    monkeypatch.setattr(ray_hosts, "QUIET", {})
    told = []
    ray = type("Ray", (), {"is_initialized": lambda: False, "init": lambda address, **_: told.append(address)})
    monkeypatch.setitem(sys.modules, "ray", ray)
    refuse_exposed(address)
    joined(tmp_path, address)
    connected("auto")
    assert told == [address]


@pytest.mark.parametrize("address", [None, "", "local"])
def test_an_own_ray_ignores_the_environment(address, monkeypatch):
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    assert resolved(address) is None


class FakeRay:
    """Just enough of Ray for a session: actors that never begin, and how often it was connected."""

    def __init__(self):
        self.connected, self.shut, self.starts, self.waits = 0, 0, True, []
        names = ("RayError", "RayTaskError", "GetTimeoutError")
        kinds = {"RayError": type("RayError", (Exception,), {})}
        kinds |= {name: type(name, (kinds["RayError"],), {}) for name in names[1:]}
        self.exceptions = type("Exceptions", (), kinds)

    def remote(self, **_):
        actor = type("Made", (), {"begin": type("Call", (), {"remote": staticmethod(lambda *_: None)})})
        kind = type("Kind", (), {"options": lambda self, **_: self, "remote": lambda self: actor})
        return lambda _: kind()

    def get(self, given, timeout):
        self.waits.append(timeout)
        if not self.starts:
            raise self.exceptions.GetTimeoutError

    def is_initialized(self):
        return True

    def shutdown(self):
        self.shut += 1


@pytest.fixture
def ray(monkeypatch):
    made = FakeRay()
    monkeypatch.setattr(ray_hosts, "connected", lambda address: setattr(made, "connected", made.connected + 1) or made)
    return made


def test_a_shard_that_does_not_start_is_followed_by_a_new_connection(ray, monkeypatch):
    """The head may have been started anew. Stores of one process share the connection, and lose it together."""
    ended = []
    monkeypatch.setattr(ray_hosts, "end_shards", ended.append)
    one, other = RayConnection("here", "one", 1.0), RayConnection("here", "other", 1.0)
    for session in (one, other):
        session.start(0, 5.0)
    assert (ray.connected, ray.shut, ended) == (2, 0, ["one", "other"])
    ray.starts = False
    actor = one.start(1, 5.0)
    actor.send("begin")
    with pytest.raises(ShardError, match=r"did not start \(has Ray a core left for it\?\) within 5 seconds"):
        actor.receive()
    one.start(1, 5.0)
    other.start(1, 5.0)
    other.start(2, 5.0)
    assert (ray.connected, ray.shut, ended) == (4, 1, ["one", "other", "one", "other"])


def test_a_lost_shard_is_awaited_for_longer_each_time_and_all_shards_together(ray, monkeypatch):
    monkeypatch.setattr(ray_hosts, "end_shards", lambda name: 0)
    now = [1000.0]
    monkeypatch.setattr(ray_hosts, "monotonic", lambda: now[0])
    session = RayConnection("here", "one", 1.0)

    def waits(*, starts):
        """How long two shards are awaited that are begun together. Time passes only while the first one is awaited."""
        ray.starts, ray.waits = starts, []
        actors = [session.start(number, ray_hosts.PATIENCE) for number in range(2)]
        for actor in actors:
            actor.send("begin")
        for actor in actors:
            with suppress(ShardError):
                actor.receive()
            now[0] += 0.0 if starts else ray.waits[0]
        return ray.waits

    assert waits(starts=True)[0] == 60  # a process that begins
    assert [waits(starts=False) for _ in range(5)] == [[15, 1], [30, 1], [60, 1], [120, 1], [120, 1]]
    waits(starts=True)
    assert waits(starts=False) == [15, 1]
