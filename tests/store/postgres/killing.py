"""Kill a client, or the server, again and again: nothing that was answered is lost, nothing is given back."""

import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from indknn.errors import StoreError
from indknn.store import Store
from store.faults import law
from store.faults.killing import Campaign

WORKERS = 3
PATIENCE = 300.0
"""Seconds that a server which was killed may need. They only end what hangs."""


class ClientKills(Campaign):
    """`Campaign`, on a store in a database: the law is checked on the store itself."""

    def __init__(self, folder, server, seed, **settings):
        self.folder, self.rng = Path(folder), random.Random(seed)
        self.path = server.new_place()
        self.law = law.Law(law.new_store(self.path, **settings))
        self.found, self.kills, self.runs = law.Findings(), 0, 0

    def _look(self):
        found = law.Findings()
        try:
            with Store(self.path) as store:
                found += self.law.check(store)
        except StoreError:
            found.unreadable += 1
        self.law.wrong = 0
        return found


class ServerKills:
    """A store that is used by several threads while the server dies under it."""

    def __init__(self, server, seed, **settings):
        self.server, self.rng, self.place = server, random.Random(seed), server.new_place()
        self.law = law.Law(law.new_store(self.place, **settings))
        self.found, self.kills = law.Findings(), 0
        law.watch_debits()

    def kill(self, how):
        """Kill the server while questions are asked, and have every one of them answered in the end."""
        answered = threading.Semaphore(0)
        hearing = threading.Lock()

        def hear(message):
            with hearing:
                self.law.hear(message)

        def use(number):
            for i in range(6):
                request = f"{self.kills}-{number}-{i}"
                self._insist(lambda r=request, i=i: law.ask(store, r, law.ANALYSTS[i % 2], 2, hear))
                answered.release()
            name = f"new-{self.kills}-{number}"
            hear(("adding", name, 0))
            # Whether a lost attempt was written is not known; the same rows with the same ids change nothing.
            self._insist(lambda: law.add_owner(store, name))
            hear(("added", name))

        with Store(self.place) as store:
            with ThreadPoolExecutor(WORKERS) as pool:
                working = [pool.submit(use, i) for i in range(WORKERS)]
                for _ in range(self.rng.randint(1, 8)):
                    answered.acquire()
                if how == "backends":
                    self.server.kill_backends()
                else:
                    self.server.stop("immediate")
                    self.server.start()
            for done in working:
                done.result()
            self.kills += 1
        with self._insist(lambda: Store(self.place)) as store:
            self.found += self.law.check(store)
        self.law.wrong = 0

    def _insist(self, call):
        end = time.monotonic() + PATIENCE
        while True:
            try:
                return call()
            except StoreError:
                if time.monotonic() > end:
                    raise
                time.sleep(0.25)  # until the server is back
