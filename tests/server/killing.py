"""Kill a server under load, again and again, and compare what its clients were told with what it left behind."""

import json
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from dataclasses import dataclass, fields

import httpx
import numpy as np

from indknn.core.quantise import quantise
from indknn.server.infer import scoped_id
from indknn.store import Store
from indknn.store.keyfile import create, keys_path
from indknn.store.verify import problems
from server.serving import FEATURES, INFER, Server, make_store, question, wait_until

ANALYSTS = ("alice", "bob", "carol", "dan")
ENDLESS = {"mode": "model", "max_queries": None, "tau": None}


@dataclass
class Findings:
    """How often the law was broken: answered and not charged, another answer to the same id, unsound files."""

    uncharged: int = 0
    wrong_retries: int = 0
    charged_twice: int = 0
    server_errors: int = 0
    unsound: int = 0

    @property
    def total(self):
        return sum(getattr(self, f.name) for f in fields(self))


class Told:
    """What clients were told, and whether a store agrees. Clients note every answer that reached them."""

    def __init__(self, seed=0, endless=False):
        self.rng, self.endless = random.Random(seed), endless
        self.told = {}  # (analyst, id) -> labels
        self.open_questions = {}  # asked, and never answered
        self.found, self.retries = Findings(), 0

    def rows(self, analyst, name):
        seed = random.Random(f"{analyst}/{name}").getrandbits(32)
        return np.random.default_rng(seed).normal(size=(1 + seed % 3, FEATURES)).astype(np.float32)

    def again(self):
        """Ids to ask again, by analyst: those that were never answered, and some that were."""
        again = {name: [] for name in ANALYSTS}
        for analyst, name in [*self.open_questions, *self.rng.sample(list(self.told), min(8, len(self.told)))]:
            again[analyst].append(name)
        return again

    def ask(self, http, analyst, name):
        """Ask once. Returns the status, and notes what was told. If it fails, only the store knows whether it paid."""
        self.open_questions.setdefault((analyst, name), True)
        response = http.post(INFER, json=question(self.rows(analyst, name), name))
        if response.status_code == 200:
            labels = response.json()["outputs"][0]["data"]
            self.open_questions.pop((analyst, name), None)
            self.retries += (analyst, name) in self.told
            self.found.wrong_retries += self.told.setdefault((analyst, name), labels) != labels
        return response.status_code

    def check(self, store, told=None):
        """Every answer that a client has must be in the transcript, once, with its charge.

        If clients go on meanwhile, `told` is what they knew when the store was read.
        """
        self.found.unsound += len(list(problems(store)))
        classes, scopes = store.settings.classes, dict(store.db.execute("SELECT id, name FROM scopes"))
        kept, times = {}, Counter()
        for scope, query, label, charged in store.db.execute("SELECT scope, query, label, charged FROM answers"):
            kept[scopes[scope], query] = (classes[label], int(charged))
            times[scopes[scope], query] += 1
        for (analyst, name), labels in (self.told if told is None else told).items():
            values = quantise(self.rows(analyst, name)).values
            for row, label in zip(values, labels, strict=True):
                found = kept.get(("=" + analyst, row.tobytes()), (None, 0))
                free = self.endless  # an answer that asked nobody is there, and cost nothing
                self.found.uncharged += found[0] != label or not (found[1] > 0 or free)
                self.found.charged_twice += times["=" + analyst, row.tobytes()] > 1
            self.found.uncharged += not store.knows(scoped_id(analyst, name))


class Campaign(Told):
    """One store, served and killed many times."""

    def __init__(self, folder, seed=0, program="indknn", changes=True, verify=False, **settings):
        super().__init__(seed, endless="mode" in settings)
        self.program, self.changes, self.verify = program, changes, verify
        self.path = folder / "a.store"
        settings = {"epsilon": 8.0, "max_queries": 100_000, **settings}
        make_store(self.path, n=300, free_repeats=False, **settings).close()
        path = keys_path(self.path)
        self.keys = {name: create(path, "analyst", name)[1] for name in ANALYSTS}
        self.curator = create(path, "curator", "curator")[1]
        self.kills, self._number = 0, 0

    def round(self, seconds, how=signal.SIGKILL, until=lambda: True):
        """Serve for so long under load, and until something is so; end it, and look."""
        with Server(self.path, "--witness", str(self.path) + ".witness", program=self.program) as server:
            stop = threading.Event()
            again = self.again()
            threads = [threading.Thread(target=self._ask, args=(server, name, again, stop)) for name in ANALYSTS]
            if self.changes:
                threads.append(threading.Thread(target=self._change, args=(server, stop)))
            for thread in threads:
                thread.start()
            time.sleep(seconds)
            wait_until(until)
            server.process.send_signal(how)
            code = server._end()
            stop.set()
            for thread in threads:
                thread.join()
            self.kills += how == signal.SIGKILL
        self._look()
        return code

    def _ask(self, server, analyst, again, stop):
        head = {"authorization": f"Bearer {self.keys[analyst]}"}
        rng = random.Random(f"{analyst}{self.kills}")
        with httpx.Client(base_url=server.url, headers=head, timeout=60) as http:
            while not stop.is_set():
                name = again[analyst].pop() if again[analyst] else f"{rng.getrandbits(60):x}"
                try:
                    status = self.ask(http, analyst, name)
                except httpx.HTTPError:
                    return  # it was killed: whether this was charged is known to the disk alone
                if status != 200:
                    self.found.server_errors += 1
                    return

    def _change(self, server, stop):
        head = {"authorization": f"Bearer {self.curator}"}
        with httpx.Client(base_url=server.url, headers=head, timeout=60) as http:
            while not stop.wait(0.02):
                self._number += 1
                record = {"features": [1.0, self._number, 0, 1], "label": "a", "owner": f"n{self._number}"}
                try:
                    http.post("/v1/records", json={"records": [record]})
                    http.delete(f"/v1/owners/n{self._number - 5}")
                except httpx.HTTPError:
                    return

    def _look(self):
        """Verify, in a process of its own if asked, and check."""
        witness = str(self.path) + ".witness"
        if self.verify:
            command = [sys.executable, "-m", "indknn", "verify", str(self.path), "--witness", witness, "--json"]
            verdict = subprocess.run(command, capture_output=True, text=True, check=False)
            self.found.unsound += verdict.returncode != 0 or not json.loads(verdict.stdout)["ok"]
        with Store(self.path, witness=witness) as store:
            self.check(store)
