"""Runs trials of scenarios and computes bounds from them.

Bounds that need a million trials come from a simulation of many transcripts at once. There the target is alone.
Admission uses the mechanism's own `count`. Settling is written again here, because K differs in every trial, and
`settle` of the mechanism handles one query at a time. `tests/lab/audits` runs both with the same noise. It checks that
charges and labels are exactly the same, and losses the same up to rounding.

**Bounds** are lower bounds on privacy loss from counted events. All hold with the stated confidence, for any
distinguisher.

A distinguisher says for each transcript whether the target is "in" or "out". Its true and false positive rates are
bounded by Clopper and Pearson (1934). Then:

``epsilon``
    (ε, δ)-DP requires TPR <= e^ε·FPR + δ, and the same for the complement. So ε >= log((TPR - δ)/FPR).
``mu``
    μ-GDP requires TPR <= Φ(Φ⁻¹(FPR) + μ). So μ >= Φ⁻¹(TPR) - Φ⁻¹(FPR)  (Dong, Roth & Su 2022; Nasr et al. 2023).

The second bound needs far fewer trials to refute a claim of GDP, because it needs no rare events.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from math import log, sqrt

import numpy as np
from scipy.optimize import brentq
from scipy.special import log_ndtr, ndtri
from scipy.stats import beta as beta_distribution
from scipy.stats import binom

from indknn.core import accounting, mechanism, training
from indknn.core.accounting import UNIT, to_units
from indknn.core.mechanism import MIN_K
from indknn.core.noise import Noise, SecureNoise, SeededNoise
from indknn.models.shared_model import CLIP
from indknn.settings import Settings
from indknn.types import GRID, FloatArray, IntArray
from indknn_lab.audits.scenarios import BASE, MODEL, Scenario, Sight, play
from indknn_lab.audits.tap import Recorder

# The thresholds that are tried. μ is measured best in the middle, and ε in the tails. With few thresholds, the best one
# on the first trials is less often best by luck.
_QUANTILES = {"epsilon": np.linspace(0.002, 0.998, 60), "mu": np.linspace(0.1, 0.9, 9)}


@dataclass(frozen=True)
class Bounds:
    """The bounds that a set of trials proves. `trials` counts both worlds, and also trials that chose the threshold."""

    epsilon: float
    mu: float
    trials: int


def lower_rate(hits: float, trials: float, error: float) -> float:
    """A lower bound on the true rate. It is wrong with probability at most `error`.

    >>> 0.95 < lower_rate(100, 100, 0.01) < 1.0, lower_rate(0, 100, 0.01)
    (True, 0.0)
    """
    return float(beta_distribution.ppf(error, hits, trials - hits + 1)) if hits > 0 else 0.0


def upper_rate(hits: float, trials: float, error: float) -> float:
    """An upper bound on the true rate. It is wrong with probability at most `error`."""
    return 1.0 - lower_rate(trials - hits, trials, error)


def epsilon_from_rates(tpr: float, fpr: float, delta: float) -> float:
    """These rates refute (ε, δ)-DP for every ε below the result.

    >>> round(epsilon_from_rates(0.5, 0.1, 0.0), 3)
    1.609
    """
    return log((tpr - delta) / fpr) if tpr - delta > fpr > 0.0 else 0.0


def mu_from_rates(tpr: float, fpr: float) -> float:
    """These rates refute μ-GDP for every μ below the result.

    >>> round(mu_from_rates(0.8413, 0.5), 2)
    1.0
    """
    return max(0.0, float(ndtri(tpr) - ndtri(fpr))) if tpr > 0.0 and fpr < 1.0 else 0.0


def lower_bounds(present: FloatArray, absent: FloatArray, delta: float, error: float) -> Bounds:
    """The bounds from the scores of transcripts in the two worlds. Each bound fails with probability <= `error`.

    A quarter of the trials is used to choose the threshold and its side. Only the rest is counted. A threshold that was
    chosen on the counted trials would need a correction.
    """
    n = min(len(present), len(absent))
    choose, test = slice(0, n // 4), slice(n // 4, n)
    weight = (n - n // 4) / max(n // 4, 1)  # as if as many trials chose the threshold as are counted
    pooled = np.concatenate([present[choose], absent[choose]])
    best = dict.fromkeys(_QUANTILES, (-1.0, 0.0, 1))
    for name, quantiles in _QUANTILES.items():
        for cut in np.unique(np.quantile(pooled, quantiles)).tolist():
            for side in (1, -1):
                found = _at(present[choose], absent[choose], cut, side, delta, error, weight)[name]
                best[name] = max(best[name], (found, cut, side))
    final = {
        name: _at(present[test], absent[test], cut, side, delta, error)[name] for name, (_, cut, side) in best.items()
    }
    return Bounds(final["epsilon"], final["mu"], 2 * n)


def _at(
    present: FloatArray, absent: FloatArray, cut: float, side: int, delta: float, error: float, weight: float = 1.0
) -> dict[str, float]:
    """The bounds of the distinguisher that says "in" above the threshold. For side -1 it says "out" below it."""
    hits, others = (present >= cut, absent >= cut) if side > 0 else (absent < cut, present < cut)
    tpr = lower_rate(weight * hits.sum(), weight * len(hits), error / 2)
    fpr = upper_rate(weight * others.sum(), weight * len(others), error / 2)
    return {"epsilon": epsilon_from_rates(tpr, fpr, delta), "mu": mu_from_rates(tpr, fpr)}


def one_run_p_value(canaries: int, guesses: int, correct: int, epsilon: float, delta: float) -> float:
    """The probability of this many correct guesses or more, if the run was (ε, δ)-DP.

    This is theorem 5.2 of Steinke, Nasr & Jagielski (2023).

    >>> one_run_p_value(1000, 100, 50, 0.0, 0.0) > 0.4, one_run_p_value(1000, 100, 90, 1.0, 1e-5) < 0.01
    (True, True)
    """
    q = 1.0 / (1.0 + np.exp(-epsilon))
    tail = float(binom.sf(correct - 1, guesses, q))
    i = np.arange(1, correct + 1)
    window = np.cumsum(binom.pmf(correct - i, guesses, q))  # P(correct - i <= W < correct)
    alpha = float((window / i).max()) if correct else 0.0
    return min(1.0, tail + 2.0 * canaries * delta * alpha)


def one_run_epsilon(canaries: int, guesses: int, correct: int, delta: float, error: float) -> float:
    """The largest ε that this many correct guesses refute."""

    def excess(epsilon: float) -> float:
        return one_run_p_value(canaries, guesses, correct, epsilon, delta) - error

    return 0.0 if excess(0.0) > 0.0 else max(0.0, float(brentq(excess, 0.0, 20.0)) - 1e-9)  # on the safe side


_SLACK = 1.0 + 2.0**-32  # as in charge_units

Draw = Callable[[FloatArray, int], IntArray]
"""A function that draws rounded normals of shape (trials, size), with one scale per trial."""


@dataclass(frozen=True)
class Shot:
    """One query: how many of the target's records it selects, and their votes in grid units."""

    m: int
    votes: tuple[int, ...]


