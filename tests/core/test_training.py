"""One step of training: whole numbers, charged for what each person really adds, whoever else is there."""

from fractions import Fraction
from math import floor, isqrt, sqrt, trunc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from indknn.core import training
from indknn.core.accounting import UNIT, to_units
from indknn.core.noise import SeededNoise
from indknn.core.training import STEP_GRID, Weights, gradient, noisy_gradient, probabilities, rows_of, step_scale

CLIP = 0.25
ROOM = to_units(1.0)


def people(rng, n, d, c, n_owners):
    """Records, labels and owners."""
    return rng.integers(-127, 128, size=(n, d)).astype(np.int8), rng.integers(c, size=n), rng.integers(n_owners, size=n)


def model(rng, d, c, size=3.0):
    return Weights.of(size * rng.normal(size=(d + 1, c)))


def literal_residual(row, label, weights):
    """|v|, v and (p - e_y) on the grid, with Python's integers and correctly rounded floats."""
    row = [int(v) for v in row]
    squared = sum(v * v for v in row)
    row.append(max(round(sqrt(squared) * (0.2 / sqrt(1.0 - 0.2**2))), 1))
    length = sqrt(sum(v * v for v in row))
    whole = [[int(w) for w in line] for line in weights.whole]
    factor = weights.unit / length
    scores = [
        float(sum(v * line[k] for v, line in zip(row, whole, strict=True))) * factor for k in range(len(whole[0]))
    ]
    behind = [min(floor((max(scores) - s) * 256.0), 24 * 256) for s in scores]
    parts = [int(training._TABLE[b]) for b in behind]
    shares = [part / sum(parts) for part in parts]
    return row, length, [round((p - (k == label)) * 2**22) for k, p in enumerate(shares)]


def squared_length(sums):
    return sum(int(v) ** 2 for v in sums.ravel())


def exact_price(sums, scale):
    """|sums|²/2s² in units of the ledger, as a fraction."""
    return Fraction(squared_length(sums) * UNIT, 2 * scale * scale)


@given(
    seed=st.integers(0, 10**6), d=st.integers(1, 6), c=st.integers(1, 5), limit=st.sampled_from([0, 1, 5, 10**9, ROOM])
)
def test_one_record_adds_what_python_integers_say(seed, d, c, limit):
    rng = np.random.default_rng(seed)
    values, labels, _ = people(rng, 4, d, c, 1)
    values[0] = 0  # a row that the map has cut to nothing
    weights, scale = model(rng, d, c, size=float(rng.choice([0.0, 1.0, 50.0]))), step_scale(CLIP, 32, 0.01)
    found = gradient(values, labels, np.arange(4), np.full(4, limit), weights, CLIP, scale)
    most = min(training.largest_squared_shift(np.array([limit]), scale)[0], (CLIP * STEP_GRID) ** 2)
    total = np.zeros((d + 1, c), dtype=object)
    for i in range(4):
        row, length, wrong = literal_residual(values[i], int(labels[i]), weights)
        size = sqrt(sum(w * w for w in wrong)) * 16.0
        shrink = min(sqrt(most) / max(size, 1e-300), 1.0) * 16.0
        added = np.outer(row, [trunc(w * (shrink / length)) for w in wrong]).astype(object)
        charge, price = int(found.charges[i]), exact_price(added, scale)
        assert price <= charge <= limit
        assert charge <= price * (1 + Fraction(1, 2**31)) + 1
        total += added
    assert found.sums.tolist() == total.tolist()


@given(seed=st.integers(0, 10**6), m=st.integers(2, 9), c=st.integers(2, 5))
def test_records_of_one_owner_are_summed_before_they_are_clipped(seed, m, c):
    rng = np.random.default_rng(seed)
    values, labels, owners = people(rng, m, 3, c, 1)
    weights, scale = model(rng, 3, c), step_scale(CLIP, 32, 1e-6)
    whole = np.zeros((4, c), dtype=object)
    for value, label in zip(values, labels.tolist(), strict=True):
        row, length, wrong = literal_residual(value, label, weights)
        whole += np.outer(row, [trunc(w * (16.0 / length)) for w in wrong]).astype(object)
    free = gradient(values, labels, owners, np.full(m, ROOM), weights, 2.0 * m, scale)
    assert free.sums.tolist() == whole.tolist()  # a clip that nobody reaches: to the last bit
    clipped = gradient(values, labels, owners, np.full(m, ROOM), weights, CLIP, scale)
    before, after, most = isqrt(squared_length(whole)), squared_length(clipped.sums), CLIP * STEP_GRID
    assert after <= most**2
    assert isqrt(after) > 0.9 * min(before, most)
    if before > most:  # the same direction, up to what is cut off
        cosine = float((whole * clipped.sums).sum()) / (before * isqrt(after))
        assert cosine > 0.999


