"""Private kNN without individual accounting. It answers `max_queries` queries by noisy votes of the k nearest.

**Sensitivity.** Let the records be in one total order of nearness to the query. The relative order of two records must
not depend on any third record. Now add one record z. If z is not among the first k, nothing changes. If it is, and
there were at least k records, exactly the k-th record w drops out. The vote changes by e_{y_z} - e_{y_w}, of length
sqrt(2) or 0. If there were fewer than k records, it changes by e_{y_z}, of length 1. Removing a record is the same step
backwards. So the L2 sensitivity of a top-k vote is sqrt(2), **not 1**. The difference e_a - e_b has no part that is
common to all classes. So using only the argmax does not lower the sensitivity.

The proof needs the total order, so ties must be broken with care. The first key is the integer dot product divided by
the record's own norm. The second key is the order in which the records came. A partial sort that picks *any* k among
equals would not be safe. Nor would a floating-point product whose last bit depends on the record's position in the
matrix. With either, one record could exchange many others.

**Sampling.** Every record enters a Poisson sample with probability p, independently of the others.
Amplification by sampling requires a secret sample. So the coins come from the operating system's entropy, as the noise
does. The probability must not be above the one that the accounting used. So coins are integers, and p is rounded *down*
to a multiple of 2^-48. They are drawn exactly. The first 16 bits decide almost always. In one of 65,536 cases they do
not, and 32 more bits are drawn.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator
from fractions import Fraction
from math import ceil, floor, sqrt
from numbers import Integral, Real
from threading import Lock
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, check_X_y, validate_data

from indknn.core import accounting
from indknn.core.advice import about_seed
from indknn.core.inputs import encode_labels
from indknn.core.noise import Noise, noise_from
from indknn.core.quantise import integer_dots, quantise
from indknn.errors import InvalidInputError, PrivacyError
from indknn.types import GRID, BoolArray, FloatArray, IntArray, Vectors
from indknn_lab.baselines.pricing import SamplingAccountant, epsilon_of, noise_multiplier

RandomState = int | np.random.Generator | np.random.RandomState | None
COUNT = Interval(Integral, 1, None, closed="left")
POSITIVE = Interval(Real, 0, None, closed="neither")


class PrivateClassifier(ClassifierMixin, BaseEstimator):
    """Base of all baselines. It keeps a guarantee that cannot be changed later.

    The parameters are those of :class:`indknn.IndKNNClassifier`."""

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        "epsilon": [POSITIVE],
        "delta": [Interval(Real, 0, 1, closed="neither")],
        "random_state": ["random_state", np.random.Generator],
        "classes": ["array-like", None],
        "center": ["array-like", None],
    }
    _not_priced: ClassVar[frozenset[str]] = frozenset({"random_state", "classes", "center"})
    """Parameters that may change between two fits, because the privacy loss does not depend on them."""

    epsilon: float
    delta: float
    center: npt.ArrayLike | None
    random_state: RandomState
    classes: npt.ArrayLike | None
    _terms: dict[str, Any]

    def _read_records(self, X: npt.ArrayLike, y: npt.ArrayLike) -> tuple[Vectors, IntArray, npt.NDArray[Any]]:
        """Integer vectors, encoded labels and the public label set, which is `classes`, or else taken from y."""
        self._validate_params()
        rows, targets = check_X_y(X, y, dtype=np.float64)
        check_classification_targets(targets)
        classes = np.unique(targets if self.classes is None else np.asarray(self.classes))
        return quantise(rows, self._center()), encode_labels(targets, classes), classes

    def _read_queries(self, X: npt.ArrayLike) -> Vectors:
        check_is_fitted(self)
        rows = validate_data(self, X, reset=False, dtype=np.float64)
        return quantise(rows, self._center(), what="the queries")

    def _center(self) -> FloatArray | None:
        return None if self.center is None else np.asarray(self.center, dtype=np.float64)

    def _current_terms(self) -> dict[str, Any]:
        """Every parameter on which the guarantee depends."""
        return {name: value for name, value in self.get_params().items() if name not in self._not_priced}

    def _check_terms(self) -> None:
        """Refuse a fit whose terms differ from those of the first fit."""
        if self._current_terms() != self._terms:
            raise PrivacyError(
                "this object was used under other terms (epsilon, delta, ...): the promise cannot be changed "
                "afterwards. Use a new object for other people."
            )

    def _make_noise(self) -> Noise:
        """Secure noise, or seeded noise. Seeded answers are not private, so the first fit gives a warning."""
        noise = noise_from(self.random_state)
        if not (noise.secure or hasattr(self, "classes_")):
            for warning in about_seed(self.random_state):
                warnings.warn(warning, stacklevel=3)
        return noise

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.non_deterministic = True
        tags.classifier_tags.poor_score = True  # the checks use only a few dozen records
        return tags


SENSITIVITY = sqrt(2.0)
"""The L2 sensitivity of a vote of the k nearest, if one record is added or removed."""

_QUERIES = 64  # per pass over the store: 64 rows of similarities stay small
_SLACK = 6.0  # standard deviations added to the expected length of a walk, so that one step is usually enough


def similarities(queries: Vectors, records: Vectors) -> Iterator[FloatArray]:
    """For each query, <x_i, q>/|x_i| for every record. This is the cosine times the length of the query."""
    for low in range(0, len(queries), _QUERIES):
        yield from integer_dots(queries.values[low : low + _QUERIES], records.values) / records.root_norm


def nearest(similarity: FloatArray, m: int) -> IntArray:
    """The m nearest records, nearest first, or all if there are fewer. Ties are in the order of the records.

    >>> nearest(np.array([0.5, 0.9, 0.5, 0.5]), 3).tolist()
    [1, 0, 2]
    """
    n = len(similarity)
    if m >= n:
        return np.argsort(-similarity, kind="stable")
    least = np.partition(similarity, n - m)[n - m]  # the similarity of the m-th nearest
    above = np.flatnonzero(similarity > least)
    level = np.flatnonzero(similarity == least)[: m - len(above)]
    above = above[np.argsort(-similarity[above], kind="stable")]
    return np.concatenate([above, level])


def nearest_in_sample(similarity: FloatArray, k: int, coins: Callable[[int], BoolArray], p: float) -> IntArray:
    """The k nearest within a Poisson sample of the records.

    The coins are independent of everything. So the order in which they are drawn makes no difference, and coins after
    the k-th success need not be drawn. The function walks outwards from the query and stops at the k-th success, after
    about k/p records, however many records there are.
    """
    n = len(similarity)
    length = min(n, int(k / p + _SLACK * sqrt(k) / p) + 1)
    thrown = coins(length)
    while thrown.sum() < k and length < n:
        length = min(n, 2 * length)
        thrown = np.concatenate([thrown, coins(length - len(thrown))])
    return nearest(similarity, length)[thrown][:k]


Entropy = Callable[[int], bytes]


class PoissonSampler:
    """Independent coins of probability p (rounded down to 48 bits).

    >>> coins = PoissonSampler(0.25, np.random.default_rng(0).bytes)
    >>> int(coins(100_000).sum())
    25046
    """

    def __init__(self, p: float, entropy: Entropy = os.urandom):
        if not 0.0 < p <= 1.0:
            raise InvalidInputError(f"the sampling probability must be in (0, 1], got {p!r}")
        self.p = p
        self._entropy = entropy
        self._first, self._rest = divmod(floor(Fraction(p) * (1 << 48)), 1 << 32)

    def __call__(self, n: int) -> BoolArray:
        """n coins."""
        word = np.frombuffer(self._entropy(2 * n), dtype=np.uint16)
        chosen: BoolArray = word < self._first
        undecided = np.flatnonzero(word == self._first)
        if len(undecided):
            more = np.frombuffer(self._entropy(4 * len(undecided)), dtype=np.uint32)
            chosen[undecided] = more < self._rest
        return chosen


def entropy_from(random_state: int | np.random.Generator | np.random.RandomState | None) -> Entropy:
    """The operating system's entropy for None. Otherwise reproducible bytes that differ from those of the noise."""
    if random_state is None:
        return os.urandom
    if isinstance(random_state, np.random.Generator):
        return random_state.bytes
    if isinstance(random_state, np.random.RandomState):
        random_state = int(random_state.randint(np.iinfo(np.int32).max))
    return np.random.default_rng([int(random_state), 0x706F6973]).bytes


