"""Runs one method over a stream: the product, another private method, or a method without privacy.

The result is how many answers were right in each block of queries. Other methods are tuned on held-out *private*
records, never on the queries of the stream. No budget covers this search.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import pairwise
from math import ceil
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from indknn.core import accounting
from indknn.core.calibrate import sigma1_for, sigma2_for
from indknn.core.mechanism import Plan
from indknn.core.noise import SeededNoise
from indknn.engine import Engine
from indknn.settings import Settings
from indknn.types import GRID, IntArray
from indknn_lab.baselines import LinearNoisySGD
from indknn_lab.baselines.pricing import noise_multiplier
from indknn_lab.baselines.topk import SENSITIVITY
from indknn_lab.experiments.algorithm3 import answer
from indknn_lab.experiments.behaviour import behaviour
from indknn_lab.experiments.data import TAU_GRID, Data, KernelNeighbours, NearestLabels
from indknn_lab.experiments.methods.base import Method, share_right
from indknn_lab.experiments.methods.rivals import fit_quietly, rate_axis, reach, sampled_votes
from indknn_lab.experiments.search import Axis, Point, search
from indknn_lab.experiments.streams import EVERY, STREAMS, Rows, Stream
from indknn_lab.experiments.units import Result, Trial, seed_for

BLOCK = 100
REFITS = 4
"""How often models are really retrained in a stream with changes. See `StreamSGD`."""
_BATCH = 500
_DROWNED = 1000.0
"""So much noise on votes that they are never used."""
_TAU_OFFSETS, _QUICK_OFFSETS = (-0.1, -0.05, 0.0), (-0.05,)
_FACTORS = (0.5, 0.7, 1.0, 1.4)
_RATES, _QUICK_RATES, _EPOCHS, _QUICK_EPOCHS = (5.0, 20.0, 80.0), (40.0,), 10, 2
_RATIOS, _QUICK_RATIOS = (0.05, 0.2, 1.0), (0.2,)
_KS, _QUICK_KS = (25.0, 50.0, 100.0, 200.0, 400.0, 800.0, 1600.0), (100.0,)
_NEAREST, _ANSWERED = 12_000, 4000
"""For Private-kNN: how many of the nearest records are sorted, and how many queries of a stream are answered."""
_FOUND: dict[tuple[Any, ...], Any] = {}

Fit = Callable[[Rows, IntArray], Callable[[Rows], npt.ArrayLike]]


class StreamMethod(Method):
    """A method that answers a whole stream."""

    shared = ("data", "tuned_on", "epsilon")  # tuning depends on these, and all seeds share it
    unit: Trial

    def __init__(self, unit: Trial, data: Data):
        super().__init__(unit, data)
        self.stream = STREAMS[unit.part](data, unit.T, unit.seed)
        self.seed = seed_for("endless", unit.part, unit.method, unit.seed)

    def blocks(self, answers: IntArray) -> Result:
        """How many answers in each block were right."""
        right = answers == self.stream.truth
        counts = [int(right[i : i + BLOCK].sum()) for i in range(0, len(right), BLOCK)]
        return {"block": BLOCK, "right": counts, "length": len(right)}

    def level_blocks(self, shares: list[float]) -> Result:
        """The same for a method whose accuracy was measured once for each of some equal parts of the stream."""
        n = len(self.stream.Q)
        starts = range(0, n, BLOCK)
        counts = [shares[i * len(shares) // n] * min(BLOCK, n - i) for i in starts]
        return {"block": BLOCK, "right": counts, "length": n}

    def parts(self, most: int | None = None) -> list[Data]:
        """The records present at the start of each part of the stream, and the first queries of that part.

        There are at most `most` queries in total. A stream without changes is one part.
        """
        stream, times = self.stream, REFITS if self.stream.changes else 1
        n = len(stream.Q) // times
        found = []
        for start in range(0, n * times, n):
            asked = slice(start, start + min(n, (most or n * times) // times))
            found.append(stream.as_data(stream.present(start), stream.Q[asked], stream.truth[asked]))
        return found

    def tuned(self, find: Callable[[Stream], Any], *more: Any) -> Any:
        """The result of `find` on the stream for tuning. It is the same for all seeds, so it is computed once."""
        u = self.unit
        key = u.digest, u.records, u.tuned_on, u.T, u.effort, u.promise, *more
        if key not in _FOUND:
            _FOUND[key] = find(STREAMS[u.tuned_on](self.data, u.T, 0))
        return _FOUND[key]

    def refitted(self, times: int, fit: Fit) -> IntArray:
        """Answers of a model that is fitted `times` times, each time to the records that are then present."""
        stream = self.stream
        edges = np.arange(times) * (len(stream.Q) // times // BLOCK * BLOCK)
        if times > 1:  # after a batch of arrivals, the model is fitted at once
            edges[times // 2] = max((c.at for c in stream.changes if len(c.arrive) > 1), default=edges[times // 2])
        answers = []
        for start, stop in zip(edges, [*edges[1:], len(stream.Q)], strict=True):
            rows = stream.present(int(start))
            answers.append(np.asarray(fit(stream.X[rows], stream.y[rows])(stream.Q[start:stop])))
        return np.concatenate(answers)


class Models(StreamMethod, kind="endless", methods=("open", "model")):
    """The product with its shared model and default settings, and the model alone, without votes."""

    models: ClassVar[bool] = True

    @classmethod
    def code(cls) -> str:
        """A digest of the product's behaviour."""
        return behaviour(models=cls.models)

    def settings(self) -> dict[str, Any]:
        """The settings in which the methods differ."""
        method = self.unit.method
        told = {"prior": "model", "max_queries": None if method == "open" else self.unit.T}
        return told | {"sigma2": _DROWNED} if method == "model" else told

    def measure(self) -> Result:
        """Let an engine answer the stream, and apply every change to it."""
        stream, told = self.stream, self.settings()
        began = time.perf_counter()
        told |= {"n_features": stream.X.shape[1], "classes": tuple(range(stream.n_classes))}
        told |= {"epsilon": self.unit.promise[0], "delta": self.unit.delta, "index_options": {"threads": 1}}
        engine = Engine(Settings(**told), SeededNoise(self.seed))
        engine.add(stream.X[stream.first], stream.y[stream.first], stream.first.tolist())
        changes = {change.at: change for change in stream.changes}
        answers = []
        for start, stop in pairwise(sorted({*changes, *range(0, len(stream.Q), _BATCH), len(stream.Q)})):
            if change := changes.get(start):
                if len(change.leave):
                    engine.forget_owners(change.leave.tolist())
                if len(change.arrive):
                    engine.add(stream.X[change.arrive], stream.y[change.arrive], change.arrive.tolist())
            answers.append(np.asarray(engine.predict(stream.Q[start:stop]), dtype=np.int64))
        adviser = engine.predictor.adviser()
        return {
            **self.blocks(np.concatenate(answers)),
            "asked": len(stream.Q) if adviser is None else adviser.asked,
            "tau": engine.predictor.tau,
            "sigma2": told.get("sigma2"),
            "seconds": round(time.perf_counter() - began, 2),
        }


