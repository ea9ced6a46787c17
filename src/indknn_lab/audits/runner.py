"""Runs the whole audit: the product's checks and probes, all mutants, scenarios, simulations and attacks.

First comes everything that is required, each with its least number of trials. Then, with more trials, whatever can
use them. Without a limit all of it is done, however busy the machine is. Then a run with the same seed gives the same
figures everywhere, except for the timing attack, which measures real time. With a limit the minutes decide how many
trials are planned, and nothing starts after they are over. If something required is missing then, the audit does not
pass. The time does not depend on any result, so bounds from fewer trials are also valid. The probability that any
bound on a correct mechanism exceeds its claim is at most 5%, over all bounds of a run together.

Probes are small statistical audits that are cheap enough to run against a mutant. A fixed number of trials finds only
large violations; `checks` finds the small ones. Probes claim little (ε = 1), so that a moderate loss is a large
violation.
"""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from typing import Any, NamedTuple, TypeVar

import numpy as np

from indknn.errors import IndKNNError, InvalidInputError
from indknn_lab.audits.attacks import FloatAttack, Membership, OneRun, Timing, floats, membership, one_run, timing
from indknn_lab.audits.checks import CHECKS, Check
from indknn_lab.audits.measure import (
    Measured,
    Rounds,
    claimed_mu,
    lower_bounds,
    measure_gradients,
    measure_simulated,
    scores_of,
    simulations,
)
from indknn_lab.audits.mutants import MUTANTS
from indknn_lab.audits.patches import Mutant
from indknn_lab.audits.scenarios import BASE, MODEL, Scenario, analysts, asking, scenarios

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
        except IndKNNError as error:  # it counts if a guard of the product stops a mutant, not if it just crashes
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


Clock = Callable[[], float]
Progress = Callable[[str, int, int], None]
Thing = TypeVar("Thing")


class Allowance:
    """The seconds for an audit, or None for as long as it takes.

    Work that was started is finished. Nothing starts after the time is over.

    >>> times = iter(range(100))
    >>> allowance = Allowance(4.0, lambda: next(times))
    >>> list(allowance.part("checks", [("first", 1), ("second", 2), ("third", 3), ("fourth", 4)])), allowance.missing
    ([1, 2, 3], ['checks: fourth'])
    """

    def __init__(self, seconds: float | None, clock: Clock, progress: Progress = lambda label, done, total: None):
        self._clock, self._progress = clock, progress
        self._start = clock()
        self._end = None if seconds is None else self._start + seconds
        self.missing: list[str] = []
        """The required things for which there was no time, each with its part."""
        self.fewer: list[str] = []
        """The parts that were to be repeated with more trials, and were not, or not all of them."""

    @property
    def seconds(self) -> float:
        """The seconds used so far."""
        return self._clock() - self._start

    def part(self, part: str, things: Iterable[tuple[str, Thing]], *, required: bool = True) -> Iterator[Thing]:
        """The things of a part that there is time for. The names of the others are kept, see `missing` and `fewer`."""
        named = list(things)
        for done, (name, thing) in enumerate(named):
            self._progress(part, done, len(named))
            if self._end is None or self._clock() < self._end:
                yield thing
            elif required:
                self.missing.append(f"{part}: {name}")
            elif part not in self.fewer:
                self.fewer.append(part)
        self._progress(part, len(named), len(named))


CONFIDENCE = 0.95
PLANNED = 2.0
"""For how many minutes the trials are planned if there is no limit."""
_ROUND = 25
"""How many trials of each scenario a round has."""
_LEAST_ROUNDS = 2
_LEAST = 0.1
"""The size of the least simulations and attacks, in minutes for which they would be planned."""
_TRIALS_A_MINUTE = 60
"""How many trials of each scenario are planned for a minute."""


class Outcome(StrEnum):
    """What an audit says in the end."""

    PASSED = "PASSED"
    FAILED = "FAILED"
    INCOMPLETE = "INCOMPLETE"


@dataclass(frozen=True)
class Report:
    """The results of an audit."""

    minutes: float | None
    seed: int
    confidence: float
    error_per_bound: float
    scenarios: tuple[Measured, ...]
    one_run: OneRun | None
    product_checks: dict[str, str]
    product_probes: dict[str, str]
    mutants: tuple[Verdict, ...]
    membership: Membership | None
    floats: tuple[FloatAttack, ...]
    timing: tuple[Timing, ...]
    missing: tuple[str, ...]
    """Everything required for which there was no time, by name. With it nothing is proven."""
    left_out: tuple[str, ...]
    """What was done with fewer trials than planned. The bounds are valid, and weaker."""
    seconds: float
    worked: float
    """Seconds of elapsed time, and of processor time. On a busy machine they differ."""
    machine: str

    @property
    def outcome(self) -> Outcome:
        """What was found counts most, then what is missing."""
        return Outcome.FAILED if self.problems else Outcome.INCOMPLETE if self.missing else Outcome.PASSED

    @property
    def problems(self) -> list[str]:
        """The reasons why the audit fails. Empty if it passes."""
        found = [f"{m.name}: measured above the claim" for m in self.scenarios if not m.holds]
        found += ["one run: measured above the claim"] if self.one_run and not self.one_run.holds else []
        found += ["membership inference: above the bound"] if self.membership and not self.membership.holds else []
        found += [f"check {name}: {what}" for name, what in self.product_checks.items()]
        found += [f"probe {name}: {what}" for name, what in self.product_probes.items()]
        found += [f"mutant {v.mutant}: survived" for v in self.mutants if not v.caught]
        if self.floats:
            naive, ours = self.floats
            found += ["floating point: our noise leaks"] if ours.leaks else []
            found += [] if naive.leaks else ["floating point: the attack misses the textbook leak"]
        return found

    @property
    def strongest(self) -> Measured | None:
        """The scenario whose bound is nearest to its claim."""
        return max(self.scenarios, key=lambda m: m.tightness, default=None)


