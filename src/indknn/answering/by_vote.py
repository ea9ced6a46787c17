"""The paper's way: every query is answered by the votes of the people near it (Algorithm 3).

Read it beside `core/mechanism.py`. Everybody who takes part is charged before the label exists.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from indknn.answering.transcript import Transcript
from indknn.core import mechanism
from indknn.core.kernels import tau_on_grid
from indknn.core.mechanism import Plan
from indknn.core.noise import Noise
from indknn.core.releases import Release
from indknn.ledger import Scope
from indknn.records.shard import Shard
from indknn.types import Selection, Vectors


@dataclass(frozen=True)
class Answer:
    """What came out: a label for one query, and what else was released.

    A sum over all records comes out between two answers. It has no `position` and the label -1.
    """

    position: int | None
    label: int
    release: Release | None = None


def answers_by_vote(
    queries: Vectors,
    neighbours: Iterable[Sequence[Selection]],
    plan: Plan,
    transcript: Transcript,
    shards: Sequence[Shard],
    noise: Noise,
    analyst: Scope,
) -> Iterator[Answer]:
    """Algorithm 3 for each query in turn. `neighbours` has the selected records of each query, shard by shard."""
    for position, near in enumerate(neighbours):
        # Lines 4 to 7: whoever can pay for being counted takes part and is charged; the noisy count K is released.
        admitted = [shard.admit(found, plan, analyst) for shard, found in zip(shards, near, strict=True)]
        K = mechanism.noisy_count(sum(some.total for some in admitted), plan, noise)
        # Lines 8 and 9: votes are clipped to what each person has left, and charged.
        votes = np.zeros(plan.n_classes, dtype=np.int64)
        for shard, some in zip(shards, admitted, strict=True):
            votes += shard.settle(some, K, plan)
        if transcript.pool is not None:  # released answers vote too, for nothing (rule 10)
            votes += transcript.votes(queries[slice(position, position + 1)], tau_on_grid(plan.tau), plan.n_classes)
        # Line 11: the label.
        yield Answer(position, mechanism.noisy_argmax(votes, K, plan, noise))
