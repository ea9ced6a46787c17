"""The lasting way: models made of releases answer where they are sure, and people vote on the rest.

One adviser per analyst sees what was released to that analyst and decides, from that alone, which sums over all records
are due, which queries need votes, and how votes and models are mixed. Everybody is charged before anything comes out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TypeAlias

import numpy as np

from indknn.answering.transcript import Answer
from indknn.core import accounting, mechanism, statistics
from indknn.core.kernels import tau_on_grid
from indknn.core.mechanism import Plan
from indknn.core.noise import Noise
from indknn.core.releases import ModelOnly, MomentsRelease, TallyRelease, Votes
from indknn.ledger import Scope
from indknn.models import Adviser
from indknn.models.adviser import Due, Question
from indknn.records.shard import Shard
from indknn.types import Selection, Vectors

Scan: TypeAlias = Callable[[Vectors, int], Iterator[Sequence[Selection]]]
"""From queries and τ to the selected records of each query, shard by shard."""
_BLOCK = 64


def answers_by_models(
    queries: Vectors,
    scan: Scan,
    plan: Plan,
    adviser: Adviser,
    shards: Sequence[Shard],
    noise: Noise,
    analyst: Scope,
) -> Iterator[Answer]:
    """Each query in turn, and before it the sums that are due."""
    start, n = 0, len(queries.values)
    while start < n:
        while (due := adviser.due()) is not None:
            release = _released_sum(due, adviser, shards, noise, analyst)
            adviser.absorb(release)
            yield Answer(None, -1, release)
        # The adviser changes its mind only between blocks, so a block is answered as if queries came one at a time.
        end = min(start + adviser.until_change(), start + _BLOCK, n)
        block = queries if (start, end) == (0, n) else queries[slice(start, end)]
        advice = adviser.advise(block)
        asked, tau = np.flatnonzero(advice.ask), tau_on_grid(advice.tau)
        neighbours = scan(block if len(asked) == end - start else block[asked], tau)
        for i in range(end - start):
            query = block if end - start == 1 else block[slice(i, i + 1)]
            answer = Answer(start + i, int(advice.scores[i].argmax()), ModelOnly())
            if advice.ask[i]:
                near, question = next(neighbours), adviser.question(query, tau)
                now = replace(plan, tau=advice.tau, sigma2=question.sigma2)
                votes = _noisy_votes(near, now, question, adviser, shards, noise, analyst)
                answer = Answer(start + i, adviser.decide(advice.scores[i], votes), votes)
            adviser.note(query, answer.release)
            yield answer
        start = end


def _noisy_votes(
    near: Sequence[Selection],
    plan: Plan,
    question: Question,
    adviser: Adviser,
    shards: Sequence[Shard],
    noise: Noise,
    analyst: Scope,
) -> Votes:
    """Algorithm 3 up to the noisy votes. K is foretold from public queries; a few answers release a real count."""
    admitted, count = [], 0
    for shard, found in zip(shards, near, strict=True):
        admitted.append(shard.admit(found, plan, analyst, counted=question.counted))
    if question.counted:
        count = mechanism.noisy_count(sum(some.total for some in admitted), plan, noise)
        adviser.density.add_count(question.share, count)
    K = adviser.density.expected(question.share)
    votes = np.zeros(plan.n_classes, dtype=np.int64)
    for shard, some in zip(shards, admitted, strict=True):
        votes += shard.settle(some, K, plan)
    noisy = mechanism.noisy_votes(votes, K, plan, noise)
    return Votes(K, plan.scale2(K), count, question.share, question.kappa, mechanism.centred(noisy))


def _released_sum(
    due: Due, adviser: Adviser, shards: Sequence[Shard], noise: Noise, analyst: Scope
) -> MomentsRelease | TallyRelease:
    """A sum over all records, charged to their owners, with noise."""
    price = adviser.price(due)
    units = accounting.to_units(price)
    if due == "moments":
        c = adviser.terms.n_classes
        scales = statistics.MomentNoise.for_price(price, c)
        epoch = max(shard.epoch for shard in shards) + 1
        parts = [shard.moments(adviser.since, scales, c, units, analyst).sums for shard in shards]
        for shard in shards:
            shard.epoch = min(epoch, shard.max_epoch)
        A, b = (np.sum(matrices, axis=0) for matrices in zip(*parts, strict=True))
        A, b = statistics.noisy_moments(A, b, scales, noise)
        upper = A[np.triu_indices(len(A))]
        return MomentsRelease(adviser.since, epoch, scales.scale_a, scales.scale_b, len(A), upper, b.ravel())
    models = adviser.models() if due == "card" else []  # without models it is a count of fresh records
    scale = statistics.tally_scale(price, max(len(models), 1))
    since = adviser.since if due == "fresh" else 0
    counts = np.sum([shard.tally(models, since, scale, units, analyst).sums[0] for shard in shards], axis=0)
    return TallyRelease(len(models), scale, statistics.noisy_tally(counts, scale, noise))
