"""The methods on query sets: Ind-KNN, Linear NoisySGD, Private-kNN, three methods without privacy. And times of all.

For Ind-KNN, σ1 follows from T and B. Then τ is searched without privacy, and (τ, σ2) with it, before the test sets.
`answer` is Algorithm 3 for queries whose neighbours are already known: the product without its search. With one record
per person and a seed, every answer is the same as that of `IndKNNClassifier`. The tests check this.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import count
from math import ceil, sqrt
from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from threadpoolctl import threadpool_limits

from indknn.core import accounting, mechanism
from indknn.core.accounting import from_units, to_units
from indknn.core.calibrate import sigma1_for
from indknn.core.kernels import DEFAULT_BANDWIDTH
from indknn.core.mechanism import Plan
from indknn.core.noise import Noise, SecureNoise, SeededNoise
from indknn.engine import Engine
from indknn.errors import PrivacyWarning
from indknn.settings import Settings
from indknn.types import GRID, Accountant, FloatArray, Given, IntArray, KernelName, Selection
from indknn_lab import baselines
from indknn_lab.baselines import LinearNoisySGD
from indknn_lab.baselines.knn import SENSITIVITY, PoissonSampler
from indknn_lab.baselines.pricing import noise_multiplier
from indknn_lab.experiments.data import (
    TAU_GRID,
    Data,
    KernelNeighbours,
    Near,
    NearestLabels,
    Result,
    Unit,
    earlier_queries,
    seed_for,
)
from indknn_lab.experiments.methods.base import Axis, Method, Point, Tuned, share_right

CHECKPOINTS = 20


@dataclass(frozen=True)
class Answered:
    """The answers, what each person has spent (ρ), and the median of that after every twentieth of the stream."""

    answers: IntArray
    spent: FloatArray
    asked: IntArray
    medians: FloatArray


def answer(
    near: Sequence[Near],
    n_people: int,
    budget: float,
    plan: Plan,
    noise: Noise,
    *,
    copies: int = 1,
    released: Sequence[Selection] | None = None,
    fixed: float | None = None,
) -> Answered:
    """Answer the queries in order.

    With `fixed`, nobody is counted, and the noise on the votes is that of so many neighbours for every query.

    `copies` means that the private set holds every record this many times, each with a different owner. All copies are
    always selected together, vote the same and are charged the same, so they need only one ledger entry.
    """
    full = to_units(budget)
    left = np.full(n_people, full, dtype=np.int64)
    answers = np.zeros(len(near), dtype=np.int64)
    asked, medians = [0], [0.0]
    for t, neighbours in enumerate(near):
        group = mechanism.group(*neighbours, plan)
        if fixed is None:
            counted = mechanism.count(group, left[group.owners], plan)
            group = counted.group
            left[group.owners] -= counted.charges
            K = mechanism.noisy_count(copies * counted.total, plan, noise)
        else:
            K = int(max(copies * fixed, mechanism.MIN_K) * GRID)
        settled = mechanism.settle(group, left[group.owners], K, plan)
        left[group.owners] -= settled.charges
        votes = copies * settled.votes
        if released is not None:
            earlier = released[t]
            public = np.bincount(answers[earlier.slots], weights=earlier.kappa, minlength=plan.n_classes)
            votes = votes + public.astype(np.int64)
        answers[t], _ = mechanism.noisy_answer(votes, K, plan, noise)
        if (t + 1) * CHECKPOINTS // len(near) > t * CHECKPOINTS // len(near):
            asked.append(t + 1)
            medians.append(float(from_units(int(np.median(full - left)))))
    return Answered(answers, from_units(full - left), np.array(asked), np.array(medians))


SIGMA2_GRID = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
TAU_OFFSETS = (-0.05, -0.025, 0.0, 0.025, 0.05)
_QUICK_SIGMA2, _QUICK_OFFSETS = (0.2, 0.5, 0.9), (-0.05, 0.0, 0.05)
_LEAST_TAU, _MOST_TAU = 0.02, 0.98


@lru_cache(maxsize=1)
def _neighbours(
    data: Data, kernel: KernelName, bandwidth: float | None, tables: int | None, bits: int
) -> KernelNeighbours:
    """The neighbours, which are kept for the next unit of the same kind."""
    options = {} if tables is None else {"n_tables": tables, "n_bits": bits, "seed": 1}
    index = "exact" if tables is None else "lsh"
    return KernelNeighbours(data, kernel, index, bandwidth=bandwidth, threads=1, **options)


class IndKNN(Tuned, kind="indknn"):
    """Algorithm 3, with both kernels, exact or hashed, with or without reuse of labels."""

    shared = ("data", "records", "T", "kernel", "bandwidth", "tables", "bits", "copies")
    max_growths = 12

    def __init__(self, unit: Unit, data: Data):
        super().__init__(unit, data)
        self.near = _neighbours(data, unit.kernel, unit.bandwidth, unit.tables, unit.bits)
        self._latest: tuple[bytes, float, list[Near], list[Selection] | None] | None = None

    def axes(self) -> list[Axis]:
        """τ near the best value without privacy, and σ2."""
        quick, star = self.unit.effort.quick, self.near.plain_tau(self.sets.validation)
        # With a wide RBF kernel all values are near 1. So steps of τ shrink with it, to be the same steps of the angle.
        narrower = 1.0 if self.unit.bandwidth is None else min(DEFAULT_BANDWIDTH / self.unit.bandwidth, 1.0) ** 2
        offsets, step = [d * narrower for d in (_QUICK_OFFSETS if quick else TAU_OFFSETS)], 0.025 * narrower
        taus = sorted({round(star + d, 4) for d in offsets if _LEAST_TAU <= star + d <= _MOST_TAU})
        sigmas = list(_QUICK_SIGMA2 if quick else SIGMA2_GRID)
        return [
            Axis("tau", taus, lambda t: round(t - step, 4), lambda t: round(t + step, 4), (_LEAST_TAU, _MOST_TAU)),
            Axis("sigma2", sigmas, lambda s: round(s * 0.7, 3), lambda s: round(s + 0.2, 1), (0.015, 3.1)),
        ]

    def run(self, rows: IntArray, point: Point, seed: int, accountant: Accountant = "rdp") -> Answered:
        """Answer one stream in order, starting with full budgets."""
        tau, sigma2 = point
        B = accounting.budget(*self.unit.promise, accountant)
        plan = Plan(tau, self.unit.sigma1 * sigma1_for(B, len(rows)), sigma2, self.data.n_classes)
        if self._latest is None or self._latest[:2] != (rows.tobytes(), tau):  # a search tries many σ2 at one τ
            earlier = earlier_queries(self.data, rows, self.near.kernel, tau) if self.unit.reuse else None
            self._latest = rows.tobytes(), tau, self._near(rows, tau), earlier
        near, released = self._latest[2:]
        # With fixed noise nobody is counted. Its scale is that of the mean number of neighbours, and nobody pays.
        fixed = float(np.mean([len(n.owners) for n in near])) if self.unit.noise == "fixed" else None
        people, copies = len(self.data.labels), self.unit.copies
        return answer(near, people, B, plan, SeededNoise(seed), copies=copies, released=released, fixed=fixed)

    def _near(self, rows: IntArray, tau: float) -> list[Near]:
        near = self.near.neighbours(rows, tau)
        return near if self.unit.weights == "kernel" else [n._replace(kappa=np.full_like(n.kappa, GRID)) for n in near]

    def answers(self, rows: IntArray, point: Point, seed: int) -> IntArray:
        """The answers under the paper's filter."""
        return self.run(rows, point, seed).answers

    def confirm(self, point: Point, first: float) -> float:
        """The mean of the first run and a few more."""
        seeds = [self.seed("validation", 1 + i) for i in range(self.unit.effort.repeats)]
        return float(np.mean([first, *(self.accuracy(self.sets.validation, point, s) for s in seeds)]))

    def test(self, point: Point) -> Result:
        """Accuracies under both filters, and what people have spent."""
        tests, truth = self.sets.tests, self.data.truth
        streams = [self.run(rows, point, self.seed("test", i)) for i, rows in enumerate(tests)]
        exact = [self.run(rows, point, self.seed("gdp", i), "gdp") for i, rows in enumerate(tests)]
        B = accounting.budget(*self.unit.promise, "rdp")
        sigma1 = self.unit.sigma1 * sigma1_for(B, self.unit.T)
        medians = np.mean([s.medians for s in streams], axis=0)
        near = [len(n.owners) for n in self.near.neighbours(tests[0], point[0])]
        return {
            "accuracies": [share_right(s.answers, truth[rows]) for s, rows in zip(streams, tests, strict=True)],
            "accuracies_gdp": [share_right(s.answers, truth[rows]) for s, rows in zip(exact, tests, strict=True)],
            "B": B,
            "sigma1": sigma1,
            "tau_star": self.near.plain_tau(self.sets.validation),
            "neighbours": self.unit.copies * float(np.mean(near)),
            "exhausted": float(np.mean([(B - s.spent < 0.5 / sigma1**2).mean() for s in streams])),
            "median_share": float(np.mean([np.median(s.spent) for s in streams])) / B,
            "asked": streams[0].asked.tolist(),
            "median_epsilon": [accounting.epsilon(float(m), self.unit.delta, "rdp") if m > 0 else 0.0 for m in medians],
        }


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


