"""A small store, its application, and a real server process on loopback."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import httpx
import numpy as np

from indknn.server.app import create_app
from indknn.settings import ServerOptions, Settings
from indknn.store import Store
from indknn.store.keyfile import create, keys_path
from indknn.tables import Category, Number, Schema
from indknn.tables.schema import to_plain

FEATURES = 4
INFER = "/v2/models/indknn/infer"
SCHEMA = Schema(
    {"age": Number(bounds=(0, 100)), "job": Category(values=("baker", "cook"))},
    label="bought",
    classes=("no", "yes"),
    owner="who",
    record_id="visit",
)
TESTS = str(Path(__file__).parents[1])
ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join([TESTS, os.environ.get("PYTHONPATH", "")])}


def make_store(path, n=200, **changes):
    """Named people around the axes, one record each."""
    settings = {"n_features": FEATURES, "classes": ("a", "b", "c"), "tau": 0.3, "epsilon": 4.0, "max_queries": 5000}
    store = Store.create(path, Settings(**{**settings, "reuse": "none", **changes}))
    rng = np.random.default_rng(0)
    if n:
        store.add(rng.normal(size=(n, FEATURES)), rng.choice(["a", "b", "c"], size=n), [f"p{i}" for i in range(n)])
    return store


def table_store(path, schema=SCHEMA, **changes):
    """People of 20 to 80 years who bake or cook. Those above 50 have bought."""
    settings = {"epsilon": 8.0, "tau": 0.3, "mode": "votes", "schema": to_plain(schema), **changes}
    store = Store.create(path, Settings(schema.n_features, schema.classes, **settings))
    age = np.linspace(20, 80, 200).round(1)
    store.add(
        {"age": age, "job": ["baker", "cook"] * 100},
        np.where(age > 50, "yes", "no"),
        [f"p{i}" for i in range(200)],
        [f"v{i}" for i in range(200)],
    )
    return store


def rows(seed, n=1):
    return np.random.default_rng(seed).normal(size=(n, FEATURES)).astype(np.float32)


def tensor(X, kind="FP32"):
    return {"name": "features", "shape": list(np.shape(X)), "datatype": kind, "data": np.asarray(X).ravel().tolist()}


def question(X, name=None):
    return {"inputs": [tensor(X)], **({} if name is None else {"id": name})}


class Client:
    """Requests to an application in this process, one call each."""

    def __init__(self, app, key=None, host="127.0.0.1"):
        self.app, self.key, self.host = app, key, host

    def __call__(self, method, path, key=None, **options):
        return self.together([(method, path, options)], key)[0]

    def together(self, requests, key=None):
        """Several at once, so that they share batches."""
        key = key or self.key
        headers = {} if key is None else {"authorization": f"Bearer {key}"}

        async def run():
            transport = httpx.ASGITransport(self.app)
            async with httpx.AsyncClient(transport=transport, base_url=f"http://{self.host}", headers=headers) as c:
                return await asyncio.gather(*(c.request(m, p, **options) for m, p, options in requests))

        return asyncio.run(run())

    def ask(self, X, name=None, key=None):
        return self("POST", INFER, key, json=question(X, name))


@contextmanager
def application(store, *, roles=(), **options):
    """A client, and a key for each role in `roles`."""
    path = keys_path(store.path)
    keys = {role: create(path, role, role, owner="p1" if role == "owner" else None)[1] for role in roles}
    app = create_app(store, keys=path, options=ServerOptions(**options))
    client = Client(app)
    client.keys = keys
    try:
        yield client
    finally:
        app.service.close()


class Server:
    """`indknn serve` in a process of its own."""

    def __init__(self, path, *options, program="indknn", name="indknn"):
        self.path = path
        quiet = () if "--log" in options else ("--log", "none")
        command = [sys.executable, "-m", program, "serve", str(path), "--port", "0", *options, *quiet]
        command += [] if name is None else ["--name", name]
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT
        )
        line = self.process.stdout.readline()
        assert ":" in line, self.process.stderr.read()
        self.url = line.split(" at ")[1].strip()
        self.port = int(self.url.rsplit(":", 1)[1])

    def kill(self):
        self.process.send_signal(signal.SIGKILL)
        return self._end()

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        return self._end()

    def _end(self):
        self.process.wait(300)
        self.errors = self.process.stderr.read()
        self.process.stdout.close()
        self.process.stderr.close()
        return self.process.returncode

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.kill()


def wait_until(condition, seconds=300.0):
    """Wait until something is so. The limit only ends what hangs."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.02)


def mode(path):
    return os.stat(path).st_mode & 0o777
