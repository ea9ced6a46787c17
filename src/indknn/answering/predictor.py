"""The path of every prediction, from top to bottom.

A request (known queries, one scan), then its new queries by vote or by models, then the rounds of training. A batch of
requests is answered together, with one scan if possible. The answers are as if each query had come alone. Everybody who
takes part is charged before an answer is computed.
"""

from __future__ import annotations

import hashlib
import os
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import islice
from math import sqrt
from threading import RLock
from typing import Any, cast

import numpy as np

from indknn.answering.requests import Answer, Journal, Reply, Request, Scan, ScansAhead
from indknn.answering.trainer import MayShow, Progress, Trainer, Watch, at_once
from indknn.core import mechanism
from indknn.core.calibrate import DEFAULT_TAU, NUMBER_SIZE, Crowd, plan_from_queries
from indknn.core.mechanism import MAX_SIGMA2, MIN_K, Plan
from indknn.core.noise import Noise
from indknn.core.releases import ModelOnly, ModelShown, NoisyVotes, PublicRows, Release, Renewed, TableCounts, Votes
from indknn.core.targets import about_centre, label_of
from indknn.errors import PrivacyError
from indknn.ledger import SHARED, Scope
from indknn.models import new_adviser, new_model
from indknn.models.adviser import LATEST, Advice, Adviser, Question
from indknn.models.local_mean import LocalMean
from indknn.models.probabilities import from_votes
from indknn.models.shared_model import MOST_ROWS, Scores, distinct
from indknn.models.shown_numbers import ShownNumbers
from indknn.records.any_shard import MAX_EPOCH, AnyShard, Near
from indknn.records.indexes import ExactIndex
from indknn.records.indexes.scan import MAX_QUERIES
from indknn.records.shard import new_index
from indknn.settings import Settings
from indknn.types import EVERYBODY, GRID, FloatArray, Int8Array, IntArray, Vectors, joined, tau_on_grid

SCHEDULE_FIRST, SCHEDULE_GROWS = 256, 4
"""When the number of one analyst's queries starts rounds: the first check for newcomers comes after this many queries.
Each later check comes after a quarter more, and at least this many more."""
MOST_EARLY = 1
"""How many extra checks for newcomers there may be between two of these, because queries have become unlike earlier
ones. Every check costs people a little, so an analyst must not be able to cause many."""
UNFINISHED = (
    "training of the shared model was interrupted, or is due because a period has begun, and a query must not finish "
    "it, because other analysts could see that somebody asked: `indknn train STORE`, or warm_up() of an estimator, does"
)
_TOGETHER = 1024  # queries whose scores are looked up at once
_BLOCK = 64  # queries about which the adviser decides at once
_BY_MODEL: ModelOnly | Votes = ModelOnly()


@dataclass
class Transcript:
    """What was released to one analyst. It is public to that analyst and may be used again at no cost (rule 10).

    With one ledger per analyst, what was released to Alice is not public to Bob. If it shaped Bob's answers, Bob would
    learn something that only Alice's ledger was charged for (rule 11).

    A repeated query is answered from here even after records came or went. If the answer changed only because the data
    changed, the analyst would learn of the change without any noise.

    `pool` is None if earlier answers do not vote. `crowd` follows the counts released to the analyst. None if the noise
    on votes does not depend on them.
    """

    pool: ExactIndex | None
    crowd: Crowd | None = None
    answers: dict[bytes, int] = field(default_factory=dict)
    votes_on: dict[bytes, Votes | NoisyVotes] = field(default_factory=dict)
    """The noisy votes behind answers. Answers without votes are missing."""
    local: LocalMean | None = None
    """If records say numbers and there is no model: from noisy sums to a number."""
    _labels: list[int] = field(default_factory=list)

    def votes(self, query: Vectors, plan: Plan) -> IntArray:
        """Σ κ·e_a over the released pairs within τ of the query, in grid units: the paper's "prediction reuse"."""
        if self.pool is None:
            return np.zeros(plan.n_classes, dtype=np.int64)
        (near,) = self.pool.search(query, tau_on_grid(plan.tau))
        labels = np.array(self._labels, dtype=np.int64)[near.slots]
        labels = labels if plan.ballot == "class" else about_centre(labels, plan.centre)
        pairs = mechanism.group(np.arange(len(labels)), labels, near.kappa, plan)
        return np.bincount(pairs.entry_label, pairs.entry_vote, minlength=plan.n_classes).astype(np.int64)

    def said(self, label: int, noisy: IntArray, scale: int) -> int:
        """The label that the noisy votes say: the one with most votes, or that of the number behind noisy sums."""
        return label if self.local is None else label_of(self.local.answer(noisy, scale))

    def add(self, query: Vectors, key: bytes, label: int, release: Release | None = None) -> None:
        """Note a release. From now on it is public to this analyst."""
        self.answers[key] = label
        if isinstance(release, Votes | NoisyVotes):
            self.votes_on[key] = release
        if self.local is not None and isinstance(release, NoisyVotes):
            self.local.note(release.votes, release.scale)
        if self.pool is not None:
            del self._labels[len(self.pool) :]  # labels that an interrupted call may have left
            self._labels.append(label)
            self.pool.add(query)  # nothing is ever removed from the pool, so slots are 0, 1, 2, ...


