"""The measurements of the scan benchmark, one function per section. Each returns rows for a table."""

from __future__ import annotations

import gc
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from indknn.core.kernels import Cosine
from indknn.records.indexes import CodedIndex, ExactIndex, make_index
from indknn.records.indexes.scan import _native, cores
from indknn.types import Vectors, tau_on_grid
from measure import features, medians, one, tau_for, unit

Row = dict[str, Any]
BATCH = 64
SHARE = 0.02


def filled(name: str, records: Vectors, **options: Any) -> ExactIndex:
    index = make_index(name, Cosine(), records.values.shape[1], **options)
    assert isinstance(index, ExactIndex)
    for low in range(0, len(records), 200_000):
        index.add(records[slice(low, low + 200_000)])
    return index


def ours(records: Vectors, queries: Vectors, tau: int) -> dict[str, Callable[[], object]]:
    """Our contestants: the whole of `select`, the kernel's decision included."""
    fast, slow = filled("exact", records), filled("exact", records, scanner="numpy")
    calls: dict[str, Callable[[], object]] = {}
    if _native is not None:
        calls["indknn native"] = lambda: list(fast.search(queries, tau))
        rows, factors = fast._bounded(queries, tau)
        calls["indknn native, scan only"] = lambda: fast.scanner.scan(rows, queries.values, factors)
        calls["plain read"] = lambda: _native.read(fast.slots.values, *records.values.shape, cores())
    calls["indknn numpy"] = lambda: list(slow.search(queries, tau))
    return calls


def peers(records: Vectors, queries: Vectors, tau: float, *, slow: bool) -> dict[str, Callable[[], object]]:
    """The same search by others, in float32."""
    X, Q = unit(records), unit(queries)

    def numpy_peer() -> object:
        cosines = X @ Q[0] if len(Q) == 1 else Q @ X.T
        return [np.flatnonzero(row >= tau) for row in np.atleast_2d(cosines)]

    calls: dict[str, Callable[[], object]] = {"NumPy float32": numpy_peer}
    try:
        import faiss
    except ImportError:
        pass
    else:
        faiss.omp_set_num_threads(cores())
        flat = faiss.IndexFlatIP(X.shape[1])
        flat.add(X)
        calls["faiss IndexFlatIP.range_search"] = lambda: flat.range_search(Q, tau)
    if slow:
        from sklearn.neighbors import NearestNeighbors

        radius = float(np.sqrt(2.0 - 2.0 * tau))
        nearest = NearestNeighbors(radius=radius, algorithm="brute", n_jobs=cores()).fit(X)
        calls["scikit-learn radius_neighbors"] = lambda: nearest.radius_neighbors(Q)
    return calls


def side_by_side(sizes: list[tuple[int, int]], n_queries: int, rounds: int) -> list[Row]:
    """One query, or a batch: milliseconds per query, and how many times faster than faiss and NumPy."""
    rows = []
    for n, d in sizes:
        records, queries = features(n, d), features(n_queries, d, seed=1)
        tau = tau_for(SHARE, queries, records)
        calls = ours(records, queries, tau_on_grid(tau)) | peers(records, queries, tau, slow=n <= 50_000)
        times = medians(calls, rounds)
        for name, seconds in times.items():
            row: Row = {"n": n, "d": d, "queries": n_queries, "what": name}
            row["ms per query"] = seconds / n_queries * 1e3
            row["best ms"] = times.best[name] / n_queries * 1e3
            if "faiss IndexFlatIP.range_search" in times:
                row["x faiss"] = times["faiss IndexFlatIP.range_search"] / seconds
            row["x NumPy"] = times["NumPy float32"] / seconds
            if "plain read" in times and n_queries == 1:
                row["share of read bandwidth"] = times["plain read"] / seconds
            rows.append(row)
        del records, calls
        gc.collect()
    return rows


def search(index: ExactIndex, blocks: list[Vectors], tau: int) -> list[object]:
    """What is timed below: every block of queries, one block after another."""
    return [list(index.search(block, tau)) for block in blocks]


def growth(sizes: list[int], d: int, rounds: int) -> list[Row]:
    """Cost per query as the store grows."""
    records, queries = features(max(sizes), d), features(BATCH, d, seed=1)
    tau = tau_on_grid(tau_for(SHARE, queries, records))
    rows = []
    for n in sizes:
        index = filled("exact", records[slice(0, n)])
        calls = {
            "one": partial(search, index, [one(queries)], tau),
            "batch": partial(search, index, [queries], tau),
        }
        times = medians(calls, rounds)
        rows.append(
            {
                "n": n,
                "d": d,
                "ms, one query": times["one"] * 1e3,
                "ms per query of 64": times["batch"] / BATCH * 1e3,
                "ns per record, one": times["one"] / n * 1e9,
                "ns per record, of 64": times["batch"] / BATCH / n * 1e9,
            }
        )
        del index, calls
        gc.collect()
    return rows


def index_map(sizes: list[tuple[int, int]], shares: list[float], rounds: int) -> list[Row]:
    """Exact, lsh and sketch over n, d and selectivity, with recall and the share of candidates."""
    rows: list[Row] = []
    for n, d in sizes:
        records, queries = features(n, d), features(BATCH, d, seed=1)
        indexes = {name: filled(name, records) for name in ("exact", "lsh", "sketch")}
        del records
        for share in shares:
            tau = tau_on_grid(tau_for(share, queries, features(20_000, d)))
            rows += _one_cell(indexes, queries, tau, {"n": n, "d": d, "selected": share}, rounds)
        del indexes
        gc.collect()
    return rows


def _one_cell(indexes: dict[str, ExactIndex], queries: Vectors, tau: int, where: Row, rounds: int) -> list[Row]:
    singles, some = [one(queries, i) for i in range(8)], queries[slice(0, 16)]
    calls: dict[str, Callable[[], object]] = {}
    for name, index in indexes.items():
        calls[name] = partial(search, index, singles, tau)
        calls[name + " batch"] = partial(search, index, [queries], tau)
    times = medians(calls, rounds)
    rows = []
    for name, index in indexes.items():
        recall, candidates = 1.0, 1.0
        if isinstance(index, CodedIndex):
            recall = index.recall(some, tau)
            candidates = float(np.mean([len(c) for c in index.candidates(some, tau)])) / len(index)
        rows.append(
            {
                **where,
                "index": name,
                "ms, one query": times[name] / len(singles) * 1e3,
                "x exact": times["exact"] / times[name],
                "ms per query of 64": times[name + " batch"] / BATCH * 1e3,
                "x exact, of 64": times["exact batch"] / times[name + " batch"],
                "recall": recall,
                "candidates": candidates,
            }
        )
    return rows
