"""One run over a stream: the product, a rival, or a ceiling. What comes back is how often it was right, in blocks."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np

from indknn.core.noise import SeededNoise
from indknn.engine import Engine
from indknn.settings import Settings
from indknn.types import IntArray
from indknn_lab.experiments import worlds
from indknn_lab.experiments.fields import TAU_GRID, Data, Field
from indknn_lab.experiments.methods import tuned
from indknn_lab.experiments.seeds import seed
from indknn_lab.experiments.trials import ADVISED, Trial
from indknn_lab.experiments.units import Result
from indknn_lab.experiments.worlds import World

BLOCK = 100
REFITS = 4
"""How often models that are trained anew really are, in a stream with changes; see `noisy_sgd`."""
_BATCH = 500
_PENALTY = 1.0
_WORLDS: dict[str, Callable[[Data, int, int], World]] = {
    "figures": worlds.figures,
    "streams": worlds.stream,
    "change": worlds.changing,
    "drift": worlds.drifting,
}


def measure(trial: Trial, data: Data) -> Result:
    """Do it."""
    world = _WORLDS[trial.part](data, trial.T, trial.seed)
    if trial.method in {*ADVISED, "votes"}:
        return _product(trial, world)
    if trial.method.startswith("noisy_sgd"):
        return noisy_sgd(trial, world, _for_tuning(trial, data, world))
    return _ceiling(trial, world)


def planned(trial: Trial) -> int:
    """T as Algorithm 3 is told it: the length of the stream, of a long one a fifth."""
    return trial.T // 5 if trial.part == "streams" else trial.T


def _product(trial: Trial, world: World) -> Result:
    began = time.perf_counter()
    told = _settings(trial, world)
    spent_tuning = time.perf_counter() - began
    assert trial.epsilon is not None
    settings = Settings(
        n_features=world.X.shape[1],
        classes=tuple(range(world.n_classes)),
        epsilon=trial.epsilon,
        delta=trial.delta,
        index_options={"threads": 1},
        **told,
    )
    engine = Engine(settings, SeededNoise(seed("endless", trial.part, trial.method, trial.seed)))
    engine.add(world.X[world.first], world.y[world.first], world.first.tolist())
    answers = np.concatenate([_some(engine, world, *piece) for piece in _pieces(world)])
    told_by = engine.predictor.adviser()
    return {
        **_blocks(answers, world),
        "asked": len(answers) if told_by is None else told_by.asked,
        "tau": engine.predictor.tau,
        "sigma2": told.get("sigma2"),
        "seconds": round(time.perf_counter() - began - spent_tuning, 2),
    }


def _settings(trial: Trial, world: World) -> dict[str, Any]:
    """What distinguishes the ways to answer."""
    if trial.method == "votes":
        tau, sigma2 = tuned.votes(trial, world, planned(trial))
        return {"tau": tau, "sigma2": sigma2, "max_queries": planned(trial), "reuse": "none"}
    return {
        "reuse": "none" if trial.method == "statistics" else "student",
        "prior": "none" if trial.method == "student" else "statistics",
        "max_queries": None if trial.method == "open" else trial.T,
    }


def _pieces(world: World) -> list[tuple[int, int]]:
    """Cut the stream where something changes, and into batches."""
    ends = sorted({c.at for c in world.changes} | set(range(0, len(world.Q), _BATCH)) | {0, len(world.Q)})
    return list(pairwise(ends))


def _some(engine: Engine, world: World, start: int, stop: int) -> IntArray:
    for change in world.changes:
        if change.at == start:
            if len(change.leave):
                engine.forget_owners(change.leave.tolist())
            if len(change.arrive):
                engine.add(world.X[change.arrive], world.y[change.arrive], change.arrive.tolist())
    return np.asarray(engine.predict(world.Q[start:stop]), dtype=np.int64)


def _for_tuning(trial: Trial, data: Data, world: World) -> World:
    """The same for all seeds, and for both kinds of change."""
    return worlds.changing(data, trial.T, 0) if world.changes else world


def noisy_sgd(trial: Trial, world: World, known: World) -> Result:
    """Linear NoisySGD: trained once, or again after every change.

    Every training is paid for. Of the trainings after changes only a few are carried out, evenly over the
    stream, each answering for those after it: between them a few records of thousands change, which no model
    can show, and 80 trainings would take minutes. A batch that arrives at half time finds one of them.
    """
    retrainings = len(world.changes) if trial.method == "noisy_sgd_retrained" else 0
    rate = tuned.sgd_rate(trial, known, retrainings)
    random = np.random.default_rng(seed("endless", trial.part, trial.method, trial.seed))
    model = tuned.new_sgd(trial, world, rate, retrainings, random)
    answers = _refitted(world, REFITS if retrainings else 1, partial(tuned.fitted, model))
    return {
        **_blocks(answers, world),
        "rate": rate,
        "trainings_paid": 1 + retrainings,
        "trainings_done": model.trainings_,
        "noise_multiplier": model.noise_multiplier_,
    }


def _ceiling(trial: Trial, world: World) -> Result:
    """Without privacy, refitted as the above."""
    times = REFITS if world.changes else 1
    if trial.method == "ridge":
        return _blocks(_refitted(world, times, partial(_Ridge, world.n_classes)), world)
    held_out = worlds.validation(world)
    tau = Field(held_out, threads=1).plain_tau(np.arange(len(held_out.truth)))
    right, n = [], len(world.Q) // times
    for start in range(0, n * times, n):
        now = worlds.as_data(world, world.present(start), world.Q[start : start + n], world.truth[start : start + n])
        right.append(float(Field(now, threads=1).plain_accuracy(np.arange(n))[TAU_GRID.index(tau)] * n))
    return {"block": n, "right": right, "length": n * times, "tau": tau}


def _refitted(world: World, times: int, fit: Callable[..., Any]) -> IntArray:
    """Answers of a model that is fitted to what is there at the start of each of so many parts of the stream."""
    edges = np.arange(times) * (len(world.Q) // times // BLOCK * BLOCK)
    if times > 1:
        edges[times // 2] = max((c.at for c in world.changes if len(c.arrive) > 1), default=edges[times // 2])
    answers = []
    for start, stop in zip(edges, [*edges[1:], len(world.Q)], strict=True):
        rows = world.present(int(start))
        answers.append(np.asarray(fit(world.X[rows], world.y[rows]).predict(world.Q[start:stop])))
    return np.concatenate(answers)


class _Ridge:
    """Least squares on unit rows with a penalty of 1."""

    def __init__(self, n_classes: int, X: worlds.Rows, y: IntArray):
        targets = np.eye(n_classes)[y] - 1.0 / n_classes
        A = X.T.astype(np.float64) @ X + _PENALTY * np.eye(X.shape[1])
        self.weights = np.linalg.solve(A, X.T @ targets)

    def predict(self, Q: worlds.Rows) -> IntArray:
        """The best class of each row."""
        return np.asarray(np.argmax(Q @ self.weights, axis=1), dtype=np.int64)


def _blocks(answers: IntArray, world: World) -> Result:
    right = answers == world.truth
    counts = [int(right[i : i + BLOCK].sum()) for i in range(0, len(right), BLOCK)]
    return {"block": BLOCK, "right": counts, "length": len(right)}
