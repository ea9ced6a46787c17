"""Linear NoisySGD: gradients against finite differences, clipping to the integer, price, retraining."""

import pickle
import warnings

import dp_accounting as dp
import numpy as np
import pytest
from dp_accounting.pld import PLDAccountant
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import logsumexp
from sklearn.base import clone
from sklearn.utils.estimator_checks import check_estimator

from indknn.core.quantise import quantise
from indknn.errors import PrivacyError, PrivacyWarning
from indknn_lab.baselines import LinearNoisySGD
from indknn_lab.baselines.noisy_sgd import CLIP, Batch, coefficients, logits, summed
from indknn_lab.baselines.pricing import noise_multiplier


def batch_of(rng, n, d=7, c=3, spread=1.0):
    v = quantise(rng.normal(size=(n, d)) * np.exp(spread * rng.normal(size=(n, d))))
    return Batch(v.values, v.root_norm, rng.integers(c, size=n))


def squared_lengths(batch, a):
    """|gradient|² of each record in grid units."""
    return (a * a).sum(axis=1) * batch.root_norm**2


def loss(batch, W):
    z = batch.values / batch.root_norm[:, None] @ W
    return float((logsumexp(z, axis=1) - z[np.arange(len(z)), batch.labels]).sum())


def test_gradient_against_finite_differences():
    rng = np.random.default_rng(0)
    batch, W = batch_of(rng, 5), rng.normal(size=(7, 3))
    clip = 100.0  # so large that nothing is clipped
    got = summed(batch, coefficients(batch, W, clip)) * clip / CLIP
    for i, j in np.ndindex(*W.shape):
        step = np.zeros_like(W)
        step[i, j] = 1e-5
        slope = (loss(batch, W + step) - loss(batch, W - step)) / 2e-5
        assert got[i, j] == pytest.approx(slope, abs=3e-3)  # the grid of clip=100 is coarse


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**20), st.sampled_from([1e-3, 0.1, 5.0]), st.floats(0, 60))
def test_no_gradient_is_longer_than_the_clip(seed, clip, size):
    """In integers, exactly: the noise is scaled to CLIP."""
    rng = np.random.default_rng(seed)
    batch = batch_of(rng, 20, spread=3.0)
    found = coefficients(batch, size * rng.normal(size=(7, 3)), clip)
    assert np.array_equal(found, np.trunc(found))
    for v, a, squared in zip(batch.values, found, squared_lengths(batch, found), strict=True):
        exact = sum(int(x) ** 2 for x in v) * sum(int(x) ** 2 for x in a)
        assert exact <= CLIP**2
        assert squared == pytest.approx(float(exact), rel=1e-12)


def test_clipped_gradients_keep_their_direction_and_length():
    rng = np.random.default_rng(1)
    batch, W = batch_of(rng, 50), np.zeros((7, 3))
    a = coefficients(batch, W, 0.1)
    lengths = np.sqrt(squared_lengths(batch, a)) / CLIP
    assert lengths.min() > 1 - 1e-4  # at zero weights |p - e_y| = sqrt(2/3) > 0.1: all are clipped
    free = coefficients(batch, W, 10.0)
    assert np.allclose(a * 0.1, free * 10.0 * 0.1 / np.sqrt(2 / 3), rtol=1e-2, atol=0.1)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**20))
def test_one_record_changes_the_sum_by_its_own_gradient_to_the_bit(seed):
    """Add a record anywhere in the batch: the others' integer gradients stay what they were."""
    rng = np.random.default_rng(seed)
    n = int(rng.integers(1, 70))
    whole, W = batch_of(rng, n + 1, d=33, c=10), rng.normal(size=(33, 10))
    out = int(rng.integers(n + 1))
    keep = np.arange(n + 1) != out
    rest, one = (Batch(whole.values[s], whole.root_norm[s], whole.labels[s]) for s in (keep, ~keep))
    sums = [summed(x, coefficients(x, W, 0.1)) for x in (whole, rest, one)]
    assert np.array_equal(sums[0] - sums[1], sums[2])
    assert np.sqrt((sums[2] ** 2).sum()) <= CLIP


def test_logits():
    rng = np.random.default_rng(3)
    batch = batch_of(rng, 9, d=300)
    for size in (0.0, 1e-9, 1.0, 1e6):
        W = size * rng.normal(size=(300, 3))
        expected = (batch.values / batch.root_norm[:, None]) @ W
        assert np.allclose(logits(batch.values, batch.root_norm, W), expected, rtol=1e-9, atol=1e-9 * size)


