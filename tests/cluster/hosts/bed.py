"""A cluster as docs/cluster.md tells an operator to run it, every machine a network namespace: tokens and TLS are on.

`db` has PostgreSQL. `head` and `node` are Ray nodes with one shard each. `first` and `second` can run the service: they
are Ray nodes without cores. `people` is where clients ask from.
"""

import os
import secrets
import shutil
import signal
import ssl
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path

import httpx
import psycopg

from cluster.hosts.network import Network
from helpers import postgres_server
from indknn.place import keys_path
from indknn.store import Store
from indknn.store.keyfile import create
from server.killing import ANALYSTS
from server.serving import make_store

HOSTS = ("db", "head", "node", "first", "second", "people")
PORT, HTTPS = 6379, 8443
INDKNN = [sys.executable, "-W", "ignore", "-c", "from indknn.cli import main; main()"]
TESTS = str(Path(__file__).parents[2])
QUICK = {
    "RAY_health_check_initial_delay_ms": "1000",
    "RAY_health_check_period_ms": "1000",
    "RAY_health_check_timeout_ms": "2000",
    "RAY_health_check_failure_threshold": "8",
}
"""Ray notices within half a minute that a node is gone. Sooner, it would also give up nodes of a busy machine."""
ENOUGH = 300.0
"""Seconds after which anything that was awaited is taken to hang. Nothing is faster or slower because of it."""
SECRET = ("token", "node.key", "ca.key")


