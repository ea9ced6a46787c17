"""Private kNN without individual accounting. It answers `max_queries` queries by noisy votes of the k nearest."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil, sqrt
from numbers import Real
from threading import Lock
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.validation import check_is_fitted, validate_data

from indknn.core import accounting
from indknn.core.noise import Noise
from indknn.errors import PrivacyError
from indknn.types import GRID, IntArray, Vectors
from indknn_lab.baselines.base import COUNT, PrivateClassifier, RandomState
from indknn_lab.baselines.pricing import SamplingAccountant, epsilon_of, noise_multiplier
from indknn_lab.baselines.topk import (
    SENSITIVITY,
    Entropy,
    PoissonSampler,
    entropy_from,
    nearest,
    nearest_in_sample,
    similarities,
    vote,
)

_COUNTING = Lock()


@dataclass
class AnswerCounter:
    """Counts answers, and raises an error beyond the limit. Safe to share between threads."""

    limit: int
    answered: int = 0

    def take(self, n: int, promise: str) -> None:
        """Count n answers before they are given: all of them or none."""
        with _COUNTING:
            left = self.limit - self.answered
            if n > left:
                queries = "query" if left == 1 else "queries"
                raise PrivacyError(f"{promise} covers {left} more {queries}, got {n}: none of them was answered")
            self.answered += n


class NaivePrivateKNN(PrivateClassifier):
    """Algorithm 1 of the paper: the k nearest records vote with Gaussian noise, and every query charges everybody.

    A query is answered by argmax(vote of the k nearest + N(0, σ²·I)). Whether a record is among the k nearest depends
    on all other records, so everybody is charged for every query. One answer is a Gaussian mechanism with sensitivity
    sqrt(2) (see ``indknn_lab.baselines.topk``), so it is sqrt(2)/σ-GDP. T answers, with queries chosen adaptively, are
    *exactly* sqrt(2T)/σ-GDP. So σ = sqrt(T/B), where B = μ²/2 is the budget of (epsilon, delta).

    Parameters
    ----------
    epsilon, delta : float
        The guarantee for every record, for `max_queries` answers.
    max_queries : int
        T. Further queries are refused.
    k : int
        Number of neighbours. The noise does not depend on it. Choose it without looking at the private data.
    center, random_state, classes
        As in :class:`indknn.IndKNNClassifier`.

    Attributes
    ----------
    sigma_, noise_multiplier_ : float
        The noise on each vote count, and the same divided by the sensitivity sqrt(2).
    epsilon_, delta_, queries_answered_, max_queries_left
        The guarantee, how many queries were answered, and how many are left.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> y = rng.integers(2, size=4000)
    >>> X = rng.normal(size=(4000, 8)) + 4 * y[:, None] - 2
    >>> model = NaivePrivateKNN(epsilon=1.0, max_queries=10, k=500).fit(X, y)
    >>> round(model.sigma_, 2), float(model.score(X[:10], y[:10])), model.max_queries_left
    (16.68, 1.0, 0)
    """

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        **PrivateClassifier._parameter_constraints,
        "max_queries": [COUNT],
        "k": [COUNT],
    }
    _not_priced = PrivateClassifier._not_priced | {"k"}

    _noise: Noise
    _records: Vectors
    _labels: IntArray
    _counter: AnswerCounter

    def __init__(
        self,
        epsilon: float = 1.0,
        delta: float = 1e-5,
        *,
        max_queries: int = 1000,
        k: int = 1000,
        center: npt.ArrayLike | None = None,
        random_state: RandomState = None,
        classes: npt.ArrayLike | None = None,
    ):
        self.epsilon = epsilon
        self.delta = delta
        self.max_queries = max_queries
        self.k = k
        self.center = center
        self.random_state = random_state
        self.classes = classes

    def fit(self, X: npt.ArrayLike, y: npt.ArrayLike) -> Self:
        """Hold these records. Each record is protected separately, so the cost for a person grows with their records.

        Fitting the same object again replaces the records. The number of answers given is kept, because the people may
        be the same. Use a new object for other people.
        """
        vectors, labels, classes = self._read_records(X, y)
        counter = getattr(self, "_counter", None)
        if counter is None or not counter.answered:
            counter = AnswerCounter(self.max_queries)
        else:
            self._check_terms()
        noise_multiplier, noise = self._noise_multiplier(), self._make_noise()
        validate_data(self, X, reset=True, skip_check_array=True)
        self._terms, self._counter, self._noise = self._current_terms(), counter, noise
        self._records, self._labels = vectors, labels
        self.classes_ = classes
        self.noise_multiplier_ = noise_multiplier
        self.epsilon_, self.delta_ = float(self.epsilon), float(self.delta)
        self._scale = ceil(noise_multiplier * SENSITIVITY * (1.0 + 1e-12) * GRID)
        self.sigma_ = self._scale / GRID
        return self

    def predict(self, X: npt.ArrayLike) -> npt.NDArray[Any]:
        """Answer each row of X. If X has more rows than queries are left, all are refused."""
        queries = self._read_queries(X)
        self._counter.take(len(queries), f"(epsilon={self.epsilon_}, delta={self.delta_})")
        votes = np.array(list(self._votes(queries)), dtype=np.int64).reshape(len(queries), -1)
        noise = self._noise.draw(self._scale, votes.size).reshape(votes.shape)
        return np.asarray(self.classes_[np.argmax(votes * GRID + noise, axis=1)])

    def epsilon_after(self, queries: int) -> float:
        """The ε, at this delta, of a number of answers that was fixed beforehand."""
        return accounting.epsilon(queries / (2.0 * self.noise_multiplier_**2), self.delta_)

    @property
    def queries_answered_(self) -> int:
        """How many queries this object has answered, over all fits."""
        check_is_fitted(self)
        return self._counter.answered

    @property
    def max_queries_left(self) -> int:
        """How many more queries will be answered."""
        check_is_fitted(self)
        return self._counter.limit - self._counter.answered

    def __getstate__(self) -> dict[str, Any]:
        if hasattr(self, "_noise") and self._noise.secure:
            raise PrivacyError(
                f"a fitted {type(self).__name__} with secure noise cannot be pickled or copied: each copy "
                "would answer max_queries anew. Share the one object, or give random_state for experiments."
            )
        state: dict[str, Any] = super().__getstate__()
        return state

    def _noise_multiplier(self) -> float:
        """The least z = σ/Δ for which all T answers are private: they are sqrt(T)/z-GDP, and ρ = T/2z² must be <= B."""
        return sqrt(self.max_queries / (2.0 * accounting.budget(self.epsilon, self.delta)))

    def _votes(self, queries: Vectors) -> Iterator[IntArray]:
        """The vote of each query without noise. It must not leave this class."""
        for similarity in similarities(queries, self._records):
            yield vote(self._labels[nearest(similarity, self.k)], len(self.classes_))


class PrivateKNN(NaivePrivateKNN):
    """Private-kNN (Zhu, Yu, Chandraker & Wang 2020): kNN on a new random sample for each query.

    It is the main method that the paper compares with. For each query, every record enters a Poisson sample with
    probability `sampling_ratio`. The k nearest *in the sample* vote. The answer is argmax(vote + N(0, σ²·I)).

    **Why the noise suffices.** Within the sample, adding or removing one record changes the vote of the k nearest by at
    most sqrt(2) in L2 (``indknn_lab.baselines.topk``). Poisson sampling decides about every record independently. So
    one answer is dominated by the Poisson-sampled Gaussian mechanism with noise multiplier σ/sqrt(2)
    (``indknn_lab.baselines.pricing`` has the proof). T answers, to queries chosen adaptively, are dominated by its
    T-fold composition. ``dp-accounting`` computes the cost of that, by the privacy loss distribution (default, tighter)
    or by RDP. Some published code uses samples of fixed size, or with replacement. Those would need another analysis,
    because then one person's presence also changes how often others are sampled.

    The parameters are those of :class:`NaivePrivateKNN`, where k counts neighbours within the sample, and these:

    sampling_ratio : float
        p, in (0, 1]. A query reaches about the k/p nearest records.
    accountant : {"pld", "rdp"}
        How the privacy loss is computed. "rdp" is what the literature reports. It needs about 8% more noise.

    With random_state=None the samples also come from the operating system's entropy.

    >>> rng = np.random.default_rng(0)
    >>> y = rng.integers(2, size=4000)
    >>> X = rng.normal(size=(4000, 8)) + 4 * y[:, None] - 2
    >>> model = PrivateKNN(epsilon=1.0, max_queries=10, k=100, sampling_ratio=0.1).fit(X, y)
    >>> 1.9 < model.sigma_ < 2.6, float(model.score(X[:10], y[:10])), model.max_queries_left
    (True, 1.0, 0)
    """

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        **NaivePrivateKNN._parameter_constraints,
        "sampling_ratio": [Interval(Real, 0, 1, closed="right")],
        "accountant": [StrOptions({"pld", "rdp"})],
    }

    _entropy: Entropy

    def __init__(
        self,
        epsilon: float = 1.0,
        delta: float = 1e-5,
        *,
        max_queries: int = 1000,
        k: int = 200,
        sampling_ratio: float = 0.05,
        accountant: SamplingAccountant = "pld",
        center: npt.ArrayLike | None = None,
        random_state: RandomState = None,
        classes: npt.ArrayLike | None = None,
    ):
        common: dict[str, Any] = {"center": center, "random_state": random_state, "classes": classes}
        super().__init__(epsilon, delta, max_queries=max_queries, k=k, **common)
        self.sampling_ratio = sampling_ratio
        self.accountant = accountant

    def fit(self, X: npt.ArrayLike, y: npt.ArrayLike) -> Self:
        """Hold these records, as :meth:`NaivePrivateKNN.fit` does."""
        super().fit(X, y)
        self._entropy = entropy_from(self.random_state)
        return self

    def epsilon_after(self, queries: int) -> float:
        """The ε, at this delta, of a number of answers that was fixed beforehand."""
        rate, accountant = self._terms["sampling_ratio"], self._terms["accountant"]
        return epsilon_of(self.noise_multiplier_, self.delta_, rate=rate, steps=queries, accountant=accountant)

    def _noise_multiplier(self) -> float:
        rate, T = self.sampling_ratio, self.max_queries
        return noise_multiplier(self.epsilon, self.delta, rate=rate, steps=T, accountant=self.accountant)

    def _votes(self, queries: Vectors) -> Iterator[IntArray]:
        # The ratio in force is the one that the noise was computed for, even if the parameter has changed since.
        coins = PoissonSampler(self._terms["sampling_ratio"], self._entropy)
        for similarity in similarities(queries, self._records):
            near = nearest_in_sample(similarity, self.k, coins, coins.p)
            yield vote(self._labels[near], len(self.classes_))