@pytest.mark.parametrize("retrainings", [0, 4])
def test_price_against_dp_accounting(blobs, retrainings):
    X, y, _, _ = blobs
    model = LinearNoisySGD(2.0, 1e-5, epochs=2, retrainings=retrainings, random_state=0).fit(X, y)
    assert (model.sampling_rate_, model.steps_) == (256 / 6000, 47)
    ledger = PLDAccountant()
    event = dp.PoissonSampledDpEvent(256 / 6000, dp.GaussianDpEvent(model.noise_multiplier_))
    ledger.compose(event, 47 * (1 + retrainings))
    assert 2.0 * 0.99 <= ledger.get_epsilon(1e-5) <= 2.0 * 1.0005
    assert model.epsilon_after(retrainings) <= 2.0 < model.epsilon_after(retrainings + 1)
    z = noise_multiplier(2.0, 1e-5, rate=256 / 6000, steps=47 * (1 + retrainings))
    assert model.noise_multiplier_ == z


def test_the_noise_is_what_was_priced(blobs, monkeypatch):
    from indknn_lab.baselines import knn

    X, y, _, _ = blobs
    drawn = []

    class Spy:
        secure = False

        def draw(self, scale, size):
            drawn.append((scale, size))
            return np.zeros(size, dtype=np.int64)

    monkeypatch.setattr(knn, "noise_from", lambda seed: Spy())
    model = LinearNoisySGD(epochs=1, random_state=0).fit(X, y)
    assert sum(size for _, size in drawn) == model.steps_ * 16 * 4
    assert all(scale >= model.noise_multiplier_ * CLIP for scale, _ in drawn)


def test_accuracy_on_blobs(blobs):
    X, y, Q, truth = blobs
    assert LinearNoisySGD(1.0, random_state=0).fit(X, y).score(Q, truth) > 0.93
    assert LinearNoisySGD(1e-3, random_state=0).fit(X, y).score(Q, truth) < 0.6


def test_secure_noise_by_default(blobs):
    X, y, Q, truth = blobs
    with warnings.catch_warnings():
        warnings.simplefilter("error", PrivacyWarning)
        model = LinearNoisySGD(1.0, epochs=3).fit(X, y)
    assert model.score(Q, truth) > 0.9
    again = LinearNoisySGD(1.0, epochs=3).fit(X, y)
    assert not np.array_equal(model.coef_, again.coef_)
    # The model is private, so copies of it are free, and so are answers.
    assert np.array_equal(pickle.loads(pickle.dumps(model)).predict(Q), model.predict(Q))


def test_seed_reproduces_and_warns(blobs):
    X, y, _, _ = blobs
    with pytest.warns(PrivacyWarning, match="not private"):
        one = LinearNoisySGD(epochs=1, random_state=1).fit(X, y)
    same, other = (LinearNoisySGD(epochs=1, random_state=s).fit(X, y) for s in (1, 2))
    assert np.array_equal(one.coef_, same.coef_)
    assert not np.array_equal(one.coef_, other.coef_)


def test_retraining_is_counted_and_limited(blobs):
    X, y, _, _ = blobs
    model = LinearNoisySGD(epochs=1, retrainings=1, random_state=0).fit(X, y)
    model.fit(X[:3000], y[:3000])
    assert (model.trainings_, model.sampling_rate_) == (2, 256 / 6000)  # the rate that was priced
    before = model.coef_.copy()
    with pytest.raises(PrivacyError, match=r"covers 2 training\(s\)"):
        model.fit(X, y)
    model.retrainings = 5
    with pytest.raises(PrivacyError, match="other terms"):
        model.fit(X, y)
    assert np.array_equal(model.coef_, before)


def test_public_number_of_records(blobs):
    X, y, _, _ = blobs
    a = LinearNoisySGD(epochs=1, n_records=6000, random_state=0).fit(X, y)
    b = LinearNoisySGD(epochs=1, n_records=6000, random_state=0).fit(X[1:], y[1:])
    assert (a.sampling_rate_, a.steps_, a.noise_multiplier_) == (
        b.sampling_rate_,
        b.steps_,
        b.noise_multiplier_,
    )


def test_scikit_learn_accepts_it():
    reason = "it holds a zero vector, which has no direction to compare"
    check_estimator(
        LinearNoisySGD(epochs=2, retrainings=20), expected_failed_checks={"check_estimators_dtypes": reason}
    )


@pytest.mark.slow
@pytest.mark.shared_data
@pytest.mark.parametrize(("name", "least"), [("cifar10-r50.npz", 0.83), ("agnews-minilm.npz", 0.87)])
def test_accuracy_on_real_features(name, least, real):
    data = real(name)
    model = clone(LinearNoisySGD(1.0, random_state=0)).fit(data.X_train, data.y_train)
    assert model.score(data.X_test, data.y_test) > least
