"""Single bits of a store in use are flipped, anywhere in its file: each is found, refused, or provably without effect.

`python -m store.faults.flips --flips 2000` (with `tests` on the path) does it by the thousand. A flip is *silent* if the
store opens, `verify` is content, and yet what the file holds or what the store then does differs from the original.
"""

import argparse
import random
import shutil
import sys
import tempfile
from collections import Counter
from pathlib import Path

import apsw
import numpy as np

from golden.transcripts import Replayed
from indknn.errors import StoreError
from indknn.settings import Settings
from indknn.store import Store
from indknn.store.books import TABLES
from indknn.store.verify import problems
from store.faults import law

D = 6
LEAVING = "somebody-who-will-be-forgotten"


def store_in_use(path, people=60):
    """Two analysts, releases of models, requests, somebody forgotten, debits that are not folded."""
    rng = np.random.default_rng(0)
    settings = Settings(n_features=D, classes=("a", "b", "c"), epsilon=2.0)
    with Store.create(path, settings, noise=Replayed()) as store:
        store.add(
            rng.normal(size=(people, D)),
            rng.choice(["a", "b", "c"], size=people),
            [LEAVING, *(f"p{i}" for i in range(1, people))],
        )
        for analyst in (None, "ann"):
            for i in range(6):
                store.predict(rng.normal(size=(2, D)), analyst, request_id=f"{analyst} {i}")
        store.forget(["p3", "p4"])
        store.predict(rng.normal(size=(3, D)), "ann")
    return path


def what_it_does(path):
    """What the file holds, and what the store does next: answers, charges, an erasure that leaves no trace."""
    with Store(path, noise=Replayed()) as store:
        held = {table: sorted(map(repr, store.db.execute(f"SELECT * FROM {table}"))) for table in (*TABLES, "audit")}
        rng = np.random.default_rng(9)
        told = [store.predict(rng.normal(size=(4, D)), who).tolist() for who in (None, "ann", "new")]
        store.forget([LEAVING])
        told += [store.spent().tolist(), [store.spent(analyst=who).tolist() for who in ("ann", "new")]]
        found = list(problems(store))
    return held, told, found, LEAVING.encode() in path.read_bytes()


def outcome(path, expected):
    """What becomes of a damaged file."""
    try:
        with Store(path) as store:
            if list(problems(store)):
                return "found by verify"
    except StoreError:
        return "refused"
    return "without effect" if what_it_does(path) == expected else "SILENT"


def run(flips, seed=0, progress=lambda done: None):
    """How often each outcome came."""
    law.no_ballast()
    rng, seen = random.Random(seed), Counter()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        original = store_in_use(folder / "original").read_bytes()
        copy = folder / "copy"
        copy.write_bytes(original)
        expected = what_it_does(copy)
        assert not expected[2]
        assert not expected[3]
        for i in range(flips):
            at, bit = rng.randrange(len(original)), 1 << rng.randrange(8)
            damaged = bytearray(original)
            damaged[at] ^= bit
            for leftover in folder.glob("copy*"):
                leftover.unlink()
            copy.write_bytes(damaged)
            try:
                found = outcome(copy, expected)
            except Exception as error:
                found = f"SILENT: {error!r}"
            seen[found] += 1
            if found.startswith("SILENT"):
                print(f"byte {at} bit {bit}: {found}", file=sys.stderr)
                shutil.copy(copy, folder / "kept")
            progress(i + 1)
    return seen


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--flips", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    seen = run(given.flips, given.seed, lambda done: print(f"\r{done}", end="", file=sys.stderr))
    print(f"\nSQLite {apsw.sqlite_lib_version()}: " + ", ".join(f"{n} {what}" for what, n in seen.most_common()))
    sys.exit(1 if any(what.startswith("SILENT") for what in seen) else 0)


if __name__ == "__main__":
    main()
