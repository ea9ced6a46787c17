"""Measures large stores on one machine, as ratios: `fit` from an array or a memory map, one query, and a batch.

python benchmarks/large.py --n 1000000 --kind float32 --in-memory
python benchmarks/large.py --n 20000000 --kind int8 --folder DIR      # makes a file of n*d bytes there, and removes it
python benchmarks/large.py --n 100000000 --features 64 --kind int8 --then forget reopen --folder DIR
python benchmarks/large.py --n 4000000 --features 64 --kind int8 --then train --folder DIR      # the memory of training
"""

from __future__ import annotations

import argparse
import ctypes
import itertools
import json
import os
import pickle
import resource
import tempfile
import threading
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from scipy.stats import norm

from indknn import IndKNNClassifier
from indknn.core.calibrate import NEAR_SHARE, near_share
from indknn.records.indexes.scan import _native, cores
from indknn.types import tau_on_grid
from measure import machine, medians

BASE = 20_000
CLASSES = 10


class Peak:
    """The most memory of its own that this process had while watched. Pages of mapped files are the system's."""

    def __init__(self) -> None:
        self.before = self.most = self.now()
        self._over = threading.Event()

    def now(self) -> int:
        """The memory of its own that this process has."""
        status = Path("/proc/self/status").read_text()
        return next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("RssAnon"))

    def _watch(self) -> None:
        while not self._over.wait(0.02):
            self.most = max(self.most, self.now())

    @contextmanager
    def watching(self) -> Iterator[Peak]:
        """Look again and again until this ends."""
        thread = threading.Thread(target=self._watch)
        thread.start()
        try:
            yield self
        finally:
            self.most = max(self.most, self.now())
            self._over.set()
            thread.join()


def write_rows(path: Path, n: int, d: int, kind: str) -> None:
    """Rows without structure: one block of normal numbers, with other signs for every further block."""
    rng = np.random.default_rng(0)
    base = rng.standard_normal((min(BASE, n), d), dtype=np.float32)
    block = np.rint(np.clip(base * 32, -127, 127)).astype(kind) if np.dtype(kind).kind == "i" else base.astype(kind)
    rows = np.lib.format.open_memmap(path, mode="w+", dtype=block.dtype, shape=(n, d))
    for low in range(0, n, len(block)):
        signs = rng.choice([-1, 1], size=d).astype(block.dtype)
        rows[low : low + BASE] = block[: n - low] * signs
    rows.flush()


def read_once(path: Path) -> float:
    """Seconds to read the file, as the system has it now."""
    start, buffer = time.perf_counter(), bytearray(1 << 24)
    with path.open("rb", buffering=0) as file:
        while file.readinto(buffer):
            pass
    return time.perf_counter() - start


def forget(model: IndKNNClassifier, owner: str) -> dict[str, object]:
    """Forget one person, and see that the record is gone."""
    start, before = time.perf_counter(), len(model._engine.shard)
    model.forget([owner])
    took = time.perf_counter() - start
    assert len(model._engine.shard) == before - 1
    return {"ms to forget one person": round(1e3 * took, 1)}


def reopen(model: IndKNNClassifier, folder: Path, query: np.ndarray) -> dict[str, object]:
    """Write everything to a file, forget it here, and read it back: the same answer, and nobody pays for it again.

    Only a seeded model can be pickled. A durable store of so many records takes hours to fill.
    """
    told, spent = model.predict(query).tolist(), model._engine.ledger.column(None).sum()
    path, start = folder / "model.pickle", time.perf_counter()
    with path.open("wb") as file:
        pickle.dump(model, file, protocol=5)
    written = time.perf_counter() - start
    vars(model).clear()
    start = time.perf_counter()
    with Peak().watching() as peak, path.open("rb") as file:
        back = pickle.load(file)
    assert (back.predict(query).tolist(), back._engine.ledger.column(None).sum()) == (told, spent)
    return {
        "GB written": round(path.stat().st_size / 1e9, 3),
        "s to write": round(written, 2),
        "s to read back": round(time.perf_counter() - start, 2),
        "peak of own memory while reading back, GB": round((peak.most - peak.before) / 1e9, 3),
    }


def train(X: np.ndarray, y: np.ndarray, query: np.ndarray) -> dict[str, object]:
    """A round of training, with the memory that it takes beside the store."""
    model = IndKNNClassifier(classes=list(range(CLASSES))).fit(X, y)
    start = time.perf_counter()
    with Peak().watching() as peak:
        model.predict(query)
    return {
        "n": len(X),
        "d": X.shape[1],
        "s of the first answer, with a round of training": round(time.perf_counter() - start, 1),
        "peak of training beside the store, GB": round((peak.most - peak.before) / 1e9, 3),
        "the same in bytes per record": round((peak.most - peak.before) / len(X), 1),
    }


