"""Damage to any file of a store: flipped bits, cut and lost logs, files of other moments. It is never silent.

With `tests` on the path, `python -m store.faults.flips --flips 2000 --cuts 500 --swaps 200` does it by the thousand. Damage
is *silent* if the store opens, `verify` is content, and yet what the store holds, or then does, differs from the original.
"""

import argparse
import random
import sys
import tempfile
from collections import Counter
from pathlib import Path

import apsw
import numpy as np

from golden.transcripts import Replayed
from helpers.asking import declared
from indknn.errors import StoreError
from indknn.settings import Settings
from indknn.store import Store, keyfile
from indknn.store.database import TABLES
from indknn.store.filehome import empty_log
from indknn.store.verify import problems
from store.faults import law

D = 6
LEAVING = "somebody-who-will-be-forgotten"
FILES = MAIN, LOG, HEAD, KEYS = "", "-wal", "-head", ".keys"


class History:
    """A store in use, and its files at every moment: after each change, and after it was closed."""

    def __init__(self, path, people=60):
        law.no_ballast()
        self.path, self.moments, self.closed = Path(path), [], []
        rng = np.random.default_rng(0)
        for role, name, owner in (("admin", "root", None), ("analyst", "ann", None), ("owner", "pat", LEAVING)):
            keyfile.create(keyfile.keys_path(self.path), role, name, owner=owner)
        settings = Settings(n_features=D, classes=("a", "b", "c"), epsilon=2.0)
        names = [LEAVING, *(f"p{i}" for i in range(1, people))]
        with Store.create(path, settings, noise=Replayed()) as store:
            self._see(closed=False)
            declared(store, "ann", "new").add(
                rng.normal(size=(people, D)), rng.choice(["a", "b", "c"], size=people), names
            )
            self._ask(store, rng, 6)
            store.forget(["p3", "p4"])
            self._see(closed=False)
        self._see(closed=True)
        store = Store(path, noise=Replayed())
        self._see(closed=False)
        self._ask(store, rng, 3)
        empty_log(store.db, self.path)  # as SQLite does by itself, when the log is long
        self._see(closed=False)
        self._ask(store, rng, 3)
        store.predict(rng.normal(size=(3, D)), "ann")
        self._see(closed=False)
        store.db.head.close()  # the process dies: what it left is the last moment
        store.db.close(True)
        store.home.release()

    def _ask(self, store, rng, times):
        for analyst in (None, "ann"):
            for _ in range(times):
                store.predict(rng.normal(size=(2, D)), analyst, request_id=f"{analyst} {rng.integers(1 << 30)}")
                self._see(closed=False)

    def _see(self, closed):
        self.moments.append({end: law.body_of(Path(f"{self.path}{end}")) for end in FILES})
        self.closed.append(closed)


def lay_out(path, files):
    """Make these files, and no others, beside this path. None and nothing are both no file."""
    for leftover in path.parent.glob(f"{path.name}*"):
        leftover.unlink()
    for end, body in files.items():
        if body:
            Path(f"{path}{end}").write_bytes(body)


def held(store):
    """What the store holds, and who has keys."""
    keys = keyfile.read_key_file(store.home.keys)
    return {table: sorted(map(repr, store.db.execute(f"SELECT * FROM {table}"))) for table in TABLES}, keys


def held_and_done(store):
    """The same, and what the store does next: answers, charges, an erasure."""
    first, rng = held(store), np.random.default_rng(9)
    told = [store.predict(rng.normal(size=(4, D)), who).tolist() for who in (None, "ann", "new")]
    store.forget([LEAVING])
    told += [store.spent().tolist(), [store.spent(analyst=who).tolist() for who in ("ann", "new")]]
    return first, told, list(problems(store)), traces(store.path)


def traces(path):
    """In which files somebody who was forgotten still shows."""
    return [end for end in FILES if LEAVING.encode() in law.body_of(Path(f"{path}{end}"))]


def outcome(path, expected, look):
    """What becomes of damaged files."""
    before = {end: law.body_of(Path(f"{path}{end}")) for end in FILES}
    try:
        with Store(path, noise=Replayed()) as store:
            if list(problems(store)):
                return "found by verify"
            return "without effect" if look(store) == expected else "SILENT"
    except StoreError:
        same = all(law.body_of(Path(f"{path}{end}")) == before[end] for end in (MAIN, LOG))
        return "refused" if same else "refused, and the log moved"
    except Exception as error:
        return f"SILENT: {error!r}"


