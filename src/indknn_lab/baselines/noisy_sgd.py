"""Linear NoisySGD (Tramèr & Boneh 2021): a linear model on public features, trained with noisy gradients.

The gradient of one example is (p - e_y) ⊗ x, with p = softmax(Wᵀx). Its length has a closed form. So a batch is clipped
and summed without computing a gradient per example.

For privacy, a small rounding error is not enough. Floating-point sums depend on their order, and the rounding of matrix
products depends on the shape of the batch. So one more record could slightly change the gradients of all others. Here
this cannot happen. A record is an int8 vector v with x = v/|v|. Its coefficients (p - e_y)·clip/|v| are rounded towards
zero to integers, in units of CLIP^-1 of the clipping norm. The weights, which are public, are integers in the product.
Then all products and sums are integers below 2^53, which float64 computes exactly in any order. So a record changes the
sum only by its own integer gradient, whose length is at most CLIP.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil, log2, prod
from numbers import Integral
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.validation import check_is_fitted, validate_data

from indknn.core.noise import Noise
from indknn.core.quantise import LEVELS
from indknn.errors import InvalidInputError, PrivacyError
from indknn.types import FloatArray, Int8Array, IntArray
from indknn_lab.baselines.knn import COUNT, POSITIVE, PoissonSampler, PrivateClassifier, RandomState, entropy_from
from indknn_lab.baselines.pricing import SamplingAccountant, epsilon_of, noise_multiplier

CLIP = LEVELS << 20
"""The clipping norm in grid units. Every v has an entry of ±127, so coefficients are below 2^20."""

MAX_BATCH = 1 << 25
"""Sums of this many integer gradients are still exact."""

_BELOW = 1.0 - 2.0**-40  # covers the rounding errors of the few operations that compute a coefficient


@dataclass(frozen=True)
class Batch:
    """Some records: int8 vectors, their lengths, and their labels."""

    values: Int8Array
    root_norm: FloatArray
    labels: IntArray

    def __len__(self) -> int:
        return len(self.values)


def logits(values: Int8Array, root_norm: FloatArray, W: FloatArray) -> FloatArray:
    """Wᵀv/|v|. The bits of a row do not depend on the other rows."""
    integers, unit = _on_grid(W, values.shape[1])
    result: FloatArray = values.astype(np.float64) @ integers * unit / root_norm[:, None]
    return result


def coefficients(batch: Batch, W: FloatArray, clip: float) -> FloatArray:
    """Integers a, such that the clipped gradient of record i is v_i ⊗ a_i, in units of clip/CLIP."""
    z = logits(batch.values, batch.root_norm, W)
    residual = np.exp(z - z.max(axis=1, keepdims=True))
    residual /= residual.sum(axis=1, keepdims=True)
    residual[np.arange(len(batch)), batch.labels] -= 1.0
    length = np.sqrt((residual * residual).sum(axis=1, keepdims=True))  # |x| = 1
    residual *= _BELOW * CLIP / np.maximum(length, clip)
    result: FloatArray = np.trunc(residual / batch.root_norm[:, None])
    return result


def summed(batch: Batch, a: FloatArray) -> FloatArray:
    """The sum of the clipped gradients, as integers."""
    result: FloatArray = batch.values.astype(np.float64).T @ a
    return result


def _on_grid(W: FloatArray, n_features: int) -> tuple[FloatArray, float]:
    """The weights as integers times a power of two, small enough that Σ v·W stays below 2^53."""
    bits = 52 - 7 - ceil(log2(max(n_features, 2)))
    largest = float(np.abs(W).max(initial=0.0))
    exponent = min(bits - ceil(log2(largest)) - 1, 1000) if largest > 0.0 else 0
    return np.rint(np.ldexp(W, exponent)), 2.0**-exponent


_STEPS_AT_ONCE = 50


class LinearNoisySGD(PrivateClassifier):
    """Softmax regression by DP-SGD. The model itself is differentially private, so it can answer without limit.

    Every step samples each record with probability batch_size/n, clips its gradient to `clip`, and adds Gaussian noise
    of scale noise_multiplier_·clip to the sum. One record changes the sum by at most `clip`, exactly
    (``indknn_lab.baselines.noisy_sgd``). ``dp-accounting`` computes the cost of all steps together.

    If the data change, the model must be trained again, and every training costs privacy. Set `retrainings` to the
    number of later trainings that the guarantee must cover, and call ``fit`` again for each of them.

    Parameters
    ----------
    epsilon, delta : float
        The guarantee for every record, for 1 + `retrainings` trainings.
    learning_rate : float
        Step along the mean gradient of the expected batch. It has to be searched, and no budget covers the search.
    epochs, batch_size, clip
        The paper's 10, 256 and 0.1.
    retrainings : int
        How often ``fit`` may be called again on this object. Further calls are refused.
    n_records : int or None
        A *public* number of records, which sets sampling rate and steps. None takes the number of rows of the first
        ``fit``. That number then counts as public, as is usual in the literature.
    accountant : {"pld", "rdp"}
        How the privacy loss is computed. "rdp" is what the literature reports. It needs about 8% more noise.
    center, random_state, classes
        As in :class:`indknn.IndKNNClassifier`. With random_state=None the batches also come from the operating
        system's entropy.

    Attributes
    ----------
    noise_multiplier_, sampling_rate_, steps_, epsilon_, delta_, trainings_
        The values for which 1 + `retrainings` trainings keep the guarantee, and how many trainings there were.
    coef_
        The model, as in scikit-learn, without an intercept. Public.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> y = rng.integers(2, size=4000)
    >>> X = rng.normal(size=(4000, 8)) + 4 * y[:, None] - 2
    >>> model = LinearNoisySGD(epsilon=1.0, epochs=3).fit(X, y)
    >>> bool(model.score(X, y) > 0.95), bool(model.epsilon_after(0) <= 1.0)
    (True, True)
    """

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        **PrivateClassifier._parameter_constraints,
        "learning_rate": [POSITIVE],
        "epochs": [COUNT],
        "batch_size": [COUNT],
        "clip": [POSITIVE],
        "retrainings": [Interval(Integral, 0, None, closed="left")],
        "n_records": [COUNT, None],
        "accountant": [StrOptions({"pld", "rdp"})],
    }
    _not_priced = PrivateClassifier._not_priced | {"learning_rate", "clip"}

    def __init__(
        self,
        epsilon: float = 1.0,
        delta: float = 1e-5,
        *,
        learning_rate: float = 40.0,
        epochs: int = 10,
        batch_size: int = 256,
        clip: float = 0.1,
        retrainings: int = 0,
        n_records: int | None = None,
        accountant: SamplingAccountant = "pld",
        center: npt.ArrayLike | None = None,
        random_state: RandomState = None,
        classes: npt.ArrayLike | None = None,
    ):
        self.epsilon = epsilon
        self.delta = delta
        self.learning_rate = learning_rate
        self.epochs = epochs
        self.batch_size = batch_size
        self.clip = clip
        self.retrainings = retrainings
        self.n_records = n_records
        self.accountant = accountant
        self.center = center
        self.random_state = random_state
        self.classes = classes

    def fit(self, X: npt.ArrayLike, y: npt.ArrayLike) -> Self:
        """Train from zero weights. On an object that was trained before, this counts as a retraining."""
        vectors, labels, classes = self._read_records(X, y)
        records = Batch(vectors.values, vectors.root_norm, labels)
        if len(records) > MAX_BATCH:
            raise InvalidInputError(f"at most {MAX_BATCH} records can be trained on, got {len(records)}")
        if not hasattr(self, "trainings_"):
            self._fix_terms(self.n_records or len(records))
        self._check_terms()
        done = getattr(self, "trainings_", 0)
        if done > self.retrainings:
            raise PrivacyError(
                f"(epsilon={self.epsilon}, delta={self.delta}) covers {1 + self.retrainings} training(s) and there "
                f"were {done}: plan with retrainings=..., or use a new object for other people"
            )
        noise = self._make_noise()
        validate_data(self, X, reset=True, skip_check_array=True)
        self.classes_ = classes
        self.trainings_ = done + 1  # counted before the training, so that a failed one counts too
        self.coef_ = self._train(records, noise).T.copy()
        return self

    def predict(self, X: npt.ArrayLike) -> npt.NDArray[Any]:
        """The class of every row. This costs no privacy, however often it is called, because the model is private."""
        queries = self._read_queries(X)
        scores = logits(queries.values, queries.root_norm, self.coef_.T)
        return np.asarray(self.classes_[np.argmax(scores, axis=1)])

    def epsilon_after(self, retrainings: int) -> float:
        """The ε, at this delta, of one training and this many retrainings with the noise in use."""
        check_is_fitted(self)
        rate, steps, accountant = self.sampling_rate_, self.steps_ * (1 + retrainings), self._terms["accountant"]
        return epsilon_of(self.noise_multiplier_, self.delta_, rate=rate, steps=steps, accountant=accountant)

    def _fix_terms(self, n: int) -> None:
        """Compute the noise for all trainings together. A batch has `batch_size` records on average."""
        rate, steps = min(1.0, self.batch_size / n), ceil(self.epochs * n / self.batch_size)
        trainings, accountant = 1 + self.retrainings, self.accountant
        self.noise_multiplier_ = noise_multiplier(
            self.epsilon, self.delta, rate=rate, steps=steps * trainings, accountant=accountant
        )
        self._terms = self._current_terms()
        self.sampling_rate_, self.steps_ = rate, steps
        self.epsilon_, self.delta_ = float(self.epsilon), float(self.delta)

    def _train(self, records: Batch, noise: Noise) -> FloatArray:
        """One training from zero weights."""
        W = np.zeros((self.n_features_in_, len(self.classes_)))
        coins = PoissonSampler(self.sampling_rate_, entropy_from(self.random_state))
        scale = ceil(self.noise_multiplier_ * (1.0 + 1e-12) * CLIP)
        # The sum is in units of clip/CLIP. It is divided by the *expected* batch size, because the real one is private.
        step = self.learning_rate * self.clip / CLIP / self.batch_size
        for shift in _draws(noise, scale, W.shape, self.steps_):
            chosen = np.flatnonzero(coins(len(records)))
            batch = Batch(records.values[chosen], records.root_norm[chosen], records.labels[chosen])
            W = W - step * (summed(batch, coefficients(batch, W, self.clip)) + shift)
        return W


def _draws(noise: Noise, scale: int, shape: tuple[int, ...], steps: int) -> Iterator[IntArray]:
    """The noise of every step, drawn for many steps at once because that is faster."""
    for start in range(0, steps, _STEPS_AT_ONCE):
        n = min(_STEPS_AT_ONCE, steps - start)
        yield from noise.draw(scale, n * prod(shape)).reshape(n, *shape)
