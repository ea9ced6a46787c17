"""The timing attack, and a test that it fails if answers leave at fixed ticks.

From the time of an answer, an attacker may want to learn two things: are there people near this query, and have they
used up their budgets? The two cases are measured in turn, so that other work on the machine affects both alike. The
attacker learns a threshold from half of the times, and guesses on the rest.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np

from indknn.core.noise import SecureNoise
from indknn.engine import Engine
from indknn.types import FloatArray
from indknn_lab.audits.attacks.pacing import Answers, Paced
from indknn_lab.audits.bounds import lower_rate
from indknn_lab.audits.scenarios import AXIS, BASE, D

PEOPLE = 5000
_LONGEST_TICK = 0.02  # seconds; slower answers are slow because the machine is busy
Arm: TypeAlias = tuple[Engine, FloatArray]


@dataclass(frozen=True)
class Timing:
    """How often the attacker was right, without and with ticks, and how much time the ticks cost."""

    question: str
    answers: int
    open_success: float
    open_at_least: float
    paced_success: float
    paced_at_least: float
    open_milliseconds: float
    tick_milliseconds: float
    late: int

    @property
    def holds(self) -> bool:
        """Whether the attacker learns nothing if answers leave at ticks."""
        return self.paced_at_least <= 0.5


def timing(answers: int, error: float) -> list[Timing]:
    """Both attacks, with this many answers of each kind. Times are real, so results differ from run to run."""
    near, far = AXIS[None, :], -AXIS[None, :]
    fresh, spent = _crowd(), _crowd()
    slots = np.arange(PEOPLE)
    spent.ledger.charge(slots, spent.ledger.remaining(slots, None), None)
    return [
        _attack("are people near?", ((fresh, near), (fresh, far)), answers, error),
        _attack("are they exhausted?", ((spent, near), (fresh, near)), answers, error),
    ]


def _crowd() -> Engine:
    """An engine with many people near the axis. Their budgets last for the whole attack."""
    rng = np.random.default_rng(0)
    engine = Engine(replace(BASE, max_queries=10**7, sigma2=16.0), SecureNoise())
    engine.add(AXIS + 0.1 * rng.normal(size=(PEOPLE, D)), rng.integers(2, size=PEOPLE), list(range(PEOPLE)))
    return engine


def _attack(question: str, arms: tuple[Arm, Arm], answers: int, error: float) -> Timing:
    times = _times(arms, answers)
    tick = min(max(0.002, 4.0 * float(np.quantile(times, 0.99))), _LONGEST_TICK)
    paced = tuple((Paced(model, tick), query) for model, query in arms)
    held = _times(paced, answers)
    right, held_right = _guess(times), _guess(held)
    guessed = 2 * (answers - answers // 2)
    return Timing(
        question=question,
        answers=2 * answers,
        open_success=right / guessed,
        open_at_least=lower_rate(right, guessed, error),
        paced_success=held_right / guessed,
        paced_at_least=lower_rate(held_right, guessed, error),
        open_milliseconds=1e3 * float(np.median(times)),
        tick_milliseconds=1e3 * tick,
        late=sum(model.late for model, _ in paced),
    )


def _times(arms: Sequence[tuple[Answers, FloatArray]], answers: int) -> FloatArray:
    """Seconds per answer, of shape (answers, 2). The two kinds take turns, after a short warm-up."""
    times = np.zeros((answers + 5, 2))
    for i in range(len(times)):
        for kind in (0, 1) if i % 2 else (1, 0):
            model, query = arms[kind]
            start = time.perf_counter()
            model.predict(query)
            times[i, kind] = time.perf_counter() - start
    return times[5:]


def _guess(times: FloatArray) -> int:
    """How many times of the second half are guessed right, with the threshold that is best on the first half."""
    half = len(times) // 2
    known, new = times[:half], times[half:]
    cuts = np.quantile(known, np.linspace(0.05, 0.95, 19))
    gains = [(known[:, 0] > cut).sum() - (known[:, 1] > cut).sum() for cut in cuts]
    best = int(np.argmax(np.abs(gains)))
    above = new > cuts[best]
    first = above[:, 0] if gains[best] > 0 else ~above[:, 0]
    second = ~above[:, 1] if gains[best] > 0 else above[:, 1]
    return int(first.sum() + second.sum())
