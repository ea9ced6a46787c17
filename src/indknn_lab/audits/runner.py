"""Runs the whole audit.

First comes everything that is required, each with its least number of trials. Then, with more trials, whatever can
use them. Without a limit all of it is done, however busy the machine is. Then a run with the same seed gives the same
figures everywhere, except for the timing attack, which measures real time. With a limit the minutes decide how many
trials are planned, and nothing starts after they are over. If something required is missing then, the audit does not
pass. The time does not depend on any result, so bounds from fewer trials are also valid. The probability that any
bound on a correct mechanism exceeds its claim is at most 5%, over all bounds of a run together.
"""

from __future__ import annotations

import platform
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import Any

import numpy as np

from indknn.errors import InvalidInputError
from indknn_lab.audits.allowance import Allowance, Clock, Progress
from indknn_lab.audits.attacks import floats
from indknn_lab.audits.attacks.floats import FloatAttack
from indknn_lab.audits.attacks.membership import Membership, membership
from indknn_lab.audits.attacks.timing import Timing, timing
from indknn_lab.audits.checks import CHECKS
from indknn_lab.audits.measure import Measured, Rounds, measure_gradients, measure_simulated, simulations
from indknn_lab.audits.mutants import MUTANTS
from indknn_lab.audits.one_run import OneRun, one_run
from indknn_lab.audits.probes import PROBES, TRIALS, Verdict, failed_checks, failed_probes, judge
from indknn_lab.audits.scenarios import scenarios

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
    simulated: dict[str, Any] = {}
    attacked: dict[str, Any] = {}
    for size in (_LEAST, planned) if planned > _LEAST else (_LEAST,):
        required = size == _LEAST
        simulated |= _done(allowance, "simulations", _simulations(size, seed, error), required=required)
        attacked |= _done(allowance, "attacks", _attacks(size, seed, error), required=required)
    rounds = round(_TRIALS_A_MINUTE * planned / _ROUND)
    for _ in range(_LEAST_ROUNDS, rounds):
        _play(allowance, product, required=False)
    counted = {"more rounds": f"scenarios ({min(map(len, product))} of {rounds} rounds)"}
    return Report(
        minutes=minutes,
        seed=seed,
        confidence=CONFIDENCE,
        error_per_bound=error,
        scenarios=(*(one.measured(error) for one in product if len(one)), *simulated.values()),
        one_run=attacked.get("one run"),
        product_checks=checks,
        product_probes=probes,
        mutants=verdicts,
        membership=attacked.get("membership"),
        floats=attacked.get("floats", ()),
        timing=attacked.get("timing", ()),
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


def _done(allowance: Allowance, part: str, works: dict[str, Callable[[], Any]], *, required: bool) -> dict[str, Any]:
    """The results of this work, by name. With more trials a result takes the place of the earlier one."""
    named = ((name, (name, work)) for name, work in works.items())
    return {name: work() for name, work in allowance.part(part, named, required=required)}


def _simulations(minutes: float, seed: int, error: float) -> dict[str, Callable[[], Measured]]:
    """The simulations of scenarios, with the trials for so many minutes."""
    many = int(40_000 * minutes)
    works: dict[str, Callable[[], Measured]] = {
        one[0].name: partial(measure_simulated, one, many, seed + 10_000 + i, error)
        for i, one in enumerate(simulations())
    }
    return {**works, "many trials, gradients": partial(measure_gradients, many // 4, seed + 20_000, error)}


def _attacks(minutes: float, seed: int, error: float) -> dict[str, Callable[[], Any]]:
    """The attacks, as large as there is time for in so many minutes."""
    most = max(minutes, 1.0)
    return {
        "one run": lambda: one_run(min(4000, int(1000 + 500 * minutes)), seed, error),
        "membership": lambda: membership(min(20_000, int(1500 * most)), seed, error),
        "floats": lambda: tuple(floats.both(min(200_000, int(20_000 * most)), seed, 1e-6)),
        "timing": lambda: tuple(timing(min(1000, max(20, int(40 * minutes))), 1e-3)),
    }
