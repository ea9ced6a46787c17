"""Measures seconds per query or per training, on one core, while nothing else runs.

They are seconds of this process on a processor, so that other programs, which also want it, do not count. They depend
on the machine and the day. Only ratios from the same run are compared.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from itertools import count
from typing import Any

from threadpoolctl import threadpool_limits

from indknn.core.noise import SecureNoise
from indknn.engine import Engine
from indknn.errors import PrivacyWarning
from indknn.settings import Settings
from indknn.types import Given
from indknn_lab.baselines import LinearNoisySGD, PrivateKNN
from indknn_lab.experiments.methods.base import Method
from indknn_lab.experiments.units import Result

_ROUNDS, _ASKED = 7, 200
_RATIO, _K, _RATE = 0.2, 200, 80.0


class Timing(Method, kind="timing", methods=("indknn", "private_knn", "noisy_sgd")):
    """A method as a user would call it, with secure noise for answers to queries."""

    alone = True

    def measure(self) -> Result:
        """Measure with one thread."""
        clocks = {"indknn": self._indknn, "private_knn": self._private_knn, "noisy_sgd": self._noisy_sgd}
        with threadpool_limits(1), warnings.catch_warnings():
            warnings.simplefilter("ignore", PrivacyWarning)
            return clocks[self.unit.method](self.data.Q[self.sets.tests[0][:_ASKED]])

    def _indknn(self, Q: Any) -> Result:
        engine, data, people = Engine(self._settings(), SecureNoise()), self.data, count()

        def leave_and_return() -> None:
            i = next(people)
            engine.forget_owners([i])
            engine.put(Given(data.private[slice(i, i + 1)], data.labels[i : i + 1], [i]))

        return {
            "fill": _shortest(lambda: engine.put(Given(data.private, data.labels)), 1),
            "per_query": _shortest(lambda: engine.predict(Q)) / len(Q),
            "per_query_alone": _shortest(lambda: [engine.predict(Q[i : i + 1]) for i in range(len(Q))]) / len(Q),
            "change": _shortest(leave_and_return) / 2,
        }

    def _settings(self) -> Settings:
        """Algorithm 3, exact or hashed. The threshold is about the one that searches choose."""
        unit, data = self.unit, self.data
        lsh = {} if unit.tables is None else {"n_tables": unit.tables, "n_bits": unit.bits, "seed": 1}
        return Settings(
            n_features=data.X.shape[1],
            classes=tuple(range(data.n_classes)),
            epsilon=unit.promise[0],
            delta=unit.delta,
            max_queries=unit.T,
            tau={"cifar10": 0.45, "agnews": 0.3, "fmnist": 0.6}.get(unit.data.split("-", maxsplit=1)[0]),
            sigma2=0.5,
            accountant="rdp",
            index="lsh" if lsh else "exact",
            index_options={"threads": 1, **lsh},
            reuse="none",
            mode="votes",
            free_repeats=False,
        )

    def _private_knn(self, Q: Any) -> Result:
        model = PrivateKNN(*self.unit.promise, max_queries=2 * _ROUNDS * len(Q), k=_K, sampling_ratio=_RATIO)
        model.fit(self.data.X, self.data.labels)
        return {"per_query": _shortest(lambda: model.predict(Q)) / len(Q)}

    def _noisy_sgd(self, Q: Any) -> Result:
        def train() -> LinearNoisySGD:
            epochs = 3 if self.unit.effort.quick else 10
            model = LinearNoisySGD(*self.unit.promise, learning_rate=_RATE, random_state=0, epochs=epochs)
            return model.fit(self.data.X, self.data.labels)

        model = train()  # this also fills the cache of noise multipliers
        return {"training": _shortest(train, 3), "per_query": _shortest(lambda: model.predict(Q)) / len(Q)}


def _shortest(work: Callable[[], object], rounds: int = _ROUNDS) -> float:
    """The shortest time of some rounds, because other work on the machine can only add time."""
    times = []
    for _ in range(rounds):
        began = time.process_time()
        work()
        times.append(time.process_time() - began)
    return min(times)
