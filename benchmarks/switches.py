"""Counts how often one prediction moves from one file of the package to another, as a reader of the code would.

It follows the functions of `indknn` in the order in which they are called, and counts how often a call is in another
file than the call before it. It does this for one query, after some others, in each mode, through the estimator, the
store and HTTP.

    python benchmarks/switches.py            a table
    python benchmarks/switches.py --trace    with every call, file by file
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import threading
import warnings
from collections.abc import Callable
from itertools import groupby
from pathlib import Path
from typing import Any

import httpx
import numpy as np

import indknn
from indknn import IndKNNClassifier
from indknn.server.app import create_app
from indknn.settings import Settings
from indknn.store import Store

PACKAGE = Path(indknn.__file__).parent
WARM = 40
MODES = {
    "default": {"max_queries": None, "prior": "model"},
    "Algorithm 3": {"max_queries": 1000, "reuse": "none", "prior": "none", "tau": 0.5},
}
Ask = Callable[[Any], None]


class Calls(list[tuple[str, str]]):
    """A profile function that notes every call of a function of the package: its file and its name."""

    def __bool__(self) -> bool:
        return True  # `threading` starts no profile function that is false

    def __call__(self, frame: Any, event: str, _: Any) -> None:
        """Note one event."""
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(str(PACKAGE)):
            self.append((str(Path(code.co_filename).relative_to(PACKAGE)), code.co_name))


def calls_of(ask: Ask, Q: Any) -> Calls:
    """The calls of one query after some others. Threads that `ask` starts are followed too."""
    calls = Calls()
    threading.setprofile(calls)
    try:
        ask(Q[:WARM])
        calls.clear()
        sys.setprofile(calls)
        ask(Q[WARM : WARM + 1])
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return calls


def data() -> tuple[Any, Any, Any]:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(3000, 16))
    return X[:2900], (X[:2900, 0] > 0).astype(int), X[2900:]


def by_estimator(mode: dict[str, Any]) -> Calls:
    X, y, Q = data()
    return calls_of(IndKNNClassifier(**mode).fit(X, y).predict, Q)


def by_store(mode: dict[str, Any]) -> Calls:
    with tempfile.TemporaryDirectory() as folder, filled(folder, mode) as store:
        return calls_of(store.predict, data()[2])


def by_http(mode: dict[str, Any]) -> Calls:
    with tempfile.TemporaryDirectory() as folder, filled(folder, mode) as store:
        app = create_app(store)

        async def post(rows: Any) -> None:
            values = rows.ravel().tolist()
            tensor = {"name": "features", "shape": list(rows.shape), "datatype": "FP64", "data": values}
            transport = httpx.ASGITransport(app)
            async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
                await client.post("/v2/models/indknn/infer", json={"inputs": [tensor]})

        calls = calls_of(lambda rows: asyncio.run(post(rows)), data()[2])
        app.service.close()
        return calls


def filled(folder: str, mode: dict[str, Any]) -> Store:
    X, y, _ = data()
    store = Store.create(Path(folder) / "people.store", Settings(n_features=16, classes=(0, 1), **mode))
    store.add(X, y, [f"p{i}" for i in range(len(X))])
    if store.settings.advised:  # else a service would train while the query is followed
        for _ in store.train():
            pass
    return store


def main() -> None:
    warnings.simplefilter("ignore")
    print(f"{'one prediction through':<24}{'mode':<14}{'switches':>10}{'files':>8}")
    for name, run in (("the estimator", by_estimator), ("the store", by_store), ("HTTP", by_http)):
        for mode, settings in MODES.items():
            stops = [(file, [call for _, call in some]) for file, some in groupby(run(settings), key=lambda c: c[0])]
            print(f"{name:<24}{mode:<14}{len(stops) - 1:>10}{len({file for file, _ in stops}):>8}")
            if "--trace" in sys.argv:
                print("\n".join(f"    {file}: {' '.join(names)}" for file, names in stops))


if __name__ == "__main__":
    main()
