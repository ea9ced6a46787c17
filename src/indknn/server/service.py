"""What all routes share: the store behind its worker, the keys, the limits, the counters."""

from __future__ import annotations

from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy.typing as npt

from indknn.errors import StoreError
from indknn.ledger.figures import guarantee
from indknn.server.access import PERMISSIONS, RateLimiter, may
from indknn.server.keyring import OPEN, Keyring
from indknn.server.metrics import Metrics
from indknn.server.options import Options
from indknn.server.reports import Reports
from indknn.server.worker import Worker
from indknn.store import Store
from indknn.store.keyfile import Key, is_keyed, keys_path, mark_keyed

DATATYPES = {"i": "INT64", "u": "INT64", "b": "BOOL", "f": "FP64"}
"""The protocol's names for NumPy's kinds of labels; everything else is BYTES."""


class Service:
    """One store, served. `close` finishes what was begun, and leaves the store open."""

    def __init__(self, store: Store, keys: Path | None, options: Options, open_on_loopback: bool):
        self.store = store
        self.options = options
        self.keys = Keyring(keys)
        with store.reading() as db:
            self.keyed = is_keyed(db)
        if self.keys.is_open and self.keyed and not open_on_loopback:
            raise StoreError(
                f"{store.path} had keys, but {keys_path(store.path).name} is lost or empty: restore that file, make "
                "new keys with indknn keys create, or let everybody on this machine in with --open-on-loopback"
            )
        self.rate_limiter = RateLimiter()
        self.metrics = Metrics()
        self.reports = Reports(store)
        self.closing = False
        if not self.keys.is_open:
            self._mark_keyed()

    async def remember_keys(self) -> None:
        """Have the store remember that it has keys, once the first was made."""
        await self.worker.run(self._mark_keyed)

    def _mark_keyed(self) -> None:
        with suppress(StoreError):  # a full disk: the next request tries again
            with self.store.changing() as change:
                mark_keyed(change.state.db)
            self.keyed = True

    @cached_property
    def worker(self) -> Worker:
        """The threads that work on the store. They start when they are first needed."""
        return Worker(self.store, self.metrics, 3600.0 * self.options.train_every)

    def close(self) -> None:
        """Return when everything that was begun is finished."""
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

    def session(self, key: Key) -> dict[str, Any]:
        """Who the caller is, and what they may do."""
        return {
            "role": key.role,
            "name": None if key is OPEN else key.name,
            "model": self.options.name,
            "open": key is OPEN,
            "n_features": self.n_features,
            "classes": self.classes.tolist(),
            "can": [permission for permission in PERMISSIONS if may(key, permission)],
            "owner": key.owner,
            "guarantee": guarantee(self.store.settings),
        }

    def _inputs(self) -> list[dict[str, Any]]:
        """What a query is made of: one tensor per column of the schema, or one of vectors."""
        schema = self.store.schema
        if schema is None:
            return [{"name": "features", "datatype": "FP32", "shape": [-1, self.n_features or -1]}]
        kinds = {name: "FP64" if column.kind == "number" else "BYTES" for name, column in schema.used.items()}
        return [{"name": name, "datatype": kind, "shape": [-1]} for name, kind in kinds.items()]

    def metadata(self) -> dict[str, Any]:
        """The public facts about the model: its parameters and the guarantee, nothing that depends on people."""
        settings = self.store.settings
        promised = {name: value for name, value in guarantee(settings).items() if name != "words"}
        datatype = DATATYPES.get(self.classes.dtype.kind, "BYTES")
        return {
            "name": self.options.name,
            "versions": ["1"],
            "platform": "indknn",
            "inputs": self._inputs(),
            "outputs": [{"name": "label", "datatype": datatype, "shape": [-1]}],
            "parameters": {
                "classes": self.classes.tolist(),
                "n_features": self.n_features,
                **({} if settings.schema is None else {"schema": settings.schema}),
                **promised,
                "tau": settings.tau,
                "kernel": settings.kernel,
                "max_batch": self.options.max_batch,
                "tick": self.options.tick,
            },
        }