def run(
    minutes: float | None = None,
    seed: int = 1,
    progress: Progress = lambda label, done, total: None,
    clock: Clock = time.perf_counter,
) -> Report:
    """Run the audit, for at most this many minutes."""
    if minutes is not None and not (np.isfinite(minutes) and 0.05 <= minutes <= 1000):
        raise InvalidInputError(f"minutes must be between 0.05 and 1000, got {minutes!r}")
    allowance = Allowance(None if minutes is None else 60.0 * minutes, clock, progress)
    planned, product = minutes or PLANNED, [Rounds(s, seed + 100 * i) for i, s in enumerate(scenarios())]
    error = (1.0 - CONFIDENCE) / (2 * (len(product) + len(simulations()) + 1) + 2)
    worked = time.process_time()

    checks, probes = _product(allowance, seed)
    mutants = allowance.part("mutants", ((mutant.name, mutant) for mutant in MUTANTS))
    verdicts = tuple(judge(mutant, seed, TRIALS) for mutant in mutants)
    for _ in range(_LEAST_ROUNDS):
        _play(allowance, product, required=True)
    simulated: dict[str, Done] = {}
    attacked: dict[str, Done] = {}
    for size in (_LEAST, planned) if planned > _LEAST else (_LEAST,):
        required = size == _LEAST
        _do(allowance, "simulations", _simulations(size, seed, error), simulated, required=required)
        _do(allowance, "attacks", _attacks(size, seed, error), attacked, required=required)
    rounds = round(_TRIALS_A_MINUTE * planned / _ROUND)
    for _ in range(_LEAST_ROUNDS, rounds):
        _play(allowance, product, required=False)
    measured = [one.measured(error) for one in product if len(one)]
    measured += [done.result for done in simulated.values()]
    found: dict[str, Any] = {name: done.result for name, done in attacked.items()}
    counted = {"more rounds": f"scenarios ({min(map(len, product))} of {rounds} rounds)"}
    return Report(
        minutes=minutes,
        seed=seed,
        confidence=CONFIDENCE,
        error_per_bound=error,
        scenarios=(
            *(one.measured(error) for one in product if len(one)),
            *(done.result for done in simulated.values()),
        ),
        one_run=found.get("one run"),
        product_checks=checks,
        product_probes=probes,
        mutants=verdicts,
        membership=found.get("membership"),
        floats=found.get("floats", ()),
        timing=found.get("timing", ()),
        missing=tuple(dict.fromkeys(allowance.missing)),
        left_out=tuple(counted.get(part, part) for part in allowance.fewer),
        seconds=allowance.seconds,
        worked=time.process_time() - worked,
        machine=f"{platform.machine()}, Python {platform.python_version()}, NumPy {np.__version__}",
    )


def _product(allowance: Allowance, seed: int) -> tuple[dict[str, str], dict[str, str]]:
    """What the checks and the probes find wrong with the product."""
    checks: dict[str, str] = {}
    probes: dict[str, str] = {}
    for name, check in allowance.part("checks", ((name, (name, check)) for name, check in CHECKS.items())):
        checks |= failed_checks({name: check})
    for probe in allowance.part("probes", ((probe.name, probe) for probe in PROBES)):
        probes |= failed_probes(seed, TRIALS, [probe])
    return checks, probes


def _play(allowance: Allowance, product: list[Rounds], *, required: bool) -> None:
    """One more round of each scenario."""
    turns = ((rounds.scenario.name, rounds) for rounds in product)
    for rounds in allowance.part("scenarios" if required else "more rounds", turns, required=required):
        rounds.play(max(int(_ROUND * rounds.scenario.share), 8))


class Done(NamedTuple):
    """Work with all of its arguments, and its result."""

    work: partial[Any]
    result: Any


def _do(
    allowance: Allowance, part: str, works: dict[str, partial[Any]], earlier: dict[str, Done], *, required: bool
) -> None:
    """Do this work. With more trials a result takes the place of the earlier one; with as many it would be the same."""
    new = {name: work for name, work in works.items() if name not in earlier or earlier[name].work.args != work.args}
    for name, work in allowance.part(part, ((name, (name, work)) for name, work in new.items()), required=required):
        earlier[name] = Done(work, work())


def _simulations(minutes: float, seed: int, error: float) -> dict[str, partial[Any]]:
    """The simulations of scenarios, with the trials for so many minutes."""
    many = int(40_000 * minutes)
    works: dict[str, partial[Any]] = {
        one[0].name: partial(measure_simulated, one, many, seed + 10_000 + i, error)
        for i, one in enumerate(simulations())
    }
    return {**works, "many trials, gradients": partial(measure_gradients, many // 4, seed + 20_000, error)}


def _attacks(minutes: float, seed: int, error: float) -> dict[str, partial[Any]]:
    """The attacks, as large as there is time for in so many minutes."""
    most = max(minutes, 1.0)
    return {
        "one run": partial(one_run, min(4000, int(1000 + 500 * minutes)), seed, error),
        "membership": partial(membership, min(20_000, int(1500 * most)), seed, error),
        "floats": partial(floats, min(200_000, int(20_000 * most)), seed, 1e-6),
        "timing": partial(timing, min(1000, max(20, int(40 * minutes))), 1e-3),
    }
