"""Several hosts, each with its own address: what happens to links and nodes changes no answer and refunds nothing."""

import json
import os
import socket
import ssl
import subprocess
import sys
import threading
from importlib.util import find_spec
from pathlib import Path

import psycopg
import pytest

from cluster.histories import DEFAULT, PAPER, with_one
from cluster.hosts import network
from cluster.hosts.bed import PORT, Bed, until
from cluster.hosts.campaign import FAULTS, SCHEMA, Campaign
from helpers import postgres_server

_MISSING = None if find_spec("ray") else "Ray is not installed: pip install 'indknn[cluster]'"
WHY_NOT = network.why_not() or postgres_server.why_not() or _MISSING
pytestmark = [
    pytest.mark.hosts,
    pytest.mark.ray,
    pytest.mark.postgres,
    pytest.mark.slow,
    pytest.mark.xdist_group("hosts"),
    pytest.mark.skipif(WHY_NOT is not None, reason=str(WHY_NOT)),
]


@pytest.fixture(scope="module")
def bed():
    with Bed() as made:
        yield made


@pytest.fixture(scope="module")
def campaign(bed):
    with Campaign(bed, seed=1) as made:
        yield made
        made.look()
        assert made.found.total == 0, made.found


def test_ray_and_the_database_speak_tls_on_their_addresses(bed):
    context = ssl.create_default_context(cafile=bed.folder / "ca.crt")
    context.load_cert_chain(bed.folder / "node.crt", bed.folder / "node.key")
    host = bed.network.addresses["head"]
    with (
        bed.network.inside("node"),
        socket.create_connection((host, PORT), 30) as plain,
        context.wrap_socket(plain, server_hostname=host) as link,
    ):
        assert link.version() in {"TLSv1.2", "TLSv1.3"}
    with bed.network.inside("first"), psycopg.connect(bed.conninfo("sslmode=require"), autocommit=True) as pg:
        assert pg.execute("SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()").fetchone() == (True,)
    with bed.network.inside("first"), pytest.raises(psycopg.OperationalError, match="no pg_hba.conf entry"):
        psycopg.connect(bed.conninfo("sslmode=disable"))


LINKS = (
    lambda net, bed: net.link("first", "node", delay=0.05),
    lambda net, bed: bed.kill_shards("head"),
    lambda net, bed: net.link("first", "db", loss=0.05),
    lambda net, bed: (net.link("node", cut=True), threading.Timer(1.0, net.heal).start()),
    lambda net, bed: net.link("first", "head", loss=0.05, delay=0.01),
    lambda net, bed: bed.kill_shards("node"),
    lambda net, bed: net.heal(),
)
EVERY = 4
ONLY_IN_SOAKS = {"coordinator killed", "node restarted"}  # the other faults contain them


def played(bed, place, mode):
    """What came of a history under faults, how many calls failed on the way, and what the player said besides."""
    words = (sys.executable, "-W", "ignore", Path(__file__).with_name("playing.py"), place, bed.ray, mode)
    command, calls, failed, said = bed.network.command("first", *words), 0, 0, {}
    errors = (bed.folder / "errors").open("w+")  # a pipe that nobody reads would stop it
    pipes = {"stdout": subprocess.PIPE, "stderr": errors, "text": True}
    with errors, subprocess.Popen(command, env=bed.environment("first"), **pipes) as process:
        for line in process.stdout:
            if not line.startswith("{"):
                continue  # Ray says something
            said = json.loads(line)
            calls, failed = calls + 1, failed + said.get("failed", 0)
            if calls % EVERY == 0 and calls // EVERY <= len(LINKS):
                LINKS[calls // EVERY - 1](bed.network, bed)
        process.wait()
        errors.seek(0)
        return said, failed, errors.read()


@pytest.mark.parametrize("mode", [PAPER, DEFAULT])
def test_answers_and_charges_are_to_the_bit_those_of_one_host(mode, bed):
    for turn in range(3):
        said, failed, why = played(bed, bed.place(f"played_{mode[:3]}_{turn}"), mode)
        bed.network.heal()
        if "told" in said or not until(lambda: bed.nodes["first"].poll() is not None, 10.0):
            break
        bed.start_nodes_again()  # Ray lost this node on a busy machine, and ended the player with it
    assert "told" in said, why
    assert said["told"] == with_one(mode)
    assert said["problems"] == []
    assert failed > 0  # else no shard was lost, and this says little


LARGE = """
import sys
import numpy as np
from golden.transcripts import Replayed
from indknn.cluster.ray_hosts import ray_cluster
from indknn.engine import Engine, Settings
rng = np.random.default_rng(0)
with ray_cluster(sys.argv[1], 2, name="large") as cluster:
    settings = Settings(n_features=64, classes=(0, 1), tau=0.1, max_queries=100, mode="votes")
    engine = Engine(settings, Replayed(), make_shard=cluster.new_shard)
    engine.add(rng.normal(size=(20_000, 64)), rng.integers(2, size=20_000), list(range(20_000)))
    engine.predict(rng.normal(size=(64, 64)))  # debits of more than a megabyte come back
    print([part["records"] for part in engine.shard.status()])
"""


def test_large_messages_reach_other_hosts(bed):
    """Ray's object store did not bring them there, with or without TLS. Campaigns need all cores, so this comes before."""
    command = bed.network.command("first", sys.executable, "-W", "ignore", "-c", LARGE, bed.ray)
    done = subprocess.run(command, env=bed.environment("first"), capture_output=True, text=True, check=False)
    assert "[10000, 10000]" in done.stdout, done.stderr


@pytest.mark.parametrize("fault", [name for name in FAULTS if name not in ONLY_IN_SOAKS])
def test_what_was_told_is_charged_once_whatever_happens(fault, campaign):
    campaign.fault(fault)
    campaign.look()
    assert campaign.found.total == 0, campaign.found
    assert campaign.stuck == 0


def test_the_switch_cuts_delays_and_loses():
    """Without the rest of the bed."""
    net = network.Network("one", "two")
    echo = "import socket\ns = socket.create_server(('0.0.0.0', 7)); print(flush=True)\nc = s.accept()[0]\nwhile d := c.recv(9): c.send(d)"
    with net, subprocess.Popen(net.command("two", sys.executable, "-c", echo), stdout=subprocess.PIPE) as process:
        process.stdout.readline()
        with net.inside("one"), socket.create_connection((net.addresses["two"], 7)) as link:
            link.settimeout(30)
            link.send(b"x")
            assert link.recv(1) == b"x"
            net.link("one", cut=True)
            link.settimeout(0.5)
            link.send(b"y")
            with pytest.raises(TimeoutError):
                link.recv(1)
            net.link("one", delay=0.05, loss=0.05)
            link.settimeout(30)
            assert link.recv(1) == b"y"
        spaces = [f"{network.PREFIX}-{os.getpid()}-{name}" for name in ("one", "two")]
        assert all(space in network.ip("netns", "list") for space in spaces)
    assert not any(space in network.ip("netns", "list") for space in spaces)


def test_a_request_to_a_service_that_lost_a_shard_gets_an_error_and_others_are_heard(campaign, bed):
    """A lost shard must not stop the loop that serves everybody: health is answered at once, also while it is refilled."""
    with bed.network.inside("people"), bed.client(campaign.active, campaign.keys["alice"]) as http:
        campaign.kill_shard()
        assert http.get("/v2/health/live").status_code == 200
        with bed.look(SCHEMA):
            pass
    assert campaign.answered(2)
