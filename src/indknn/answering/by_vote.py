"""The paper's mode: the people near a query vote on it (Algorithm 3).

Read it beside `core/mechanism.py`. Everybody who takes part is charged before the label is computed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from indknn.core import mechanism
from indknn.core.calibrate import Crowd
from indknn.core.mechanism import MAX_SIGMA2, Plan
from indknn.core.noise import Noise
from indknn.core.releases import NoisyVotes
from indknn.ledger import Scope
from indknn.records.shard import Admitted, Shard
from indknn.types import GRID, IntArray, Selection


@dataclass(frozen=True)
class Counted:
    """A query after its count and before its votes.

    It has the participants in each shard, the noisy K, and the plan with its σ2.
    """

    admitted: list[Admitted]
    K: int
    plan: Plan


def count_first(
    near: Sequence[Sequence[Selection]],
    questions: Sequence[tuple[Plan, Scope]],
    crowds: Sequence[Crowd | None],
    shards: Sequence[Shard],
    noise: Noise,
) -> list[Counted]:
    """Lines 4 to 7 for a whole batch, then lines 8 and 9: two round trips to the shards for any number of queries.

    The counts are one Gaussian release. Its cost to a person depends on their own records and ledger, and every charge
    is checked against what is left. So this is as private as one query after the other. The answers can differ:
    somebody whose budget runs out in the middle of a batch has paid for all counts first.
    """
    each = [shard.count_all([one[k] for one in near], questions) for k, shard in enumerate(shards)]
    counted = []
    for (plan, _), crowd, *admitted in zip(questions, crowds, *each, strict=True):
        K = mechanism.noisy_count(sum(some.total for some in admitted), plan, noise)
        counted.append(Counted(admitted, K, _with_sigma2(plan, crowd, K)))
    for k, shard in enumerate(shards):
        shard.settle_all([one.admitted[k] for one in counted], [c.K for c in counted], [c.plan for c in counted])
    return counted


def _with_sigma2(plan: Plan, crowd: Crowd | None, K: int) -> Plan:
    sigma2 = plan.sigma2 if crowd is None else min(crowd.sigma2(K / GRID), MAX_SIGMA2)
    return plan if sigma2 == plan.sigma2 else replace(plan, sigma2=sigma2)


def answer_by_vote(
    near: Sequence[Selection] | Counted,
    plan: Plan,
    shards: Sequence[Shard],
    noise: Noise,
    analyst: Scope,
    released: IntArray | None = None,
    crowd: Crowd | None = None,
) -> tuple[int, NoisyVotes]:
    """The label of one query and its noisy votes, from the records near it in each shard.

    `released` are the votes of earlier answers. With a `crowd`, the noise on votes follows from the counts so far.
    """
    # Lines 4 to 7: those who can pay for being counted take part and are charged. The noisy count K is released.
    if isinstance(near, Counted):
        admitted, K, plan = near.admitted, near.K, near.plan
    else:
        admitted, total = [], 0
        for shard, found in zip(shards, near, strict=True):
            some = shard.admit(found, plan, analyst)
            admitted.append(some)
            total += some.total
        K = mechanism.noisy_count(total, plan, noise)
        plan = _with_sigma2(plan, crowd, K)
    # Lines 8 and 9: votes are clipped to what each person has left, and charged.
    votes = np.zeros(plan.n_classes, dtype=np.int64)
    for shard, some in zip(shards, admitted, strict=True):
        votes += shard.settle(some, K, plan)
    if released is not None:  # released votes cost nothing and are not counted in K (rule 10)
        votes += released
    # Line 11: the label.
    label, noisy = mechanism.noisy_answer(votes, K, plan, noise)
    return label, NoisyVotes(plan.scale2(K), noisy)