class Campaign:
    """Damages the files of one history again and again, and counts what becomes of it."""

    def __init__(self, folder, seed=0):
        self.rng, self.seen = random.Random(seed), {}
        self.history = History(Path(folder) / "original.store")
        self.copy = Path(folder) / "copy"
        self._expected = {}

    def sound(self):
        """Whether nothing is found in whole files, and nothing shows of whom they forget."""
        *_, found, left = self._expect(len(self.history.moments) - 1, held_and_done)
        return not found and not left

    def _expect(self, moment, look):
        """What the whole files of a moment hold or do."""
        if (moment, look) not in self._expected:
            lay_out(self.copy, self.history.moments[moment])
            with Store(self.copy, noise=Replayed()) as store:
                assert not list(problems(store))
                self._expected[moment, look] = look(store)
        return self._expected[moment, look]

    def _note(self, what, files, moment, look, about):
        expected = self._expect(moment, look)
        lay_out(self.copy, files)
        found = outcome(self.copy, expected, look)
        self.seen.setdefault(what, Counter())[found] += 1
        if found.startswith("SILENT"):
            print(f"{what}: {about}: {found}", file=sys.stderr)

    def flip(self):
        """One bit of one file, in a store that was closed or whose process died."""
        last = len(self.history.moments) - 1
        moment = self.rng.choice([last, last, self.history.closed.index(True)])
        files = dict(self.history.moments[moment])
        end = self.rng.choice([name for name, body in files.items() if body])
        body = bytearray(files[end])
        used = [at for at in range(0, len(body), 64) if any(body[at : at + 64])]  # most of a head is empty
        at = (
            self.rng.choice(used) + self.rng.randrange(64) if self.rng.random() < 0.8 else self.rng.randrange(len(body))
        )
        at = min(at, len(body) - 1)
        body[at] ^= 1 << self.rng.randrange(8)
        name = {MAIN: "file", LOG: "log", HEAD: "head", KEYS: "keys"}[end]
        self._note(
            f"flips of the {name}", {**files, end: bytes(body)}, moment, held_and_done, f"moment {moment} byte {at}"
        )

    def cut(self):
        """The log of a process that died, without its end, at any byte or between two frames, or with zeros for it."""
        moment = self.rng.choice([m for m, files in enumerate(self.history.moments) if len(files[LOG]) > 4152])
        files = dict(self.history.moments[moment])
        log = files[LOG]
        at = self.rng.choice([0, self.rng.randrange(len(log)), 32 + 4120 * self.rng.randrange((len(log) - 32) // 4120)])
        files[LOG] = log[:at] + bytes(self.rng.choice([0, len(log) - at]))
        self._note("cuts of the log", files, moment, held, f"moment {moment} at {at}")

    def swap(self):
        """Files of two moments beside each other, some of them lost."""
        moments, most = self.history.moments, len(self.history.moments)
        while True:
            pair = self.rng.randrange(most), self.rng.randrange(most)
            chosen = {end: self.rng.choice(pair) for end in (MAIN, LOG, HEAD)}
            files = {end: moments[m][end] for end, m in chosen.items()} | {KEYS: moments[-1][KEYS]}
            if self.rng.random() < 0.3:
                files[self.rng.choice([LOG, HEAD])] = b""
            if not any(self._is_whole(files, m) for m in pair):
                break
        # what a file shows is as old as the first moment at which it had these bytes
        newest = max(
            next(m for m in range(most) if moments[m][end] == files[end]) for end in (MAIN, LOG, HEAD) if files[end]
        )
        self._note("swapped copies", files, newest, held, f"{chosen}, {[e for e in files if not files[e]]} lost")

    def _is_whole(self, files, moment):
        """Whether this is all of a moment: an old copy, which only a witness can tell."""
        ends = (MAIN, LOG) if self.history.closed[moment] and not files[HEAD] else (MAIN, LOG, HEAD)
        return all(files[end] == self.history.moments[moment][end] for end in ends)


def run(flips=0, cuts=0, swaps=0, seed=0, progress=lambda done: None):
    """How often each outcome came, for each kind of damage."""
    with tempfile.TemporaryDirectory() as name:
        campaign = Campaign(name, seed)
        assert campaign.sound()
        for done, work in enumerate([campaign.flip] * flips + [campaign.cut] * cuts + [campaign.swap] * swaps):
            work()
            progress(done + 1)
        return campaign.seen


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--flips", type=int, default=2000, help="single bits, over all files")
    parser.add_argument("--cuts", type=int, default=500, help="logs without their end")
    parser.add_argument("--swaps", type=int, default=200, help="files of different moments")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    seen = run(given.flips, given.cuts, given.swaps, given.seed, lambda n: print(f"\r{n}", end="", file=sys.stderr))
    print(f"\nSQLite {apsw.sqlite_lib_version()}")
    for what, counts in sorted(seen.items()):
        print(f"{what}: {counts.total()}: " + ", ".join(f"{n} {found}" for found, n in counts.most_common()))
    silent = sum(n for counts in seen.values() for found, n in counts.items() if found.startswith("SILENT"))
    print(f"{silent} silent")
    sys.exit(1 if silent else 0)


if __name__ == "__main__":
    main()
