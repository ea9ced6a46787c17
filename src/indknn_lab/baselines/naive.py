"""Algorithm 1 of the paper: the k nearest vote, Gaussian noise, and every query charges everybody."""

from __future__ import annotations

from collections.abc import Iterator
from math import sqrt

import numpy.typing as npt

from indknn.core import accounting
from indknn.types import IntArray, Vectors
from indknn_lab.baselines.base import RandomState, TopKVote
from indknn_lab.baselines.topk import nearest, vote


class NaivePrivateKNN(TopKVote):
    """Private kNN without individual accounting: what Ind-KNN is to be compared with first.

    A query is answered by argmax(vote of the k nearest + N(0, σ²·I)). Who is among the k nearest depends on
    everybody else, so everybody is charged for every query. One answer is a Gaussian mechanism of sensitivity
    sqrt(2) (see ``indknn_lab.baselines.topk``), thus sqrt(2)/σ-GDP, and T of them, chosen one after the other,
    are *exactly* sqrt(2T)/σ-GDP. Hence σ = sqrt(T/B) with B = μ²/2 the budget of (epsilon, delta).

    Parameters
    ----------
    epsilon, delta : float
        The promise to every record, for `max_queries` answers.
    max_queries : int
        T. Not one query more is answered.
    k : int
        Number of neighbours. It does not enter the price; choose it without looking at the private data.
    center, random_state, classes
        As in :class:`indknn.IndKNNClassifier`.

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
    >>> model = NaivePrivateKNN(epsilon=1.0, max_queries=10, k=500).fit(X, y)
    >>> round(model.sigma_, 2), float(model.score(X[:10], y[:10])), model.max_queries_left
    (16.68, 1.0, 0)
    """

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

    def epsilon_after(self, queries: int) -> float:
        """The ε, at this delta, of a number of answers that was fixed beforehand."""
        return accounting.epsilon(queries / (2.0 * self.noise_multiplier_**2), self.delta_)

    def _noise_multiplier(self) -> float:
        # T releases of noise multiplier z are sqrt(T)/z-GDP: ρ = T/2z² <= B.
        return sqrt(self.max_queries / (2.0 * accounting.budget(self.epsilon, self.delta)))

    def _votes(self, queries: Vectors) -> Iterator[IntArray]:
        for similarity in self._similarities(queries):
            yield vote(self._labels[nearest(similarity, self.k)], len(self.classes_))
