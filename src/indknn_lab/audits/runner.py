"""Runs the whole audit within the given minutes.

The minutes decide how much is planned. On an idle core there is time for all of it. Then a run with the same seed gives
the same figures everywhere, except for the timing attack, which measures real time. On a busy core the audit stops
when the time is over, and the report says what was left out. The time does not depend on any result, so bounds from
fewer trials are also valid. The probability that any bound on a correct mechanism exceeds its claim is at most 5%, over
all bounds of a run together.
"""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from indknn.errors import InvalidInputError
from indknn_lab.audits.allowance import Allowance, Clock, Progress
from indknn_lab.audits.attacks import floats
from indknn_lab.audits.attacks.floats import FloatAttack
from indknn_lab.audits.attacks.membership import Membership, membership
from indknn_lab.audits.attacks.timing import Timing, timing
from indknn_lab.audits.checks import CHECKS, Check
from indknn_lab.audits.measure import Measured, Rounds, measure_gradients, measure_simulated, simulations
from indknn_lab.audits.mutants import MUTANTS
from indknn_lab.audits.one_run import OneRun, one_run
from indknn_lab.audits.probes import PROBES, TRIALS, Verdict, failed_checks, failed_probes, judge
from indknn_lab.audits.scenarios import scenarios
from indknn_lab.audits.worlds import Scenario

CONFIDENCE = 0.95
_ROUND = 25
"""How many trials of each scenario a round has."""
_TRIALS_A_MINUTE = 60
"""How many trials of each scenario an idle core has time for in a minute."""


@dataclass(frozen=True)
class Report:
    """The results of an audit."""

    minutes: float
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
    left_out: tuple[str, ...]
    seconds: float
    worked: float
    """Seconds of elapsed time, and of processor time. On a busy machine they differ."""
    machine: str

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
    minutes: float = 2.0,
    seed: int = 1,
    progress: Progress = lambda label, done, total: None,
    clock: Clock = time.perf_counter,
) -> Report:
    """Run the audit for this many minutes."""
    if not (np.isfinite(minutes) and 0.05 <= minutes <= 1000):
        raise InvalidInputError(f"minutes must be between 0.05 and 1000, got {minutes!r}")
    allowance = Allowance(60.0 * minutes, clock, progress)
    product, simulated = scenarios(), simulations()
    error = (1.0 - CONFIDENCE) / (2 * (len(product) + len(simulated) + 1) + 2)
    worked = time.process_time()

    checks, probes = _product(allowance, seed)
    many = max(4000, int(40_000 * minutes))
    simulating = [(s[0].name, partial(measure_simulated, s, many, seed + 10_000 + i)) for i, s in enumerate(simulated)]
    simulating.append(("many trials, gradients", partial(measure_gradients, many // 4, seed + 20_000)))
    from_simulations = [work(error) for work in allowance.part("simulations", simulating)]
    verdicts = tuple(
        judge(mutant, seed, TRIALS) for mutant in allowance.part("mutants", ((m.name, m) for m in MUTANTS))
    )
    found = _attacks(allowance, minutes, seed, error)
    rounds = [Rounds(s, seed + 100 * i) for i, s in enumerate(product)]
    measured, short = _scenarios(allowance, rounds, minutes, error)
    machine = f"{platform.machine()}, Python {platform.python_version()}, NumPy {np.__version__}"
    left_out = [*short, *(f"{part}: {'; '.join(names)}" for part, names in allowance.left_out.items())]
    return Report(
        minutes=minutes,
        seed=seed,
        confidence=CONFIDENCE,
        error_per_bound=error,
        scenarios=(*measured, *from_simulations),
        product_checks=checks,
        product_probes=probes,
        mutants=verdicts,
        left_out=tuple(left_out),
        seconds=allowance.seconds,
        worked=time.process_time() - worked,
        machine=machine,
        **found,
    )


def _product(allowance: Allowance, seed: int) -> tuple[dict[str, str], dict[str, str]]:
    """What the checks and the probes find wrong with the product."""
    checks: dict[str, str] = {}
    probes: dict[str, str] = {}
    things: list[tuple[str, Check | Scenario]] = [*CHECKS.items(), *((probe.name, probe) for probe in PROBES)]
    for name, thing in allowance.part("checks", ((name, (name, thing)) for name, thing in things)):
        if isinstance(thing, Scenario):
            probes.update(failed_probes(seed, TRIALS, [thing]))
        else:
            checks.update(failed_checks({name: thing}))
    return checks, probes


def _scenarios(
    allowance: Allowance, product: list[Rounds], minutes: float, error: float
) -> tuple[list[Measured], list[str]]:
    """Run one round of each scenario in turn, until there are enough trials. Also says what there was no time for."""
    planned = max(2, round(_TRIALS_A_MINUTE * minutes / _ROUND))
    turns: Iterable[tuple[str, Rounds]] = ((r.scenario.name, r) for _ in range(planned) for r in product)
    for rounds in allowance.part("scenarios", turns):
        rounds.play(max(int(_ROUND * rounds.scenario.share), 8))
    allowance.left_out.pop("scenarios", None)
    fewest, never = min(map(len, product)), [r.scenario.name for r in product if not len(r)]
    short = [f"scenarios: {'; '.join(never)}"] if never else []
    if fewest < planned:
        short.append(f"scenarios: trials ({fewest} of {planned} rounds were played)")
    return [rounds.measured(error) for rounds in product if len(rounds)], short


def _attacks(allowance: Allowance, minutes: float, seed: int, error: float) -> dict[str, Any]:
    """The results of the attacks that there is time for, by the field of the report."""
    found: dict[str, Any] = {"one_run": None, "membership": None, "floats": (), "timing": ()}
    attacks: dict[str, Callable[[], Any]] = {
        "one_run": lambda: one_run(min(4000, int(1000 + 500 * minutes)), seed, error),
        "membership": lambda: membership(min(20_000, int(1500 * max(minutes, 1))), seed, error),
        "floats": lambda: tuple(floats.both(min(200_000, int(20_000 * max(minutes, 1))), seed, 1e-6)),
        "timing": lambda: tuple(timing(min(1000, max(20, int(40 * minutes))), 1e-3)),
    }
    for name, attack in allowance.part("attacks", ((name, (name, attack)) for name, attack in attacks.items())):
        found[name] = attack()
    return found
