"""Kill a working process again and again, and look at what it leaves behind each time."""

import multiprocessing
import random
import shutil
import time
from pathlib import Path

from indknn.errors import StoreError
from indknn.store import Store
from store.faults import law, points, worker

LIMIT = 300.0  # seconds that one worker may take; it only ends what hangs


def context():
    """Processes forked from one that has imported everything already: a kill costs no start-up."""
    fork = multiprocessing.get_context("forkserver")
    fork.set_forkserver_preload(["store.faults.worker"])
    return fork


class Campaign:
    """Kills on one store, run after run, with the law checked on a copy after each."""

    worker = staticmethod(worker.run)

    def __init__(self, folder, seed, **settings):
        self.folder, self.rng = Path(folder), random.Random(seed)
        self.path, self.witness = self.folder / "live" / "a.store", self.folder / "live" / "witness"
        self.path.parent.mkdir(parents=True)
        self.law = law.Law(law.new_store(self.path, **settings))
        self.found, self.kills, self.runs = law.Findings(), 0, 0
        law.no_ballast()

    def kill_at(self, point, nth=1):
        """The worker dies at the nth pass of a named point; whether it came to that."""
        return self._run(point, nth, None)

    def kill_after(self, reports, seconds=0.0):
        """The worker dies so long after so many reports, whatever the machine is busy with."""
        return self._run(None, reports, seconds)

    def _run(self, point, nth, seconds):
        self.runs += 1
        fork = context()
        here, there = fork.Pipe(duplex=False)
        retries = [(request, *what) for request, what in self.law.asking.items()]
        retries += [(r, *self.law.answered[r][:2]) for r in self._sample(self.law.answered, 3)]
        args = (there, str(self.path), self.runs + self.rng.randrange(1000) * 1000, point, nth)
        process = fork.Process(
            target=self.worker, args=(*args, sorted(self.law.names), sorted(self.law.forgetting), retries)
        )
        process.start()
        there.close()
        self._listen(here, process, None if seconds is None else nth, seconds)
        process.join(LIMIT)
        died = process.exitcode == -9
        assert died or process.exitcode == 0, f"the worker failed with {process.exitcode}"
        self.kills += died
        self.found += self._look()
        return died

    def _listen(self, pipe, process, reports, seconds):
        end, heard = time.monotonic() + LIMIT, 0
        kill = time.monotonic() + seconds if reports == 0 else None
        try:
            while True:
                now = time.monotonic()
                if now >= end or (kill is not None and now >= kill):
                    process.kill()
                    end, kill = now + LIMIT, None
                if pipe.poll(max(0.0, min(end, end if kill is None else kill) - now)):
                    self.law.hear(pipe.recv())
                    heard += 1
                    if heard == reports:
                        kill = time.monotonic() + seconds
        except (EOFError, OSError):
            pass  # the pipe ends with the process, perhaps in the middle of a message

    def _look(self):
        """Check a copy: the store itself is opened by nobody but the next worker."""
        copy = self.folder / "copy"
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(self.path.parent, copy)
        found = law.Findings(traces=self.law.traces(copy / "a.store", copy / "witness"))
        try:
            with Store(copy / "a.store", witness=copy / "witness") as store:
                found += self.law.check(store)
        except StoreError:
            found.unreadable += 1
        self.law.wrong = 0
        return found

    def _sample(self, names, n):
        return self.rng.sample(list(names), min(n, len(names)))


def random_kills(campaign, kills):
    """Kills at any time: mostly at work, some while the store is being opened."""
    rng = campaign.rng
    for _ in range(kills):
        opening = rng.random() < 0.15
        campaign.kill_after(0 if opening else rng.randint(1, 80), rng.uniform(0.0, 0.05 if opening else 0.01))


def chosen_kills(campaign, rounds=1, names=points.POINTS):
    """Kills at every named point; those that were never reached."""
    often = {p: 6 for p in names if p != "reading the ledger"}  # which happens once
    turns = [(p, campaign.rng.randint(1, often.get(p, 1))) for _ in range(rounds) for p in names]
    return [point for point, nth in turns if not campaign.kill_at(point, nth)]
