"""The straight road that every prediction takes, whoever asks: select, K, settle, argmax, commit, answer."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import islice
from threading import RLock
from typing import Any, Protocol

import numpy as np

from indknn.answering.roads import Scans, advised_answers, answers
from indknn.answering.transcript import Transcript, keys_of, query_key
from indknn.core.kernels import tau_on_grid
from indknn.core.mechanism import Plan
from indknn.core.noise import Noise
from indknn.core.releases import Alone, MomentsRelease, Release, Votes
from indknn.errors import PrivacyError
from indknn.ledger import Scope
from indknn.models import Adviser
from indknn.records.indexes import Index
from indknn.records.shard import Shard
from indknn.types import IntArray, Selection, Vectors


class Journal(Protocol):
    """Where answers and their charges are written down before they leave (rule 2)."""

    def note(self, analyst: Scope, query: Vectors, label: int, release: Release | None) -> None:
        """A fresh answer, just charged to the ledger. Called in order, under the predictor's lock.

        `release` is what left besides the label. A sum over records has no query, and the label -1.
        """
        ...

    def flush(self) -> None:
        """Return when everything noted so far is durable; raise if it cannot be made so."""
        ...


class Predictor:
    """Answers queries from one or more shards under one plan.

    `plan` is a Plan, or makes one from the first queries, which are public; it is then fixed.
    `reuse_pool` makes an empty index for released pairs, or is None to vote without them.
    `make_adviser` makes what answers from releases, or is None to ask always.
    `free_repeats` answers a query that the analyst has asked before from the transcript.
    Without a `journal`, memory is all there is.
    """

    def __init__(
        self,
        shards: Sequence[Shard],
        plan: Plan | Callable[[Vectors], Plan],
        noise: Noise,
        *,
        reuse_pool: Callable[[], Index] | None = None,
        make_adviser: Callable[[], Adviser] | None = None,
        free_repeats: bool = True,
        journal: Journal | None = None,
    ):
        self.shards = list(shards)
        self.plan = plan if isinstance(plan, Plan) else None
        self._make_plan = None if isinstance(plan, Plan) else plan
        self.noise = noise
        self.free_repeats = free_repeats
        self.journal = journal
        self.lock = RLock()
        self._process = os.getpid()
        self._reuse_pool = reuse_pool
        self._make_adviser = make_adviser
        self._transcripts: dict[Scope, Transcript] = {}
        self._advisers: dict[Scope, Adviser] = {}

    def predict(self, queries: Vectors, analyst: Scope = None) -> IntArray:
        """The label of each query, in order. Spends the budget of whoever is near."""
        labels = self.compute(queries, analyst)
        if self.journal is not None:
            self.journal.flush()  # rule 2: charged durably, then answered; others may compute meanwhile
        return labels

    def compute(self, queries: Vectors, analyst: Scope = None) -> IntArray:
        """The labels, charged and noted but not yet durable: they must not leave before a flush.

        The scan of a batch is shared; the filter then runs query by query in order, exactly as if they
        had come one at a time.
        """
        with self._held():
            return self._compute(queries, keys_of(queries), analyst, self._scans)

    def compute_many(self, requests: Sequence[tuple[Vectors, Scope]], done: Callable[[int, IntArray], None]) -> None:
        """`compute` for one request after the other. `done` hears of each as it is noted.

        Without an adviser, requests of different analysts share the scan, which knows records and no budgets; the
        rest runs query by query in order, so answers and charges are as if each request had come alone.
        """
        with self._held():
            keys, scans = [keys_of(queries) for queries, _ in requests], self._scans
            if self._make_adviser is None:
                plan = self._fixed_plan(requests[0][0])
                everything = self._scans(self._fresh(requests, keys), tau_on_grid(plan.tau))

                def scans(queries: Vectors, tau: int) -> Iterator[tuple[Selection, ...]]:
                    return islice(everything, len(queries))

            for number, (queries, analyst) in enumerate(requests):
                done(number, self._compute(queries, keys[number], analyst, scans))

    @contextmanager
    def _held(self) -> Iterator[None]:
        """All locks, and the checks that come before any answer."""
        with ExitStack() as held:
            for lock in (self.lock, *(shard.lock for shard in self.shards)):
                held.enter_context(lock)
            self._check()
            yield

    def _compute(self, queries: Vectors, keys: list[bytes], analyst: Scope, scans: Scans) -> IntArray:
        fresh, known = self._split(keys, self._transcript(analyst))
        for i, label in self._answers(queries, keys, fresh, analyst, scans):
            known[i] = label
        return np.array([known[first] for first in self._first_of(keys)], dtype=np.int64)

    def _fresh(self, requests: Sequence[tuple[Vectors, Scope]], keys: list[list[bytes]]) -> Vectors:
        """All queries that need the private data, in order: each once per analyst where repeats are free."""
        seen: set[tuple[Scope, bytes]] = set()
        parts = []
        for (queries, analyst), names in zip(requests, keys, strict=True):
            new, _ = self._split(names, self._transcript(analyst))
            if self.free_repeats:
                new = new[[(analyst, names[i]) not in seen for i in new.tolist()]]
                seen.update((analyst, names[i]) for i in new.tolist())
            parts.append(queries if len(new) == len(queries) else queries[new])
        return Vectors(
            np.concatenate([part.values for part in parts]),
            np.concatenate([part.root_norm for part in parts]),
            np.concatenate([part.scale for part in parts]),
        )

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "lock"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, lock=RLock(), _process=os.getpid())

    def _check(self) -> None:
        for shard in self.shards:
            shard.check()
        if self.noise.secure and os.getpid() != self._process:
            raise PrivacyError(
                "this process was forked from the one that holds the ledger, and would spend everybody's budget "
                "anew; answer from one process"
            )

    def _answers(
        self, queries: Vectors, keys: list[bytes], fresh: IntArray, analyst: Scope, scans: Scans
    ) -> Iterator[tuple[int, int]]:
        """The fresh queries and their labels, each charged and noted as it comes."""
        adviser, transcript = self.adviser(analyst), self._transcript(analyst)
        plan = self._fixed_plan(queries)
        asked = queries if len(fresh) == len(queries) else queries[fresh]
        road = (
            answers(asked, scans, plan, transcript, self, analyst)
            if adviser is None
            else advised_answers(asked, scans, plan, adviser, self, analyst)
        )
        for i, (label, release) in zip(fresh.tolist(), road, strict=True):
            query = queries if len(queries) == 1 else queries[slice(i, i + 1)]
            transcript.add(query, keys[i], label)
            self.note(analyst, query, label, release)
            yield i, label

    def note(self, analyst: Scope, query: Vectors, label: int, release: Release | None) -> None:
        """Have it written down, where anything is."""
        if self.journal is not None:
            self.journal.note(analyst, query, label, release)

    def _split(self, keys: list[bytes], transcript: Transcript) -> tuple[IntArray, dict[int, int]]:
        """Which queries must be answered afresh, and the answers to those that the transcript has."""
        known: dict[int, int] = {}
        fresh = []
        for i in sorted(set(self._first_of(keys))):
            label = transcript.answer(keys[i]) if self.free_repeats else None
            if label is None:
                fresh.append(i)
            else:
                known[i] = label
        return np.array(fresh, dtype=np.int64), known

    def _first_of(self, keys: list[bytes]) -> list[int]:
        """For each query of a batch the first one that it repeats; itself where repeats are not free."""
        if not self.free_repeats or len(keys) == 1:
            return list(range(len(keys)))
        first: dict[bytes, int] = {}
        return [first.setdefault(key, i) for i, key in enumerate(keys)]

    def _scans(self, queries: Vectors, tau: int) -> Iterator[tuple[Selection, ...]]:
        return zip(*(shard.scan(queries, tau) for shard in self.shards), strict=True)

    def _fixed_plan(self, queries: Vectors) -> Plan:
        if self.plan is None:
            assert self._make_plan is not None
            self.plan = self._make_plan(queries)
        return self.plan

    @property
    def tau(self) -> float | None:
        """The threshold in force with the analyst without a name; None before it was chosen."""
        if self._make_adviser is not None:
            return self._advisers[None].tau if None in self._advisers else None
        return None if self.plan is None else self.plan.tau

    def remember(self, analyst: Scope, query: Vectors | None, label: int, release: Release | None = None) -> None:
        """Put what an earlier process released back into the transcript. A sum over records has no query."""
        adviser = self.adviser(analyst)
        if query is None:
            if isinstance(release, MomentsRelease):
                for shard in self.shards:
                    shard.epoch = min(max(shard.epoch, release.epoch), shard.max_epoch)
            if adviser is not None and release is not None:
                adviser.took(release)
            return
        self._transcript(analyst).add(query, query_key(query), label)
        if adviser is not None and isinstance(release, Alone | Votes):
            if isinstance(release, Votes) and release.count:
                adviser.density.counted(release.share, release.count)
            adviser.note(query, release)

    def purge(self) -> None:
        """Drop all that was released, and all that was learned from it."""
        with self.lock:
            self._transcripts.clear()
            self._advisers.clear()

    def adviser(self, analyst: Scope = None) -> Adviser | None:
        """What answers from releases to this analyst, if anything does."""
        if self._make_adviser is None:
            return None
        if analyst not in self._advisers:
            self._advisers[analyst] = self._make_adviser()
        return self._advisers[analyst]

    def _transcript(self, analyst: Scope) -> Transcript:
        if analyst not in self._transcripts:
            pool = self._reuse_pool() if self._reuse_pool is not None else None
            self._transcripts[analyst] = Transcript(pool)
        return self._transcripts[analyst]
