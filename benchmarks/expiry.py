"""Measures whether answers wait while records expire: a server's worker, with clients that ask one after another.

`python benchmarks/expiry.py` alternates between short windows in which expired records are erased and windows in which
they are left alone. It prints the p50 and p99 of answers in both, their ratios, and how many records an hour were
erased. Windows of both kinds follow each other, so a busy machine slows down both.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from indknn.core import clock
from indknn.server.telemetry import Metrics
from indknn.server.worker import Worker
from indknn.settings import Settings
from indknn.store import Store

HOUR = 3600.0
_LATER = time.monotonic() + 1e6


def built(path: Path, n: int, d: int, rng: np.random.Generator) -> Store:
    """A store of which half expires within the next hour."""
    store = Store.create(path, Settings(d, ("no", "yes"), tau=0.3, epsilon=8.0, mode="votes", max_queries=10**6))
    y = rng.integers(2, size=n)
    X = rng.standard_normal((n, d)) + 0.5 * y[:, None]
    soon = np.datetime64(int(clock.seconds() // HOUR + 1) * 3600, "s")
    dates = [soon if expires else None for expires in rng.permutation(n) < n // 2]
    store.add(X, np.array(["no", "yes"])[y], [f"person {i}" for i in range(n)], expires=dates)
    return store


async def asked(worker: Worker, d: int, clients: int, seconds: float, rng: np.random.Generator) -> list[float]:
    """How long each answer took, with this many clients who each wait for an answer before they ask again."""
    end, times = time.perf_counter() + seconds, []

    async def client() -> None:
        while (start := time.perf_counter()) < end:
            await worker.predict(rng.standard_normal((1, d)), None, None, None)
            times.append(time.perf_counter() - start)

    await asyncio.gather(*(client() for _ in range(clients)))
    return times


async def measured(store: Store, given: argparse.Namespace, rng: np.random.Generator) -> dict[str, Any]:
    """Alternate the windows."""
    worker = Worker(store, Metrics())
    worker._erasing._again = _LATER
    times: dict[bool, list[float]] = {False: [], True: []}
    before, shard = len(store.engine.shard), store.engine.shard
    await asked(worker, given.d, given.clients, 2.0, rng)
    for _ in range(given.windows):
        for erasing in times:
            worker._erasing._again = 0.0 if erasing else _LATER
            times[erasing] += await asked(worker, given.d, given.clients, given.seconds, rng)
    erased = before - len(shard)
    await asyncio.to_thread(worker.close)
    quantiles = {kind: np.quantile(spent, [0.5, 0.99]) * 1e3 for kind, spent in times.items()}
    (quiet50, quiet99), (busy50, busy99) = quantiles[False], quantiles[True]
    return {
        "answers": {"left alone": len(times[False]), "erasing": len(times[True])},
        "p50_ms": {"left alone": quiet50, "erasing": busy50, "ratio": busy50 / quiet50},
        "p99_ms": {"left alone": quiet99, "erasing": busy99, "ratio": busy99 / quiet99},
        "erased_per_hour": round(erased / (given.windows * given.seconds) * HOUR),
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--n", type=int, default=100_000)
    parser.add_argument("--d", type=int, default=64)
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--windows", type=int, default=30)
    given, rng = parser.parse_args(), np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as folder, built(Path(folder) / "a.store", given.n, given.d, rng) as store:
        later = time.time() + HOUR
        clock.seconds = lambda: later
        print(json.dumps({**vars(given), **asyncio.run(measured(store, given, rng))}, indent=2))


if __name__ == "__main__":
    main()
