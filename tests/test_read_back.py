"""What answers from releases, after a restart."""

import numpy as np
import pytest

from indknn.core.noise import SeededNoise
from indknn.engine import Engine
from indknn.settings import Settings


class Kept:
    """A journal in memory."""

    def __init__(self):
        self.noted = []

    def note(self, *release):
        self.noted.append(release)

    def seal(self, *_):
        pass


@pytest.mark.parametrize("prior", ["none", "statistics"])
def test_an_adviser_read_back_plans_as_the_one_that_never_stopped(prior):
    rng, kept = np.random.default_rng(0), Kept()
    X = rng.normal(size=(300, 4))
    modes = Settings(4, (0, 1), epsilon=2.0, max_queries=None, reuse="student", prior=prior)
    old, new = Engine(modes, SeededNoise(1), journal=kept), Engine(modes, SeededNoise(1))
    old.add(X, (X[:, 0] > 0).astype(int))
    old.predict(rng.normal(size=(300, 4)))
    for analyst, query, label, release in kept.noted:
        new.predictor.remember(analyst, query, label, release)
    a, b = old.predictor.adviser(), new.predictor.adviser()
    assert b.due() is None
    b.advise(modes.quantise(X[:1], "q"))
    for name in ("tau", "since", "answered", "asked", "left", "_next_card", "_fresh_at"):
        assert getattr(a, name) == getattr(b, name), name
    assert (a.density.records, a.sigma2(), a.answers) == (b.density.records, b.sigma2(), b.answers)
    assert new.shard.epoch == old.shard.epoch
