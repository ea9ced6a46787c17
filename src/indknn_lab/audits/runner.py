"""The whole audit. How many trials there are follows from the minutes asked for, not from the clock.

So a run with the same seed gives the same figures everywhere (but for the timing attack, which measures real time).
The chance that any bound on a correct mechanism exceeds its claim is at most 5%, over all bounds of a run together.
"""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from indknn.errors import InvalidInputError
from indknn_lab.audits.attacks import floats
from indknn_lab.audits.attacks.floats import FloatAttack
from indknn_lab.audits.attacks.membership import Membership, membership
from indknn_lab.audits.attacks.timing import Timing, timing
from indknn_lab.audits.measure import Measured, measure, measure_gradients, measure_simulated, simulations
from indknn_lab.audits.mutants import MUTANTS
from indknn_lab.audits.one_run import OneRun, one_run
from indknn_lab.audits.probes import TRIALS, Verdict, failed_checks, failed_probes, judge
from indknn_lab.audits.scenarios import scenarios

CONFIDENCE = 0.95
Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Report:
    """What an audit found."""

    minutes: float
    seed: int
    confidence: float
    error_per_bound: float
    scenarios: tuple[Measured, ...]
    one_run: OneRun
    product_checks: dict[str, str]
    product_probes: dict[str, str]
    mutants: tuple[Verdict, ...]
    membership: Membership
    floats: tuple[FloatAttack, ...]
    timing: tuple[Timing, ...]
    seconds: float
    machine: str

    @property
    def problems(self) -> list[str]:
        """Why the audit fails; nothing if it passes."""
        found = [f"{m.name}: measured above the claim" for m in self.scenarios if not m.holds]
        found += [] if self.one_run.holds else ["one run: measured above the claim"]
        found += [] if self.membership.holds else ["membership inference: above the bound"]
        found += [f"check {name}: {what}" for name, what in self.product_checks.items()]
        found += [f"probe {name}: {what}" for name, what in self.product_probes.items()]
        found += [f"mutant {v.mutant}: survived" for v in self.mutants if not v.caught]
        naive, ours = self.floats
        found += ["floating point: our noise leaks"] if ours.leaks else []
        found += [] if naive.leaks else ["floating point: the attack misses the textbook leak"]
        return found

    @property
    def strongest(self) -> Measured:
        """The scenario whose bound is nearest to its claim."""
        return max(self.scenarios, key=lambda m: m.tightness)


def run(minutes: float = 2.0, seed: int = 1, progress: Progress = lambda label, done, total: None) -> Report:
    """The audit, for about so many minutes on one quiet core."""
    if not (np.isfinite(minutes) and 0.05 <= minutes <= 1000):
        raise InvalidInputError(f"minutes must be between 0.05 and 1000, got {minutes!r}")
    start = time.perf_counter()
    product, simulated = scenarios(), simulations()
    error = (1.0 - CONFIDENCE) / (2 * (len(product) + len(simulated) + 1) + 2)
    trials, many, probing = (
        max(40, int(125 * minutes)),
        max(4000, int(50_000 * minutes)),
        max(TRIALS, int(10 * minutes)),
    )

    def each(label: str, items: Sequence[Any], work: Callable[..., Any]) -> list[Any]:
        results = []
        for i, item in enumerate(items):
            progress(label, i, len(items))
            results.append(work(i, item))
        progress(label, len(items), len(items))
        return results

    measured = each("product", product, lambda i, s: measure(s, int(trials * s.share), seed + 100 * i, error))
    measured += each("simulations", simulated, lambda i, s: measure_simulated(s, many, seed + 10_000 + i, error))
    measured.append(measure_gradients(many // 4, seed + 20_000, error))
    checks, probes = failed_checks(), failed_probes(seed, probing)
    verdicts = each("mutants", MUTANTS, lambda i, mutant: judge(mutant, seed, probing))
    longer = max(minutes, 1)
    attacks = [
        lambda: one_run(min(4000, int(1000 + 500 * minutes)), seed, error),
        lambda: membership(min(20_000, int(1500 * longer)), seed, error),
        lambda: floats.both(min(200_000, int(20_000 * longer)), seed, 1e-6),
        lambda: timing(min(1000, int(100 * longer)), 1e-3),
    ]
    once, members, leaks, clock = each("attacks", attacks, lambda i, attack: attack())
    machine = f"{platform.machine()}, Python {platform.python_version()}, NumPy {np.__version__}"
    figures = tuple(measured), once, checks, probes, tuple(verdicts), members, tuple(leaks), tuple(clock)
    return Report(minutes, seed, CONFIDENCE, error, *figures, time.perf_counter() - start, machine)
