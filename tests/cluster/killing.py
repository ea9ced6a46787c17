"""Kill or stop shards, or their coordinator, again and again: nobody is answered who did not pay, nothing is given back."""

import os
import random
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from indknn.cluster import local_cluster
from indknn.errors import StoreError
from indknn.store import Store
from store.faults import law, worker
from store.faults.killing import Campaign

SHARDS, WORKERS, TURNS = 2, 3, 40


class ShardKills:
    """A store that several threads use while a shard dies, or is stopped and replaced."""

    def __init__(self, folder, seed, **settings):
        self.path, self.rng = Path(folder) / "a.store", random.Random(seed)
        self.law = law.Law(law.new_store(self.path, **settings))
        self.found, self.kills, self.runs = law.Findings(), 0, 0
        law.watch_debits()
        law.no_ballast()

    def __enter__(self):
        self.cluster = local_cluster(SHARDS)
        self.store = Store(self.path, make_shard=self.cluster.new_shard)
        return self

    def __exit__(self, *_):
        self.store.close()
        self.cluster.close()

    def kill(self, sign=signal.SIGKILL):
        """End or stop a shard while questions are asked; have every one of them answered in the end."""
        answered, hearing = threading.Semaphore(0), threading.Lock()
        self.runs += 1

        def hear(message):
            with hearing:
                self.law.hear(message)

        def use(number):
            for i in range(4):
                self._insist(partial(law.ask, self.store, f"{self.runs}-{number}-{i}", law.ANALYSTS[i % 2], 2, hear))
                answered.release()
            name = f"new-{self.runs}-{number}"
            hear(("adding", name, 0))
            self._insist(partial(law.add_owner, self.store, name))  # the same rows with the same ids change nothing
            hear(("added", name))

        with ThreadPoolExecutor(WORKERS) as pool:
            working = [pool.submit(use, i) for i in range(WORKERS)]
            for _ in range(self.rng.randint(1, 6)):
                answered.acquire()
            link = self.cluster._links[self.rng.randrange(SHARDS)]
            if link is not None:  # else it is being replaced at this very moment
                link._patience = 1.0  # nobody else must be quick
                os.kill(link.pid, sign)
                self.kills += 1
        for done in working:
            done.result()
        self.found += self.law.check(self.store)
        self.law.wrong = 0

    def _insist(self, call):
        for turn in range(TURNS):
            try:
                return call()
            except StoreError:
                if turn == TURNS - 1:
                    raise
        raise AssertionError


def run_with_shards(*arguments):
    """A worker whose store is over shards."""
    worker.Store = partial(Store, make_shard=local_cluster(SHARDS).new_shard)
    worker.run(*arguments)


class CoordinatorKills(Campaign):
    """`Campaign`, where the process that dies has shards in processes of their own."""

    worker = staticmethod(run_with_shards)