@dataclass(frozen=True)
class Run:
    """The transcripts: losses if votes are seen, losses if only labels are seen, labels, and what was spent."""

    votes_loss: FloatArray
    labels_loss: FloatArray
    labels: IntArray
    spent: IntArray


def simulate(settings: Settings, shots: list[Shot], present: bool, trials: int, draw: Draw) -> Run:
    """Run Algorithm 3 with a lone target and two labels, `trials` times in parallel."""
    assert settings.tau is not None
    plan, budget = settings.plan(settings.tau), to_units(settings.budget)
    spent = np.zeros(trials, dtype=np.int64)
    votes_loss, labels_loss, labels = np.zeros(trials), np.zeros(trials), np.zeros((trials, len(shots)), dtype=np.int64)
    everyone = np.arange(trials)
    scale1 = np.full(trials, float(plan.scale1))
    for t, shot in enumerate(shots):
        who = mechanism.Group(everyone, np.full(trials, shot.m), everyone[:0], everyone[:0], everyone[:0])
        counted = mechanism.count(who, budget - spent, plan)
        m = np.zeros(trials, dtype=np.int64)
        m[counted.group.owners] = shot.m * GRID
        spent[counted.group.owners] += counted.charges
        raw = present * m + draw(scale1, 1)[:, 0]
        K = np.maximum(raw, MIN_K * GRID)
        scale2 = _scale2(plan.sigma2, K)
        vote = np.where(m[:, None] > 0, np.array(shot.votes), 0)
        vote, charges = _settle(vote, budget - spent, scale2)
        spent += charges
        scores = present * vote + draw(scale2, plan.n_classes)
        labels[:, t] = np.argmax(scores, axis=1)
        counts_loss = _loss(raw[:, None], m[:, None], scale1)
        votes_loss += counts_loss + _loss(scores, vote, scale2)
        gap = (vote[:, 1] - vote[:, 0]) / (scale2 * np.sqrt(2.0)) * (2 * labels[:, t] - 1)
        labels_loss += counts_loss + log_ndtr(gap) - np.log(0.5)
    return Run(votes_loss, labels_loss, labels, spent)


