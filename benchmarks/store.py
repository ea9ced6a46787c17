"""Measures the cost of durability, as ratios to the same work in memory, in one run.

python benchmarks/store.py            n = 50,000 x 64 for queries, 1,000,000 x 384 for opening and forgetting
python benchmarks/store.py --quick    the big store with 100,000 records
python benchmarks/store.py --json     for machines
python benchmarks/store.py --postgres postgresql://...    a file and a database, answer for answer
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from indknn.core.noise import SecureNoise
from indknn.engine import Engine
from indknn.settings import Settings
from indknn.store import Store
from indknn.store.journal import Debits

CLASSES = tuple(range(10))


def seconds(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def records(n: int, d: int, rng: np.random.Generator) -> tuple[Any, Any]:
    return rng.standard_normal((n, d), dtype=np.float32), rng.integers(len(CLASSES), size=n)


def fsync_of(folder: Path, size: int) -> float:
    """One append of so many bytes to a file that is already there, and a sync of it."""
    body = os.urandom(size)
    with (folder / "plain").open("ab", buffering=0) as file:

        def append() -> None:
            file.write(body)
            os.fsync(file.fileno())

        return seconds(append)


def queries(folder: Path, n: int, d: int, rounds: int) -> dict[str, float]:
    """One query, and a batch of 64: in memory, and durable. Interleaved, so that both see the same machine."""
    rng = np.random.default_rng(0)
    plain = {"tau": 0.16, "max_queries": 100_000, "reuse": "none", "free_repeats": False}
    settings = Settings(n_features=d, classes=CLASSES, **plain)
    X, y = records(n, d, rng)
    engine = Engine(settings, SecureNoise())
    engine.add(X, y)
    store = Store.create(folder / "queries.store", settings)
    store.add(X, y, "each-row")
    times: dict[str, list[float]] = {name: [] for name in ("memory", "durable", "fsync", "memory64", "durable64")}
    sizes = []
    for i in range(rounds + 3):
        Q = rng.standard_normal((65, d))
        row = {
            "memory": seconds(lambda Q=Q: engine.predict(Q[:1])),  # type: ignore[misc]
            "durable": seconds(lambda Q=Q: store.predict(Q[:1])),  # type: ignore[misc]
        }
        body = store.db.execute("SELECT body FROM debits ORDER BY seq DESC LIMIT 1").get or b""
        sizes.append(len(Debits.decode(body).slots))
        row["fsync"] = fsync_of(folder, len(body))
        row["memory64"] = seconds(lambda Q=Q: engine.predict(Q[1:]))  # type: ignore[misc]
        row["durable64"] = seconds(lambda Q=Q: store.predict(Q[1:]))  # type: ignore[misc]
        if i >= 3:
            for name, value in row.items():
                times[name].append(value)
    store.close()
    middle = {name: statistics.median(values) for name, values in times.items()}
    return {
        "memory_ms": middle["memory"] * 1e3,
        "fsync_ms": middle["fsync"] * 1e3,
        "durable_ms": middle["durable"] * 1e3,
        "participants": statistics.median(sizes),
        "one_query_ratio": middle["durable"] / (middle["memory"] + middle["fsync"]),
        "memory64_ms": middle["memory64"] * 1e3,
        "durable64_ms": middle["durable64"] * 1e3,
        "batch_of_64_ratio": middle["durable64"] / middle["memory64"],
    }


def big(folder: Path, n: int, d: int) -> dict[str, float]:
    """Open a big store, and forget people in it."""
    path = folder / "big.store"
    rng = np.random.default_rng(1)

    def batches(size: int = 50_000) -> Iterator[tuple[Any, Any, list[str]]]:
        for low in range(0, n, size):
            names = [f"person-{i}" for i in range(low, min(low + size, n))]
            yield *records(len(names), d, rng), names

    store = Store.create(path, Settings(n_features=d, classes=CLASSES, tau=0.2, max_queries=100_000, reuse="none"))
    adding = seconds(lambda: store.add_batches(batches()))
    store.predict(rng.standard_normal((2, d)))
    store.close()
    opened: list[Store] = []
    opening = seconds(lambda: opened.append(Store(path)))
    store = opened[0]
    forgets = []
    for i in range(5):
        store.predict(rng.standard_normal((1, d)))  # so that there is something to fold
        forgets.append(seconds(lambda i=i: store.forget([f"person-{i * 1001}"])))  # type: ignore[misc]
    store.close()
    return {
        "records": n,
        "file_mb": path.stat().st_size / 1e6,
        "add_s": adding,
        "open_s": opening,
        "forget_median_s": statistics.median(forgets),
        "forget_worst_s": max(forgets),
    }


def databases(folder: Path, address: str, n: int, d: int, rounds: int) -> dict[str, float]:
    """The same queries to a file and to PostgreSQL, interleaved: how much slower the database is."""
    rng = np.random.default_rng(2)
    tau = 2.17 / d**0.5  # selects 1.5% of records in random directions
    plain = {"tau": tau, "max_queries": 100_000, "reuse": "none", "free_repeats": False, "delta": 1e-7}
    settings = Settings(n_features=d, classes=CLASSES, **plain)
    X, y = records(n, d, rng)
    stores = {"file": Store.create(folder / "file.store", settings), "database": Store.create(address, settings)}
    adding = {name: seconds(lambda s=store: s.add(X, y, "each-row")) for name, store in stores.items()}  # type: ignore[misc]
    times: dict[tuple[str, int], list[float]] = {(name, size): [] for name in stores for size in (1, 16, 64)}
    for i in range(rounds + 3):
        Q = rng.standard_normal((64, d))
        for (name, size), found in times.items():
            took = seconds(lambda s=stores[name], size=size, Q=Q: s.predict(Q[:size]))  # type: ignore[misc]
            found.extend([took] if i >= 3 else [])
    for store in stores.values():
        store.close()
    opening = {name: seconds(lambda s=store: Store(s.path).close()) for name, store in stores.items()}  # type: ignore[misc]
    middle = {key: statistics.median(found) for key, found in times.items()}
    speeds = {f"batch_of_{size}_speed": middle["file", size] / middle["database", size] for size in (1, 16, 64)}
    rates = {f"{name}_answers_per_s_{size}": size / middle[name, size] for name, size in times}
    slower = {"add_ratio": adding["database"] / adding["file"], "open_ratio": opening["database"] / opening["file"]}
    return {**rates, **speeds, **slower}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="100,000 records instead of a million, fewer rounds")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--postgres", metavar="ADDRESS", help="compare with a store in PostgreSQL, made there and left")
    parser.add_argument("--folder", type=Path, help="where the stores are made; by default a temporary folder")
    asked = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="bench-", dir=asked.folder))
    try:
        if asked.postgres:
            result = {"database_200000x384": databases(folder, asked.postgres, 200_000, 384, 8 if asked.quick else 40)}
        else:
            result = {
                "queries_50000x64": queries(folder, 50_000, 64, rounds=12 if asked.quick else 40),
                "big_x384": big(folder, 100_000 if asked.quick else 1_000_000, 384),
            }
    finally:
        shutil.rmtree(folder)
    if asked.json:
        print(json.dumps(result, indent=2))
        return
    for part, values in result.items():
        print(part)
        for name, value in values.items():
            print(f"  {name:<22}{value:12.3f}")


if __name__ == "__main__":
    main()