class AnswerCounter:
    """Counts answers, and raises an error beyond the limit. Safe to share between threads."""

    def __init__(self, limit: int):
        self.limit, self.answered = limit, 0

    def take(self, n: int, promise: str) -> None:
        """Count n answers before they are given: all of them or none."""
        with _COUNTING:
            left = self.limit - self.answered
            if n > left:
                queries = "query" if left == 1 else "queries"
                raise PrivacyError(f"{promise} covers {left} more {queries}, got {n}: none of them was answered")
            self.answered += n


_COUNTING = Lock()


class NaivePrivateKNN(PrivateClassifier):
    """Algorithm 2 of the paper: the k nearest records vote with Gaussian noise, and every query charges everybody.

    A query is answered by argmax(vote of the k nearest + N(0, σ²·I)). Whether a record is among the k nearest depends
    on all other records, so everybody is charged for every query. One answer is a Gaussian mechanism with sensitivity
    sqrt(2) (see ``indknn_lab.baselines.knn``), so it is sqrt(2)/σ-GDP. T answers, with queries chosen adaptively, are
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
            yield np.bincount(self._labels[nearest(similarity, self.k)], minlength=len(self.classes_))


class PrivateKNN(NaivePrivateKNN):
    """Private-kNN (Zhu, Yu, Chandraker & Wang 2020): kNN on a new random sample for each query.

    It is the main method that the paper compares with. For each query, every record enters a Poisson sample with
    probability `sampling_ratio`. The k nearest *in the sample* vote. The answer is argmax(vote + N(0, σ²·I)).

    **Why the noise suffices.** Within the sample, adding or removing one record changes the vote of the k nearest by at
    most sqrt(2) in L2 (``indknn_lab.baselines.knn``). Poisson sampling decides about every record independently. So
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
            yield np.bincount(self._labels[near], minlength=len(self.classes_))
