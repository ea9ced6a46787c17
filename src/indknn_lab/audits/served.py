"""One interface for three ways to answer: an engine in memory, a durable store, and the server's worker.

The checks run the same history through each of them.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from indknn.answering.trainer import Progress
from indknn.cluster import Cluster
from indknn.cluster.links import Inline
from indknn.core.noise import SeededNoise
from indknn.engine import Engine
from indknn.ledger import Scope
from indknn.server.telemetry import Metrics
from indknn.server.worker import Erasing, Training, Worker
from indknn.settings import Settings
from indknn.store import Store
from indknn.store.filehome import head_path, log_path
from indknn.types import FloatArray, OwnerId
from indknn_lab.audits.patches import patched

WAYS = ("engine", "store", "server")
"""Besides, a store can have its records in a `cluster`."""
Question: TypeAlias = tuple[FloatArray, Scope]


class Repeatable(SeededNoise):
    """Seeded noise that a store accepts as secure. Use it only for the small stores that an audit makes."""

    secure = True


_PIECE = Training.piece


def in_step() -> AbstractContextManager[None]:
    """Inside the `with`, a server trains and shows only in `finish_training`, and erases nothing by itself.

    So histories can be repeated.
    """
    training = [(Training, "piece", lambda training: False), (Training, "overdue", lambda training: True)]
    return patched([*training, (Erasing, "piece", lambda erasing: False), (Erasing, "pause", lambda erasing: 1.0)])


def finish_training(worker: Worker) -> None:
    """Do all the training that a server would do while it is idle."""
    asyncio.run(_all([partial(worker.run, lambda: sum(1 for _ in iter(lambda: _PIECE(worker._training), False)))]))


@contextmanager
def served(way: str, settings: Settings, seed: int) -> Iterator[Served]:
    """A new, empty model that is used in one of the `WAYS`, with repeatable noise."""
    with tempfile.TemporaryDirectory() as folder, in_step():
        model = Served(way, settings, seed, Path(folder))
        try:
            yield model
        finally:
            model.close()


class Served:
    """A model behind one interface, whichever of the `WAYS` it uses."""

    def __init__(self, way: str, settings: Settings, seed: int, folder: Path):
        self.way, self.path = way, folder / "people.store"
        self._noise = Repeatable(seed)
        self._worker: Worker | None = None
        self._model: Engine | Store = Engine(settings, self._noise)
        shards = Cluster(Inline, 2).new_shard if way == "cluster" else None
        self._options: dict[str, Any] = {"noise": self._noise, "synchronous": "OFF", "make_shard": shards}
        if way != "engine":
            self._serve(Store.create(self.path, settings, **self._options))

    def _serve(self, store: Store) -> None:
        self._model = store
        self._worker = Worker(store, Metrics()) if self.way == "server" else None

    @property
    def engine(self) -> Engine:
        """The engine in memory."""
        return self._model if isinstance(self._model, Engine) else self._model.engine

    def add(self, X: FloatArray, y: npt.ArrayLike, owners: Sequence[OwnerId]) -> None:
        """Add records."""
        self._in_turn(lambda: self._model.add(X, y, owners))

    def forget(self, owners: Sequence[OwnerId]) -> None:
        """Forget people."""
        model = self._model
        self._in_turn(lambda: model.forget_owners(owners) if isinstance(model, Engine) else model.forget(owners))

    def predict(self, Q: FloatArray, analyst: Scope = None) -> npt.NDArray[Any]:
        """The label of each query."""
        return self.predict_all([(Q, analyst)])[0]

    def predict_all(self, questions: Sequence[Question]) -> list[npt.NDArray[Any]]:
        """The labels of several requests. At a server they wait at the same time, and may share a batch."""
        worker = self._worker
        if worker is None:
            for analyst in {analyst for _, analyst in questions if analyst is not None}:
                if isinstance(self._model, Store):
                    self._model.add_analyst(analyst)
            return [self._model.predict(Q, analyst) for Q, analyst in questions]
        asked = [partial(worker.predict, np.asarray(Q), analyst, None, None) for Q, analyst in questions]
        labels = [self.engine.settings.class_array[reply.labels] for reply in asyncio.run(_all(asked))]
        finish_training(worker)
        return labels

    def train(self) -> Iterator[Progress]:
        """A round of training, or the rest of one, step by step."""
        return self._model.train()

    def train_if_any(self) -> None:
        """Train the shared model completely, if there is one."""
        if self.engine.settings.advised:
            for _ in self.train():
                pass

    def spent(self, owner: OwnerId) -> int:
        """What a person has spent with all analysts together, in ledger units."""
        return int(self.engine.ledger.total_spent([owner])[0])

    def restart(self) -> None:
        """Close the store and read it back from its file. An engine has no file and just continues."""
        if self.way != "engine":
            self.close()
            self._serve(Store(self.path, **self._options))

    def close(self) -> None:
        """Finish the work that was started, and close the store."""
        if self._worker is not None:
            self._worker.close()
        if isinstance(self._model, Store):
            self._model.close()

    def files(self) -> list[Path]:
        """The store's file, its log and its head."""
        return [path for path in (self.path, log_path(self.path), head_path(self.path)) if path.exists()]

    def after_crash(self, owner: OwnerId) -> int:
        """What a person has spent according to the file, as another process would read it if this one crashed now."""
        with tempfile.TemporaryDirectory() as folder:
            for file in self.files():
                shutil.copy(file, folder)
            with Store(Path(folder) / self.path.name) as copy:
                return int(copy.engine.ledger.total_spent([owner])[0])

    def _in_turn(self, work: Callable[[], Any]) -> None:
        """Do some work. At a server it waits for its turn among the predictions."""
        work() if self._worker is None else asyncio.run(_all([partial(self._worker.run, work)]))


async def _all(calls: Sequence[Callable[[], Any]]) -> list[Any]:
    """The results of these calls, which are started together and in order. A mutant may leave all of them waiting."""
    return await asyncio.wait_for(asyncio.gather(*(call() for call in calls)), timeout=60)