def test_many_records_that_agree_count_as_one_at_the_clip():
    rng = np.random.default_rng(0)
    one, label = rng.integers(-127, 128, size=(1, 6)).astype(np.int8), np.array([1])
    weights, scale = model(rng, 6, 3, 0.0), step_scale(CLIP, 32, 0.01)
    alone = gradient(one, label, np.array([0]), np.array([ROOM]), weights, CLIP, scale)
    crowd = gradient(
        np.repeat(one, 40, axis=0), np.repeat(label, 40), np.zeros(40, int), np.full(40, ROOM), weights, CLIP, scale
    )
    assert crowd.charges[0] <= alone.charges[0] * (1 + 1e-9)
    assert crowd.charges[0] > 0.9 * alone.charges[0]


@given(
    seed=st.integers(0, 10**6),
    n=st.integers(1, 30),
    n_owners=st.integers(1, 8),
    d=st.integers(1, 8),
    c=st.integers(1, 5),
    budget=st.floats(1e-6, 1.0),
    exponent=st.integers(0, 61),
)
def test_everybody_pays_for_what_they_add_and_never_above_their_limit(seed, n, n_owners, d, c, budget, exponent):
    rng = np.random.default_rng(seed)
    values, labels, owners = people(rng, n, d, c, n_owners)
    weights, scale = model(rng, d, c, size=float(rng.choice([0.0, 1.0, 30.0]))), step_scale(CLIP, 32, budget)
    by_owner = rng.integers(0, (1 << exponent) + 1, size=n_owners)
    limits = by_owner[owners]
    together = gradient(values, labels, owners, limits, weights, CLIP, scale)
    assert together.owners.tolist() == np.unique(owners).tolist()
    total = np.zeros((d + 1, c), dtype=np.int64)
    for owner, charge in zip(together.owners.tolist(), together.charges.tolist(), strict=True):
        mine = owners == owner
        alone = gradient(values[mine], labels[mine], owners[mine], limits[mine], weights, CLIP, scale)
        assert alone.charges.tolist() == [charge]  # whatever others add
        assert exact_price(alone.sums, scale) <= charge <= int(by_owner[owner])
        assert squared_length(alone.sums) <= (CLIP * STEP_GRID) ** 2 * (1 + 2.0**-40)
        total += alone.sums
    assert (together.sums == total).all()


@pytest.mark.parametrize("m", [1, 2, 7, 300, 2500])
@pytest.mark.parametrize("units", [0, 1, 2, 3, 1 << 20, 1 << 44])
def test_a_few_units_buy_a_few_units_at_most(m, units):
    rng = np.random.default_rng(m)
    values, labels, owners = people(rng, m, 5, 3, 1)
    weights, scale = model(rng, 5, 3), step_scale(CLIP, 32, 0.03)
    found = gradient(values, labels, owners, np.full(m, units), weights, CLIP, scale)
    assert exact_price(found.sums, scale) <= int(found.charges[0]) <= units
    assert (found.charges[0] == 0) == (not found.sums.any())
    if units < 2:
        assert not found.sums.any()


