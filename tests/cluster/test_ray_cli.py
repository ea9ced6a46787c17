"""`indknn cluster` with a real Ray on the loopback: started with a token, refused without it."""

import os
import signal
import subprocess
import sys
import time
from importlib.util import find_spec

import pytest

from golden.transcripts import MODES, settings
from helpers.ports import free_port
from indknn.store import Store

pytestmark = [
    pytest.mark.ray,
    pytest.mark.slow,
    pytest.mark.skipif(find_spec("ray") is None, reason="Ray is not installed: pip install 'indknn[cluster]'"),
]
INDKNN = [sys.executable, "-c", "from indknn.cli import main; main()"]
EVERYTHING = """
import sys
from indknn.cluster.ray_hosts import ray_cluster
from indknn.cli.serve import cluster_name
from indknn.store import Store
from golden.transcripts import data
from pathlib import Path
X, y, owners, Q = data()
path = Path(sys.argv[1])
with ray_cluster(sys.argv[2], 2, name=cluster_name(path), cpus=0.1) as cluster:
    with Store(path, make_shard=cluster.new_shard) as store:
        store.add(X, y, owners)
        print(*store.predict(Q[:3]), flush=True)
        sys.stdin.readline()  # while others look
"""


@pytest.fixture(scope="module")
def head(tmp_path_factory):
    token = tmp_path_factory.mktemp("secrets") / "token"
    token.write_text("a" * 64)
    port = free_port()
    command = [*INDKNN, "cluster", "start", "--port", str(port), "--token-file", str(token), "--cores", "2"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as run:
        for line in run.stdout:
            if "Ray runtime started" in line:
                break
        yield f"127.0.0.1:{port}", token
        run.send_signal(signal.SIGTERM)
        run.wait()


def environment(token):
    path = os.pathsep.join([*sys.path, os.environ.get("PYTHONPATH", "")])
    return {
        **os.environ,
        "PYTHONPATH": path,
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN_PATH": str(token),
        "RAY_AUTH_TOKEN": "",
    }


def test_a_store_on_ray_is_seen_with_the_token_and_not_without(head, tmp_path):
    address, token = head
    path = tmp_path / "people.store"
    Store.create(path, settings(MODES["algorithm 3"])).close()
    look = [*INDKNN, "cluster", "status", str(path), "--ray", address]
    script = [sys.executable, "-W", "ignore", "-c", EVERYTHING, str(path), address]
    known = environment(token)
    with subprocess.Popen(script, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=known) as run:
        assert set(run.stdout.readline().split()) <= {"a", "b", "c"}
        seen = subprocess.run(look, capture_output=True, text=True, env=known, check=True)
        assert "2 cores" in seen.stdout
        assert f"shards of {path}: 2" in seen.stdout
        (tmp_path / "wrong").write_text("b" * 64)
        refused = subprocess.run(look, capture_output=True, text=True, env=environment(tmp_path / "wrong"), check=False)
        assert refused.returncode != 0
        assert "b" * 64 not in refused.stdout + refused.stderr
        run.communicate("\n")
    assert run.returncode == 0


def test_shards_end_with_a_coordinator_that_is_killed(head, tmp_path):
    """Nobody would tell them whom the store forgets from then on."""
    address, token = head
    path = tmp_path / "killed.store"
    Store.create(path, settings(MODES["algorithm 3"])).close()
    script = [sys.executable, "-W", "ignore", "-c", EVERYTHING, str(path), address]
    known, pipes = environment(token), {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(script, **pipes, text=True, env=known) as run:
        assert run.stdout.readline()
        run.kill()
    look, end = [*INDKNN, "cluster", "status", str(path), "--ray", address], time.monotonic() + 60
    while f"shards of {path}: 0" not in subprocess.run(look, capture_output=True, text=True, env=known).stdout:  # noqa: PLW1510
        assert time.monotonic() < end, "shards live on"
