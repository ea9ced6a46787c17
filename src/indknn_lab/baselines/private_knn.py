"""Private-kNN (Zhu, Yu, Chandraker & Wang 2020): the k nearest within a fresh random subset, and noise."""

from __future__ import annotations

from collections.abc import Iterator
from numbers import Real
from typing import Any, ClassVar, Self

import numpy.typing as npt
from sklearn.utils._param_validation import Interval, StrOptions

from indknn.types import IntArray, Vectors
from indknn_lab.baselines.base import RandomState, TopKVote
from indknn_lab.baselines.pricing import SamplingAccountant, epsilon_of, noise_multiplier
from indknn_lab.baselines.sampling import Entropy, PoissonSampler, entropy_from
from indknn_lab.baselines.topk import nearest_in_sample, vote


class PrivateKNN(TopKVote):
    """kNN on a fresh Poisson sample for every query, with a noisy argmax: the paper's main rival.

    A query puts every record into a sample with probability `sampling_ratio`, lets the k nearest *in the
    sample* vote, and answers argmax(vote + N(0, σ²·I)).

    **Why the noise suffices.** Within the sample, adding or removing one record changes the vote of the k
    nearest by at most sqrt(2) in L2 (``indknn_lab.baselines.topk``). Poisson sampling treats every record alike
    and apart from the others, so that one answer is dominated by the Poisson-sampled Gaussian mechanism of
    noise multiplier σ/sqrt(2) (``indknn_lab.baselines.pricing`` has the proof), and T answers, to queries chosen
    one after the other, by its T-fold composition. ``dp-accounting`` prices that: by the privacy loss
    distribution (default, tighter) or by RDP. Subsets of fixed size, or drawn with replacement as in some
    published code, would need another analysis, under which one person's presence also moves the others'.

    Parameters
    ----------
    epsilon, delta : float
        The promise to every record, for `max_queries` answers.
    max_queries : int
        T. Not one query more is answered.
    k : int
        Number of neighbours within the sample. It does not enter the price.
    sampling_ratio : float
        p, in (0, 1]. About k/p of the nearest records are in reach of a query.
    accountant : {"pld", "rdp"}
        How the noise is priced; "rdp" is what the literature reports and needs about 8% more noise.
    center, random_state, classes
        As in :class:`indknn.IndKNNClassifier`. With random_state=None the samples, too, come from the
        operating system's entropy.

    Attributes
    ----------
    sigma_, noise_multiplier_ : float
        The noise on each vote count, and the same over the sensitivity sqrt(2).
    epsilon_, delta_, queries_answered_, max_queries_left
        What is promised, and for how many answers still.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> y = rng.integers(2, size=4000)
    >>> X = rng.normal(size=(4000, 8)) + 4 * y[:, None] - 2
    >>> model = PrivateKNN(epsilon=1.0, max_queries=10, k=100, sampling_ratio=0.1).fit(X, y)
    >>> 1.9 < model.sigma_ < 2.6, float(model.score(X[:10], y[:10])), model.max_queries_left
    (True, 1.0, 0)
    """

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        **TopKVote._parameter_constraints,
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
        self.epsilon = epsilon
        self.delta = delta
        self.max_queries = max_queries
        self.k = k
        self.sampling_ratio = sampling_ratio
        self.accountant = accountant
        self.center = center
        self.random_state = random_state
        self.classes = classes

    def fit(self, X: npt.ArrayLike, y: npt.ArrayLike) -> Self:
        """Hold these records. Each is protected by itself: a person with several has as many times the cost.

        Fitting the same object again replaces the records but not the number of answers given.
        """
        super().fit(X, y)
        self._entropy = entropy_from(self.random_state)
        return self

    def epsilon_after(self, queries: int) -> float:
        """The ε, at this delta, of a number of answers that was fixed beforehand."""
        return epsilon_of(
            self.noise_multiplier_,
            self.delta_,
            rate=self._priced["sampling_ratio"],
            steps=queries,
            accountant=self._priced["accountant"],
        )

    def _noise_multiplier(self) -> float:
        return noise_multiplier(
            self.epsilon,
            self.delta,
            rate=self.sampling_ratio,
            steps=self.max_queries,
            accountant=self.accountant,
        )

    def _votes(self, queries: Vectors) -> Iterator[IntArray]:
        # The ratio in force is the one that was priced, whatever became of the parameter since.
        coins = PoissonSampler(self._priced["sampling_ratio"], self._entropy)
        for similarity in self._similarities(queries):
            near = nearest_in_sample(similarity, self.k, coins, coins.p)
            yield vote(self._labels[near], len(self.classes_))
