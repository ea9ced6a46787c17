"""The straight road that every prediction takes, whoever asks: select, K, settle, argmax, commit, answer."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from threading import RLock
from typing import Any, Protocol

import numpy as np

from indknn import mechanism
from indknn.errors import PrivacyError
from indknn.indexes import Index
from indknn.kernels import tau_on_grid
from indknn.ledgers import Scope
from indknn.noise import Noise
from indknn.reuse import Transcript, query_key
from indknn.shard import Shard
from indknn.types import IntArray, Plan, Selection, Vectors


class Journal(Protocol):
    """Where answers and their charges are written down before they leave (rule 2)."""

    def note(self, analyst: Scope, query: Vectors, key: bytes, label: int) -> None:
        """A fresh answer, just charged to the ledger. Called in order, under the predictor's lock."""
        ...

    def flush(self) -> None:
        """Return when everything noted so far is durable; raise if it cannot be made so."""
        ...


class Predictor:
    """Answers queries from one or more shards under one plan.

    `plan` is a Plan, or makes one from the first queries, which are public; it is then fixed.
    `reuse_pool` makes an empty index for released pairs, or is None to vote without them.
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
        self._transcripts: dict[Scope, Transcript] = {}

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
        with ExitStack() as held:
            for lock in (self.lock, *(shard.lock for shard in self.shards)):
                held.enter_context(lock)
            self._check()
            transcript = self._transcript(analyst)
            keys = [query_key(queries[slice(i, i + 1)]) for i in range(len(queries))]
            plan = self._fixed_plan(queries)
            scan = self._scans(queries[self._to_scan(keys, transcript)], tau_on_grid(plan.tau))
            labels = []
            for i, key in enumerate(keys):
                known = transcript.answer(key) if self.free_repeats else None
                if known is None:
                    query = queries[slice(i, i + 1)]
                    known = self._answer(query, next(scan), transcript, plan, analyst)
                    transcript.add(query, key, known)
                    if self.journal is not None:
                        self.journal.note(analyst, query, key, known)
                labels.append(known)
            return np.array(labels, dtype=np.int64)

    def compute_many(self, requests: Sequence[tuple[Vectors, Scope]], done: Callable[[int, IntArray], None]) -> None:
        """`compute` for one request after the other, with one scan for all. `done` hears of each as it is noted.

        Requests of different analysts share the scan, which knows records and no budgets; the rest runs
        query by query in order, so answers and charges are as if each request had come alone.
        """
        with ExitStack() as held:
            for lock in (self.lock, *(shard.lock for shard in self.shards)):
                held.enter_context(lock)
            self._check()
            plan = self._fixed_plan(requests[0][0])
            single = [[Q] if len(Q) == 1 else [Q[slice(i, i + 1)] for i in range(len(Q))] for Q, _ in requests]
            keys = [[query_key(query) for query in queries] for queries in single]
            fresh = self._fresh(requests, keys)
            scan = self._scans(fresh, tau_on_grid(plan.tau)) if len(fresh) else iter(())
            for number, (_, analyst) in enumerate(requests):
                transcript, labels = self._transcript(analyst), []
                for query, key in zip(single[number], keys[number], strict=True):
                    known = transcript.answer(key) if self.free_repeats else None
                    if known is None:
                        known = self._answer(query, next(scan), transcript, plan, analyst)
                        transcript.add(query, key, known)
                        if self.journal is not None:
                            self.journal.note(analyst, query, key, known)
                    labels.append(known)
                done(number, np.array(labels, dtype=np.int64))

    def _fresh(self, requests: Sequence[tuple[Vectors, Scope]], keys: list[list[bytes]]) -> Vectors:
        """All queries that need the private data, in order: each once per analyst where repeats are free."""
        seen: set[tuple[Scope, bytes]] = set()
        parts = []
        for (queries, analyst), names in zip(requests, keys, strict=True):
            new = self._to_scan(names, self._transcript(analyst))
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

    def _answer(
        self,
        query: Vectors,
        selections: tuple[Selection, ...],
        transcript: Transcript,
        plan: Plan,
        analyst: Scope,
    ) -> int:
        pending = [s.select(near, plan, analyst) for s, near in zip(self.shards, selections, strict=True)]
        K = mechanism.noisy_count(sum(p.total for p in pending), plan, self.noise)
        votes = transcript.votes(query, tau_on_grid(plan.tau), plan.n_classes)
        for shard, p in zip(self.shards, pending, strict=True):
            votes = votes + shard.settle(p, K, plan)
        return mechanism.noisy_argmax(votes, K, plan, self.noise)

    def _to_scan(self, keys: list[bytes], transcript: Transcript) -> IntArray:
        """Which queries need the private data: not those that the transcript or this batch answers."""
        seen: set[bytes] = set()
        fresh = []
        for i, key in enumerate(keys):
            if not self.free_repeats or (key not in seen and transcript.answer(key) is None):
                fresh.append(i)
                seen.add(key)
        return np.array(fresh, dtype=np.int64)

    def _scans(self, queries: Vectors, tau: int) -> Iterator[tuple[Selection, ...]]:
        return zip(*(shard.scan(queries, tau) for shard in self.shards), strict=True)

    def _fixed_plan(self, queries: Vectors) -> Plan:
        if self.plan is None:
            assert self._make_plan is not None
            self.plan = self._make_plan(queries)
        return self.plan

    def remember(self, analyst: Scope, query: Vectors, label: int) -> None:
        """Put an answer of an earlier process back into the transcript."""
        self._transcript(analyst).add(query, query_key(query), label)

    def _transcript(self, analyst: Scope) -> Transcript:
        if analyst not in self._transcripts:
            pool = self._reuse_pool() if self._reuse_pool is not None else None
            self._transcripts[analyst] = Transcript(pool)
        return self._transcripts[analyst]
