"""Your own method, compared with the others: class means with Gaussian noise.

indknn reproduce figure1a --quick --method examples/own_method.py
"""

from math import sqrt

import numpy as np

from indknn.core.accounting import budget
from indknn_lab.experiments.methods.own import OwnMethod


class NoisyMeans(OwnMethod):
    """A query gets the class whose mean points most nearly its way."""

    label = "Noisy class means"
    grid = {"clip": (0.5, 1.0)}  # noqa: RUF012 - how long a record may be: the better one on validation queries

    def fit(self, X, y):
        """Sum the records of every class, and add noise."""
        lengths = np.linalg.norm(X, axis=1, keepdims=True)
        sums = np.zeros((self.n_classes, X.shape[1]))
        np.add.at(sums, y, X * np.minimum(1.0, self.clip / np.maximum(lengths, 1e-12)))
        sigma = self.clip / sqrt(2.0 * budget(self.epsilon, self.delta))  # one record moves the sums by `clip` at most
        noisy = sums + sigma * self.rng.standard_normal(sums.shape)
        self.means = noisy / np.linalg.norm(noisy, axis=1, keepdims=True)

    def predict(self, Q):
        """Answer from the noisy means alone."""
        return np.argmax(Q @ self.means.T, axis=1)
