"""What all routes share: the store behind its worker, the keys, the limits, the counters."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any, TypeAlias

import numpy.typing as npt

from indknn.errors import StoreError
from indknn.ledger.figures import guarantee
from indknn.server.access import PERMISSIONS, RateLimiter, may
from indknn.server.keyring import OPEN, Keyring
from indknn.server.metrics import Metrics
from indknn.server.options import Options
from indknn.server.reports import Reports
from indknn.server.tensors import LABEL, label_datatype
from indknn.server.worker import Worker
from indknn.store import Store
from indknn.store.keyfile import Key, is_keyed, keys_path, mark_keyed
from indknn.types import FloatArray

VERSION = "1"
"""The only version of a model: what is released may be asked again, so nothing older is kept beside it."""
Embed: TypeAlias = Callable[[list[str]], FloatArray]


class Service:
    """One store, served. `close` finishes what was begun, and leaves the store open."""

    def __init__(
        self,
        store: Store,
        keys: Path | None,
        options: Options,
        open_on_loopback: bool,
        embed: Embed | None = None,
    ):
        self.store = store
        self.options = options
        self.name = options.name
        self.embed = embed
        self.n_features: int | None = None  # of a row; None before the first records
        self._look()
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
        return Worker(self.store, self.metrics, self._look)

    def close(self) -> None:
        """Return when everything that was begun is finished."""
        self.closing = True
        if "worker" in self.__dict__:
            self.worker.close()

    def _look(self) -> None:
        """Remember what every request needs to know. A look at the store itself may have to read it anew first."""
        self.n_features = None if self.store.draft else self.store.settings.n_features

    @property
    def classes(self) -> npt.NDArray[Any]:
        """The label set."""
        return self.store.settings.class_array

    def session(self, key: Key) -> dict[str, Any]:
        """Who the caller is, and what they may do."""
        return {
            "role": key.role,
            "name": None if key is OPEN else key.name,
            "model": self.name,
            "open": key is OPEN,
            "n_features": self.n_features,
            "classes": self.classes.tolist(),
            "can": [permission for permission in PERMISSIONS if may(key, permission)],
            "owner": key.owner,
            "guarantee": guarantee(self.store.settings),
        }

    def metadata(self) -> dict[str, Any]:
        """The public facts about the model: its parameters and the guarantee, nothing that depends on people."""
        settings = self.store.settings
        promised = {name: value for name, value in guarantee(settings).items() if name != "words"}
        rows = {"name": "features", "datatype": "FP32", "shape": [-1, self.n_features or -1]}
        texts = {"name": "text", "datatype": "BYTES", "shape": [-1]}
        return {
            "name": self.name,
            "versions": [VERSION],
            "platform": "indknn",
            "inputs": [rows if self.embed is None else texts],
            "outputs": [{"name": LABEL, "datatype": label_datatype(self.classes), "shape": [-1]}],
            "parameters": {
                "classes": self.classes.tolist(),
                "n_features": self.n_features,
                **promised,
                "tau": settings.tau,
                "kernel": settings.kernel,
                "max_batch": self.options.max_batch,
                "tick": self.options.tick,
            },
        }