class Votes(Models, kind="endless", methods=("votes",)):
    """Algorithm 3: only votes, tuned for the length of the stream, or for a fifth of a long stream."""

    models = False

    def settings(self) -> dict[str, Any]:
        """τ and σ2, and only votes."""
        T = self.unit.T // 5 if self.unit.part == "streams" else self.unit.T
        tau, sigma2 = self.tuned(lambda stream: self.search(stream.held_out(), T), "votes", T)
        return {"tau": tau, "sigma2": sigma2, "max_queries": T, "reuse": "none", "prior": "none"}

    def search(self, data: Data, T: int) -> tuple[float, float]:
        """(τ, σ2) for T queries.

        There are fewer held-out records than T. So the score uses V queries with V/T of the budget and the noise for T
        queries. Then people run out of budget at the same point of the stream.
        """
        near, rows = KernelNeighbours(data, threads=1), np.arange(len(data.truth))
        B = accounting.budget(*self.unit.promise, "gdp")
        usual = sigma2_for(B, T)

        def score(point: Point) -> float:
            tau, factor = point
            plan = Plan(tau, sigma1_for(B, T), factor * usual, data.n_classes)
            noise, budget = SeededNoise(seed_for("endless", "tuning")), B * min(len(rows) / T, 1.0)
            found = answer(near.neighbours(rows, tau), len(data.labels), budget, plan, noise)
            return share_right(found.answers, data.truth)

        star, offsets = near.plain_tau(rows), _QUICK_OFFSETS if self.unit.effort.quick else _TAU_OFFSETS
        values = sorted({max(round(star + d, 3), 0.05) for d in offsets})
        taus = Axis("tau", values, lambda t: round(t - 0.05, 3), lambda t: round(t + 0.05, 3), (0.04, 0.92))
        factors = Axis("sigma2", list(_FACTORS), lambda f: round(f / 1.4, 3), lambda f: round(f * 1.4, 3), (0.09, 14.0))
        tau, factor = search([taus, factors], score).best
        return tau, factor * usual