@pytest.mark.parametrize("m", [1, 3, 40])
def test_bits_depend_on_no_order_no_batch_and_nobody_else(m, monkeypatch):
    rng = np.random.default_rng(m)
    n = 6000 // m
    values, labels, _ = people(rng, n * m, 40, 7, 1)
    owners = rng.permutation(np.repeat(np.arange(n), m))
    limits = rng.integers(0, to_units(0.001), size=n)[owners]
    weights, scale = model(rng, 40, 7), step_scale(CLIP, 32, 0.02)
    first = gradient(values, labels, owners, limits, weights, CLIP, scale)
    order = rng.permutation(n * m)
    other = gradient(values[order], labels[order], owners[order], limits[order], weights, CLIP, scale)
    monkeypatch.setattr(training, "_BLOCK", 97)
    small = gradient(values, labels, owners, limits, weights, CLIP, scale)
    for again in (other, small):
        assert (first.sums == again.sums).all()
        assert (first.charges == again.charges).all()
    gone = owners == 5
    without, only = (
        gradient(values[some], labels[some], owners[some], limits[some], weights, CLIP, scale) for some in (~gone, gone)
    )
    assert (first.sums - without.sums == only.sums).all()
    assert (np.delete(first.charges, 5) == without.charges).all()


def test_the_largest_rows_weights_and_crowds_stay_exact():
    """Every entry at its bound, 4096 features, all with one owner: sums of whole numbers below 2^53."""
    values = np.where(np.random.default_rng(0).integers(2, size=(300, 4096)) == 1, 127, -127).astype(np.int8)
    labels = np.zeros(300, dtype=np.int64)
    weights = Weights(np.full((4097, 2), training.MAX_WEIGHT) * np.array([1.0, -1.0]), 1e-6)
    rows, _ = rows_of(values)
    exact = rows[:5].astype(np.int64).astype(object) @ weights.whole.astype(np.int64).astype(object)
    assert (rows[:5] @ weights.whole == exact.astype(np.float64)).all()
    assert max(abs(int(v)) for v in exact.ravel()) < 2**53
    scale = step_scale(CLIP, 32, 0.01)
    found = gradient(values, labels, np.zeros(300, int), np.full(300, ROOM), weights, CLIP, scale)
    assert exact_price(found.sums, scale) <= int(found.charges[0])
    assert squared_length(found.sums) <= (CLIP * STEP_GRID) ** 2


def test_whom_the_model_gets_right_pays_almost_nothing():
    values, labels = np.array([[127, 0], [127, 0]], dtype=np.int8), np.array([0, 1])
    weights = Weights.of(np.array([[4.0, -4.0], [0.0, 0.0], [0.0, 0.0]]))
    charges = gradient(
        values, labels, np.arange(2), np.full(2, ROOM), weights, CLIP, step_scale(CLIP, 32, 0.01)
    ).charges
    assert 0 < charges[0] < 1e-4 * charges[1]


def test_a_full_gradient_in_every_step_costs_the_budget_and_hardly_less():
    for budget in (1e-5, 0.03, 1.0):
        scale = step_scale(CLIP, 32, budget)
        most = int((CLIP * STEP_GRID) ** 2)
        assert 0.999 * budget < 32 * Fraction(most, 2 * scale * scale) <= budget


def test_noise_is_of_the_size_that_is_charged_for_and_every_entry_has_its_own():
    scale = step_scale(CLIP, 32, 0.03)
    noisy = noisy_gradient(np.zeros((200, 30), dtype=np.int64), scale, SeededNoise(1))
    assert noisy.shape == (200, 30)
    assert noisy.std() / scale == pytest.approx(1.0, abs=0.03)
    assert len(np.unique(noisy)) == noisy.size
    assert (noisy_gradient(np.full((200, 30), 7), scale, SeededNoise(1)) - noisy == 7).all()


def test_probabilities_are_those_of_a_softmax():
    rng = np.random.default_rng(3)
    values = rng.integers(-127, 128, size=(50, 8)).astype(np.int8)
    weights = model(rng, 8, 4)
    rows, lengths = rows_of(values)
    scores = (rows / lengths[:, None]) @ (weights.whole * weights.unit)
    softmax = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
    assert probabilities(rows, lengths, weights) == pytest.approx(softmax, abs=0.004)
    one_by_one = [probabilities(rows[i : i + 1], lengths[i : i + 1], weights)[0] for i in range(50)]
    assert (probabilities(rows, lengths, weights) == np.array(one_by_one)).all()


def test_no_records_no_gradient():
    nothing = np.zeros(0, dtype=np.int64)
    found = gradient(np.zeros((0, 3), np.int8), nothing, nothing, nothing, Weights.of(np.zeros((4, 2))), CLIP, 1 << 30)
    assert not found.sums.any()
    assert found.sums.shape == (4, 2)
    assert len(found.charges) == 0
