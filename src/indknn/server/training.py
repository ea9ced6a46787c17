"""Trains the shared model of a served store, piece by piece, in the pauses between answers.

If public rows were declared, training starts with the server. Otherwise it starts with the first query, whose answer
does not wait for it. After that, a clock decides when to look for newcomers. None of this depends on what is in the
records or on what an analyst was told.

The finished model is shown at a moment that follows from when the round began and from the noisy count (rule 17).
Otherwise the moment would show how many records there are, and how much analysts ask.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import suppress

from indknn.answering.trainer import Progress
from indknn.errors import StoreError
from indknn.models import SharedModel
from indknn.server.problems import log_error
from indknn.store import Store
from indknn.store.rounds import go_on, train

_SOME = 0.01  # seconds that a request may have to wait because of training
_REST = 1.0  # seconds after a failure
LEAST_SECONDS, OPERATIONS = 2.0, 5e8
"""How long after its beginning the model of a round is shown: at least so long, and a second more for this many
operations. A slow machine that also answers queries is several times faster."""


class Training:
    """The work of the computing thread when nobody waits. `every` is the seconds between two checks for newcomers."""

    def __init__(self, store: Store, every: float):
        self._store = store
        self._every = every
        self._next = time.monotonic() + every
        self._again = -math.inf  # after a failure, nothing is tried before this
        self._pieces: Iterator[Progress] | None = None
        store.train_in_background()

    def piece(self) -> bool:
        """Do some milliseconds of work, if there is any. Returns whether there was."""
        end = time.monotonic() + _SOME
        if end - _SOME < self._again:
            return False
        try:
            if self._pieces is None:
                self._pieces = self._due()
            while self._pieces is not None and next(self._pieces, None) is not None:
                if time.monotonic() >= end:
                    return True
        except Exception as error:  # the store reads itself again; the release being made is lost, and nobody was told
            log_error(error)
            self._again = time.monotonic() + _REST
        self._pieces = None
        return False

    def overdue(self) -> bool:
        """Whether the moment has come at which the model is shown. Then answers wait until it is."""
        return self._moment() <= time.monotonic() >= self._again

    def pause(self) -> float | None:
        """Seconds until there is work again: a check, a model to show, or what failed. None if there is none."""
        now = time.monotonic()
        soon = self._again if now < self._again else min(self._next, self._moment())
        return None if math.isinf(soon) else max(soon - now, 0.0)

    def _moment(self) -> float:
        """When the model of this round is shown. Not known before the count was released."""
        with suppress(StoreError):  # a store that cannot be read shows nothing
            model = self._model
            if model is not None and model.due() not in {None, "count"} and model.mapped:
                return self._store.engine.predictor.begun + LEAST_SECONDS + model.work / OPERATIONS
        return math.inf

    @property
    def _model(self) -> SharedModel | None:
        return None if self._store.draft else self._store.engine.predictor.model

    def _due(self) -> Iterator[Progress] | None:
        if (model := self._model) is None:
            return None
        if model.due() is not None:
            return go_on(self._store, self.overdue) if self.overdue() or model.due() != "show" else None
        if struck := time.monotonic() >= self._next:
            self._next = time.monotonic() + self._every
        declared = self._store.engine.predictor.public is not None
        return train(self._store, self.overdue) if (struck if model.started else declared) else None