def random_draw(rng: np.random.Generator) -> Draw:
    """Ordinary seeded noise."""
    return lambda scale, size: np.rint(rng.standard_normal((len(scale), size)) * scale[:, None]).astype(np.int64)


def _scale2(sigma2: float, K: IntArray) -> FloatArray:
    """`Plan.scale2` for many K: the square root, rounded up."""
    square = (sigma2 * sigma2) * GRID * K.astype(np.float64)
    root = np.floor(np.sqrt(square))
    result: FloatArray = np.where(root * root >= square, root, root + 1.0)
    return result


def _settle(vote: IntArray, remaining: IntArray, scale: FloatArray) -> tuple[IntArray, IntArray]:
    """`mechanism.settle` for many trials, each with its own scale."""
    squared = (vote.astype(np.float64) * vote).sum(axis=1)
    double = 2.0 * scale * scale
    limit = np.maximum(remaining - 1, 0).astype(np.float64) * (double / UNIT) / (_SLACK * _SLACK)
    shrink = np.sqrt(np.minimum(1.0, limit / np.maximum(squared, 1.0)))[:, None]
    vote = np.where(shrink < 1.0, np.floor(vote * shrink), vote).astype(np.int64)
    squared = (vote.astype(np.float64) * vote).sum(axis=1)
    return vote, np.ceil(squared * (UNIT / double * _SLACK)).astype(np.int64)


def _loss(x: IntArray, shift: IntArray, scale: FloatArray) -> FloatArray:
    a, d = x / scale[:, None], shift / scale[:, None]
    result: FloatArray = (a * d - d * d / 2.0).sum(axis=1)
    return result


_APART = 1_000_000
"""The distance between the seeds of two rounds."""


@dataclass(frozen=True)
class Measured:
    """The claim of a scenario and the measured bounds. `epsilon_gdp` is the bound on μ, converted to ε at δ."""

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


def scores_of(scenario: Scenario, trials: int, seed: int) -> tuple[FloatArray, FloatArray]:
    """The scores of `trials` transcripts in each world, from the product. All noise is seeded, also the exact noise."""
    rng, source = np.random.default_rng([seed, 1]), np.random.default_rng(seed)
    noise: Noise = SecureNoise(entropy=source.bytes) if scenario.exact_noise else SeededNoise(source)
    present, absent = (np.array([play(scenario, world, noise, rng) for _ in range(trials)]) for world in (True, False))
    return present, absent


def measure(scenario: Scenario, trials: int, seed: int, error: float) -> Measured:
    """Audit one scenario. Each of its two bounds fails with probability at most `error`."""
    rounds = Rounds(scenario, seed)
    rounds.play(trials)
    return rounds.measured(error)


class Rounds:
    """The trials of one scenario, in as many rounds as there is time for. Each round has its own seed."""

    def __init__(self, scenario: Scenario, seed: int):
        self.scenario, self.seed, self.seconds = scenario, seed, 0.0
        self._scores: list[tuple[FloatArray, FloatArray]] = []

    def play(self, trials: int) -> None:
        """Run one more round."""
        start = time.perf_counter()
        self._scores.append(scores_of(self.scenario, trials, self.seed + _APART * len(self._scores)))
        self.seconds += time.perf_counter() - start

    def __len__(self) -> int:
        return len(self._scores)

    def measured(self, error: float) -> Measured:
        """The bounds from all rounds together."""
        path = "product, exact noise" if self.scenario.exact_noise else "product"
        present, absent = (np.concatenate(world) for world in zip(*self._scores, strict=True))
        return _measured(self.scenario, path, lambda: (present, absent), self.seed, error, self.seconds)


