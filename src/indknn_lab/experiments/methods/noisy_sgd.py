"""Linear NoisySGD: the learning rate on the validation set, then as many trainings as there are test sets."""

from __future__ import annotations

import warnings
from functools import partial
from typing import Any

import numpy as np

from indknn.errors import PrivacyWarning
from indknn_lab.baselines import LinearNoisySGD
from indknn_lab.experiments.fields import Data
from indknn_lab.experiments.queries import QuerySets
from indknn_lab.experiments.search import Axis, Point, search
from indknn_lab.experiments.seeds import seed
from indknn_lab.experiments.units import Result, Unit

RATES = (10.0, 20.0, 40.0, 80.0, 160.0)
_QUICK_RATES = (20.0, 80.0)
_QUICK_EPOCHS = 3


def measure(unit: Unit, data: Data, sets: QuerySets) -> Result:
    """Tune on the validation set; train anew for every test set, as an independent run."""
    train = partial(_train, unit, data)

    def score(point: Point) -> float:
        return _accuracy(train(point[0], seed("sgd", unit.name, "validation")), data, sets.validation)

    found = search([_axis(unit)], score, max_growths=4)
    (rate,) = found.best
    models = [train(rate, seed("sgd", unit.name, "test", i)) for i in range(len(sets.tests))]
    return {
        "accuracies": [_accuracy(model, data, rows) for model, rows in zip(models, sets.tests, strict=True)],
        "rate": rate,
        "noise_multiplier": models[0].noise_multiplier_,
        "sampling_rate": models[0].sampling_rate_,
        "steps": models[0].steps_,
        "validation": found.score,
        "tried": found.tried,
        "extended": list(found.extended),
    }


def _train(unit: Unit, data: Data, rate: float, random_state: int) -> LinearNoisySGD:
    settings: dict[str, Any] = {"epochs": _QUICK_EPOCHS} if unit.effort.quick else {}
    assert unit.epsilon is not None
    model = LinearNoisySGD(
        unit.epsilon,
        unit.delta,
        learning_rate=rate,
        random_state=random_state % (1 << 31),
        classes=np.arange(data.n_classes),
        **settings,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PrivacyWarning)  # seeded on purpose
        return model.fit(np.tile(data.X, (unit.copies, 1)), np.tile(data.labels, unit.copies))


def _accuracy(model: LinearNoisySGD, data: Data, rows: Any) -> float:
    return float((model.predict(data.Q[rows]) == data.truth[rows]).mean())


def _axis(unit: Unit) -> Axis:
    if unit.effort.quick:
        return Axis("learning rate", list(_QUICK_RATES))
    return Axis(
        "learning rate",
        list(RATES),
        below=lambda r: r / 2 if r > 0.3 else None,
        above=lambda r: 2 * r if r < 1000 else None,
    )
