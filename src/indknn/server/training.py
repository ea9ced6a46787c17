"""Trains the shared model of a served store, piece by piece, in the pauses between answers.

If public rows were declared, training starts with the server. Otherwise it starts with the first query, whose answer
does not wait for it. After that, a clock decides when to look for newcomers. None of this depends on what is in the
records or on what an analyst was told.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator

from indknn.answering.training import Progress
from indknn.server.problems import log_error
from indknn.store import Store
from indknn.store.rounds import go_on

_SOME = 0.01  # seconds that a request may have to wait because of training


class Training:
    """The work of the computing thread when nobody waits. `every` is the seconds between two checks for newcomers."""

    def __init__(self, store: Store, every: float):
        self._store = store
        self._every = every
        self._next = time.monotonic() + every
        self._pieces: Iterator[Progress] | None = None
        store.train_in_background()

    def piece(self) -> bool:
        """Do some milliseconds of work, if there is any. Returns whether there was."""
        end = time.monotonic() + _SOME
        try:
            if self._pieces is None:
                self._pieces = self._due()
            while self._pieces is not None and next(self._pieces, None) is not None:
                if time.monotonic() >= end:
                    return True
        except Exception as error:  # the store reads itself again; the release being made is lost, and nobody was told
            log_error(error)
        self._pieces = None
        return False

    def pause(self) -> float | None:
        """Seconds until the next check. None if there is none."""
        return None if math.isinf(self._next) else max(self._next - time.monotonic(), 0.0)

    def _due(self) -> Iterator[Progress] | None:
        if self._store.draft or (model := self._store.engine.predictor.model) is None:
            return None
        if model.due() is not None:
            return go_on(self._store)
        if struck := time.monotonic() >= self._next:
            self._next = time.monotonic() + self._every
        declared = self._store.engine.predictor.public is not None
        return self._store.train() if (struck if model.started else declared) else None
