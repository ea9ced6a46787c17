"""Seconds per query, or per training, by the clock: on one core, with nothing else running beside it.

The exact seconds belong to one machine on one day. What is compared are ratios, measured in the same run.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from indknn.core.noise import SecureNoise
from indknn.engine import Engine
from indknn.errors import PrivacyWarning
from indknn.settings import Settings
from indknn_lab.baselines import LinearNoisySGD, PrivateKNN
from indknn_lab.experiments.fields import Data
from indknn_lab.experiments.queries import QuerySets
from indknn_lab.experiments.units import Result, Unit

_ROUNDS = 7
_ASKED = 200
_RATIO, _K, _RATE = 0.2, 200, 80.0


def measure(unit: Unit, data: Data, sets: QuerySets) -> Result:
    """The method of the unit, as a user would call it, with secure noise where it answers queries."""
    rows = sets.tests[0][:_ASKED]
    with threadpool_limits(1), warnings.catch_warnings():
        warnings.simplefilter("ignore", PrivacyWarning)
        return _METHODS[unit.method](unit, data, data.Q[rows])


def _indknn(unit: Unit, data: Data, Q: Any) -> Result:
    lsh: dict[str, Any] = {} if unit.tables is None else {"n_tables": unit.tables, "n_bits": unit.bits, "seed": 1}
    settings = Settings(
        n_features=data.X.shape[1],
        classes=tuple(range(data.n_classes)),
        epsilon=unit.epsilon or 1.0,
        delta=unit.delta,
        max_queries=unit.T,
        tau=_tau(unit),
        sigma2=0.5,
        accountant="rdp",
        reuse="none",
        index="exact" if unit.tables is None else "lsh",
        index_options={"threads": 1, **lsh},
        free_repeats=False,
    )
    engine = Engine(settings, SecureNoise())
    began = time.perf_counter()
    engine.put(data.private, data.labels, None)
    filled = time.perf_counter() - began
    batch = _best(lambda: engine.predict(Q)) / len(Q)
    single = _best(lambda: [engine.predict(Q[i : i + 1]) for i in range(len(Q))]) / len(Q)
    person = [0]
    forget = _best(lambda: _forget_and_return(engine, data, person))
    return {"per_query": batch, "per_query_alone": single, "fill": filled, "change": forget / 2}


def _forget_and_return(engine: Engine, data: Data, person: list[int]) -> None:
    engine.forget_owners([person[0]])
    engine.put(data.private[slice(person[0], person[0] + 1)], data.labels[person[0] : person[0] + 1], [person[0]])
    person[0] += 1


def _private_knn(unit: Unit, data: Data, Q: Any) -> Result:
    T = 2 * _ROUNDS * len(Q)
    model = PrivateKNN(unit.epsilon or 1.0, unit.delta, max_queries=T, k=_K, sampling_ratio=_RATIO)
    model.fit(data.X, data.labels)
    return {"per_query": _best(lambda: model.predict(Q)) / len(Q)}


def _noisy_sgd(unit: Unit, data: Data, Q: Any) -> Result:
    def train() -> LinearNoisySGD:
        epochs = 3 if unit.effort.quick else 10
        model = LinearNoisySGD(unit.epsilon or 1.0, unit.delta, learning_rate=_RATE, random_state=0, epochs=epochs)
        return model.fit(data.X, data.labels)

    model = train()  # also fills the cache of prices
    return {"training": _best(train, 3), "per_query": _best(lambda: model.predict(Q)) / len(Q)}


def _best(work: Callable[[], object], rounds: int = _ROUNDS) -> float:
    """The shortest of some rounds: what else the machine did only ever adds."""
    times = []
    for _ in range(rounds):
        began = time.perf_counter()
        work()
        times.append(time.perf_counter() - began)
    return float(np.min(times))


def _tau(unit: Unit) -> float:
    """About the thresholds that the searches choose."""
    return {"cifar10": 0.45, "agnews": 0.3}.get(unit.data.split("-", maxsplit=1)[0], 0.6)


_METHODS = {"indknn": _indknn, "private_knn": _private_knn, "noisy_sgd": _noisy_sgd}
