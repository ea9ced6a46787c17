"""Measures how much faster or slower shards in other processes are, as ratios to the plain store in the same run.

python benchmarks/cluster.py            n = 400,000 x 384, 1.5% selected; 1, 2 and 4 shards, and 2 on Ray
python benchmarks/cluster.py --quick    n = 50,000
python benchmarks/cluster.py --no-ray --json
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
import time
import warnings
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from indknn.cluster import local_cluster
from indknn.settings import Settings
from indknn.store import Store
from measure import medians

D = 384
NEAR = 0.1107  # of random directions in 384 dimensions, 1.5% are as near as this
PAPER = {"mode": "votes", "reuse": "none", "max_queries": 200_000}
DEFAULT = {"mode": "model", "sigma2": 0.2, "max_queries": 200_000}  # so little noise that people are asked


def contestants(base: Path, ray: bool, stack: ExitStack) -> tuple[dict[str, Store], dict[str, float]]:
    clusters: dict[str, Any] = {"plain store": None}
    clusters |= {f"{n} shard{'s' * (n > 1)}": local_cluster(n) for n in (1, 2, 4)}
    if ray:
        from indknn.cluster.ray_hosts import ray_cluster

        clusters["2 on Ray"] = ray_cluster(None, 2, name="benchmark")
    stores, opened = {}, {}
    for i, (name, cluster) in enumerate(clusters.items()):
        path = base.with_name(f"{i}.store")
        shutil.copy(base, path)
        if cluster is not None:
            stack.enter_context(cluster)
        start = time.perf_counter()
        stores[name] = stack.enter_context(Store(path, make_shard=None if cluster is None else cluster.new_shard))
        opened[name] = time.perf_counter() - start
    return stores, opened


def measured(n: int, mode: dict[str, Any], rounds: int, ray: bool) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        base = Path(folder) / "base.store"
        settings = Settings(n_features=D, classes=tuple(range(10)), epsilon=8.0, tau=NEAR, **mode)
        with Store.create(base, settings) as store:
            for first in range(0, n, 50_000):
                X = rng.standard_normal((min(50_000, n - first), D), dtype=np.float32)
                store.add(X, rng.integers(10, size=len(X)), [str(first + i) for i in range(len(X))])
            for _ in store.train() if settings.advised else ():
                pass
        stores, opened = contestants(base, ray, stack)
        for batch in (16, 64):
            asked = {
                name: lambda store=store, batch=batch: store.predict(rng.standard_normal((batch, D)))
                for name, store in stores.items()
            }
            times = medians(asked, rounds)
            plain = times["plain store"]
            found[f"{batch} queries"] = {
                name: {"ms a query": 1e3 * took / batch, "speed": plain / took} for name, took in times.items()
            }
        found["seconds to open"] = opened
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for flag in ("--quick", "--json", "--no-ray"):
        parser.add_argument(flag, action="store_true")
    parser.add_argument("--rounds", type=int, default=7)
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    n = 50_000 if given.quick else 400_000
    found = {}
    for name, mode in (("Algorithm 3", PAPER), ("default mode", DEFAULT)):
        found[name] = measured(n, mode, given.rounds, not given.no_ray)
        if given.json:
            continue
        print(f"{name}, {n:,} x {D}")
        for batch in ("16 queries", "64 queries"):
            for who, row in found[name][batch].items():
                print(
                    f"  {batch:<12}{who:<14}{row['ms a query']:>8.2f} ms a query{row['speed']:>7.2f}x the plain store"
                )
        opened = ", ".join(f"{who} {took:.1f}" for who, took in found[name]["seconds to open"].items())
        print(f"  seconds to open: {opened}", flush=True)
    if given.json:
        print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
