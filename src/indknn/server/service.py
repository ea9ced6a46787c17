"""What all routes share: the store behind its worker, the keys, the limits, the counters."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from functools import cached_property, partial
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import numpy.typing as npt

from indknn.errors import StoreError
from indknn.ledger.figures import guarantee
from indknn.server.access import PERMISSIONS, Pace, RateLimiter, may
from indknn.server.bodies import SMALL, BodyBudget
from indknn.server.keyring import OPEN, Keyring
from indknn.server.metrics import Metrics
from indknn.server.options import Options
from indknn.server.reader import Bounds, Reader
from indknn.server.reports import Reports
from indknn.server.tensors import LABEL, PROBABILITIES, label_datatype
from indknn.server.worker import Worker
from indknn.store import Store
from indknn.store.keyfile import Key, is_keyed, keys_path, mark_keyed
from indknn.store.requests import prune, today
from indknn.types import FloatArray

_HOUR = 3600.0
_NUMBER = 64  # bytes of a number in JSON, indented
_MORE = 256  # lists, objects and commas of a request besides its numbers; and commas in the names of a record
VERSION = "1"
"""The only version of a model. Released answers can be repeated, so no older version is kept."""
T = TypeVar("T")
Embed: TypeAlias = Callable[[list[str]], FloatArray]


def steady_days(clock: Callable[[], float] = time.monotonic) -> Callable[[], int]:
    """A function that tells the day. If the system's clock is set forward, it goes on as if that had not happened.

    Otherwise all requests would be forgotten at once, and whoever repeats one would pay again.
    """
    first, since = today(), clock()
    return lambda: min(today(), first + 1 + int(clock() - since) // (24 * int(_HOUR)))


class Service:
    """One store that is served. `close` finishes what was begun, and leaves the store open."""

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
        self.look()
        self.keys = Keyring(keys)
        with store.reading() as db:
            self.keyed = is_keyed(db)
        if self.keys.is_open and self.keyed and not open_on_loopback:
            raise StoreError(
                f"{store.path} had keys, but {keys_path(store.path).name} is lost or empty: restore that file, make "
                "new keys with indknn keys create, or let everybody on this machine in with --open-on-loopback"
            )
        self.rate_limiter = RateLimiter()
        self.pace = Pace()
        self.bodies = BodyBudget(options.max_bodies, options.max_body)
        self.reader = Reader()
        self.metrics = Metrics()
        self.reports = Reports(store)
        self.closing = False  # then nothing is told any more
        self.reachable = True  # the database of the store
        self.connections: Callable[[], int] = lambda: 0  # how many are open; `serve` sets this
        if not self.keys.is_open:
            self._mark_keyed()

    async def remember_keys(self) -> None:
        """Let the store remember that it has keys, after the first was made."""
        await self.worker.run(self._mark_keyed)

    def _mark_keyed(self) -> None:
        with suppress(StoreError):  # a full disk: the next request tries again
            with self.store.changing() as change:
                mark_keyed(change.state.db)
            self.keyed = True

    async def told(self, work: Callable[[], T]) -> T:
        """The result of some work that tells what is in the store.

        Before that, everything is made durable, because a crash must not undo what was told (rule 2). A store in a
        database is also asked whether it was taken over, because people may have been erased from it since.
        """

        def now() -> T:
            self.store.flush()
            return work()

        return await self.worker.run(now)

    @cached_property
    def worker(self) -> Worker:
        """The threads that work on the store. They start when they are first needed."""
        return Worker(self.store, self.metrics, self.look, 3600.0 * self.options.train_every)

    def close(self) -> None:
        """Return when everything that was begun is finished."""
        self.closing = True
        self.reader.close()
        if "worker" in self.__dict__:
            self.worker.close()

    async def prune_requests(self) -> None:
        """Delete the ids of old requests at the beginning of each day, until it is cancelled."""
        last, day = 0, steady_days()
        while True:
            if last != (last := day()):
                await self.worker.run(partial(self._prune, last))
            await asyncio.sleep(_HOUR)

    def _prune(self, day: int) -> None:
        with suppress(StoreError), self.store.changing() as change:  # a full disk: tomorrow it is tried again
            prune(change, self.options.keep_requests, day)

    def look(self) -> None:
        """Remember what every request needs to know, because reading it from the store may have to reload the store."""
        self.n_features = None if self.store.draft else self.store.settings.n_features

    @property
    def query_bounds(self) -> tuple[int, Bounds]:
        """How long a body with queries may be, and how much structure it may have.

        This is the most that rows in JSON can need.
        """
        options, numbers = self.options, self.options.max_batch * (self.n_features or 1)
        if self.embed is not None or self.store.schema is not None:  # texts are of any length, and full of commas
            return options.max_body, Bounds(options.max_body, options.max_body)
        return min(options.max_body, _NUMBER * numbers + SMALL), Bounds(options.max_batch + _MORE, numbers + _MORE)

    @property
    def record_bounds(self) -> Bounds:
        """How much structure an upload of records may have."""
        records = self.options.max_records
        width = None if self.store.schema is not None else self.n_features  # values of tables may be full of commas
        commas = self.options.max_body if width is None else records * (width + _MORE)
        return Bounds(3 * records + _MORE, commas)  # a record, and its features or values

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
            "guarantee": guarantee(self.store.settings, None if key is OPEN else key.name),
        }

    def _inputs(self) -> list[dict[str, Any]]:
        """The inputs of a query: one tensor per column of the schema, texts, or vectors."""
        schema = self.store.schema
        if schema is not None:
            kinds = {name: "FP64" if column.kind == "number" else "BYTES" for name, column in schema.used.items()}
            return [{"name": name, "datatype": kind, "shape": [-1]} for name, kind in kinds.items()]
        if self.embed is not None:
            return [{"name": "text", "datatype": "BYTES", "shape": [-1]}]
        return [{"name": "features", "datatype": "FP32", "shape": [-1, self.n_features or -1]}]

    def metadata(self, key: Key) -> dict[str, Any]:
        """The public facts about the model: its parameters and the guarantee. Nothing depends on people."""
        settings = self.store.settings
        told = guarantee(settings, None if key is OPEN else key.name)
        promised = {name: value for name, value in told.items() if name != "words"}
        return {
            "name": self.name,
            "versions": [VERSION],
            "platform": "indknn",
            "inputs": self._inputs(),
            "outputs": [
                {"name": LABEL, "datatype": label_datatype(self.classes), "shape": [-1]},
                {"name": PROBABILITIES, "datatype": "FP64", "shape": [-1, len(self.classes) or -1]},
            ],
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