def claimed_mu(scenario: Scenario) -> float:
    """sqrt(2B) for the B behind the claim. Both filters claim this μ, but they compute B from ε in different ways."""
    settings = scenario.settings
    return sqrt(2.0 * accounting.budget(scenario.epsilon, settings.delta, settings.accountant))


def _lone(name: str, about: str, settings: Settings, sight: Sight = "votes") -> Scenario:
    """A scenario without a script, because it is simulated and not run through an engine."""
    return Scenario(f"many trials, {name}", about, settings, lambda view, rng: iter(()), sight)


def simulations() -> list[tuple[Scenario, list[Shot]]]:
    """Scenarios with a lone target, for tight bounds.

    In one, the adversary sees votes. In the other, they see counts over so many queries that labels cost little.
    """
    slow = replace(BASE, max_queries=240, sigma2=16.0)
    one, three = Shot(1, (0, GRID)), Shot(3, (GRID, 2 * GRID))
    return [
        (_lone("votes", "until exhaustion", BASE), [one] * 6),
        (_lone("epsilon 1", "until exhaustion", replace(BASE, epsilon=1.0)), [one] * 6),
        (_lone("epsilon 8", "until exhaustion", replace(BASE, epsilon=8.0)), [one] * 12),
        (_lone("counts", "80 queries, labels and counts", slow, "counts"), [one] * 82),
        (_lone("three records", "an owner with three records", slow), [three] * 12),
    ]


def measure_simulated(simulation: tuple[Scenario, list[Shot]], trials: int, seed: int, error: float) -> Measured:
    """Audit one simulated scenario."""
    (scenario, shots), draw = simulation, random_draw(np.random.default_rng(seed))
    block = max(1000, min(trials, 50_000))

    def losses(present: bool) -> FloatArray:
        runs = [simulate(scenario.settings, shots, present, block, draw) for _ in range(-(-trials // block))]
        return np.concatenate([run.votes_loss if scenario.sight == "votes" else run.labels_loss for run in runs])

    return _measured(scenario, "simulation", lambda: (losses(True), losses(False)), seed, error)


def measure_gradients(trials: int, seed: int, error: float, steps: int = 4) -> Measured:
    """Audit training with one record that spends all of B on gradients.

    It uses only the gradient, the clip and the noise of the product. The adversary projects every noisy gradient on the
    gradient that the record would add, and sums over the steps.
    """
    settings, source = replace(MODEL, model_share=0.9999), SeededNoise(seed)
    scale = training.step_scale(CLIP, steps, settings.shared_budget)
    vectors, labels = settings.prepare(np.ones((1, settings.n_features)), np.array([1]))
    weights = training.Weights.of(np.zeros((settings.n_features + 1, len(settings.classes))))
    limits = np.array([accounting.to_units(settings.shared_budget)])
    exact = training.gradient(vectors.values, labels, np.zeros(1, dtype=np.int64), limits, weights, CLIP, scale).sums
    recorder = Recorder(source)  # it records the scale of the noise
    training.noisy_gradient(exact, scale, recorder)
    (drawn,) = recorder.scales
    shift = exact.ravel() / drawn

    def scores(present: int) -> FloatArray:
        found = np.zeros(trials)
        for i in range(trials):
            seen = sum(training.noisy_gradient(present * exact, scale, source) for _ in range(steps))
            found[i] = float((np.asarray(seen).ravel() / drawn) @ shift)
        return np.asarray(found - steps * (shift**2).sum() / 2.0)

    scenario = _lone("gradients", "one record, all of B in gradients", settings)
    return _measured(scenario, "the release alone", lambda: (scores(1), scores(0)), seed, error)


def _measured(
    scenario: Scenario,
    path: str,
    scores: Callable[[], tuple[FloatArray, FloatArray]],
    seed: int,
    error: float,
    played: float = 0.0,
) -> Measured:
    start, delta = time.perf_counter(), scenario.settings.delta
    bounds = lower_bounds(*scores(), delta, error)
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
        seconds=played + time.perf_counter() - start,
    )
