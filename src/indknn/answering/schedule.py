"""When the shared model is trained, and how its releases are written down. The base class of `Predictor`."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from threading import RLock
from typing import TypeAlias

import numpy as np

from indknn.answering.requests import Journal, Request
from indknn.answering.training import Progress, Trainer
from indknn.answering.transcript import Transcript
from indknn.core.noise import Noise
from indknn.core.releases import PublicRows, Release
from indknn.errors import PrivacyError
from indknn.ledger import SHARED, Scope
from indknn.models import SharedModel
from indknn.models.adviser import Adviser
from indknn.models.shared_model import MOST_ROWS
from indknn.models.shift import LATEST
from indknn.records.shard import Shard
from indknn.types import Int8Array

SCHEDULE_FIRST, SCHEDULE_GROWS = 256, 4
"""When the number of one analyst's queries starts rounds: the first check for newcomers comes after this many queries.
Each later check comes after a quarter more, and at least this many more."""
MOST_EARLY = 1
"""How many extra checks for newcomers there may be between two of these, because queries have become unlike earlier
ones. Every check costs people a little, so an analyst must not be able to cause many."""


MayShow: TypeAlias = Callable[[], bool]
"""Says whether a finished model may be shown now. It must not depend on the records (rule 17)."""


def at_once() -> bool:
    """A finished model is shown at once, because whoever asks waits for it."""
    return True


class Scheduled:
    """Shards, the shared model over them, and the times at which it is trained."""

    shards: list[Shard]
    noise: Noise
    journal: Journal | None
    model: SharedModel | None
    begun: float
    public: Int8Array | None
    _trainer: Trainer | None
    lock: RLock
    _process: int
    _scheduled: int
    _looks: int
    _looked: int
    _transcripts: dict[Scope, Transcript]
    _advisers: dict[Scope, Adviser]

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Take all locks, and make the checks that must come before any release."""
        with ExitStack() as held:
            held.enter_context(self.lock)
            for shard in self.shards:
                held.enter_context(shard.ledger.lock)
                if shard.broken:
                    shard.refuse_if_broken()
            if self.noise.secure and os.getpid() != self._process:
                raise PrivacyError(
                    "this process was forked from the one that holds the ledger, and would spend everybody's budget "
                    "again; answer only from the first process"
                )
            yield

    def start_round(self, rows: Int8Array | None = None, *, by_queries: bool = False) -> None:
        """Begin a round of training, or count newcomers to see whether one is needed, unless one is running.

        The time of this must be public: a clock, an operator's decision, or the first query of all. `by_queries` means
        that the unnamed analyst's queries, or their number, were the reason. The caller must hold all locks.
        """
        assert self.model is not None
        if self.model.due() is None:
            self._note(self.begin_round(rows, by_queries=by_queries))

    def begin_round(self, rows: Int8Array | None = None, *, by_queries: bool = False) -> PublicRows:
        """Begin a round now, instead of one that is running. Returns the release, which is not written down yet.

        The round is about the records that are here now (rule 17). The caller must hold all locks.
        """
        assert self.model is not None
        given = self.public if rows is None else rows
        if given is None or (self.model.started and rows is None):
            given = np.zeros((0, self.model.terms.n_features), dtype=np.int8)
        epoch = min(max(shard.epoch for shard in self.shards) + 1, self.shards[0].max_epoch)
        release = PublicRows(by_queries, epoch, given[:MOST_ROWS])
        self._absorb(release)
        return release

    def training(self, may_show: MayShow = at_once) -> Iterator[Progress]:
        """Run the current round, piece by piece. Each piece takes the locks, and may take some milliseconds.

        It ends if the model is finished and `may_show` says that it must not be shown yet.
        """
        while True:
            with self.locked():
                finished = self.model is not None and self.model.due() == "show"
                progress = None if finished and not may_show() else self._piece()
            if progress is None:
                return
            yield progress

    def _piece(self) -> Progress | None:
        if self.model is None:
            return None
        if self._trainer is None:
            self._trainer = Trainer(self.model, self.shards, self.noise, self._released)
        return self._trainer.piece()

    def _train_if_due(self, requests: Sequence[Request]) -> None:
        """Start a round without an operator, because of the first query of all or the number of one analyst's queries.

        Before the first query nobody was told anything, so the first query may be any analyst's. After a purge or a
        refit, that event has started a round. Later, only queries of the unnamed analyst may start a round, and only if
        no other analyst asked before. From then on all analysts spend from one ledger. A purge does not undo this:
        analysts still know what they were told, and the ledger knows who asked.
        """
        assert self.model is not None
        if not self.model.started:
            self.start_round(_distinct(requests) if self.public is None else None)
        else:
            unnamed = self._advisers.get(None)
            if unnamed is not None and self._alone() and self._look_due(unnamed):
                self._plan_beyond(unnamed.answered)
                recent = unnamed.density.queries().values if self.public is None else None
                self.start_round(recent, by_queries=True)
        if self.journal is None or not self.journal.background:
            for _ in self.training():
                pass

    def _alone(self) -> bool:
        """Whether nobody but the unnamed analyst was told anything, or all analysts spend from one ledger."""
        ledger = self.shards[0].ledger
        told = {one for one, transcript in self._transcripts.items() if transcript.answers} | set(ledger.scopes)
        # An analyst who was given less must not see what the unnamed analyst's larger budget shaped.
        return ledger.house or not (told - {None, SHARED} or ledger.budgets)

    def _look_due(self, unnamed: Adviser) -> bool:
        """Whether it is time to look for newcomers: by the schedule, or early because other things are asked now."""
        if unnamed.answered >= self._scheduled:
            return True
        early = self._looks <= MOST_EARLY and unnamed.answered >= self._looked + LATEST
        return early and unnamed.density.unlike_marked()

    def _plan_beyond(self, answered: int) -> None:
        while self._scheduled <= answered:
            self._scheduled += max(SCHEDULE_FIRST, self._scheduled // SCHEDULE_GROWS)
            self._looks = 0

    def _look_noted(self) -> None:
        """A look began, now or in an earlier process. Later queries are compared with those up to here."""
        unnamed = self._advisers.get(None)
        if unnamed is not None:
            self._looks, self._looked = self._looks + 1, unnamed.answered
            unnamed.density.mark()

    def _released(self, release: Release) -> None:
        """Give a release of the shared model to the model, then write it down."""
        self._absorb(release)
        self._note(release)

    def _note(self, release: Release) -> None:
        if self.journal is not None:
            self.journal.note(SHARED, None, -1, release)
            self.journal.secure()

    def _absorb(self, release: Release) -> None:
        assert self.model is not None
        if isinstance(release, PublicRows):
            if release.by_queries:
                for shard in self.shards:
                    shard.ledger.house = True
            for shard in self.shards:
                shard.epoch = max(shard.epoch, release.epoch)
            self.begun = time.monotonic()
            self._look_noted()
        self.model.absorb(release)


def _distinct(requests: Sequence[Request]) -> Int8Array:
    """The distinct queries of these requests, in order, for use as public rows. At most as many as are kept."""
    rows = np.concatenate([request.queries.values for request in requests])[: 4 * MOST_ROWS]
    _, first = np.unique(rows, axis=0, return_index=True)
    return rows[np.sort(first)[:MOST_ROWS]]
