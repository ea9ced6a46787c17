"""Two thousand people in three clumps, a shared model over them, and what each has paid: for tests of the model."""

from conftest import blobs
from indknn.core.accounting import from_units
from indknn.core.noise import SeededNoise
from indknn.engine import Engine
from indknn.ledger import SHARED
from indknn.settings import Settings

X, Y = blobs(3500, 3, 10, spread=1.2)
RECORDS, LABELS, QUERIES, TRUTH = X[:2000], Y[:2000], X[2000:], Y[2000:]
NAMES = [f"person-{i}" for i in range(2000)]
SETTINGS = Settings(n_features=10, classes=(0, 1, 2))
ASKING = Settings(n_features=10, classes=(0, 1, 2), epsilon=8.0, max_queries=150)
"""So much budget for so few queries that votes stand above their noise."""


def engine(settings=SETTINGS, seed=0, **options):
    made = Engine(settings, SeededNoise(seed), **options)
    made.add(RECORDS, LABELS, NAMES)
    return made


def shared(model, names=NAMES):
    """What each has paid for the model."""
    return from_units(model.ledger.spent(names, SHARED))


def train(model):
    """A round to its end; how many gradients it made."""
    return max((progress.made for progress in model.train()), default=0)
