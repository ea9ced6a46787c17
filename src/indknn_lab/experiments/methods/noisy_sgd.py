"""Linear NoisySGD. The learning rate is chosen on the validation set. Then there is one training per test set."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from indknn.errors import PrivacyWarning
from indknn.types import IntArray
from indknn_lab.baselines import LinearNoisySGD
from indknn_lab.experiments.methods.base import Tuned, share_right
from indknn_lab.experiments.search import Axis, Point
from indknn_lab.experiments.units import Result, seed_for

RATES, _QUICK_RATES = (10.0, 20.0, 40.0, 80.0, 160.0), (20.0, 80.0)
_QUICK_EPOCHS = 3


def rate_axis(rates: Sequence[float], *, grows: bool) -> Axis:
    """The learning rates to try. If the best is at an edge, the range is extended by doubling or halving."""
    if not grows:
        return Axis("rate", list(rates))
    return Axis("rate", list(rates), lambda r: r / 2, lambda r: 2 * r, (0.15, 1300.0))


def fit_quietly(model: LinearNoisySGD, X: npt.NDArray[np.float32], y: IntArray) -> LinearNoisySGD:
    """Train without the warning about seeds, which are used on purpose here."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PrivacyWarning)
        return model.fit(X, y)


class NoisySGD(Tuned, kind="noisy_sgd"):
    """`indknn_lab.baselines.LinearNoisySGD`. Every test set gets its own training, as an independent run."""

    def axes(self) -> list[Axis]:
        """The learning rate."""
        quick = self.unit.effort.quick
        return [rate_axis(_QUICK_RATES if quick else RATES, grows=not quick)]

    def train(self, rate: float, seed: int) -> LinearNoisySGD:
        """A trained model."""
        more: dict[str, Any] = {"epochs": _QUICK_EPOCHS} if self.unit.effort.quick else {}
        more |= {"learning_rate": rate, "random_state": seed % (1 << 31), "classes": np.arange(self.data.n_classes)}
        X, y, copies = self.data.X, self.data.labels, self.unit.copies
        return fit_quietly(LinearNoisySGD(*self.unit.promise, **more), np.tile(X, (copies, 1)), np.tile(y, copies))

    def answers(self, rows: IntArray, point: Point, seed: int) -> IntArray:
        """The answers of a model that is trained for this."""
        return np.asarray(self.train(point[0], seed).predict(self.data.Q[rows]))

    def seed(self, role: str, i: int) -> int:
        """The seed of one training."""
        return seed_for("sgd", self.unit.name, role, *((i,) if role == "test" else ()))

    def test(self, point: Point) -> Result:
        """The accuracies, and what a training costs."""
        tests, Q, truth = self.sets.tests, self.data.Q, self.data.truth
        models = [self.train(point[0], self.seed("test", i)) for i in range(len(tests))]
        return {
            "accuracies": [share_right(m.predict(Q[rows]), truth[rows]) for m, rows in zip(models, tests, strict=True)],
            "noise_multiplier": models[0].noise_multiplier_,
            "sampling_rate": models[0].sampling_rate_,
            "steps": models[0].steps_,
        }
