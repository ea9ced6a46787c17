"""The default mode: the shared model answers where it is sure, and people vote on the other queries.

Each analyst has an adviser. It sees only what was released to that analyst. From that it decides which queries need
votes, and how votes and the model are combined. Everybody is charged before an answer is returned.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TypeAlias

import numpy as np

from indknn.answering.transcript import Answer
from indknn.core import mechanism
from indknn.core.kernels import tau_on_grid
from indknn.core.mechanism import Plan
from indknn.core.noise import Noise
from indknn.core.releases import ModelOnly, Votes
from indknn.ledger import Scope
from indknn.models.adviser import Advice, Adviser, Question
from indknn.models.shared_model import Scores
from indknn.records.shard import Shard
from indknn.types import Selection, Vectors

Scan: TypeAlias = Callable[[Vectors, int], Iterator[Sequence[Selection]]]
"""A function from queries and τ to the selected records of each query, shard by shard."""
_BLOCK = 64
_BY_MODEL: ModelOnly | Votes = ModelOnly()


def answers_by_models(
    queries: Vectors,
    scan: Scan,
    plan: Plan,
    adviser: Adviser,
    shards: Sequence[Shard],
    noise: Noise,
    analyst: Scope,
    known: Scores | None = None,
) -> Iterator[Answer]:
    """Answer each query in turn. `known` has the model's scores for all of them, if they were computed already."""
    start, n = 0, len(queries.values)
    while start < n:
        # The adviser changes its decisions only between blocks. So a block is answered as if its queries came one at a
        # time.
        end = min(start + adviser.until_change(), start + _BLOCK, n)
        block = queries if (start, end) == (0, n) else queries[slice(start, end)]
        advice = adviser.advise(block, None if known is None else (known[0][start:end], known[1][start:end]))
        asked, tau = np.flatnonzero(advice.ask), tau_on_grid(advice.tau)
        neighbours = scan(block if len(asked) == end - start else block[asked], tau)
        foretold: list[Question] = []
        if any(shard.ahead for shard in shards):
            near_all = list(neighbours)
            neighbours, foretold = iter(near_all), _foretell(block, near_all, plan, adviser, advice, shards, analyst)
        told = iter(foretold)
        for i in range(end - start):
            query = block if end - start == 1 else block[slice(i, i + 1)]
            scores, release = advice.scores[i], _BY_MODEL
            if advice.ask[i]:
                near, question = next(neighbours), next(told, None) or adviser.question(query, tau)
                now = replace(plan, tau=advice.tau, sigma2=question.sigma2)
                release = votes = _noisy_votes(near, now, question, adviser, shards, noise, analyst)
                scores = adviser.mixed(scores, votes)
            adviser.note(query, release)
            yield Answer(start + i, int(scores.argmax()), release, scores)
        start = end


def _foretell(
    block: Vectors,
    near: Sequence[Sequence[Selection]],
    plan: Plan,
    adviser: Adviser,
    advice: Advice,
    shards: Sequence[Shard],
    analyst: Scope,
) -> list[Question]:
    """Tell the shards in advance how people will be asked about the queries of a block, up to the next count.

    This is public. Votes change the adviser's decisions only between blocks, so a copy of the adviser that never sees
    the votes makes the same decisions.
    """
    twin, tau, found = adviser.twin(), tau_on_grid(advice.tau), []
    silent = np.zeros(plan.n_classes, dtype=np.int64)
    for i, ask in enumerate(advice.ask.tolist()):
        query, release = block[slice(i, i + 1)], _BY_MODEL
        if ask:
            question = twin.question(query, tau)
            if question.counted:
                break
            now, K = replace(plan, tau=advice.tau, sigma2=question.sigma2), twin.expected(question.share)
            found.append((question, (now, analyst, K)))
            release = Votes(K, now.scale2(K), 0, question.share, question.kappa, silent)
        if i + 1 < len(block):
            twin.note(query, release)
    for k, shard in enumerate(shards):
        shard.foretell([one[k] for one in near[: len(found)]], [told for _, told in found])
    return [question for question, _ in found]


def _noisy_votes(
    near: Sequence[Selection],
    plan: Plan,
    question: Question,
    adviser: Adviser,
    shards: Sequence[Shard],
    noise: Noise,
    analyst: Scope,
) -> Votes:
    """Algorithm 3 up to the noisy votes. K is estimated from public queries. A few answers release a real count."""
    admitted, count = [], 0
    for shard, found in zip(shards, near, strict=True):
        admitted.append(shard.admit(found, plan, analyst, counted=question.counted))
    if question.counted:
        count = mechanism.noisy_count(sum(some.total for some in admitted), plan, noise)
        adviser.density.add_count(question.share, count)
    K = adviser.expected(question.share)
    votes = np.zeros(plan.n_classes, dtype=np.int64)
    for shard, some in zip(shards, admitted, strict=True):
        votes += shard.settle(some, K, plan)
    noisy = mechanism.noisy_votes(votes, K, plan, noise)
    return Votes(K, plan.scale2(K), count, question.share, question.kappa, mechanism.centred(noisy))