class Bed:
    """Everything that runs, and what it takes to run it."""

    def __init__(self, cores=1, health=QUICK):
        self.cores, self._health = cores, health
        self.folder = Path(tempfile.mkdtemp(prefix="indknn-bed-"))
        self.network = self.server = None
        self.nodes, self.services = {}, {}
        try:
            self.network = Network(*HOSTS)
            self._certify()
            self._start_database()
            self.start_node("head")
            starting = [threading.Thread(target=self.start_node, args=(name,)) for name in ("node", "first")]
            for thread in starting:
                thread.start()
            for thread in starting:
                thread.join()
        except BaseException:
            self.close()
            raise

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        """End everything, in any state."""
        for process in [*self.services.values(), *self.nodes.values()]:
            _end(process, signal.SIGKILL)
        if self.server is not None:
            with suppress(RuntimeError):
                self.server.close()
        if self.network is not None:
            self.network.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    # Certificates, tokens, keys

    def _certify(self):
        """An authority, and one certificate for all hosts."""
        names = ",".join(f"IP:{address}" for address in ["127.0.0.1", *self.network.addresses.values()])
        days, new = ("-days", "2"), ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")
        authority = ("req", "-x509", *new, "-keyout", "ca.key", "-out", "ca.crt", *days, "-subj", "/CN=authority")
        request = ("req", *new, "-keyout", "node.key", "-out", "node.csr", "-subj", "/CN=node")
        by = ("-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial", "-copy_extensions", "copy", *days)
        for words in (
            authority,
            (*request, "-addext", f"subjectAltName={names}"),
            ("x509", "-req", "-in", "node.csr", "-out", "node.crt", *by),
        ):
            subprocess.run(["openssl", *words], cwd=self.folder, check=True, capture_output=True)
        (self.folder / "token").write_text(secrets.token_hex(32))
        for name in SECRET:
            (self.folder / name).chmod(0o600)

    def environment(self, name):
        """What an operator exports on a host."""
        return {
            **os.environ,
            **self._health,
            "PYTHONPATH": os.pathsep.join([TESTS, os.environ.get("PYTHONPATH", "")]),
            "OPENBLAS_NUM_THREADS": "1",
            "INDKNN_HOME": str(self.folder / f"home-{name}"),
            "PGPASSFILE": str(self.folder / "pgpass"),
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN_PATH": str(self.folder / "token"),
            "RAY_USE_TLS": "1",
            "RAY_TLS_SERVER_CERT": str(self.folder / "node.crt"),
            "RAY_TLS_SERVER_KEY": str(self.folder / "node.key"),
            "RAY_TLS_CA_CERT": str(self.folder / "ca.crt"),
        }

    # PostgreSQL

    def _start_database(self):
        self.server = postgres_server.Server("listen_addresses = '*'", within=self.network.command("db"))
        password = secrets.token_hex(16)
        for name, file in (("server.key", "node.key"), ("server.crt", "node.crt")):
            shutil.copy(self.folder / file, self.server.data / name)
            shutil.chown(self.server.data / name, postgres_server.USER)
            (self.server.data / name).chmod(0o600)
        with (self.server.data / "pg_hba.conf").open("a") as file:
            file.write("hostssl all indknn 10.77.0.0/24 scram-sha-256\n")
        with psycopg.connect(self.server.conninfo(), autocommit=True) as pg:
            pg.execute(f"CREATE ROLE indknn LOGIN PASSWORD '{password}'")
            pg.execute("GRANT CREATE ON DATABASE postgres TO indknn")
            pg.execute("ALTER SYSTEM SET ssl = on")
            pg.execute("SELECT pg_reload_conf()")
        passwords = self.folder / "pgpass"
        passwords.write_text(f"*:*:*:indknn:{password}\n")
        passwords.chmod(0o600)

    def place(self, schema, options=""):
        """The address of a store for those who reach the database over the network."""
        where = f"postgresql://indknn@{self.network.addresses['db']}:{self.server.port}/postgres"
        return f"{where}?schema={schema}&sslrootcert={self.folder / 'ca.crt'}{options}"

    def nearby(self, schema):
        """The same store, over the socket: for those who look whether all is well."""
        return f"postgresql://indknn@:{self.server.port}/postgres?host={self.server.folder}&schema={schema}"

    def conninfo(self, options):
        """How libpq is told to reach the database over the network."""
        where = f"host={self.network.addresses['db']} port={self.server.port} dbname=postgres user=indknn"
        return f"{where} passfile={self.folder / 'pgpass'} connect_timeout=30 {options}"

    def make_store(self, schema, options="", **settings):
        """A store with some people, and the keys of everybody who asks it: by name."""
        with make_store(self.nearby(schema), n=300, free_repeats=False, **settings):
            pass
        file = self.folder / "keys"
        keys = {name: create(file, "analyst", name)[1] for name in ANALYSTS}
        keys["curator"] = create(file, "curator", "curator")[1]
        for host in ("first", "second"):
            path = Path(self.environment(host)["INDKNN_HOME"]) / keys_path(self.place(schema, options)).name
            path.parent.mkdir(exist_ok=True)
            shutil.copy(file, path)
        file.unlink()
        return keys

    def look(self, schema):
        """The store as it is now, read only."""
        return Store(self.nearby(schema), read_only=True)

    # Ray and the service

    @property
    def ray(self):
        """The address of the head."""
        return f"{self.network.addresses['head']}:{PORT}"

    def start_node(self, name):
        """`indknn cluster start` on a host, again if Ray gives up, as it does on a very busy machine."""
        cores = self.cores if name in {"head", "node"} else 0
        join = () if name == "head" else ("--join", self.ray)
        how = ("--address", self.network.addresses[name], "--token-file", self.folder / "token", "--cores", cores)
        self._insist(lambda: self._start_node(name, how, join), lambda: self.stop_node(name))

    def _start_node(self, name, how, join):
        self.nodes[name] = self._run(name, "cluster", "start", *how, *join)
        _wait_for(self.nodes[name], "Ray runtime started")

    @staticmethod
    def _insist(start, stop):
        """Start something again and again, as systemd does. Ray may take a node that just ended for one that runs."""
        end = time.monotonic() + ENOUGH
        while True:
            try:
                start()
                return
            except AssertionError:
                stop()
                if time.monotonic() > end:
                    raise
                time.sleep(2.0)

    def stop_node(self, name):
        """End Ray on a host, and everything that it started, at once. The service goes on."""
        _end(self.nodes.pop(name), signal.SIGKILL)
        service = self.services.get(name)

        def left():
            found = [number for number in self.network.processes(name) if not service or number != service.pid]
            for number in found:
                with suppress(ProcessLookupError):
                    os.kill(number, signal.SIGKILL)
            return found

        assert until(lambda: not left())
        # Ray would look into the machine's processes, and take a node of another host for its own head.
        (self.network.folder(name) / "ray_current_cluster").unlink(missing_ok=True)

    def serve(self, name, schema, options="", *, shards=2):
        """`indknn serve` on a host, again if it ends at once, as systemd does."""
        certificate = ("--tls-cert", self.folder / "node.crt", "--tls-key", self.folder / "node.key")
        ours = ("--host", "0.0.0.0", "--port", HTTPS, "--name", "indknn", "--log", "none")
        words = ("serve", self.place(schema, options), "--shards", shards, "--ray", self.ray, *ours, *certificate)
        self._insist(lambda: self._serve(name, words), lambda: self.end_service(name, signal.SIGKILL))

    def _serve(self, name, words):
        self.services[name] = self._run(name, *words)
        _wait_for(self.services[name], " at http")

    def start_nodes_again(self):
        """Start nodes that have ended by themselves, as systemd does: Ray ends a node that it lost."""
        for host in list(self.nodes):
            if self.nodes[host].poll() is not None:
                self.stop_node(host)
                self.start_node(host)

    def serve_again(self, name, schema, options=""):
        """The same for a service. Ray ends all processes on a node that it lost, so the service too."""
        self.start_nodes_again()
        if self.services[name].poll() is not None:
            self.end_service(name)
            self.serve(name, schema, options)

    def end_service(self, name, sign=signal.SIGTERM):
        """End the service on a host. Returns its exit code, and what it said."""
        return _end(self.services.pop(name), sign)

    def takeover(self, name, schema, options=""):
        """`indknn takeover` on a host."""
        command = self.network.command(name, *INDKNN, "takeover", self.place(schema, options))
        done = subprocess.run(command, env=self.environment(name), capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def client(self, service, key, *, timeout=20.0):
        """A client of a service. It must be made and used inside a host."""
        trust = ssl.create_default_context(cafile=self.folder / "ca.crt")
        url = f"https://{self.network.addresses[service]}:{HTTPS}"
        return httpx.Client(base_url=url, verify=trust, headers={"authorization": f"Bearer {key}"}, timeout=timeout)

    def actors(self, name):
        """The processes of shards on a host."""
        found = []
        for number in self.network.processes(name):
            with suppress(OSError):
                if Path(f"/proc/{number}/cmdline").read_bytes().startswith(b"ray::Host"):
                    found.append(number)
        return found

    def kill_shards(self, name, sign=signal.SIGKILL):
        """Send a signal to all shards on a host. Returns their processes."""
        found = self.actors(name)
        for number in found:
            with suppress(ProcessLookupError):
                os.kill(number, sign)
        return found

    def _run(self, name, *words):
        command = self.network.command(name, *INDKNN, *words)
        pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        return subprocess.Popen(command, env=self.environment(name), text=True, **pipes)


def _wait_for(process, words):
    """Wait until a process says these words. What it says later is read and kept."""
    process.said, ready = [], threading.Event()

    def hear():
        for line in process.stdout:
            process.said.append(line)
            if words in line:
                ready.set()
        ready.set()

    process.hearing = threading.Thread(target=hear, daemon=True)
    process.hearing.start()
    assert ready.wait(ENOUGH), "".join(process.said)
    assert any(words in line for line in process.said), "".join(process.said)


def _end(process, sign):
    with suppress(ProcessLookupError):
        process.send_signal(sign)
    try:
        process.wait(60)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    if hasattr(process, "hearing"):
        process.hearing.join(5)
    if not hasattr(process, "hearing") or not process.hearing.is_alive():
        process.stdout.close()
    return process.returncode, "".join(getattr(process, "said", []))


def until(condition, seconds=ENOUGH, pause=0.1):
    """Wait until something is so. Returns whether it came to be."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(pause)
    return True