RATIOS, _QUICK_RATIOS = (0.02, 0.05, 0.1, 0.2), (0.05, 0.2)
PAPER_K, _QUICK_K = {"cifar10": 400, "fmnist": 500, "agnews": 600, "dbpedia": 600}, (50.0, 200.0)
"""The largest k of the paper's ranges {100, 200, ...}."""
_LENGTH = 40_000  # how many of the nearest records are kept; 600 neighbours in a sample of 2% need this many


def sampled_votes(
    labels: Sequence[npt.NDArray[np.uint8]], p: float, k: int, n_classes: int, copies: int, seed: int
) -> IntArray:
    """For each query, the vote of the k nearest in a Poisson sample. `copies` as in `answer`."""
    coins = PoissonSampler(p, np.random.default_rng(seed_for("coins", seed)).bytes)
    walked = reach(p, k)
    votes = np.zeros((len(labels), n_classes), dtype=np.int64)
    for i, ordered in enumerate(labels):
        nearest = np.repeat(ordered[: -(-walked // copies)], copies)[:walked]
        chosen = nearest[coins(len(nearest))][:k]
        votes[i] = np.bincount(chosen, minlength=n_classes)
    return votes


def reach(p: float, k: int) -> int:
    """How many of the nearest records are needed to find k in a sample. It fails with probability one in a billion."""
    return int(k / p + 6.0 * sqrt(k) / p) + 1


@lru_cache(maxsize=1)
def _nearest_labels(data: Data) -> NearestLabels:
    """The nearest labels, which are kept for the next unit on the same data."""
    return NearestLabels(data, _LENGTH)


class PrivateKNN(Tuned, kind="private_knn"):
    """The same as `indknn_lab.baselines.PrivateKNN`, but fast for many settings on the same data."""

    shared = ("data", "records")

    def __init__(self, unit: Unit, data: Data):
        super().__init__(unit, data)
        self.nearest = _nearest_labels(data)

    def axes(self) -> list[Axis]:
        """p and k. The search starts with the paper's ranges."""
        if self.unit.effort.quick:
            return [Axis("p", list(_QUICK_RATIOS)), Axis("k", list(_QUICK_K))]
        largest = PAPER_K.get(self.unit.data.split("-", maxsplit=1)[0], 600)
        ks = [float(k) for k in range(100, largest + 1, 100)]
        return [
            Axis("p", list(RATIOS), lambda p: p / 2, lambda p: min(2 * p, 1.0), (0.01, 1.0)),
            Axis("k", ks, lambda k: float(int(k) // 2), lambda k: k + 200.0, (6.0, 2100.0)),
        ]

    def answers(self, rows: IntArray, point: Point, seed: int) -> IntArray:
        """The argmax of noisy votes. Votes are kept, because they depend neither on epsilon nor on the noise."""
        p, k, kept, copies = point[0], int(point[1]), self.nearest.votes, self.unit.copies
        key = rows.tobytes(), p, k, copies, seed
        if key not in kept:
            kept[key] = sampled_votes(self.nearest.labels(rows), p, k, self.data.n_classes, copies, seed)
        z = noise_multiplier(*self.unit.promise, rate=p, steps=len(rows), accountant="pld")
        sensitivity = SENSITIVITY if self.unit.sensitivity == "sqrt2" else 1.0
        noise = SeededNoise(seed).draw(ceil(z * sensitivity * (1.0 + 1e-12) * GRID), kept[key].size)
        return np.asarray(np.argmax(kept[key] * GRID + noise.reshape(kept[key].shape), axis=1))

    def score(self, point: Point) -> float:
        """The mean accuracy of a few runs. The lowest score if too few of the nearest records were sorted."""
        held, walked = self.nearest.length, reach(point[0], int(point[1]))
        if held < len(self.data.labels) and walked > held * self.unit.copies:
            return 0.0
        seeds = [self.seed("validation", i) for i in range(self.unit.effort.repeats)]
        return float(np.mean([self.accuracy(self.sets.validation, point, s) for s in seeds]))

    def seed(self, role: str, i: int) -> int:
        """The seed. It is the same for every epsilon, because samples do not depend on epsilon."""
        u = self.unit
        return seed_for("private_knn", u.digest, u.T, u.records, u.copies, role, i)


_K, _INVERSE_PENALTIES = (5, 10, 20, 50, 100, 200), (1.0, 10.0, 100.0)

Accuracies = Callable[[IntArray], list[float]]


class Plain(Method, kind="plain", methods=("kernel", "knn", "linear")):
    """The kernel vote, the vote of the k nearest, or logistic regression, each tuned on the validation set."""

    def measure(self) -> Result:
        """Answer with the setting that is best on the validation set."""
        kinds = {
            "kernel": (TAU_GRID, self._kernel),
            "knn": (_K, self._knn),
            "linear": (_INVERSE_PENALTIES, self._linear),
        }
        values, accuracies_of = kinds[self.unit.method]
        accuracies = accuracies_of()
        best = int(np.argmax(accuracies(self.sets.validation)))
        return {"accuracies": [accuracies(rows)[best] for rows in self.sets.tests], "chosen": values[best]}

    def _kernel(self) -> Accuracies:
        near = KernelNeighbours(self.data, threads=1)
        return lambda rows: near.plain_accuracy(rows).tolist()

    def _knn(self) -> Accuracies:
        nearest, c, truth = NearestLabels(self.data, max(_K)), self.data.n_classes, self.data.truth

        def accuracy(rows: IntArray, k: int) -> float:
            votes = [np.bincount(labels[:k], minlength=c).argmax() for labels in nearest.labels(rows)]
            return share_right(np.array(votes), truth[rows])

        return lambda rows: [accuracy(rows, k) for k in _K]

    def _linear(self) -> Accuracies:
        X, y, Q, truth = self.data.X, self.data.labels, self.data.Q, self.data.truth
        tried = _INVERSE_PENALTIES[: 1 if self.unit.effort.quick else None]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # the validation set judges the result of 100 steps
            models = [LogisticRegression(C=C, max_iter=100).fit(X, y) for C in tried]
        return lambda rows: [share_right(model.predict(Q[rows]), truth[rows]) for model in models]


_ROUNDS, _ASKED = 7, 200
_RATE = 80.0


class Timing(Method, kind="timing", methods=("indknn", "private_knn", "noisy_sgd")):
    """Seconds per query or training of a method as a user would call it, with secure noise for answers to queries.

    They are measured on one core, while nothing else runs. They are seconds of this process on a processor, so that
    other programs, which also want it, do not count. They depend on the machine and the day. Only ratios from the same
    run are compared.
    """

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
        model = baselines.PrivateKNN(*self.unit.promise, max_queries=2 * _ROUNDS * len(Q), k=200, sampling_ratio=0.2)
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
