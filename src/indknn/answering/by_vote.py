"""The paper's way: a query is answered by the votes of the people near it (Algorithm 3).

Read it beside `core/mechanism.py`. Everybody who takes part is charged before the label exists.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from indknn.core import mechanism
from indknn.core.calibrate import Crowd
from indknn.core.mechanism import MAX_SIGMA2, Plan
from indknn.core.noise import Noise
from indknn.core.releases import NoisyVotes
from indknn.ledger import Scope
from indknn.records.shard import Shard
from indknn.types import GRID, IntArray, Selection


def answer_by_vote(
    near: Sequence[Selection],
    plan: Plan,
    shards: Sequence[Shard],
    noise: Noise,
    analyst: Scope,
    released: IntArray | None = None,
    crowd: Crowd | None = None,
) -> tuple[int, NoisyVotes]:
    """The label of one query and its noisy votes, from the records near it in each shard.

    `released` are votes of earlier answers. With a `crowd` the noise on votes follows from the counts so far.
    """
    # Lines 4 to 7: whoever can pay for being counted takes part and is charged; the noisy count K is released.
    admitted, total = [], 0
    for shard, found in zip(shards, near, strict=True):
        some = shard.admit(found, plan, analyst)
        admitted.append(some)
        total += some.total
    K = mechanism.noisy_count(total, plan, noise)
    if crowd is not None and (sigma2 := min(crowd.sigma2(K / GRID), MAX_SIGMA2)) != plan.sigma2:
        plan = replace(plan, sigma2=sigma2)
    # Lines 8 and 9: votes are clipped to what each person has left, and charged.
    votes = np.zeros(plan.n_classes, dtype=np.int64)
    for shard, some in zip(shards, admitted, strict=True):
        votes += shard.settle(some, K, plan)
    if released is not None:  # they cost nothing and are not counted in K (rule 10)
        votes += released
    # Line 11: the label.
    label, noisy = mechanism.noisy_answer(votes, K, plan, noise)
    return label, NoisyVotes(plan.scale2(K), noisy)
