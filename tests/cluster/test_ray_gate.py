"""Which Ray is asked for, before any Ray is imported: one that others can reach must ask for a token."""

import sys

import pytest

from indknn.cluster import ray_hosts
from indknn.cluster.ray_hosts import connected, refuse_exposed, resolved
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
