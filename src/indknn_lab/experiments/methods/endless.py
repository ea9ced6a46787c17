"""Runs one method over a stream: the product, another private method, or a method without privacy.

The result is how many answers were right in each block of queries. Other methods are tuned on held-out *private*
records, never on the queries of the stream. No budget covers this search.

First come a digest of how the product behaves, and the streams: who is private, who asks, who leaves or arrives. A
stream does not depend on any answer.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
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
from indknn_lab.baselines.knn import SENSITIVITY
from indknn_lab.baselines.pricing import noise_multiplier
from indknn_lab.experiments.data import TAU_GRID, Data, KernelNeighbours, NearestLabels, Part, Result, Trial, seed_for
from indknn_lab.experiments.methods.base import Axis, Method, Point, search, share_right
from indknn_lab.experiments.methods.queries import answer, fit_quietly, rate_axis, reach, sampled_votes

_VOTES: tuple[dict[str, Any], ...] = (
    {"reuse": "none", "mode": "votes", "tau": 0.4, "sigma2": 0.4, "max_queries": 100},
    {"reuse": "none", "mode": "votes", "tau": None, "sigma2": None, "max_queries": 100},
)
_MODELS: tuple[dict[str, Any], ...] = (
    {"mode": "model", "max_queries": None},
    {"mode": "model", "max_queries": 400, "sigma2": 0.1},  # so little noise that votes are used
)


@lru_cache
def behaviour(*, models: bool) -> str:
    """A digest of what the product answers and charges. It changes with the behaviour, not if code only moves.

    It is that of small seeded runs with the defaults of the product: only votes, or also models."""
    digest = hashlib.blake2b(digest_size=6)
    for settings in _MODELS if models else _VOTES:
        digest.update(repr(transcript(settings)).encode())
    return digest.hexdigest()


def transcript(settings: dict[str, Any]) -> list[Any]:
    """The answers of a small store in which somebody leaves and somebody arrives, and what each person has paid."""
    rng = np.random.default_rng(1)
    y = rng.integers(3, size=1200)
    X = rng.normal(size=(3, 6))[y] + 0.7 * rng.normal(size=(1200, 6))
    engine = Engine(Settings(n_features=6, classes=(0, 1, 2), epsilon=1.0, delta=1e-5, **settings), SeededNoise(1))
    people = [str(i) for i in range(800)]
    engine.add(X[:700], y[:700], people[:700])
    answers = engine.predict(X[800:1000]).tolist()
    engine.forget_owners(people[:50])
    engine.add(X[700:800], y[700:800], people[700:])
    for start in range(1000, 1200, 50):
        answers += engine.predict(X[start : start + 50]).tolist()
    return [answers, engine.spent(people[50:]).tolist()]


EVERY = 100
"""The number of queries between two changes."""
KEPT = 0.4
"""The share of private records that stay private in a long stream. The others become queries."""
JITTER = 0.1
"""If there are too few distinct queries, more are made by adding a random vector of this length to a unit query."""
_RESERVE, _HELD_OUT, _MOST_HELD_OUT = 0.02, 0.1, 1500

Rows = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Change:
    """Before query `at`, some records leave and others arrive. They are row numbers of the stream's X."""

    at: int
    leave: IntArray
    arrive: IntArray


@dataclass(frozen=True)
class Stream:
    """The records, of which `first` are present from the beginning, the queries in order, and the changes in order."""

    X: Rows
    y: IntArray
    first: IntArray
    Q: Rows
    truth: IntArray
    n_classes: int
    changes: list[Change] = field(default_factory=list)

    def present(self, at: int) -> IntArray:
        """The rows that are present when query `at` is asked."""
        there = set(self.first.tolist())
        for change in self.changes:
            if change.at <= at:
                there.difference_update(change.leave.tolist())
                there.update(change.arrive.tolist())
        return np.array(sorted(there), dtype=np.int64)

    def as_data(self, rows: IntArray, Q: Rows, truth: IntArray) -> Data:
        """These records and queries in the form that the other experiments use."""
        return Data.of(self.X[rows], self.y[rows], Q, truth, self.n_classes)

    def held_out(self, most: int = _MOST_HELD_OUT) -> Data:
        """The data for tuning: a tenth of the private records, at most `most`, become queries to the others."""
        order = _rng("validation").permutation(self.first)
        n = min(int(_HELD_OUT * len(order)), most)
        return self.as_data(order[n:], self.X[order[:n]], self.y[order[:n]])


