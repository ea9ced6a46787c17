"""What answers from releases, after a restart."""

import numpy as np
import pytest

from conftest import blobs
from indknn.core.noise import SeededNoise
from indknn.engine import Engine
from indknn.settings import Settings

X, Y = blobs(2700, 3, 8, spread=1.2)


class Kept:
    """A journal in memory."""

    background = False

    def __init__(self):
        self.noted = []

    def note(self, *release):
        self.noted.append(release)

    def seal(self, *_):
        pass

    def secure(self):
        pass


@pytest.fixture(scope="module")
def engines():
    """One that never stopped, and one that was told what the first one released. People have several records."""
    kept, modes = Kept(), Settings(8, (0, 1, 2), epsilon=40.0, max_queries=700)
    old, new = Engine(modes, SeededNoise(1), journal=kept), Engine(modes, SeededNoise(1))
    old.add(X[:2000], Y[:2000], [f"p{i // 2}" for i in range(2000)])
    for first in range(2000, 2700, 100):
        old.predict(X[first : first + 100], "ann")
    for release in kept.noted:
        new.predictor.remember(*release)
    return old, new


def test_a_model_read_back_is_the_one_that_never_stopped(engines):
    old, new = engines
    a, b = (engine.predictor.model for engine in engines)
    assert (a.weights.whole == b.weights.whole).all()
    assert a.weights.unit == b.weights.unit
    assert vars(a.card).keys() == vars(b.card).keys()
    for name, value in vars(a.card).items():
        assert np.array_equal(value, getattr(b.card, name)), name
    for name in ("count", "since", "step", "follow", "rounds", "started", "ready"):
        assert getattr(a, name) == getattr(b, name), name
    assert a.due() is b.due() is None
    values = old.settings.quantise(X[2000:], "X").values
    for said, again in zip(a.shown.scores(values), b.shown.scores(values), strict=True):
        assert (said == again).all()
    assert new.shard.epoch == old.shard.epoch


def test_an_adviser_read_back_plans_as_the_one_that_never_stopped(engines):
    a, b = (engine.predictor.adviser("ann") for engine in engines)
    assert a.asked > 0
    query = engines[0].settings.quantise(X[:1], "q")
    for adviser in (a, b):
        adviser.advise(query)
    for name in ("tau", "answered", "asked", "kappa", "left", "strength", "first_strength", "voting", "worth_asking"):
        assert getattr(a, name) == getattr(b, name), name
    assert (a.density.records, a.sigma2()) == (b.density.records, b.sigma2())
