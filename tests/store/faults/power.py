"""Power cuts: work on a recording disk, then open what the files may have been at any moment of it."""

import random
import shutil
from pathlib import Path

import apsw

from indknn.errors import StoreError
from indknn.store import Store
from store.faults import law
from store.faults.vfs import Disk


class Cuts:
    """A history on a recording disk, and the law as it stood at every event."""

    def __init__(self, folder, seed, steps=40, synchronous="FULL", **settings):
        self.folder, self.rng, self.images = Path(folder), random.Random(seed), 0
        live = self.folder / "live"
        live.mkdir(parents=True)
        law.watch_debits()
        law.no_ballast()
        self.law = law.Law(law.new_store(live / "a.store", owners=60, free_repeats=False, **settings))
        self.reports = []  # (number of events before, report)
        self.disk = Disk(live)
        try:
            with law.early_folds(seed % 2 == 0):
                self._work(live / "a.store", seed, steps, synchronous)
        finally:
            self.disk.close()

    def _report(self, message):
        self.reports.append((len(self.disk.events), message))

    def _work(self, path, seed, steps, synchronous):
        store = Store(path, synchronous=synchronous, vfs=self.disk.name)
        store.db.pragma("wal_autocheckpoint", self.rng.choice([8, 40, 1000]))
        names = sorted(self.law.names)
        for step in range(steps):
            what = self.rng.choice(["ask", "ask", "ask", "batch", "add", "forget", "fold"])
            if what == "ask":
                law.ask(store, f"{seed}-{step}", self.rng.choice(law.ANALYSTS), 1, self._report)
            elif what == "batch":
                law.ask(store, f"{seed}-{step}", None, 9, self._report)
            elif what == "fold":
                store.fold()
            elif what == "forget":
                law.forget(store, self.rng.choice(names), self._report)
            else:
                name = self.rng.choice([self.rng.choice(names), f"new-{seed}-{step}"])
                self._report(("adding", name, step + 1))
                law.add_owner(store, name, step + 1)
                self._report(("added", name))
        store.close()

    def check(self, cuts=None):
        """Open an image for each way a cut at each moment (or at so many of them) may end."""
        found, last = law.Findings(), len(self.disk.events)
        moments = range(last + 1) if cuts is None else sorted(self.rng.sample(range(last + 1), min(cuts, last + 1)))
        heard, waiting = self.law.copy(), list(self.reports)
        for cut in moments:
            while waiting and waiting[0][0] <= cut:
                heard.hear(waiting.pop(0)[1])
            for _, image in self.disk.images(cut, self.rng):
                self.images += 1
                found += self._open(image, heard.copy())
        return found

    def check_kill_then_cut(self, cuts):
        """The process dies, another takes over and answers what was asked before; then the power goes."""
        found = law.Findings()
        moments = [m for m, e in enumerate(self.disk.events) if e.kind == "sync" and self.disk.settled(m)[1][e.file]]
        for cut in self.rng.sample(moments, min(cuts, len(moments))):
            heard = self.law.copy()
            for at, message in self.reports:
                if at <= cut:
                    heard.hear(message)
            durable, pending = self.disk.settled(cut)
            ((_, killed),) = self.disk.images(cut, self.rng, modes=["kept"])
            disk = Disk(self._lay_out(killed), base=durable, events=[e for w in pending.values() for e in w])
            try:
                store = Store(disk.folder / "a.store", vfs=disk.name)
                for request, (analyst, n) in list(self._unheard(cut).items()):
                    law.ask(store, request, analyst, n, heard.hear)
                ((_, image),) = disk.images(len(disk.events), self.rng, modes=["dropped"])
                store.close()
            finally:
                disk.close()
            self.images += 1
            found += self._open(image, heard)
        return found

    def _unheard(self, cut):
        """Requests that were asked by then, answered or not, newest last."""
        asked = [m[1:] for at, m in self.reports if at <= cut and m[0] == "asking"]
        return {request: (analyst, n) for request, analyst, n in asked[-2:]}

    def _lay_out(self, image):
        folder = self.folder / "image"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        for name, body in image.items():
            if body is not None:
                (folder / name).write_bytes(body)
        return folder

    def _open(self, image, heard):
        folder = self._lay_out(image)
        found = law.Findings(traces=heard.traces(folder / "a.store"))
        try:
            with Store(folder / "a.store") as store:
                found += heard.check(store, retry=3)
        except (StoreError, apsw.Error):  # the latter where the law itself looks into the file
            found.unreadable += 1
        return found