def measure(args: argparse.Namespace, folder: Path) -> dict[str, object]:
    path = folder / "rows.npy"
    write_rows(path, args.n, args.features, args.kind)
    reading = read_once(path)
    X = np.load(path) if args.in_memory else np.load(path, mmap_mode="r")
    y = np.random.default_rng(1).integers(CLASSES, size=args.n)
    owners = {"rows": None, "numbers": np.arange(args.n), "text": None}[args.owners]
    if args.owners == "text":
        owners = [f"person-{i}" for i in range(args.n)]
    share = near_share(NEAR_SHARE, args.n) if args.share is None else args.share
    tau = float(norm.isf(share)) / args.features**0.5  # about this share of such rows is near a query
    seed = 0 if "reopen" in args.then else None
    model = IndKNNClassifier(classes=list(range(CLASSES)), mode="votes", tau=tau, max_queries=2000, random_state=seed)
    start = time.perf_counter()
    with Peak().watching() as peak:
        model.fit(X, y, owners)
    fitted = time.perf_counter() - start
    ctypes.CDLL(None).malloc_trim(0)  # what was freed goes back to the system
    stays = peak.now() - peak.before
    if "train" in args.then:
        del model
        return train(X, y, np.random.default_rng(2).standard_normal((1, args.features)))
    held = model._engine.shard.index.slots
    kept, came = held.values.nbytes, X.nbytes if args.in_memory else 0
    del X, y, owners
    rng = np.random.default_rng(2)
    fresh = iter(rng.standard_normal((100_000, args.features)))
    ask = lambda m: model.predict(np.array(list(itertools.islice(fresh, m))))  # noqa: E731
    found: dict[str, object] = {
        "n": args.n,
        "d": args.features,
        "kind": args.kind,
        "from": "memory" if args.in_memory else "memory map",
        "owners": args.owners,
        "s to read the file": round(reading, 2),
        "s to fit": round(fitted, 2),
        "GB kept": round(kept / 1e9, 3),
        "bytes per record that stay, beside its features": round((stays - kept) / args.n, 1),
        "peak of own memory, GB (input included)": round((peak.most - peak.before + came) / 1e9, 3),
        "peak / (came + kept)": round((peak.most - peak.before + came) / (came + kept), 3),
        "peak resident, GB (mapped pages included)": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6, 3),
    }
    if _native is not None:
        grid = tau_on_grid(tau)
        query = model._engine.settings.quantise(next(fresh)[None], "q")
        found["near"] = len(model._engine.shard.scan(query, grid)[0].slots)
        times = medians(
            {
                "read": lambda: _native.read(held.values, *held.values.shape, cores()),
                "scan": lambda: model._engine.shard.scan(query, grid),
                "one": lambda: ask(1),
                "batch": lambda: ask(64),
            },
            rounds=args.rounds,
        )
        found |= {
            "ms to read what is kept": round(1e3 * times["read"], 1),
            "scan / read": round(times["scan"] / times["read"], 3),
            "one query / read": round(times["one"] / times["read"], 3),
            "one query / read, best turns": round(times.best["one"] / times.best["read"], 3),
            "per query of a batch of 64 / one query": round(times["batch"] / 64 / times["one"], 3),
        }
    if "forget" in args.then:
        found |= forget(model, model._engine.ledger.name_of(args.n // 2))
    if "reopen" in args.then:
        del held
        found |= reopen(model, folder, rng.standard_normal((1, args.features)))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--n", type=int, default=1_000_000)
    parser.add_argument("--features", type=int, default=384)
    parser.add_argument("--kind", choices=["float32", "float16", "int8"], default="float32")
    parser.add_argument("--owners", choices=["rows", "numbers", "text"], default="rows")
    parser.add_argument("--share", type=float, help="of records near a query; by default what the store would choose")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--then", nargs="+", choices=["forget", "reopen", "train"], default=[], help="measured too")
    parser.add_argument("--in-memory", action="store_true", help="an array instead of a memory map")
    parser.add_argument("--folder", type=Path, help="where the file is made; a temporary folder by default")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        found = measure(args, Path(folder))
    print(json.dumps({**machine(), "load at the end": round(os.getloadavg()[0], 2), **found}, indent=1))


if __name__ == "__main__":
    main()