def plain_stream(data: Data, T: int, seed: int) -> Stream:
    """All private records, and the first T test queries in an order that depends on the seed."""
    order = _rng("figures", seed).permutation(min(T, len(data.truth)))
    return Stream(data.X, data.labels, np.arange(len(data.X)), data.Q[order], data.truth[order], data.n_classes)


def distinct(records: int, queries: int) -> int:
    """How many distinct queries a long stream has."""
    return records - int(KEPT * records) + queries


def long_stream(data: Data, T: int, seed: int) -> Stream:
    """A long stream. A part of the records stays private. The others and the test queries become queries.

    When these are used up, they are asked again with small random changes.
    """
    split = _rng("stream").permutation(len(data.X))  # the same for every seed, so that tuning is shared
    private, asking = np.split(split, [int(KEPT * len(data.X))])
    Q = np.concatenate([data.X[asking], data.Q])
    truth = np.concatenate([data.labels[asking], data.truth])
    rng = _rng("stream", seed)
    order = np.concatenate([rng.permutation(len(Q)) for _ in range(-(-T // len(Q)))])[:T]
    asked = Q[order]
    again = np.arange(T) >= len(Q)
    length = np.linalg.norm(asked[again], axis=1, keepdims=True) * (JITTER / np.sqrt(Q.shape[1]))
    asked[again] += (length * rng.standard_normal(asked[again].shape)).astype(np.float32)
    return Stream(data.X[private], data.labels[private], np.arange(len(private)), asked, truth[order], data.n_classes)


def changing_stream(data: Data, T: int, seed: int) -> Stream:
    """Every `EVERY` queries, one record leaves or one arrives, alternately."""
    rng = _rng("change", seed)
    first, reserve = _with_reserve(rng.permutation(len(data.X)).astype(np.int64), T)
    asked = rng.permutation(min(T, len(data.truth)))
    changes = _changes(rng, len(asked), first, reserve)
    return Stream(data.X, data.labels, first, data.Q[asked], data.truth[asked], data.n_classes, changes)


def drifting_stream(data: Data, T: int, seed: int) -> Stream:
    """The same, but records and queries of some classes come only at half time. These records come in one batch."""
    rng = _rng("drift", seed)
    late = np.arange(data.n_classes - max(data.n_classes // 4, 1), data.n_classes)
    order = rng.permutation(len(data.X)).astype(np.int64)
    is_late = np.isin(data.labels[order], late)
    batch = order[is_late]
    first, reserve = _with_reserve(order[~is_late], T)
    asked = rng.permutation(min(T, len(data.truth)))
    half = len(asked) // 2 - len(asked) // 2 % EVERY
    early = asked[~np.isin(data.truth[asked], late)][:half]
    asked = np.concatenate([early, rng.permutation(np.setdiff1d(asked, early))])
    changes = _changes(rng, len(asked), first, reserve)
    changes = [Change(c.at, c.leave, np.append(c.arrive, batch)) if c.at == len(early) else c for c in changes]
    return Stream(data.X, data.labels, first, data.Q[asked], data.truth[asked], data.n_classes, changes)


STREAMS: dict[Part, Callable[[Data, int, int], Stream]] = {
    "figures": plain_stream,
    "streams": long_stream,
    "change": changing_stream,
    "drift": drifting_stream,
}


def _with_reserve(order: IntArray, T: int) -> tuple[IntArray, IntArray]:
    """The rows that are present from the beginning, and those that arrive later."""
    n = max(int(_RESERVE * len(order)), T // EVERY)
    return order[n:], order[:n]


def _changes(rng: np.random.Generator, T: int, first: IntArray, reserve: IntArray) -> list[Change]:
    leaving, none = rng.permutation(first), np.zeros(0, dtype=np.int64)
    found = []
    for i, at in enumerate(range(EVERY, T, EVERY)):
        one = slice(i // 2, i // 2 + 1)
        found.append(Change(at, leaving[one], none) if i % 2 == 0 else Change(at, none, reserve[one]))
    return found


def _rng(*words: object) -> np.random.Generator:
    return np.random.default_rng(seed_for("endless", *words))


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
        told = {"mode": "model", "max_queries": None if method == "open" else self.unit.T}
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
        return {"tau": tau, "sigma2": sigma2, "max_queries": T, "reuse": "none", "mode": "votes"}

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
