"""How often one prediction changes from one file of the package to another: how far a reader has to jump.

A call into a function of another file of `indknn` counts once, and the way back counts once. Generators count when they
are resumed. Prints a table: one warm query in the default mode through the estimator, the store and HTTP.

    python benchmarks/switches.py
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import numpy as np

import indknn
from indknn import IndKNNClassifier
from indknn.engine import Settings
from indknn.server.app import create_app
from indknn.store import Store

PACKAGE = str(Path(indknn.__file__).parent)
WARM = 40
DEFAULT = {"max_queries": None, "reuse": "student", "prior": "statistics"}


class Switches:
    """A profile function that follows all threads. `turns` counts the changes, `files` holds the files seen."""

    def __init__(self) -> None:
        self.turns = 0
        self.files: set[str] = set()
        self._stacks: dict[int, list[str]] = {}

    def __call__(self, frame: Any, event: str, _: Any) -> None:
        name = frame.f_code.co_filename
        if not name.startswith(PACKAGE) or event not in {"call", "return"}:
            return
        stack = self._stacks.setdefault(threading.get_ident(), [])
        if event == "call":
            self.files.add(name)
            self.turns += bool(stack) and stack[-1] != name
            stack.append(name)
        elif stack:
            stack.pop()
            self.turns += bool(stack) and stack[-1] != name


def counted(ask: Callable[[], Any]) -> tuple[int, int]:
    """Switches and files of one call."""
    switches = Switches()
    threading.setprofile_all_threads(switches) if hasattr(threading, "setprofile_all_threads") else None
    sys.setprofile(switches)
    try:
        ask()
    finally:
        sys.setprofile(None)
        threading.setprofile_all_threads(None) if hasattr(threading, "setprofile_all_threads") else None
    return switches.turns, len(switches.files)


def data() -> tuple[Any, Any, Any]:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(3000, 16))
    return X[:2900], (X[:2900, 0] > 0).astype(int), X[2900:]


def by_estimator() -> tuple[int, int]:
    X, y, Q = data()
    model = IndKNNClassifier().fit(X, y)
    model.predict(Q[:WARM])
    return counted(lambda: model.predict(Q[WARM : WARM + 1]))


def by_store() -> tuple[int, int]:
    X, y, Q = data()
    with tempfile.TemporaryDirectory() as folder:
        settings = Settings(n_features=16, classes=(0, 1), **DEFAULT)
        with Store.create(Path(folder) / "people.store", settings) as store:
            store.add(X, y, [f"p{i}" for i in range(len(X))])
            store.predict(Q[:WARM])
            return counted(lambda: store.predict(Q[WARM : WARM + 1]))


def by_http() -> tuple[int, int]:
    X, y, Q = data()
    with tempfile.TemporaryDirectory() as folder:
        store = Store.create(Path(folder) / "people.store", Settings(n_features=16, classes=(0, 1), **DEFAULT))
        store.add(X, y, [f"p{i}" for i in range(len(X))])
        app = create_app(store)

        async def ask(rows: Any) -> None:
            values = rows.ravel().tolist()
            tensor = {"name": "features", "shape": list(rows.shape), "datatype": "FP64", "data": values}
            transport = httpx.ASGITransport(app)
            async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
                await client.post("/v2/models/indknn/infer", json={"inputs": [tensor]})

        # Threads that run already take up a profile function only where they are started under it.
        switches = Switches()
        threading.setprofile(switches)
        try:
            asyncio.run(ask(Q[:WARM]))
            switches.turns, switches.files = 0, set()
            sys.setprofile(switches)
            asyncio.run(ask(Q[WARM : WARM + 1]))
        finally:
            sys.setprofile(None)
            threading.setprofile(None)
        app.service.close()
        store.close()
        return switches.turns, len(switches.files)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    print(f"{'one prediction through':<24}{'switches':>10}{'files':>8}")
    for name, run in (("the estimator", by_estimator), ("the store", by_store), ("HTTP", by_http)):
        turns, files = run()
        print(f"{name:<24}{turns:>10}{files:>8}")
