"""Trials in, bounds out."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from math import sqrt

import numpy as np

from indknn.core import accounting, statistics
from indknn.core.noise import Noise, SecureNoise, SeededNoise
from indknn.settings import Settings
from indknn.types import GRID, FloatArray
from indknn_lab.audits.bounds import lower_bounds
from indknn_lab.audits.scenarios import BASE, STATISTICS
from indknn_lab.audits.simulate import Run, Shot, random_draw, simulate
from indknn_lab.audits.tap import halves, tap
from indknn_lab.audits.worlds import Scenario, play


@dataclass(frozen=True)
class Measured:
    """A scenario's claim beside what was measured. `epsilon_gdp` is what the bound on μ means at δ."""

    name: str
    about: str
    sees: str
    path: str
    delta: float
    claimed_epsilon: float
    claimed_mu: float
    epsilon: float
    epsilon_gdp: float
    mu: float
    trials: int
    seed: int
    seconds: float

    @property
    def holds(self) -> bool:
        """Whether no bound exceeds the claim."""
        return self.epsilon <= self.claimed_epsilon and self.mu <= self.claimed_mu * (1 + 1e-9)

    @property
    def tightness(self) -> float:
        """The best bound as a share of the claim."""
        return max(self.epsilon, self.epsilon_gdp) / self.claimed_epsilon


def noise_for(scenario: Scenario, seed: int) -> Noise:
    """Reproducible noise: the seeded twin, or the exact sampler fed with seeded entropy."""
    rng = np.random.default_rng(seed)
    return SecureNoise(entropy=rng.bytes) if scenario.exact_noise else SeededNoise(rng)


def scores_of(scenario: Scenario, trials: int, seed: int) -> tuple[FloatArray, FloatArray]:
    """The scores of `trials` transcripts in each world, through the product."""
    rng, noise = np.random.default_rng([seed, 1]), noise_for(scenario, seed)
    present, absent = (np.array([play(scenario, world, noise, rng) for _ in range(trials)]) for world in (True, False))
    return present, absent


def measure(scenario: Scenario, trials: int, seed: int, error: float) -> Measured:
    """Audit one scenario. Each of its two bounds fails with probability at most `error`."""
    start = time.perf_counter()
    present, absent = scores_of(scenario, trials, seed)
    path = "product, exact noise" if scenario.exact_noise else "product"
    return _measured(scenario, path, (present, absent), seed, error, start)


def claimed_mu(scenario: Scenario) -> float:
    """sqrt(2B) for the B behind the claim. Both filters claim it: they differ in how B follows from ε."""
    settings = scenario.settings
    return sqrt(2.0 * accounting.budget(scenario.epsilon, settings.delta, settings.accountant))


def simulations() -> list[tuple[Scenario, list[Shot]]]:
    """Lone targets, for tight bounds: votes seen, and counts seen over so many queries that labels cost little."""

    def scenario(name: str, about: str, settings: Settings, sight: str) -> Scenario:
        return Scenario(name, about, settings, lambda view, rng: iter(()), "votes" if sight == "votes" else "counts")

    slow = replace(BASE, max_queries=240, sigma2=16.0)
    one = Shot(1, (0, GRID))
    three = Shot(3, (GRID, 2 * GRID))
    return [
        (scenario("many trials, votes", "until exhaustion", BASE, "votes"), [one] * 6),
        (scenario("many trials, epsilon 1", "until exhaustion", replace(BASE, epsilon=1.0), "votes"), [one] * 6),
        (scenario("many trials, epsilon 8", "until exhaustion", replace(BASE, epsilon=8.0), "votes"), [one] * 12),
        (scenario("many trials, counts", "80 queries, labels and counts", slow, "counts"), [one] * 82),
        (scenario("many trials, three records", "an owner with three records", slow, "votes"), [three] * 12),
    ]


def measure_simulated(scenario: Scenario, shots: list[Shot], trials: int, seed: int, error: float) -> Measured:
    """Audit one simulated scenario."""
    start = time.perf_counter()
    draw = random_draw(np.random.default_rng(seed))
    block = max(1000, min(trials, 50_000))

    def losses(present: bool) -> FloatArray:
        parts: list[FloatArray] = []
        for _ in range(-(-trials // block)):
            run: Run = simulate(scenario.settings, shots, present, block, draw)
            parts.append(run.votes_loss if scenario.sight == "votes" else run.labels_loss)
        return np.concatenate(parts)

    return _measured(scenario, "simulation", (losses(True), losses(False)), seed, error, start)


def measure_statistics(trials: int, seed: int, error: float) -> Measured:
    """One record, all of B in the sums: the product's own sum, clip and noise, without anything around them."""
    start = time.perf_counter()
    scenario = Scenario(
        "many trials, statistics",
        "one record, all of B in the sums",
        replace(STATISTICS, prior_share=0.9999),
        lambda view, rng: iter(()),
    )
    settings, source = scenario.settings, SeededNoise(seed)
    c, price = len(settings.classes), settings.prior_share * settings.budget
    noise = statistics.MomentNoise.for_price(price, c)
    vectors, labels = settings.prepare(np.ones((1, settings.n_features)), np.array([1]))
    nobody, limits = np.zeros(1, dtype=np.int64), np.array([accounting.to_units(price)])
    A, b = statistics.moments(vectors.values, labels, nobody, limits, c, noise).sums
    shift = np.concatenate(halves(A, b)).astype(np.float64)

    def scores(present: int) -> FloatArray:
        found = np.zeros((trials, len(shift)))
        for i in range(trials):
            found[i] = np.concatenate(halves(*statistics.noisy_moments(present * A, present * b, noise, source)))
        with tap() as tape:  # for the scales that were drawn
            statistics.noisy_moments(A, b, noise, source)
        scale = np.concatenate(
            [np.full(len(part), float(s)) for part, s in zip(halves(A, b), tape.sums[0].scales, strict=True)]
        )
        result: FloatArray = (found / scale) @ (shift / scale) - ((shift / scale) ** 2).sum() / 2.0
        return result

    return _measured(scenario, "the release alone", (scores(1), scores(0)), seed, error, start)


def _measured(
    scenario: Scenario, path: str, scores: tuple[FloatArray, FloatArray], seed: int, error: float, start: float
) -> Measured:
    delta = scenario.settings.delta
    bounds = lower_bounds(*scores, delta, error)
    if scenario.settings.vote == "exponential":  # not GDP, so what follows from a bound on μ does not
        bounds = replace(bounds, mu=0.0)
    return Measured(
        name=scenario.name,
        about=scenario.about,
        sees=scenario.sight,
        path=path,
        delta=delta,
        claimed_epsilon=scenario.epsilon,
        claimed_mu=claimed_mu(scenario),
        epsilon=bounds.epsilon,
        epsilon_gdp=accounting.epsilon(bounds.mu**2 / 2.0, delta),
        mu=bounds.mu,
        trials=bounds.trials,
        seed=seed,
        seconds=time.perf_counter() - start,
    )
