"""Answers leave on the tick, whatever they took, errors too."""

import contextlib

import numpy as np
import pytest

from indknn.core.noise import SecureNoise
from indknn.engine import Engine
from indknn.errors import InvalidInputError
from indknn.settings import Settings
from indknn_lab.audits.attacks import Paced


class Clock:
    """Time that passes when told; every look takes a microsecond."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        self.now += 1e-6
        return self.now

    def sleep(self, seconds):
        self.now += seconds


class Slow:
    """A model whose answers take as long as told."""

    def __init__(self, clock):
        self.clock, self.seconds, self.error = clock, 0.0, None

    def predict(self, Q, analyst=None, **options):
        self.clock.now += self.seconds
        if self.error:
            raise self.error
        return np.zeros(len(Q)), analyst, options


def answered_after(model, clock, paced, queries=1):
    start = clock.now
    with contextlib.suppress(OSError):
        paced.predict(np.zeros((queries, 2)))
    return clock.now - start


def test_the_time_says_nothing_about_the_work():
    clock = Clock()
    model = Slow(clock)
    paced = Paced(model, 0.02, clock=clock, sleep=clock.sleep)
    seen = []
    for seconds in (0.0, 0.003, 0.0189, 0.0199):
        model.seconds = seconds
        seen.append(answered_after(model, clock, paced))
    model.error = OSError("disk full")
    seen.append(answered_after(model, clock, paced))
    assert seen == pytest.approx([0.02] * 5, abs=1e-5)
    assert paced.late == 0


def test_a_batch_takes_a_tick_per_query_and_late_work_waits_for_the_next():
    clock = Clock()
    model = Slow(clock)
    paced = Paced(model, 0.01, clock=clock, sleep=clock.sleep)
    assert answered_after(model, clock, paced, queries=5) == pytest.approx(0.05, abs=1e-5)
    model.seconds = 0.013
    assert answered_after(model, clock, paced) == pytest.approx(0.02, abs=1e-5)
    assert paced.late == 1


def test_it_hands_through_what_it_is_given():
    clock = Clock()
    _, analyst, options = Paced(Slow(clock), 0.01, clock=clock, sleep=clock.sleep).predict(
        [[1.0]], "ann", request_id="7"
    )
    assert (analyst, options) == ("ann", {"request_id": "7"})
    engine = Engine(Settings(n_features=2, classes=(0, 1), tau=0.5), SecureNoise())
    with pytest.raises(InvalidInputError):
        Paced(engine, 0.001).predict([[1.0, 2.0, 3.0]])


@pytest.mark.parametrize("tick", [0.0, -1.0, float("nan"), float("inf")])
def test_bad_ticks_are_refused(tick):
    with pytest.raises(InvalidInputError, match="tick must be"):
        Paced(Slow(Clock()), tick)
