"""What all routes share: the store behind its worker, the keys, the limits, the counters."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import numpy.typing as npt

from indknn.server.access import Visitor
from indknn.server.keys import Keyring
from indknn.server.metrics import Metrics
from indknn.server.options import Options
from indknn.server.reports import Reports
from indknn.server.worker import Worker
from indknn.store import Store

T = TypeVar("T")


class Service:
    """One store, served. Its threads start with it; `close` finishes what was begun, and leaves the store open."""

    def __init__(self, store: Store, keys: Path | None, options: Options):
        self.store = store
        self.options = options
        self.keys = Keyring(keys)
        self.metrics = Metrics()
        self.reports = Reports(store)
        self.closing = False

    @cached_property
    def worker(self) -> Worker:
        """The threads."""
        return Worker(self.store, self.metrics)

    async def run(self, work: Callable[[], T]) -> T:
        """Work on the store, in its turn."""
        return await self.worker.run(work)

    def close(self) -> None:
        """Finish what was begun."""
        self.closing = True
        if "worker" in self.__dict__:
            self.worker.close()

    @property
    def n_features(self) -> int | None:
        """How many features a row has; None before the first records."""
        return None if self.store.draft else self.store.settings.n_features

    @property
    def classes(self) -> npt.NDArray[Any]:
        """The label set."""
        return self.store.settings.class_array

    def session(self, who: Visitor) -> dict[str, Any]:
        """Who the caller is, and what they may do."""
        return {
            "role": who.role,
            "name": who.analyst,
            "model": self.options.name,
            "open": who.key is None,
            "n_features": self.n_features,
            "classes": self.classes.tolist(),
            "can": who.can,
            "owner": None if who.key is None else who.key.owner,
            "guarantee": self.reports.guarantee(),
        }

    def metadata(self) -> dict[str, Any]:
        """The public facts about the model: parameters and the promise, nothing that depends on people."""
        settings = self.store.settings
        kind = {"i": "INT64", "u": "INT64", "b": "BOOL", "f": "FP64"}.get(self.classes.dtype.kind, "BYTES")
        return {
            "name": self.options.name,
            "versions": ["1"],
            "platform": "indknn",
            "inputs": [{"name": "features", "datatype": "FP32", "shape": [-1, self.n_features or -1]}],
            "outputs": [{"name": "label", "datatype": kind, "shape": [-1]}],
            "parameters": {
                "classes": self.classes.tolist(),
                "n_features": self.n_features,
                "epsilon": settings.epsilon,
                "delta": settings.delta,
                "filter": settings.accountant,
                "tau": settings.tau,
                "kernel": settings.kernel,
                "max_batch": self.options.max_batch,
                "tick": self.options.tick,
            },
        }
