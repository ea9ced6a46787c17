"""The steps of every prediction: find the new queries, answer them, and write the answers down.

A batch of requests is answered together, with one scan if possible. The answers are as if each query had come alone.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from threading import RLock
from typing import Any, TypeAlias

import numpy as np

from indknn.answering import schedule
from indknn.answering.by_models import Scan, answers_by_models
from indknn.answering.by_vote import Counted, answer_by_vote, count_first
from indknn.answering.requests import Journal, Reply, Request
from indknn.answering.scans import ScansAhead, joined
from indknn.answering.schedule import Scheduled
from indknn.answering.training import Trainer
from indknn.answering.transcript import Answer, Transcript, keys_of
from indknn.core.calibrate import Crowd
from indknn.core.kernels import tau_on_grid
from indknn.core.mechanism import Plan
from indknn.core.noise import Noise
from indknn.core.releases import ModelOnly, NoisyVotes, PublicRows, Release, TableCounts, Votes
from indknn.ledger import SHARED, Scope
from indknn.models import SharedModel
from indknn.models.adviser import Adviser
from indknn.models.probabilities import from_votes
from indknn.models.shared_model import Scores
from indknn.records.indexes import Index
from indknn.records.indexes.scan import MAX_QUERIES
from indknn.records.shard import Shard
from indknn.types import FloatArray, Int8Array, Selection, Vectors

Near: TypeAlias = Sequence[Selection] | Counted
"""Who is near a query, shard by shard. With shards in other processes, who was counted already."""
_TOGETHER = 1024  # queries whose scores are looked up at once


class Predictor(Scheduled):
    """Answers queries from one or more shards under one plan.

    - `plan` is a Plan, or a function that makes one from the first queries, which are public. Then it is fixed.
    - `reuse_pool` makes an empty index for released pairs of query and answer. None: they do not vote.
    - `make_model` makes the shared model as it is before any release. None: people vote on every query.
    - `make_adviser` makes the adviser of one analyst, given the model.
    - `public` are unlabelled public rows.
    - `make_crowd` makes the object that adapts the noise on votes to the released counts. None: the noise is fixed.
    - `plan_for` changes the plan for an analyst who was given less.
    - `free_repeats`: a query that the analyst asked before is answered from the transcript.
    - `nested`: a larger τ selects a subset of what a smaller τ selects, as with an exact index.
    - `journal` makes answers durable. None: everything is only in memory.
    """

    def __init__(
        self,
        shards: Sequence[Shard],
        plan: Plan | Callable[[Vectors], Plan],
        noise: Noise,
        *,
        reuse_pool: Callable[[], Index] | None = None,
        make_model: Callable[[], SharedModel] | None = None,
        make_adviser: Callable[[SharedModel, Scope], Adviser] | None = None,
        public: Int8Array | None = None,
        make_crowd: Callable[[Scope], Crowd] | None = None,
        plan_for: Callable[[Plan, Scope], Plan] | None = None,
        free_repeats: bool = True,
        nested: bool = False,
        journal: Journal | None = None,
    ):
        self.shards = list(shards)
        self.plan = plan if isinstance(plan, Plan) else None
        self._make_plan = None if isinstance(plan, Plan) else plan
        self.noise = noise
        self.free_repeats = free_repeats
        self._nested = nested
        self.journal = journal
        self.lock = RLock()
        self._process = os.getpid()
        self._reuse_pool = reuse_pool
        self._make_model, self._make_adviser = make_model, make_adviser
        self._make_crowd, self._plan_for = make_crowd, plan_for
        self.public = public
        self.model = None if make_model is None else make_model()
        self._trainer: Trainer | None = None  # of the model in training
        self.begun = time.monotonic()  # when the latest round of training began, or this process did
        self._scheduled, self._looks, self._looked = schedule.SCHEDULE_FIRST, 0, 0
        self._tau: int | None = None
        self._transcripts: dict[Scope, Transcript] = {}
        self._advisers: dict[Scope, Adviser] = {}

    def compute(self, requests: Sequence[Request]) -> list[Reply]:
        """Answer all requests. This spends the budget of the people near the queries.

        Everything is charged and noted, but not durable yet. With a journal, no answer may leave before it is durable.
        """
        with self.locked():
            new = self._new_queries(requests)
            scan: Scan = self._scan
            if self.model is not None:
                self._train_if_due(requests)
            parts = [_rows(r.queries, fresh) for r, (_, fresh) in zip(requests, new, strict=True)]
            known = self._looked_at(parts)
            together: Iterator[Near] = iter(())
            if self.model is None:  # all requests share one scan, which looks at records and not at budgets
                together = near = self._scan(joined(parts), self._fixed_tau(requests[0].queries))
                if all(shard.ahead for shard in self.shards):
                    together = self._counted_first(requests, parts, near)
            elif len(requests) > 1 and not any(shard.ahead for shard in self.shards):
                scan = self._scans_ahead(requests, parts, known)
            return [
                self._reply(request, keys, fresh, part, together, scan, scores)
                for request, (keys, fresh), part, scores in zip(requests, new, parts, known, strict=True)
            ]

    # Answering

    def _new_queries(self, requests: Sequence[Request]) -> list[tuple[list[bytes], list[int]]]:
        """For each request, the keys of its queries and the positions of the queries that need the private data."""
        found = []
        seen: set[tuple[Scope, bytes]] = set()  # of several equal queries of one analyst, only the first is new
        for request in requests:
            keys, told = keys_of(request.queries), self._transcript(request.analyst).answers
            fresh = []
            for i, key in enumerate(keys):
                if not self.free_repeats or (key not in told and (request.analyst, key) not in seen):
                    seen.add((request.analyst, key))
                    fresh.append(i)
            found.append((keys, fresh))
        return found

    def _looked_at(self, parts: list[Vectors]) -> list[Scores | None]:
        """The model's scores for each part, computed for all parts at once.

        The scores of a row do not depend on the other rows, and the model does not change before the queries are
        answered.
        """
        shown = None if self.model is None else self.model.shown
        if shown is None or sum(map(len, parts)) > _TOGETHER:
            return [None] * len(parts)
        scores, sure = shown.scores(joined(parts).values)
        ends = np.cumsum([len(part) for part in parts]).tolist()
        return [
            (scores[end - len(part) : end], sure[end - len(part) : end]) for part, end in zip(parts, ends, strict=True)
        ]

    def _scans_ahead(self, requests: Sequence[Request], parts: list[Vectors], known: list[Scores | None]) -> Scan:
        """Make one scan for all queries on which people will probably vote."""
        wanted: list[tuple[Vectors, int]] = []
        for request, part, scores in zip(requests, parts, known, strict=True):
            adviser = self.adviser(request.analyst)
            if adviser is not None and len(part):
                ask, tau = adviser.foresee(len(part), scores)
                wanted.append((part if ask.all() else part[np.flatnonzero(ask)], tau_on_grid(tau)))
        ahead = ScansAhead(self._scan, nested=self._nested)
        ahead.look_up([(queries, tau) for queries, tau in wanted if len(queries)])
        return ahead

    def _reply(
        self,
        request: Request,
        keys: list[bytes],
        fresh: list[int],
        queries: Vectors,
        together: Iterator[Near],
        scan: Scan,
        known: Scores | None,
    ) -> Reply:
        """Answer one request. Each new query is charged and noted as it is answered."""
        analyst = request.analyst
        transcript, adviser = self._transcript(analyst), self.adviser(analyst)
        labels: dict[int, int] = {}
        likely: dict[int, FloatArray] = {}
        if adviser is None:
            answers = self._answers_by_vote(queries, together, transcript, analyst)
        else:
            plan = self._analysts_plan(queries, analyst)
            answers = answers_by_models(queries, scan, plan, adviser, self.shards, self.noise, analyst, known)
        for answer in answers:
            i, query = fresh[answer.position], _rows(queries, [answer.position])
            labels[i] = answer.label
            transcript.add(query, keys[i], answer.label, answer.release)
            if self.journal is not None:
                self.journal.note(analyst, query, answer.label, answer.release)
            if request.likely:  # now, because the model and the adviser may change after the next answer
                likely[i] = self._likely(answer, adviser)
        told = transcript.answers
        everything = [labels[i] if i in labels else told[key] for i, key in enumerate(keys)]
        reply = Reply(np.array(everything, dtype=np.int64), len(fresh))
        if request.likely:
            repeats = [i for i in range(len(keys)) if i not in likely]
            likely |= zip(repeats, self.probabilities(_rows(request.queries, repeats), analyst), strict=True)
            rows = np.array([likely[i] for i in range(len(keys))])
            reply = replace(reply, likely=rows.reshape(len(keys), self._fixed_plan(queries).n_classes))
        if self.journal is not None:
            self.journal.seal(request, reply)
        return reply

    def _likely(self, answer: Answer, adviser: Adviser | None) -> FloatArray:
        if adviser is not None and answer.scores is not None:
            return adviser.likely(answer.scores)
        assert self.plan is not None
        assert isinstance(answer.release, NoisyVotes)
        return from_votes(answer.release, answer.label, self.plan.n_classes)

    def _answers_by_vote(
        self, queries: Vectors, neighbours: Iterator[Near], transcript: Transcript, analyst: Scope
    ) -> Iterator[Answer]:
        plan, tau, released = self._analysts_plan(queries, analyst), self._fixed_tau(queries), None
        for position in range(len(queries.values)):
            if transcript.pool is not None:
                released = transcript.votes(_rows(queries, [position]), tau, plan.n_classes)
            near = next(neighbours)
            yield Answer(
                position, *answer_by_vote(near, plan, self.shards, self.noise, analyst, released, transcript.crowd)
            )

    def _counted_first(
        self, requests: Sequence[Request], parts: list[Vectors], near: Iterator[Sequence[Selection]]
    ) -> Iterator[Near]:
        """With shards in other processes: count a whole block of queries, of all analysts, before any votes."""
        asking = [request.analyst for request, part in zip(requests, parts, strict=True) for _ in range(len(part))]
        for start in range(0, len(asking), MAX_QUERIES):
            some = asking[start : start + MAX_QUERIES]
            questions = [(self._analysts_plan(requests[0].queries, analyst), analyst) for analyst in some]
            crowds = [self._transcript(analyst).crowd for analyst in some]
            yield from count_first(list(islice(near, len(some))), questions, crowds, self.shards, self.noise)

    def probabilities(self, queries: Vectors, analyst: Scope = None) -> FloatArray:
        """The probability of each class for queries that were answered. It uses only releases, so nobody is charged."""
        with self.locked():
            transcript, adviser = self._transcript(analyst), self.adviser(analyst)
            keys = keys_of(queries)
            known = [transcript.votes_on.get(key) for key in keys]
            if adviser is not None:
                return adviser.probabilities(queries, known)
            n = self._fixed_plan(queries).n_classes
            rows = [from_votes(v, transcript.answers[key], n) for v, key in zip(known, keys, strict=True)]
            return np.array(rows).reshape(-1, n)

    def _scan(self, queries: Vectors, tau: int) -> Iterator[tuple[Selection, ...]]:
        """The selected records of each query in each shard. Queries are scanned in blocks."""
        for start in range(0, len(queries.values), MAX_QUERIES):
            block = _rows(queries, list(range(start, min(start + MAX_QUERIES, len(queries.values)))))
            yield from zip(*[shard.scan(block, tau) for shard in self.shards], strict=True)

    def _fixed_plan(self, queries: Vectors) -> Plan:
        if self.plan is None:
            assert self._make_plan is not None
            self.plan = self._make_plan(queries)
        return self.plan

    def _analysts_plan(self, queries: Vectors, analyst: Scope) -> Plan:
        plan = self._fixed_plan(queries)
        return plan if self._plan_for is None else self._plan_for(plan, analyst)

    def _fixed_tau(self, queries: Vectors) -> int:
        """τ on the grid."""
        if self._tau is None:
            self._tau = tau_on_grid(self._fixed_plan(queries).tau)
        return self._tau

    @property
    def tau(self) -> float | None:
        """The threshold in use for the analyst without a name. None before it was chosen."""
        if self.model is not None:
            return self._advisers[None].tau if None in self._advisers else None
        return None if self.plan is None else self.plan.tau

    def adviser(self, analyst: Scope = None) -> Adviser | None:
        """The adviser of this analyst. None if there is no shared model."""
        if self.model is None or self._make_adviser is None:
            return None
        if analyst not in self._advisers:
            self._advisers[analyst] = self._make_adviser(self.model, analyst)
        return self._advisers[analyst]

    def remember(self, analyst: Scope, query: Vectors | None, label: int, release: Release | None = None) -> None:
        """Restore a release of an earlier process. A sum over records has no query."""
        if query is None:
            if isinstance(release, TableCounts):  # these counts made the schema; the model does not use them
                return
            if analyst == SHARED and release is not None and self.model is not None:
                self._absorb(release)
            return
        adviser = self.adviser(analyst)
        (key,) = keys_of(query)
        self._transcript(analyst).add(query, key, label, release)
        if adviser is not None and isinstance(release, ModelOnly | Votes):
            if isinstance(release, Votes) and release.count:
                adviser.density.add_count(release.share, release.count)
            adviser.note(query, release)
            if analyst is None:
                self._plan_beyond(adviser.answered)  # otherwise opening a store would begin a round

    def begin_anew(self, analyst: Scope) -> None:
        """Reset an analyst whose terms changed before anything was released to them. The caller must hold all locks."""
        self._advisers.pop(analyst, None)
        self._transcripts.pop(analyst, None)

    def purge(self) -> PublicRows | None:
        """Delete everything that was released, and everything that was learned from it.

        If there was a model, this begins a round (rule 17), with the same public rows. Returns the release that does.
        """
        with self.locked():
            rows = None if self.model is None else self.model.public
            self._transcripts.clear()
            self._advisers.clear()
            self._scheduled, self._looks, self._looked = schedule.SCHEDULE_FIRST, 0, 0
            if self._make_model is not None:
                self.model, self._trainer = self._make_model(), None
            return None if rows is None else self.begin_round(rows)

    def _transcript(self, analyst: Scope) -> Transcript:
        if analyst not in self._transcripts:
            pool = self._reuse_pool() if self._reuse_pool is not None else None
            self._transcripts[analyst] = Transcript(pool, self._make_crowd(analyst) if self._make_crowd else None)
        return self._transcripts[analyst]

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name not in {"lock", "_trainer"}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, lock=RLock(), _process=os.getpid(), _trainer=None)


def _rows(queries: Vectors, positions: list[int]) -> Vectors:
    """The queries at these positions. If that is all of them, the same object is returned."""
    return queries if len(positions) == len(queries.values) else queries[np.array(positions, dtype=np.int64)]
