"""Measures updates, memory, and a whole private query compared with the scan alone."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from indknn.answering.predictor import Predictor
from indknn.answering.requests import Request
from indknn.core import accounting
from indknn.core.kernels import Cosine
from indknn.core.noise import SecureNoise
from indknn.ledger import MemoryLedger
from indknn.records.indexes import make_index
from indknn.records.shard import Shard
from indknn.settings import Settings
from indknn.types import tau_on_grid
from measure import features, medians, one, tau_for
from sections import Row, filled


def _median_us(call: Callable[[Any], object], arguments: list[Any]) -> float:
    times = []
    for argument in arguments:
        start = time.perf_counter()
        call(argument)
        times.append(time.perf_counter() - start)
    return statistics.median(times) * 1e6


def updates(sizes: list[int], d: int) -> list[Row]:
    """Adding and forgetting one record, and adding them all at once."""
    rows = []
    newcomers = [one(features(400, d, seed=2), i) for i in range(400)]
    for n in sizes:
        records = features(n, d)
        for name in ("exact", "lsh", "sketch"):
            index = make_index(name, Cosine(), d)
            start = time.perf_counter()
            index.add(records)
            bulk = time.perf_counter() - start
            index.add(features(1000, d, seed=3))  # makes the arrays grow, which is not what is timed below
            slots: list[Any] = []
            added = _median_us(lambda v, index=index, slots=slots: slots.append(index.add(v)), newcomers)  # type: ignore[misc]
            removed = _median_us(index.remove, slots)
            rows.append(
                {
                    "n": n,
                    "d": d,
                    "index": name,
                    "s, all at once": bulk,
                    "us to add one": added,
                    "us to forget one": removed,
                    "bytes per record beside features": index.slots.bytes_per_slot - d,  # type: ignore[attr-defined]
                }
            )
    return rows


def private_query(n: int, d: int, rounds: int, share: float = 0.02) -> list[Row]:
    """Scan, noise, ledger and argmax, against the bare scan of the same query."""
    records, queries = features(n, d), features(512, d, seed=1)
    tau = tau_for(share, queries[slice(0, 64)], records)
    budget = accounting.budget(1.0, 1e-5)
    settings = Settings(d, tuple(range(10)), tau=tau, sigma2=5.0, max_queries=100_000, mode="votes", free_repeats=False)
    index = filled("exact", records[slice(0, 0)])
    shard = Shard(index, MemoryLedger(accounting.to_units(budget)))
    labels = np.random.default_rng(0).integers(0, 10, n)
    shard.add(records, labels, [str(i) for i in range(n)])
    predictor = Predictor(shard, settings, SecureNoise())
    turn = [one(queries, i) for i in range(8)]
    grid = tau_on_grid(tau)
    bounded = [index._bounded(q, grid) for q in turn]
    calls: dict[str, Callable[[], object]] = {
        "scan": lambda: [index.scanner.scan(rows, q.values, f) for q, (rows, f) in zip(turn, bounded, strict=True)],
        "select": lambda: [list(index.search(q, grid)) for q in turn],
        "private": lambda: [predictor.compute([Request(q)]) for q in turn],
        "batch select": lambda: list(index.search(queries[slice(0, 64)], grid)),
        "batch private": lambda: predictor.compute([Request(queries[slice(0, 64)])]),
    }
    times = medians(calls, rounds)
    per = {name: seconds / (64 if "batch" in name else len(turn)) for name, seconds in times.items()}
    names = {
        "scan": ("bare scan, one query", "scan"),
        "select": ("scan and kernel, one query", "scan"),
        "private": ("whole private query", "scan"),
        "batch select": ("scan and kernel, of 64", "batch select"),
        "batch private": ("whole private query, of 64", "batch select"),
    }
    return [
        {"n": n, "d": d, "what": label, "ms per query": per[key] * 1e3, "x the scan": per[key] / per[base]}
        for key, (label, base) in names.items()
    ]
