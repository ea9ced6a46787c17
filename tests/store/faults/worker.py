"""A process that uses a store as hard as it can until somebody kills it."""

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import random
import threading
from pathlib import Path

from indknn.place import is_address
from indknn.store import Store
from store.faults import law, points

SIDE = 3  # threads that ask, beside the one that changes things


def run(pipe, path, seed, point, nth, names, unfinished, retries, synchronous="FULL"):
    """Open, finish what was interrupted, then ask, add, forget and fold. Reports go out after the call returned."""
    sending = threading.Lock()

    def report(message):
        with sending:
            pipe.send(message)

    law.watch_debits()
    law.no_ballast()
    if point is not None:
        points.arm(point, nth)
    with law.early_folds(seed % 2 == 0):
        _live(path, seed, names, unfinished, retries, synchronous, report)
    report(("closed",))


def _live(path, seed, names, unfinished, retries, synchronous, report):
    witness = None if is_address(path) else Path(path).with_name("witness")
    store = Store(path, witness=witness, synchronous=synchronous)
    report(("open",))
    for name in unfinished:
        law.forget(store, name, report)
    for request, analyst, n in retries:
        law.ask(store, request, analyst, n, report)
    threads = [threading.Thread(target=_ask, args=(store, f"{seed}-{i}", report), daemon=True) for i in range(SIDE)]
    for thread in threads:
        thread.start()
    _change(store, random.Random(seed), seed, list(names), report)
    for thread in threads:
        thread.join()
    store.close()


def _ask(store, prefix, report, requests=150):
    rng = random.Random(prefix)
    for i in range(requests):
        law.ask(store, f"{prefix}-{i}", rng.choice(law.ANALYSTS), rng.choice([1, 1, 1, 8]), report)


def _change(store, rng, seed, names, report, steps=40):
    for step in range(steps):
        what = rng.choice(["add", "forget", "return", "fold", "ask"])
        if what == "fold":
            store.fold()
        elif what == "ask":
            law.ask(store, f"{seed}-main-{step}", None, 32, report)
        elif what == "forget":
            law.forget(store, rng.choice(names), report)
        else:
            name = rng.choice(names) if what == "return" else f"new-{seed:06d}-{step:03d}"
            version = seed * 1000 + step
            report(("adding", name, version))
            law.add_owner(store, name, version)
            report(("added", name))
