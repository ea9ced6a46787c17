"""Many canaries in one run (Steinke, Nasr & Jagielski 2023, "Privacy auditing with one training run").

Every canary is a person with a direction of their own, put into the store or left out by a fair coin. One store
answers a few queries at each of them. The adversary scores all canaries, says "in" of the highest, "out" of the
lowest and nothing of the rest; how many guesses are right bounds ε from below, without a second run.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

import numpy as np

from indknn.core.noise import SeededNoise
from indknn.engine import Engine, new_index, new_ledger
from indknn.records.shard import Shard
from indknn.types import GRID, FloatArray, IntArray
from indknn_lab.audits.bounds import one_run_epsilon
from indknn_lab.audits.scenarios import BASE
from indknn_lab.audits.tap import tap
from indknn_lab.audits.worlds import gaussian_loss

GUESSED = 0.25  # of the canaries. Chosen in a pilot on other seeds than the audit's, so it needs no correction


@dataclass(frozen=True)
class OneRun:
    """What one run proved."""

    canaries: int
    guesses: int
    correct: int
    claimed_epsilon: float
    epsilon: float
    delta: float
    seed: int
    seconds: float

    @property
    def holds(self) -> bool:
        """Whether the bound is within the claim."""
        return self.epsilon <= self.claimed_epsilon


def one_run(canaries: int, seed: int, error: float, epsilon: float = 8.0) -> OneRun:
    """Audit one store with so many canaries, who see only what the theorem covers."""
    start = time.perf_counter()
    settings = replace(BASE, epsilon=epsilon, n_features=canaries, sigma2=0.25, max_queries=12)
    rng = np.random.default_rng([seed, 2])
    coins, labels = rng.integers(2, size=canaries).astype(bool), rng.integers(2, size=canaries)
    inside = np.flatnonzero(coins)
    engine = Engine(settings, SeededNoise(seed))
    for block in np.array_split(inside, max(1, len(inside) // 256)):
        engine.add(_directions(block, canaries), labels[block], block.tolist())
    scores = _scores(engine, labels, canaries)
    order = np.argsort(scores)
    half = max(1, int(GUESSED * canaries / 2))
    guesses, correct = 2 * half, int(coins[order[-half:]].sum() + (~coins[order[:half]]).sum())
    return OneRun(
        canaries=canaries,
        guesses=guesses,
        correct=correct,
        claimed_epsilon=settings.epsilon,
        epsilon=one_run_epsilon(canaries, guesses, correct, settings.delta, error),
        delta=settings.delta,
        seed=seed,
        seconds=time.perf_counter() - start,
    )


def _scores(engine: Engine, labels: IntArray, canaries: int) -> FloatArray:
    """The log-likelihood ratio of each canary's own two queries."""
    settings = engine.settings
    assert settings.tau is not None
    plan, scores = settings.plan(settings.tau), np.zeros(canaries)
    for block in np.array_split(np.arange(canaries), max(1, canaries // 64)):
        queries = _directions(block, canaries)
        # A canary's own ledger, had they been there, follows the released counts. All are alike but for the label.
        alone = Shard(new_index(settings), new_ledger(settings))
        alone.add(settings.quantise(queries, "X"), labels[block], [str(i) for i in block.tolist()])
        for _ in range(2):
            with tap() as releases:
                engine.predict(queries)
            near = alone.scan(settings.quantise(queries, "Q"), GRID // 2)
            for i, selection, release in zip(block.tolist(), near, releases, strict=True):
                pending = alone.select(selection, plan, None)
                shift = alone.settle(pending, release.K, plan)
                if release.raw is None or release.scores is None:
                    continue
                scores[i] += gaussian_loss(np.array([release.raw]), np.array([pending.total * GRID]), plan.scale1)
                scores[i] += gaussian_loss(release.scores, shift, plan.scale2(release.K))
    return scores


def _directions(which: IntArray, canaries: int) -> FloatArray:
    """One axis each: nobody is near anybody else's query."""
    rows = np.zeros((len(which), canaries))
    rows[np.arange(len(which)), which] = 1.0
    return rows