class Predictor:
    """Answers queries from the records of a shard.

    `journal` makes answers durable. None: everything is only in memory. `public` are the declared public rows.
    """

    def __init__(
        self,
        shard: AnyShard,
        settings: Settings,
        noise: Noise,
        journal: Journal | None = None,
        public: PublicRows | None = None,
    ):
        self.shard, self.settings, self.noise, self.journal, self.public = shard, settings, noise, journal, public
        known = settings.tau is not None or settings.advised  # otherwise the first queries choose τ
        self.plan = settings.plan(settings.tau or DEFAULT_TAU) if known else None
        self.watch: Watch | None = None
        self.lock = RLock()
        self._process = os.getpid()
        self.begun = time.monotonic()  # when the latest round of training began, or this process did
        self._forget_releases()

    def _forget_releases(self) -> None:
        self.model = new_model(self.settings) if self.settings.advised else None
        self._trainer: Trainer | None = None  # of the round that is running
        self._transcripts: dict[Scope, Transcript] = {}
        self._advisers: dict[Scope, Adviser] = {}
        self._scheduled, self._looks, self._looked = SCHEDULE_FIRST, 0, 0

    # A request

    def compute(self, requests: Sequence[Request]) -> list[Reply]:
        """Answer all requests. This spends people's budget, for the shared model and for votes.

        Everything is charged and noted, but not durable yet. With a journal, no answer may leave before it is durable.
        """
        with self.locked():
            new = self._new_queries(requests)
            if self.model is not None:
                self._train_if_due(requests)
            parts = [_rows(r.queries, fresh) for r, (_, fresh) in zip(requests, new, strict=True)]
            plan = self._fixed_plan(requests[0].queries)
            answers = (self._by_vote if self.model is None else self._by_models)(requests, parts, plan)
            return [
                self._reply(request, keys, fresh, part, answers)
                for request, (keys, fresh), part in zip(requests, new, parts, strict=True)
            ]

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Take all locks, and make the checks that must come before any release."""
        with self.lock, self.shard.ledger.lock:
            if self.shard.broken:
                self.shard.refuse_if_broken()
            if self.noise.secure and os.getpid() != self._process:
                raise PrivacyError(
                    "this process was forked from the one that holds the ledger, and would spend everybody's budget "
                    "again; answer only from the first process"
                )
            self.shard.ledger.tick()
            yield

    def _new_queries(self, requests: Sequence[Request]) -> list[tuple[list[bytes], list[int]]]:
        """For each request, the keys of its queries and the positions of the queries that need the private data."""
        found = []
        seen: set[tuple[Scope, bytes]] = set()  # of several equal queries of one analyst, only the first is new
        for request in requests:
            keys, known = keys_of(request.queries), self._transcript(request.analyst).answers
            fresh = []
            for i, key in enumerate(keys):
                if not self.settings.free_repeats or (key not in known and (request.analyst, key) not in seen):
                    seen.add((request.analyst, key))
                    fresh.append(i)
            found.append((keys, fresh))
        return found

    def _reply(
        self, request: Request, keys: list[bytes], fresh: list[int], queries: Vectors, answers: Iterator[Answer]
    ) -> Reply:
        """Answer one request. Each new query is charged and noted as it is answered."""
        analyst = request.analyst
        transcript = self._transcript(analyst)
        labels: dict[int, int] = {}
        likely: dict[int, FloatArray] = {}
        for position, i in enumerate(fresh):
            answer, query = next(answers), _rows(queries, [position])
            labels[i] = answer.label
            transcript.add(query, keys[i], answer.label, answer.release)
            if self.journal is not None:
                self.journal.note(analyst, query, answer.label, answer.release)
            if request.likely:  # now, because the model and the adviser may change after the next answer
                likely[i] = self._likely(answer, analyst)
        everything = [labels[i] if i in labels else transcript.answers[key] for i, key in enumerate(keys)]
        reply = Reply(np.array(everything, dtype=np.int64), len(fresh))
        if request.likely:
            repeats = [i for i in range(len(keys)) if i not in likely]
            likely |= zip(repeats, self.probabilities(_rows(request.queries, repeats), analyst), strict=True)
            rows = np.array([likely[i] for i in range(len(keys))])
            reply = replace(reply, likely=rows.reshape(len(keys), self._fixed_plan(queries).n_classes))
        if self.journal is not None:
            self.journal.seal(request, reply)
        return reply

    def _likely(self, answer: Answer, analyst: Scope) -> FloatArray:
        adviser = self.adviser(analyst)
        if adviser is not None and answer.scores is not None:
            return adviser.likely(answer.scores)
        assert self.plan is not None
        assert isinstance(answer.release, NoisyVotes)
        return from_votes(answer.release, self.plan.n_classes)

    def probabilities(self, queries: Vectors, analyst: Scope = None) -> FloatArray:
        """The probability of each class for queries that were answered. It uses only releases, so nobody is charged."""
        with self.locked():
            transcript, adviser = self._transcript(analyst), self.adviser(analyst)
            keys = keys_of(queries)
            if adviser is not None:
                return adviser.probabilities(queries, [transcript.votes_on.get(key) for key in keys])
            n = self._fixed_plan(queries).n_classes
            votes = (cast(NoisyVotes, transcript.votes_on[key]) for key in keys)  # as all of Algorithm 3
            rows = [from_votes(one, n) for one in votes]
            return np.array(rows).reshape(-1, n)

    def _scan(self, queries: Vectors, tau: int) -> Iterator[Near]:
        """Who is near each query. Queries are scanned in blocks."""
        for start in range(0, len(queries.values), MAX_QUERIES):
            block = _rows(queries, list(range(start, min(start + MAX_QUERIES, len(queries.values)))))
            yield from self.shard.scan(block, tau)

    # By vote: the paper's mode. Read it beside `core/mechanism.py`.

    def _by_vote(self, requests: Sequence[Request], parts: list[Vectors], plan: Plan) -> Iterator[Answer]:
        """Algorithm 3 for all new queries, `shard.block` at a time: the people near a query vote on it.

        The counts of a block are one Gaussian release. Its cost to a person depends on their own records and ledger,
        and every charge is checked against what is left. So this is as private as one query after the other. The
        answers can differ: somebody whose budget runs out in the middle of a block has paid for all its counts first.
        """
        tau = tau_on_grid(plan.tau)
        near = self._scan(joined(parts), tau)  # one scan for all requests: it looks at records and not at budgets
        each = zip(requests, parts, strict=True)
        asking = [(request.analyst, part, i) for request, part in each for i in range(len(part.values))]
        for start in range(0, len(asking), self.shard.block):
            block = asking[start : start + self.shard.block]
            plans = [self._about_everybody(plan, analyst, _rows(part, [i])) for analyst, part, i in block]
            # Lines 4 to 7: those who can pay for being counted take part and are charged. The noisy K is released.
            questions = [(now, analyst) for now, (analyst, _, _) in zip(plans, block, strict=True)]
            admitted = self.shard.ask(list(islice(near, len(block))), questions)
            Ks = [mechanism.noisy_count(a.total, now, self.noise) for a, now in zip(admitted, plans, strict=True)]
            plans = [self._with_sigma2(now, K, who) for now, K, (who, _, _) in zip(plans, Ks, block, strict=True)]
            # Lines 8 and 9: votes are clipped to what each person has left, and charged.
            votes = self.shard.votes(admitted, Ks, plans)
            for (analyst, part, i), now, K, sums in zip(block, plans, Ks, votes, strict=True):
                if self.settings.reuse == "labels":  # released votes cost nothing and are not counted in K (rule 10)
                    sums = sums + self._transcript(analyst).votes(_rows(part, [i]), now)  # noqa: PLW2901
                # Line 11: the label.
                scale = now.scale2(K)
                label, noisy = mechanism.noisy_answer(sums, K, now, self.noise)
                yield Answer(self._transcript(analyst).said(label, noisy, scale), NoisyVotes(scale, noisy))

    def _about_everybody(self, plan: Plan, analyst: Scope, query: Vectors) -> Plan:
        """The analyst's plan. If records say numbers, everybody is asked for the mean first, until it is known well.

        All are then near the query. No count is needed, because the noise follows from what a question may cost.
        """
        local, (paced, steps) = self._transcript(analyst).local, self.shard.ledger.fraction
        while local is not None and (share := local.due(paced / steps)) is not None:
            cost, K = share * self.settings.seen_by(analyst).budget, MIN_K * GRID
            sigma2, cap = NUMBER_SIZE / sqrt(2.0 * cost * MIN_K), None  # all records of a person count as one
            now = replace(plan, sigma2=sigma2, centre=local.centre, max_records_per_query=cap)
            admitted = self.shard.ask(self.shard.scan(query, EVERYBODY), [(now, analyst)], counted=False)
            (sums,) = self.shard.votes(admitted, [K], [now])
            release = NoisyVotes(now.scale2(K), mechanism.noisy_votes(sums, K, now, self.noise))
            local.note_everybody(release.votes, release.scale)
            if self.journal is not None:
                self.journal.note(analyst, None, -1, release)
        return self._analysts_plan(plan, analyst)

    def _with_sigma2(self, plan: Plan, K: int, analyst: Scope) -> Plan:
        """The plan with the noise on votes that follows from the counts so far, unless σ2 was given."""
        crowd = self._transcript(analyst).crowd
        sigma2 = plan.sigma2 if crowd is None else min(crowd.sigma2(K / GRID), MAX_SIGMA2)
        return plan if sigma2 == plan.sigma2 else plan.with_sigma2(sigma2)

    # By models: the default mode. The model answers where it is sure, and people vote on the other queries.

    def _by_models(self, requests: Sequence[Request], parts: list[Vectors], plan: Plan) -> Iterator[Answer]:
        """Answer each new query in turn.

        Each analyst has an adviser. It sees only what was released to that analyst. From that it decides which queries
        need votes, and how votes and the model are combined.
        """
        known = self._looked_at(parts)
        scan: Scan = self._scan if len(requests) == 1 else self._scans_ahead(requests, parts, known)
        for request, queries, scores in zip(requests, parts, known, strict=True):
            adviser, start, n = self.adviser(request.analyst), 0, len(queries.values)
            assert adviser is not None
            now = self._analysts_plan(plan, request.analyst)
            while start < n:
                # The adviser changes its decisions only between blocks, so it is as if queries came one at a time.
                end = min(start + adviser.until_change(), start + _BLOCK, n)
                block = queries if (start, end) == (0, n) else queries[slice(start, end)]
                advice = adviser.advise(block, None if scores is None else (scores[0][start:end], scores[1][start:end]))
                votes = self._votes(block, advice, scan, now, adviser, request.analyst)
                for i in range(end - start):
                    query = block if end - start == 1 else block[slice(i, i + 1)]
                    mixed, release = advice.scores[i], _BY_MODEL
                    if advice.ask[i]:
                        release = asked = next(votes)
                        mixed = adviser.mixed(mixed, asked)
                    adviser.note(query, release)
                    yield Answer(self.settings.target_.answer(mixed), release, mixed)
                start = end

    def _votes(
        self, block: Vectors, advice: Advice, scan: Scan, plan: Plan, adviser: Adviser, analyst: Scope
    ) -> Iterator[Votes]:
        """The noisy votes on the queries of a block that need them."""
        plan, tau = adviser.plan(plan, advice.tau), tau_on_grid(advice.tau)
        asked = advice.ask.nonzero()[0].tolist()
        near = scan(_rows(block, asked), tau)
        while asked:
            questions = self._questions(block, asked, tau, plan, adviser)
            yield from self._noisy_votes(list(islice(near, len(questions))), questions, plan, adviser, analyst)
            asked = asked[len(questions) :]

    def _questions(self, block: Vectors, asked: list[int], tau: int, plan: Plan, adviser: Adviser) -> list[Question]:
        """How people are asked next: about one query with a count, or about up to `shard.block` before the next count.

        This is public. Votes change the adviser's decisions only between blocks, so a copy of the adviser that never
        sees the votes makes the same decisions.
        """
        first, *later = asked[: self.shard.block]
        questions = [adviser.question(_rows(block, [first]), tau)]
        if later and not questions[0].counted:
            twin, silent = adviser.twin(), np.zeros(plan.n_classes, dtype=np.int64)
            for i in range(first, later[-1]):
                release, question = _BY_MODEL, questions[-1]
                if i in asked:
                    scale = plan.with_sigma2(question.sigma2).scale2(question.K)
                    release = Votes(question.K, scale, 0, question.share, question.kappa, silent)
                twin.note(_rows(block, [i]), release)
                if i + 1 in later:
                    question = twin.question(_rows(block, [i + 1]), tau)
                    if question.counted:
                        break
                    questions.append(question)
        return questions

    def _noisy_votes(
        self, near: list[Near], questions: list[Question], plan: Plan, adviser: Adviser, analyst: Scope
    ) -> Iterator[Votes]:
        """Algorithm 3 up to the noisy votes. K is estimated from public queries. A few answers release a real count."""
        plans, Ks, count = [plan.with_sigma2(q.sigma2) for q in questions], [q.K for q in questions], 0
        counted = questions[0].counted
        admitted = self.shard.ask(near, [(now, analyst) for now in plans], counted=counted)
        if counted:
            count = mechanism.noisy_count(admitted[0].total, plans[0], self.noise)
            adviser.density.add_count(questions[0].share, count)
            Ks = [adviser.expected(questions[0].share)]
        votes = self.shard.votes(admitted, Ks, plans)
        for question, now, K, sums in zip(questions, plans, Ks, votes, strict=True):
            noisy = mechanism.noisy_votes(sums, K, now, self.noise)
            told = mechanism.centred(noisy) if now.ballot == "class" else noisy
            yield Votes(K, now.scale2(K), count, question.share, question.kappa, told)

    def _looked_at(self, parts: list[Vectors]) -> list[Scores | None]:
        """The model's scores for each part, computed at once. The scores of a row do not depend on the other rows."""
        shown = None if self.model is None else self.model.shown
        if shown is None or sum(len(part.values) for part in parts) > _TOGETHER:
            return [None] * len(parts)
        scores, sure = shown.scores(joined(parts).values)
        ends = np.cumsum([len(part.values) for part in parts]).tolist()
        starts = [0, *ends[:-1]]
        return [(scores[start:end], sure[start:end]) for start, end in zip(starts, ends, strict=True)]

    def _scans_ahead(self, requests: Sequence[Request], parts: list[Vectors], known: list[Scores | None]) -> Scan:
        """Make one scan for all queries on which people will probably vote."""
        wanted: list[tuple[Vectors, int]] = []
        for request, part, scores in zip(requests, parts, known, strict=True):
            adviser = self.adviser(request.analyst)
            if adviser is not None and len(part):
                ask, tau = adviser.foresee(len(part), scores)
                wanted.append((_rows(part, ask.nonzero()[0].tolist()), tau_on_grid(tau)))
        ahead = ScansAhead(self._scan, nested=self.settings.index == "exact")
        ahead.look_up([(queries, tau) for queries, tau in wanted if len(queries)])
        return ahead

    # What each analyst was told

    def _fixed_plan(self, queries: Vectors) -> Plan:
        """The plan. If no τ was given, the first queries choose it, which are public. Then it is fixed."""
        if self.plan is None:
            given = self.settings
            self.plan = plan_from_queries(given.kernel_, given.plan, given.near_share, queries)
            if self.journal is not None:
                self.journal.tau = self.plan.tau
        return self.plan

    def _analysts_plan(self, plan: Plan, analyst: Scope) -> Plan:
        """The plan with more noise for an analyst who was given less, so that budgets last for as many queries."""
        if plan.ballot == "number" and (local := self._transcript(analyst).local) is not None:
            plan = replace(plan, centre=local.centre)
        if analyst not in self.settings.analysts:
            return plan
        seen = self.settings.seen_by(analyst)
        return replace(plan, sigma1=seen.sigma1_, sigma2=seen.sigma2_)

    @property
    def tau(self) -> float | None:
        """The threshold in use for the analyst without a name. None before it was chosen."""
        if self.model is not None:
            return self._advisers[None].tau if None in self._advisers else None
        return None if self.plan is None else self.plan.tau

    def adviser(self, analyst: Scope = None) -> Adviser | None:
        """The adviser of this analyst. None if there is no shared model."""
        if self.model is None:
            return None
        if analyst not in self._advisers:
            self._advisers[analyst] = new_adviser(self.settings, self.model, analyst)
        paced, steps = self.shard.ledger.fraction
        self._advisers[analyst].paced = paced / steps
        return self._advisers[analyst]

    def _transcript(self, analyst: Scope) -> Transcript:
        if analyst not in self._transcripts:
            pool = new_index(self.settings) if self.settings.reuse == "labels" else None
            crowd = Crowd(self.settings.seen_by(analyst).sigma2_) if self.settings.sigma2 is None else None
            local = LocalMean() if self.settings.numeric and self.model is None else None
            self._transcripts[analyst] = Transcript(pool, crowd, local=local)
        return self._transcripts[analyst]

    def remember(self, analyst: Scope, query: Vectors | None, label: int, release: Release | None = None) -> None:
        """Restore a release of an earlier process. A sum over records has no query."""
        if query is None:
            if isinstance(release, Renewed):
                self.renew()
            elif analyst == SHARED and self.model is not None and not isinstance(release, TableCounts | None):
                self._absorb(release)  # counts made the schema, and the model does not use them
            elif isinstance(release, NoisyVotes) and (local := self._transcript(analyst).local) is not None:
                local.note_everybody(release.votes, release.scale)
            return
        adviser = self.adviser(analyst)
        (key,) = keys_of(query)
        self._transcript(analyst).add(query, key, label, release)
        if adviser is not None and isinstance(release, ModelOnly | Votes):
            adviser.weigh_if_new()  # as before the answer was given
            if isinstance(release, Votes) and release.count:
                adviser.density.add_count(release.share, release.count)
            adviser.note(query, release)
            if analyst is None:
                self._plan_beyond(adviser.answered)  # otherwise opening a store would begin a round

    def begin_anew(self, settings: Settings, analyst: Scope) -> None:
        """Use settings that changed for an analyst to whom nothing was released. The caller must hold all locks."""
        self.settings = settings
        self._advisers.pop(analyst, None)
        self._transcripts.pop(analyst, None)

    def renew(self) -> Renewed:
        """Everybody's budget has started anew. The next round starts from zero. Returns the release."""
        for adviser in self._advisers.values():
            adviser.renew()
        if self.model is not None:
            self.model.rounds = self.model.since = 0  # as before the first round; what is shown stays until its end
        return Renewed()

    def purge(self) -> PublicRows | None:
        """Delete everything that was released, and everything that was learned from it.

        If there was a model, this begins a round (rule 17), with the same public rows. Returns the release that does.
        """
        with self.locked():
            rows = None if self.model is None else self.model.public
            self._forget_releases()
            return None if rows is None else self.begin_round(rows)

    def __getstate__(self) -> dict[str, Any]:
        own = {"lock", "_trainer", "watch"}  # of this process
        return {name: value for name, value in self.__dict__.items() if name not in own}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, lock=RLock(), _process=os.getpid(), _trainer=None, watch=None)

    # Rounds: when the shared model is trained, and how its releases are written down

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
        declared = None if self.public is None else self.public.values
        used = declared if rows is None else rows[:MOST_ROWS]
        if used is None or (self.model.started and rows is None):
            used = np.zeros((0, self.model.terms.n_features), dtype=np.int8)
        known = self.public is not None and np.array_equal(used, self.public.values)
        epoch = min(self.shard.epoch + 1, MAX_EPOCH)
        release = PublicRows(by_queries, epoch, used, self.public.labels if self.public and known else None)
        self._absorb(release)
        return release

    def training(self, may_show: MayShow = at_once) -> Iterator[Progress]:
        """Run the current round, piece by piece. Each piece takes the locks, and may take some milliseconds.

        It ends if the model is finished and `may_show` says that it must not be shown yet.
        """
        while True:
            with self.locked():
                model = self.model
                due = None if model is None else model.due()
                if due == "show" and not may_show():
                    due = None
                if self.watch is not None and model is not None and (model.follow or not model.ready or due is None):
                    self.watch(None if due is None else Progress(model.step, model.follow))
                if due is None or model is None:
                    return
                if self._trainer is None:
                    self._trainer = Trainer(model, self.shard, self.noise, self._released)
                progress = self._trainer.piece(whole=self.journal is None or not self.journal.background)
                if model.due() is None:
                    self._trainer = None  # it holds values of every record
            if progress is None:
                return
            yield progress

    def _train_if_due(self, requests: Sequence[Request]) -> None:
        """Start a round without an operator, because of the first query of all or the number of one analyst's queries.

        Before the first query nobody was told anything, so the first query may be any analyst's. After a purge or a
        refit, that event has started a round. Later, only queries of the unnamed analyst may start a round, and only if
        no other analyst asked before. From then on all analysts spend from one ledger. A purge does not undo this:
        analysts still know what they were told, and the ledger knows who asked.
        """
        assert self.model is not None
        waits = self.journal is None or not self.journal.background
        here = waits and (self.model.due() is None or self._may_finish(requests))
        if not self.model.started:
            asked = np.concatenate([r.queries.values for r in requests])[: 4 * MOST_ROWS]
            self.start_round(asked[distinct(asked)] if self.public is None else None)
        else:
            unnamed = self._advisers.get(None)
            if unnamed is not None and self._look_due(unnamed):
                self._plan_beyond(unnamed.answered)
                recent = unnamed.density.queries().values if self.public is None else None
                self.start_round(recent, by_queries=True)
        if waits and not here:
            warnings.warn(UNFINISHED, stacklevel=2)
        elif here and self.model.due() is not None:
            for _ in self.training():
                pass

    def _may_finish(self, requests: Sequence[Request]) -> bool:
        """Whether these queries may finish a round that was interrupted: not if others can see that somebody asked.

        See rule 17. The first round may be finished by whoever asks first, and nobody was told anything before.
        """
        first = self.shard.epoch <= 1 and not (self.told or self._transcript(None).answers)
        unnamed = self._alone() and all(request.analyst is None for request in requests)
        return first or unnamed or self.shard.ledger.joint

    def _alone(self) -> bool:
        """Whether nobody but the unnamed analyst was told anything, or all analysts spend from one ledger."""
        ledger = self.shard.ledger
        # An analyst who was given less must not see what the unnamed analyst's larger budget shaped.
        return ledger.joint or not (self.told or ledger.budgets)

    @property
    def told(self) -> set[str]:
        """The names of the analysts who were told anything."""
        answered = {name for name, transcript in self._transcripts.items() if transcript.answers}
        return {name for name in answered.union(self.shard.ledger.scopes) if name is not None and name != SHARED}

    def _look_due(self, unnamed: Adviser) -> bool:
        """Whether it is time to look for newcomers: by the schedule, or early because other things are asked now."""
        in_turn = unnamed.answered >= self._scheduled
        early = self._looks <= MOST_EARLY and unnamed.answered >= self._looked + LATEST
        return (in_turn or early) and self._alone() and (in_turn or unnamed.density.unlike_marked())

    def _plan_beyond(self, answered: int) -> None:
        while self._scheduled <= answered:
            self._scheduled += max(SCHEDULE_FIRST, self._scheduled // SCHEDULE_GROWS)
            self._looks = 0

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
                self.shard.ledger.joint = True
            self.shard.epoch = max(self.shard.epoch, release.epoch)
            self.begun = time.monotonic()
            unnamed = self._advisers.get(None)
            if unnamed is not None:  # later queries are compared with those up to here
                self._looks, self._looked = self._looks + 1, unnamed.answered
                unnamed.density.mark()
        self.model.absorb(release)
        if isinstance(release, ModelShown) and isinstance(self.model.shown, ShownNumbers):
            self.shard.show(self.model.shown.rule)


def _rows(queries: Vectors, positions: list[int]) -> Vectors:
    """The queries at these positions. If that is all of them, the same object is returned."""
    return queries if len(positions) == len(queries.values) else queries[np.array(positions, dtype=np.int64)]


def keys_of(queries: Vectors) -> list[bytes]:
    """A digest of everything that the mechanism sees of each query. Equal queries have equal keys."""
    rows = zip(queries.values, queries.scale, strict=True)
    return [hashlib.blake2b(row.tobytes() + scale.tobytes(), digest_size=32).digest() for row, scale in rows]
