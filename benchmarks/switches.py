"""Counts how often one call moves from one file of the package to another, as a reader of the code would.

It follows the functions of `indknn` in the order in which they are called, and counts how often a call is in another
file than the call before it. It does this for one query, after some others, in each mode, through the estimator, the
store and HTTP; and for adding and forgetting one person, and for `indknn add`. Each road is gone five times, and the
shortest turn counts: in some turn a budget may end, a vote may be needed, or another thread may come in between.
`tools/house.py` limits these numbers.

    python benchmarks/switches.py            a table
    python benchmarks/switches.py --trace    with every call, file by file
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

import httpx
import numpy as np

import indknn
from indknn import IndKNNClassifier
from indknn.cli.app import app
from indknn.server.app import create_app
from indknn.settings import Settings
from indknn.store import Store

PACKAGE = Path(indknn.__file__).parent
WARM, TURNS = 40, 5
MODES = {
    "default": {"max_queries": None, "mode": "model"},
    "Algorithm 3": {"max_queries": 1000, "reuse": "none", "mode": "votes", "tau": 0.5},
}


class Calls(list[tuple[str, str]]):
    """A profile function that notes every call of a function of the package: its file and its name."""

    def __bool__(self) -> bool:
        return True  # `threading` starts no profile function that is false

    def __call__(self, frame: Any, event: str, _: Any) -> None:
        """Note one event."""
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(str(PACKAGE)):
            self.append((str(Path(code.co_filename).relative_to(PACKAGE)), code.co_name))


def shortest(before: Callable[[], object], turn: Callable[[int], object]) -> Calls:
    """The calls of the turn that changes files least often, after `before`. Threads that both start are followed."""
    calls, turns = Calls(), []
    threading.setprofile(calls)
    try:
        before()
        for number in range(TURNS):
            calls.clear()
            sys.setprofile(calls)
            turn(number)
            sys.setprofile(None)
            turns.append(Calls(calls))
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return min(turns, key=lambda each: len(stops(each)))


def query(ask: Callable[[Any], object]) -> Calls:
    """The calls of one query after some others."""
    Q = data()[2]
    return shortest(lambda: ask(Q[:WARM]), lambda i: ask(Q[WARM + i : WARM + i + 1]))


def data() -> tuple[Any, Any, Any]:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(3000, 16))
    return X[:2900], (X[:2900, 0] > 0).astype(int), X[2900:]


def by_estimator(mode: dict[str, Any]) -> Calls:
    X, y, _ = data()
    return query(IndKNNClassifier(**mode).fit(X, y).predict)


def by_store(mode: dict[str, Any]) -> Calls:
    with tempfile.TemporaryDirectory() as folder, filled(folder, mode) as store:
        return query(store.predict)


def by_http(mode: dict[str, Any]) -> Calls:
    with tempfile.TemporaryDirectory() as folder, filled(folder, mode) as store:
        service = create_app(store)

        async def post(rows: Any) -> None:
            values = rows.ravel().tolist()
            tensor = {"name": "features", "shape": list(rows.shape), "datatype": "FP64", "data": values}
            transport = httpx.ASGITransport(service)
            async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
                await client.post("/v2/models/indknn/infer", json={"inputs": [tensor]})

        def ask(rows: Any) -> None:
            asyncio.run(post(rows))
            time.sleep(0.1 if len(rows) > 1 else 0.0)  # what the server does between answers is not of the next one

        calls = query(ask)
        service.service.close()
        return calls


def filled(folder: str, mode: dict[str, Any]) -> Store:
    X, y, _ = data()
    store = Store.create(Path(folder) / "people.store", Settings(n_features=16, classes=(0, 1), **mode))
    store.add(X, y, [f"p{i}" for i in range(len(X))])
    if store.settings.advised:  # else a service would train while the query is followed
        for _ in store.train():
            pass
    return store


def of_add() -> Calls:
    _, _, Q = data()
    with tempfile.TemporaryDirectory() as folder, filled(folder, MODES["default"]) as store:
        return shortest(lambda: store.add(Q[:1], [0], ["ann"]), lambda i: store.add(Q[i : i + 1], [1], [f"bob {i}"]))


def of_forget() -> Calls:
    with tempfile.TemporaryDirectory() as folder, filled(folder, MODES["default"]) as store:
        return shortest(lambda: store.forget(["p1"]), lambda i: store.forget([f"p{i + 2}"]))


def of_command() -> Calls:
    """`indknn add` of a csv with a schema to a new store, after another one."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        lines = [f"{i % 60},{'odd' if i % 2 else 'even'},p{i}" for i in range(300)]
        (folder / "public.csv").write_text("\n".join(["age,parity,who", *lines]))
        (folder / "people.csv").write_text("\n".join(["age,parity,who", *lines[:20]]))

        def run(*words: str | Path) -> None:
            if app.main([str(word) for word in words], standalone_mode=False):
                raise SystemExit(f"indknn {' '.join(map(str, words))} failed")

        schema = folder / "schema.json"
        run("schema", "infer", folder / "public.csv", "--label", "parity", "--owner", "who", "-o", schema)
        for number in range(TURNS + 1):
            run("init", folder / f"{number}.store", "--schema", schema)
        add = [partial(run, "add", folder / f"{number}.store", folder / "people.csv") for number in range(TURNS + 1)]
        return shortest(add.pop(), lambda i: add[i]())


def roads() -> Iterator[tuple[str, Calls]]:
    """Every road with its calls."""
    for name, run in (("estimator", by_estimator), ("store", by_store), ("HTTP", by_http)):
        for mode, settings in MODES.items():
            yield f"{name}, {mode}", run(settings)
    yield from (("Store.add", of_add()), ("Store.forget", of_forget()), ("indknn add, csv, schema", of_command()))


def stops(calls: Calls) -> list[tuple[str, list[str]]]:
    """The files in the order in which they are visited, with the functions that are called in each."""
    return [(file, [call for _, call in some]) for file, some in groupby(calls, key=lambda c: c[0])]


def switches() -> dict[str, int]:
    """How often each road changes files."""
    with warnings.catch_warnings(), redirect_stdout(None):
        warnings.simplefilter("ignore")
        return {name: len(stops(calls)) - 1 for name, calls in roads()}


def main() -> None:
    warnings.simplefilter("ignore")
    with redirect_stdout(None):
        found = list(roads())
    print(f"{'road':<30}{'switches':>10}{'files':>8}")
    for name, calls in found:
        visited = stops(calls)
        print(f"{name:<30}{len(visited) - 1:>10}{len({file for file, _ in visited}):>8}")
        if "--trace" in sys.argv:
            print("\n".join(f"    {file}: {' '.join(names)}" for file, names in visited))


if __name__ == "__main__":
    main()
