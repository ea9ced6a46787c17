"""The two ways from fresh queries to labels: asking always, or asking where an adviser does not know.

Both give (label, what else was released) query by query, in order; everybody is charged by then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Protocol, TypeAlias

import numpy as np

from indknn.answering.transcript import Transcript
from indknn.core import accounting, mechanism, statistics
from indknn.core.kernels import tau_on_grid
from indknn.core.mechanism import Plan
from indknn.core.noise import Noise
from indknn.core.releases import Alone, MomentsRelease, Release, TallyRelease, Votes
from indknn.ledger import Scope
from indknn.models import Adviser
from indknn.models.adviser import Due
from indknn.records.shard import Shard
from indknn.types import Int8Array, IntArray, Selection, Vectors

Scans: TypeAlias = Callable[[Vectors, int], Iterator[tuple[Selection, ...]]]
_BLOCK = 64


class Source(Protocol):
    """Where records, noise and the books are: the predictor."""

    shards: list[Shard]
    noise: Noise

    def note(self, analyst: Scope, query: Vectors, label: int, release: Release | None) -> None:
        """Have it written down."""
        ...


def answers(
    queries: Vectors, scans: Scans, plan: Plan, transcript: Transcript, source: Source, analyst: Scope
) -> Iterator[tuple[int, Release | None]]:
    """Algorithm 3 for every query; released pairs vote where the transcript says so."""
    tau = tau_on_grid(plan.tau)
    for i, near in enumerate(scans(queries, tau)):
        K, _, votes = _votes(near, plan, source, analyst)
        if transcript.pool is not None:
            votes = votes + transcript.votes(queries[slice(i, i + 1)], tau, plan.n_classes)
        yield mechanism.noisy_argmax(votes, K, plan, source.noise), None


def advised_answers(
    queries: Vectors, scans: Scans, plan: Plan, adviser: Adviser, source: Source, analyst: Scope
) -> Iterator[tuple[int, Release | None]]:
    """What the adviser knows alone, and for the rest the votes of those near, mixed with what it knows."""
    start = 0
    while start < len(queries):
        while (due := adviser.due()) is not None:
            release = _sum(due, adviser, source, analyst)
            adviser.took(release)
            source.note(analyst, queries[slice(0, 0)], -1, release)
        block = queries[slice(start, start + min(adviser.until_change(), _BLOCK))]
        advice = adviser.advise(block)
        assert adviser.tau is not None
        tau = tau_on_grid(adviser.tau)
        scan = scans(block[np.flatnonzero(advice.ask)], tau)
        for i, ask in enumerate(advice.ask.tolist()):
            query, scores = block[slice(i, i + 1)], advice.scores[i]
            answer: tuple[int, Alone | Votes] = (int(np.argmax(scores)), Alone())
            if ask:
                now = replace(plan, tau=adviser.tau, sigma2=adviser.sigma2())
                votes = _asked(query, next(scan), now, adviser, source, analyst)
                answer = adviser.decide(scores, votes), votes
            adviser.note(query, answer[1])
            yield answer
        start += len(block)


def _asked(
    query: Vectors, near: tuple[Selection, ...], plan: Plan, adviser: Adviser, source: Source, analyst: Scope
) -> Votes:
    density = adviser.density
    share, kappa = density.look(query, tau_on_grid(plan.tau))
    counted = density.count_due

    def expect(count: int) -> int:
        if counted:
            density.counted(share, count)
        return density.expected(share)

    K, count, votes = _votes(near, plan, source, analyst, counted, expect)
    noisy = mechanism.noisy_votes(votes, K, plan, source.noise)
    return Votes(K, plan.scale2(K), count, share, kappa, mechanism.centred(noisy))


def _votes(
    near: Sequence[Selection],
    plan: Plan,
    source: Source,
    analyst: Scope,
    counted: bool = True,
    expect: Callable[[int], int] = lambda count: count,
) -> tuple[int, int, IntArray]:
    """K, the noisy count (0 without one) and the votes of those near, who have paid. K is what `expect` makes of it."""
    shards = source.shards
    pending = [s.select(one, plan, analyst, counted=counted) for s, one in zip(shards, near, strict=True)]
    count = mechanism.noisy_count(sum(p.total for p in pending), plan, source.noise) if counted else 0
    K = expect(count)
    votes = np.zeros(plan.n_classes, dtype=np.int64)
    for shard, p in zip(shards, pending, strict=True):
        votes = votes + shard.settle(p, K, plan)
    return K, count, votes


def _sum(due: Due, adviser: Adviser, source: Source, analyst: Scope) -> MomentsRelease | TallyRelease:
    """A sum over records, paid for and with its noise."""
    price, shards = adviser.price(due), source.shards
    units, c = accounting.to_units(price), adviser.terms.n_classes
    if due == "moments":
        noise = statistics.MomentNoise.for_price(price, c)
        epoch = max(shard.epoch for shard in shards) + 1
        parts = [shard.moments(adviser.since, noise, c, units, analyst).sums for shard in shards]
        for shard in shards:
            shard.epoch = min(epoch, shard.max_epoch)
        A, b = (np.sum(matrices, axis=0) for matrices in zip(*parts, strict=True))
        A, b = statistics.noisy_moments(A, b, noise, source.noise)
        upper = A[np.triu_indices(len(A))]
        return MomentsRelease(adviser.since, epoch, noise.scale_a, noise.scale_b, len(A), upper, b.ravel())
    models = adviser.models() if due == "card" else []
    tables, n_cells = max(len(models), 1), sum(model.n_cells for model in models) or 1
    scale, since = statistics.tally_scale(price, tables), adviser.since if due == "fresh" else 0

    def cells(values: Int8Array, labels: IntArray) -> IntArray:
        if not models:
            return np.zeros((len(values), 1), dtype=np.int64)
        offsets = np.cumsum([0, *(model.n_cells for model in models[:-1])])
        return np.stack([o + m.cells(values, labels) for o, m in zip(offsets, models, strict=True)], axis=1)

    counts = np.sum([s.tally(cells, since, n_cells, scale, units, analyst).sums[0] for s in shards], axis=0)
    return TallyRelease(len(models), scale, statistics.noisy_tally(counts, scale, source.noise))
