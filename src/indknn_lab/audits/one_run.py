"""Many canaries in one run (Steinke, Nasr & Jagielski 2023, "Privacy auditing with one training run").

Every canary is a person whose record has its own direction. A fair coin decides whether it is in the store. One store
answers a few queries at each canary. The adversary scores all canaries, and guesses "in" for the highest scores and
"out" for the lowest. The rest are not guessed. The number of right guesses bounds ε from below, without a second run.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from indknn.core.noise import SeededNoise
from indknn.engine import Engine, new_ledger
from indknn.records.shard import Shard, new_index
from indknn.types import GRID, FloatArray, IntArray
from indknn_lab.audits.bounds import one_run_epsilon
from indknn_lab.audits.scenarios import BASE
from indknn_lab.audits.tap import tap
from indknn_lab.audits.worlds import gaussian_loss

GUESSED = 0.25  # share of the canaries; chosen in a pilot with other seeds than the audit, so it needs no correction


@dataclass(frozen=True)
class OneRun:
    """The result of one run."""

    canaries: int
    guesses: int
    correct: int
    claimed_epsilon: float
    epsilon: float

    @property
    def holds(self) -> bool:
        """Whether the bound is within the claim."""
        return self.epsilon <= self.claimed_epsilon


def one_run(canaries: int, seed: int, error: float, epsilon: float = 8.0) -> OneRun:
    """Audit one store with this many canaries. The adversary sees only what the theorem covers."""
    settings = replace(BASE, epsilon=epsilon, n_features=canaries, sigma2=0.25, max_queries=12)
    rng = np.random.default_rng([seed, 2])
    coins, labels = rng.integers(2, size=canaries).astype(bool), rng.integers(2, size=canaries)
    inside = np.flatnonzero(coins)
    engine = Engine(settings, SeededNoise(seed))
    for block in np.array_split(inside, max(1, len(inside) // 256)):
        engine.add(_directions(block, canaries), labels[block], block.astype(str).tolist())
    scores = _scores(engine, labels, canaries)
    order = np.argsort(scores)
    half = max(1, int(GUESSED * canaries / 2))
    guesses, correct = 2 * half, int(coins[order[-half:]].sum() + (~coins[order[:half]]).sum())
    proven = one_run_epsilon(canaries, guesses, correct, settings.delta, error)
    return OneRun(canaries, guesses, correct, settings.epsilon, proven)


def _scores(engine: Engine, labels: IntArray, canaries: int) -> FloatArray:
    """The log-likelihood ratio of each canary, from the two queries at it."""
    settings = engine.settings
    assert settings.tau is not None
    plan, scores = settings.plan(settings.tau), np.zeros(canaries)
    for block in np.array_split(np.arange(canaries), max(1, canaries // 64)):
        queries = _directions(block, canaries)
        # The ledger that a canary would have follows from the released counts. Canaries differ only in their labels.
        alone = Shard(new_index(settings), new_ledger(settings))
        alone.add(settings.quantise(queries, "X"), labels[block], block.astype(str).tolist())
        for _ in range(2):
            with tap() as tape:
                engine.predict(queries)
            near = alone.scan(settings.quantise(queries, "Q"), GRID // 2)
            for i, selection, count, votes in zip(block.tolist(), near, tape[::2], tape[1::2], strict=True):
                admitted = alone.admit(selection, plan, None)
                scores[i] += gaussian_loss(count.noisy[0], np.array([admitted.total * GRID]), plan.scale1)
                scores[i] += gaussian_loss(votes.noisy[0], alone.settle(admitted, votes.K, plan), plan.scale2(votes.K))
    return scores


def _directions(which: IntArray, canaries: int) -> FloatArray:
    """One axis for each canary, so that nobody is near another canary's query."""
    rows = np.zeros((len(which), canaries))
    rows[np.arange(len(which)), which] = 1.0
    return rows