class StreamSGD(StreamMethod, kind="endless", methods=("noisy_sgd", "noisy_sgd_retrained")):
    """Linear NoisySGD, trained once, or again after every change.

    A stream without changes has as many trainings as one with changes.

    The noise covers every training. But only a few of the trainings after changes are really done, evenly over the
    stream, because 100 trainings would take minutes. Each stands for the trainings after it. In between, only a few of
    thousands of records change, which makes no visible difference to a model.
    """

    def __init__(self, unit: Trial, data: Data):
        super().__init__(unit, data)
        self.retrainings = (len(self.stream.Q) - 1) // EVERY if unit.method == "noisy_sgd_retrained" else 0

    def measure(self) -> Result:
        """Search the learning rate with the noise of all trainings, then train and answer."""
        rate = self.tuned(self.search, "sgd", self.retrainings)
        model = self.untrained(self.stream, rate, np.random.default_rng(self.seed))
        times = REFITS if self.retrainings and self.stream.changes else 1
        answers = self.refitted(times, lambda X, y: fit_quietly(model, X, y).predict)
        return {
            **self.blocks(answers),
            "rate": rate,
            "trainings_paid": 1 + self.retrainings,
            "trainings_done": model.trainings_,
            "noise_multiplier": model.noise_multiplier_,
        }

    def search(self, stream: Stream) -> float:
        """The learning rate that is best on a tenth of the records. Rates differ by a factor of four, because the
        accuracy hardly changes near the best rate."""
        data, quick = stream.held_out(len(stream.first)), self.unit.effort.quick

        def score(point: Point) -> float:
            model = self.untrained(stream, point[0], np.random.default_rng(seed_for("endless", "tuning")))
            return share_right(fit_quietly(model, data.X, data.labels).predict(data.Q), data.truth)

        axis = rate_axis(_QUICK_RATES if quick else _RATES, grows=not quick)
        return search([axis], score, max_growths=6).best[0]

    def untrained(self, stream: Stream, rate: float, random: np.random.Generator) -> LinearNoisySGD:
        """An untrained model whose noise covers all its trainings together."""
        return LinearNoisySGD(
            *self.unit.promise,
            learning_rate=rate,
            retrainings=self.retrainings,
            n_records=len(stream.first),
            random_state=random,
            classes=np.arange(stream.n_classes),
            epochs=_QUICK_EPOCHS if self.unit.effort.quick else _EPOCHS,
        )


class StreamKNN(StreamMethod, kind="endless", methods=("private_knn",)):
    """Private-kNN with the noise for the whole stream. All answers have the same noise, so a part represents all."""

    def measure(self) -> Result:
        """Search (p, k) on held-out private records, then answer."""
        p, k = self.tuned(self.search, "private_knn")
        shares = []
        for i, data in enumerate(self.parts(_ANSWERED)):
            labels = NearestLabels(data, reach(p, int(k))).labels(np.arange(len(data.truth)))
            shares.append(share_right(self.answers(labels, data, (p, k), seed_for(self.seed, i)), data.truth))
        return {**self.level_blocks(shares), "p": p, "k": k}

    def answers(self, labels: Any, data: Data, point: Point, seed: int) -> IntArray:
        """The answers: argmax of noisy votes of the k nearest in a sample."""
        p, k = point
        votes = sampled_votes(labels, p, int(k), data.n_classes, 1, seed)
        z = noise_multiplier(*self.unit.promise, rate=p, steps=len(self.stream.Q))
        noise = SeededNoise(seed).draw(ceil(z * SENSITIVITY * GRID), votes.size).reshape(votes.shape)
        return np.asarray(np.argmax(votes * GRID + noise, axis=1))

    def search(self, stream: Stream) -> Point:
        """(p, k) for the length of the stream."""
        data, quick = stream.held_out(), self.unit.effort.quick
        nearest = NearestLabels(data, _NEAREST)
        labels = nearest.labels(np.arange(len(data.truth)))

        def score(point: Point) -> float:
            if reach(point[0], int(point[1])) > nearest.length < len(data.labels):
                return 0.0
            return share_right(self.answers(labels, data, point, seed_for("endless", "tuning")), data.truth)

        axes = [Axis("p", list(_QUICK_RATIOS if quick else _RATIOS)), Axis("k", list(_QUICK_KS if quick else _KS))]
        return search(axes, score).best


class StreamRidge(StreamMethod, kind="endless", methods=("ridge",)):
    """Least squares without privacy, on unit rows with a penalty of 1. It is refitted as often as NoisySGD."""

    def measure(self) -> Result:
        """Fit and answer."""
        c = self.stream.n_classes

        def fit(X: Rows, y: IntArray) -> Callable[[Rows], npt.ArrayLike]:
            A = X.T.astype(np.float64) @ X + np.eye(X.shape[1])
            weights = np.linalg.solve(A, X.T @ (np.eye(c)[y] - 1.0 / c))
            return lambda Q: np.argmax(Q @ weights, axis=1)

        return self.blocks(self.refitted(REFITS if self.stream.changes else 1, fit))


class StreamKernel(StreamMethod, kind="endless", methods=("kernel",)):
    """The kernel vote without noise or budgets, with the records present at four points of the stream."""

    def measure(self) -> Result:
        """The accuracy between two of these points."""
        data = self.stream.held_out()
        tau = KernelNeighbours(data, threads=1).plain_tau(np.arange(len(data.truth)))
        shares = []
        for now in self.parts():
            accuracies = KernelNeighbours(now, threads=1).plain_accuracy(np.arange(len(now.truth)))
            shares.append(float(accuracies[TAU_GRID.index(tau)]))
        return {**self.level_blocks(shares), "tau": tau}
