"""What rivals of the endless stream are told: searched on held-out *private* records, never on the queries asked.

As everywhere in the experiments nobody pays for this search.
"""

from __future__ import annotations

import warnings
from functools import lru_cache
from typing import Any

import numpy as np

from indknn.core import accounting
from indknn.core.calibrate import sigma1_for, sigma2_for
from indknn.core.noise import SeededNoise
from indknn.errors import PrivacyWarning
from indknn.types import IntArray, Plan
from indknn_lab.baselines import LinearNoisySGD
from indknn_lab.experiments.algorithm3 import answer
from indknn_lab.experiments.fields import Field
from indknn_lab.experiments.search import Axis, Point, search
from indknn_lab.experiments.seeds import seed
from indknn_lab.experiments.trials import Trial
from indknn_lab.experiments.worlds import Rows, World, validation

_TAU_OFFSETS, _QUICK_OFFSETS = (-0.1, -0.05, 0.0), (-0.05,)
_TAU_STEP = 0.05
_FACTORS = (0.5, 0.7, 1.0, 1.4)
_RATES, _QUICK_RATES = (20.0, 40.0, 80.0), (40.0,)
_EPOCHS, _QUICK_EPOCHS = 10, 2


@lru_cache
def _shelf(key: tuple[Any, ...]) -> list[Any]:
    """A place to keep what was found, for the next seed."""
    return []


def votes(trial: Trial, world: World, T: int) -> tuple[float, float]:
    """(τ, σ2) of Algorithm 3 for T queries.

    There are fewer held-out records than T. Asked V queries with V/T of the budget and the noise of T, people
    run out at the same point of the stream, so that is what is scored.
    """
    shelf = _shelf(("votes", trial.digest, trial.records, trial.part, T, trial.epsilon))
    if not shelf:
        data = validation(world)
        near, rows = Field(data, threads=1), np.arange(len(data.truth))
        assert trial.epsilon is not None
        B = accounting.budget(trial.epsilon, trial.delta, "gdp")
        usual = sigma2_for(B, T)

        def score(point: Point) -> float:
            tau, factor = point
            plan = Plan(tau, sigma1_for(B, T), factor * usual, data.n_classes)
            noise = SeededNoise(seed("endless", "tuning"))
            budget = B * min(len(rows) / T, 1.0)
            found = answer(near.neighbours(rows, tau), len(data.labels), budget, plan, noise)
            return float((found.answers == data.truth).mean())

        star = near.plain_tau(rows)
        offsets = _QUICK_OFFSETS if trial.effort.quick else _TAU_OFFSETS
        taus = sorted({max(round(star + d, 3), 0.05) for d in offsets})
        axes = [
            Axis(
                "tau",
                taus,
                below=lambda t: round(t - _TAU_STEP, 3) if t > 0.09 else None,
                above=lambda t: round(t + _TAU_STEP, 3) if t < 0.9 else None,
            ),
            Axis(
                "sigma2",
                list(_FACTORS),
                below=lambda f: round(f / 1.4, 3) if f > 0.1 else None,
                above=lambda f: round(f * 1.4, 3) if f < 10 else None,
            ),
        ]
        tau, factor = search(axes, score).best
        shelf.append((tau, factor * usual))
    return shelf[0]  # type: ignore[no-any-return]


def sgd_rate(trial: Trial, world: World, retrainings: int) -> float:
    """The learning rate of NoisySGD, with the noise of that many trainings more. The world is that of every seed."""
    shelf = _shelf(("sgd", trial.digest, trial.records, len(world.first), trial.epsilon, retrainings))
    if not shelf:
        data = validation(world)

        def score(point: Point) -> float:
            random = np.random.default_rng(seed("endless", "tuning"))
            model = new_sgd(trial, world, point[0], retrainings, random)
            return float((fitted(model, data.X, data.labels).predict(data.Q) == data.truth).mean())

        rates = list(_QUICK_RATES if trial.effort.quick else _RATES)
        grow = not trial.effort.quick
        axis = Axis(
            "learning rate",
            rates,
            below=lambda r: r / 2 if grow and r > 0.3 else None,
            above=lambda r: 2 * r if grow and r < 1000 else None,
        )
        shelf.append(search([axis], score, max_growths=6).best[0])
    return shelf[0]  # type: ignore[no-any-return]


def new_sgd(trial: Trial, world: World, rate: float, retrainings: int, random: np.random.Generator) -> LinearNoisySGD:
    """A model that has not seen anything, priced for all its trainings together."""
    assert trial.epsilon is not None
    return LinearNoisySGD(
        trial.epsilon,
        trial.delta,
        learning_rate=rate,
        retrainings=retrainings,
        n_records=len(world.first),
        random_state=random,
        classes=np.arange(world.n_classes),
        epochs=_QUICK_EPOCHS if trial.effort.quick else _EPOCHS,
    )


def fitted(model: LinearNoisySGD, X: Rows, y: IntArray) -> LinearNoisySGD:
    """Trained, seeded on purpose."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PrivacyWarning)
        return model.fit(X, y)
