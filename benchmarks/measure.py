"""Timing and data for the benchmarks. The programs that are compared take turns, and their medians are compared."""

from __future__ import annotations

import gc
import os
import platform
import statistics
import time
from collections.abc import Callable, Mapping
from importlib import metadata
from pathlib import Path

import numpy as np

from indknn.core.quantise import integer_dots, quantise
from indknn.records.indexes.scan import cores, make_scanner
from indknn.types import FloatArray, Vectors

_RANK = 64
_PAUSE = 0.02  # seconds; thread pools of BLAS and OpenMP keep using the cores for a while after their turn
_AT_LEAST = 0.004  # seconds per turn; a shorter call is repeated


class Times(dict[str, float]):
    """Median seconds per call by contestant, and in `best` the shortest: what an undisturbed turn took."""

    best: dict[str, float]


def medians(contestants: Mapping[str, Callable[[], object]], rounds: int = 9) -> Times:
    """Everyone runs once per round, so that a noisy neighbour disturbs all alike."""
    names = list(contestants)
    repeats = {}
    for name, call in contestants.items():  # once to warm up, once to see how long it takes
        call()
        start = time.perf_counter()
        call()
        repeats[name] = max(1, int(_AT_LEAST / (time.perf_counter() - start)))
    times: dict[str, list[float]] = {name: [] for name in names}
    gc.collect()
    order = np.random.default_rng(0)
    for _ in range(rounds):
        for at in order.permutation(len(names)):
            name = names[at]
            call = contestants[name]
            time.sleep(_PAUSE)
            call()  # not timed, because the caches still hold the data of the turn before
            start = time.perf_counter()
            for _ in range(repeats[name]):
                call()
            times[name].append((time.perf_counter() - start) / repeats[name])
    result = Times({name: statistics.median(values) for name, values in times.items()})
    result.best = {name: min(values) for name, values in times.items()}
    return result


def features(n: int, d: int, seed: int = 0) -> Vectors:
    """Vectors like a network's features: a few strong directions, many weak ones, and some noise."""
    rng = np.random.default_rng(0)  # the same directions whatever the seed
    rank = min(_RANK, d)
    axes = rng.normal(size=(rank, d)).astype(np.float32) * (np.arange(1, rank + 1) ** -0.5)[:, None]
    rng = np.random.default_rng([1, seed])
    values, roots, scales = np.empty((n, d), dtype=np.int8), np.empty(n), np.empty(n)
    for low in range(0, n, 50_000):
        part = slice(low, min(low + 50_000, n))
        m = part.stop - part.start
        rows = rng.standard_normal((m, rank), dtype=np.float32) @ axes.astype(np.float32)
        rows += 0.1 * rng.standard_normal((m, d), dtype=np.float32)
        vectors = quantise(rows)
        values[part], roots[part], scales[part] = vectors.values, vectors.root_norm, vectors.scale
    return Vectors(values, roots, scales)


def unit(vectors: Vectors) -> np.ndarray:
    """The same vectors for the peers: float32, of length one."""
    return vectors.values.astype(np.float32) / vectors.root_norm.astype(np.float32)[:, None]


def tau_for(share: float, queries: Vectors, records: Vectors) -> float:
    """The cosine that this share of the pairs reaches."""
    sample = records[slice(0, 20_000)]
    cosines: FloatArray = integer_dots(queries.values, sample.values)
    cosines /= np.outer(queries.root_norm, sample.root_norm)
    return float(np.quantile(cosines, 1.0 - share))


def one(vectors: Vectors, i: int = 0) -> Vectors:
    """A single vector."""
    return vectors[slice(i, i + 1)]


def machine() -> dict[str, object]:
    """What this ran on."""
    cpu = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        names = [line.split(":", 1)[1].strip() for line in info.read_text().splitlines() if "model name" in line]
        cpu = names[0] if names else cpu
    versions = {}
    for package in ("numpy", "faiss-cpu", "scikit-learn"):
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            versions[package] = "absent"
    return {
        "cpu": cpu,
        "cores": cores(),
        "load when started": round(os.getloadavg()[0], 2),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "scanner": make_scanner().name,
        **versions,
    }
