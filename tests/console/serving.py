"""A real server process over a real store, for the browser to talk to."""

import json
import subprocess
import sys
import urllib.request

import numpy as np

from helpers.ports import free_port
from indknn.settings import Settings
from indknn.store import Store
from indknn.store import keyfile as keys

ROLES = ("admin", "curator", "analyst", "auditor")
LABELS = ("healthy", "ill", "unclear")
PATIENCE = 300
"""Seconds after which a server is taken to hang. Nothing is faster or slower because of it."""


def make_store(path, *, labels=LABELS, owners=(), answers=0):
    """Sixty people with two records each, then `owners`, and some answers for the charts."""
    rng = np.random.default_rng(3)
    centres = np.eye(4)[: len(labels)]
    names = [f"patient-{i // 2}" for i in range(120)] + list(owners)
    y = rng.integers(len(labels), size=len(names))
    X = centres[y] + 0.2 * rng.normal(size=(len(y), 4))
    plain = {"tau": 0.6, "sigma2": 8.0, "max_queries": 500, "reuse": "none"}
    settings = Settings(n_features=4, classes=tuple(labels), **plain)
    with Store.create(path, settings) as store:
        store.add_analyst("ann")
        store.add(X, np.array(labels)[y], names)
        for i in range(answers):
            store.predict(X[i : i + 1], "ann")


class House:
    """A store, its keys, and the process that serves it."""

    def __init__(self, path, *, roles=ROLES):
        self.path, self.port, self.process = path, free_port(), None
        self.keys = {role: self.key(role) for role in roles}

    @property
    def url(self):
        return f"http://127.0.0.1:{self.port}/"

    def key(self, role, name=None, **options):
        return keys.create(keys.keys_path(self.path), role, name or f"{role}-1", **options)[1]

    def start(self):
        command = [
            sys.executable,
            "-m",
            "indknn",
            "serve",
            str(self.path),
            "--port",
            str(self.port),
            "--name",
            "indknn",
        ]
        with self.path.with_suffix(".log").open("ab") as log:
            self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
        with self.process.stdout as said:  # its only line says that it listens
            assert " at http" in said.readline(), f"no server: {self.path.with_suffix('.log').read_text()}"
        return self

    def stop(self, *, kill=False):
        if self.process is not None and self.process.poll() is None:
            (self.process.kill if kill else self.process.terminate)()
            self.process.wait(PATIENCE)

    def ask(self, path, method="GET", body=None, role="admin"):
        """What the server says to somebody who is not the browser."""
        headers = {"Authorization": f"Bearer {self.keys[role]}", "Content-Type": "application/json"}
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data=data, headers=headers, method=method)
        with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
            return json.load(answer)
