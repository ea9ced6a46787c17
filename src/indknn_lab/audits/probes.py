"""Small statistical audits that are cheap enough to run against a mutant, and the verdict on each mutant.

A fixed number of trials finds only large violations. `checks` finds the small ones. The claim is small (ε = 1), so that
even a moderate loss is a large violation.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from indknn.errors import IndKNNError
from indknn_lab.audits.bounds import lower_bounds
from indknn_lab.audits.checks import CHECKS, Check
from indknn_lab.audits.measure import claimed_mu, scores_of
from indknn_lab.audits.patches import Mutant
from indknn_lab.audits.scenarios import BASE, MODEL, analysts, asking
from indknn_lab.audits.worlds import Scenario

TRIALS = 60
ERROR = 1e-5
"""The probability that a correct mechanism fails a probe. In practice this never happens."""

_SMALL, _EVERYBODY = replace(BASE, epsilon=1.0, sigma2=0.2), tuple("abcdef")
PROBES: list[Scenario] = [
    Scenario("votes until exhaustion", "", _SMALL, asking(12)),
    Scenario("labels of a lone record", "", replace(_SMALL, sigma2=2.0), asking(6), "labels"),
    Scenario("five records", "", replace(_SMALL, max_queries=300), asking(8, 5)),
    Scenario("pooled analysts", "", replace(_SMALL, global_epsilon=1.0), analysts(_EVERYBODY, _EVERYBODY, 2)),
    Scenario("many records", "", replace(MODEL, epsilon=1.0), asking(1, 20), hurried=True),  # else nobody would vote
]


@dataclass(frozen=True)
class Verdict:
    """What was found wrong with a mutant, by the name of the check or probe.

    `caught` is true if at least one check found it, and every probe that the mutant names.
    """

    mutant: str
    wrong: str
    checks: dict[str, str]
    probes: dict[str, str]
    caught: bool
    seconds: float


def failed_checks(checks: dict[str, Check] = CHECKS, *, first: bool = False) -> dict[str, str]:
    """What the checks find wrong with the code in place, by check. With `first`, stop at the first check that fails."""
    found = {}
    for name, check in checks.items():
        try:
            problem = check()
        except (
            IndKNNError
        ) as error:  # it counts if a guard of the product stops a mutant, but not if a mutant just crashes
            problem = f"{type(error).__name__}: {error}"
        if problem:
            found[name] = problem
            if first:
                break
    return found


def failed_probes(seed: int, trials: int = TRIALS, probes: Sequence[Scenario] = PROBES) -> dict[str, str]:
    """The probes that measure more than is claimed, for the code in place."""
    found = {}
    for scenario in probes:
        mu = lower_bounds(*scores_of(scenario, trials, seed), scenario.settings.delta, ERROR).mu
        if mu > claimed_mu(scenario):
            found[scenario.name] = f"μ >= {mu:.2f}, claimed {claimed_mu(scenario):.2f}"
    return found


def judge(mutant: Mutant, seed: int, trials: int = TRIALS) -> Verdict:
    """Run the checks against a mutant until one catches it, and all probes that it names."""
    start = time.perf_counter()
    named = [scenario for scenario in PROBES if scenario.name in mutant.probes]
    try:
        with mutant():
            checks, probes = failed_checks(first=True), failed_probes(seed, trials, named)
    except Exception as error:
        crashed = f"{mutant.wrong}; it crashed: {type(error).__name__}: {error}"
        return Verdict(mutant.name, crashed, {}, {}, False, time.perf_counter() - start)
    caught = bool(checks) and len(probes) == len(named)
    return Verdict(mutant.name, mutant.wrong, checks, probes, caught, time.perf_counter() - start)
