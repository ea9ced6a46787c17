"""Algorithm 3 for a stream of queries whose neighbours are already known. It uses the product without the search.

With one record per person and a seed, every answer is the same as that of `IndKNNClassifier`. The tests check this.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from indknn.core import mechanism
from indknn.core.accounting import from_units, to_units
from indknn.core.mechanism import Plan
from indknn.core.noise import Noise
from indknn.types import FloatArray, IntArray, Selection

CHECKPOINTS = 20


class Near(NamedTuple):
    """The records near a query, with kernel values on the grid."""

    owners: IntArray
    labels: IntArray
    kappa: IntArray


@dataclass(frozen=True)
class Answered:
    """The answers, what each person has spent (ρ), and the median of that after every twentieth of the stream."""

    answers: IntArray
    spent: FloatArray
    asked: IntArray
    medians: FloatArray


def answer(
    near: Sequence[Near],
    n_people: int,
    budget: float,
    plan: Plan,
    noise: Noise,
    *,
    copies: int = 1,
    released: Sequence[Selection] | None = None,
) -> Answered:
    """Answer the queries in order.

    `copies` means that the private set holds every record this many times, each with a different owner. All copies are
    always selected together, vote the same and are charged the same, so they need only one ledger entry.
    """
    full = to_units(budget)
    left = np.full(n_people, full, dtype=np.int64)
    answers = np.zeros(len(near), dtype=np.int64)
    asked, medians = [0], [0.0]
    for t, neighbours in enumerate(near):
        group = mechanism.group(*neighbours, plan)
        counted = mechanism.count(group, left[group.owners], plan)
        who = counted.group.owners
        left[who] -= counted.charges
        K = mechanism.noisy_count(copies * counted.total, plan, noise)
        settled = mechanism.settle(counted.group, left[who], K, plan)
        left[who] -= settled.charges
        votes = copies * settled.votes
        if released is not None:
            earlier = released[t]
            public = np.bincount(answers[earlier.slots], weights=earlier.kappa, minlength=plan.n_classes)
            votes = votes + public.astype(np.int64)
        answers[t], _ = mechanism.noisy_answer(votes, K, plan, noise)
        if (t + 1) * CHECKPOINTS // len(near) > t * CHECKPOINTS // len(near):
            asked.append(t + 1)
            medians.append(float(from_units(int(np.median(full - left)))))
    return Answered(answers, from_units(full - left), np.array(asked), np.array(medians))
