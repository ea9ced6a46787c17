"""What follows from releases about numbers: histograms, local means, and the model that draws towards the mean."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from indknn.core.releases import Gradient, ModelShown, PublicRows, TallyRelease, Votes
from indknn.core.targets import CELLS
from indknn.core.training import STEP_GRID, numbers, rows_of
from indknn.errors import StoreError
from indknn.models import new_adviser, new_model
from indknn.models.histograms import denoised, moments, quantile
from indknn.models.local_mean import FIRST_SHARE, MOST_QUESTIONS, LocalMean
from indknn.models.numbers import NumberModel, _likely
from indknn.models.shared_model import STEPS, Terms
from indknn.models.shown_numbers import NumberCard
from indknn.settings import Settings
from indknn.types import GRID


def test_a_histogram_is_read_through_its_noise():
    ends, rng = np.linspace(-1.0, 1.0, CELLS + 1), np.random.default_rng(0)
    truth = rng.normal(0.2, 0.15, 400)
    counts = np.histogram(truth, ends)[0] + rng.normal(0, 16, CELLS)
    mean, spread = moments(denoised(counts, ends, 16.0, 400.0), ends)
    assert mean == pytest.approx(0.2, abs=0.08)
    assert spread == pytest.approx(0.15, abs=0.08)


def test_with_little_noise_a_histogram_is_what_it_is():
    ends = np.linspace(0.0, 4.0, 5)
    counts = np.array([1000.0, 0.0, 0.0, 3000.0])
    shares = denoised(counts, ends, 1.0, 4000.0)
    assert shares == pytest.approx([0.25, 0.0, 0.0, 0.75], abs=0.01)
    assert quantile(shares, ends, 0.125) == pytest.approx(0.5, abs=0.05)


def sums(mass, number):
    return np.array([mass / 4 * GRID, mass * number * GRID]).astype(np.int64)


def test_a_ratio_without_noise_is_the_local_mean_and_with_much_noise_the_common_one():
    local = LocalMean()
    assert local.answer(sums(50, 0.5), 1) == pytest.approx(0.5, abs=1e-3)
    for _ in range(200):
        local.note(sums(50, 0.1), GRID)
    assert local.answer(sums(50, 0.9), 400 * GRID) == pytest.approx(0.1, abs=0.05)
    assert local.answer(sums(50, 0.9), GRID) == pytest.approx(0.9, abs=0.1)
    assert LocalMean().answer(np.array([-5 * GRID, 7 * GRID]), 10 * GRID) == 0.0


def test_everybody_is_asked_until_the_mean_is_known_and_answers_are_drawn_to_it():
    rng, local, shares = np.random.default_rng(1), LocalMean(), []
    scale = 20.0
    while (share := local.due()) is not None:
        shares.append(share)
        noisy = np.array([300 / 4, 300 * (0.5 - local.centre / GRID)]) + scale * rng.normal(size=2)
        local.note_everybody((noisy * GRID).astype(np.int64), round(scale * GRID))
        scale /= np.sqrt(2.0)
    assert 1 < len(shares) < MOST_QUESTIONS
    assert shares == [FIRST_SHARE * 2**i for i in range(len(shares))]
    assert local.centre / GRID == pytest.approx(0.5, abs=0.05)
    assert local.answer(sums(3, -0.5), 5 * GRID) == pytest.approx(0.5, abs=0.08)
    assert local.answer(sums(3000, -0.25), GRID) == pytest.approx(local.centre / GRID - 0.25, abs=0.01)


@given(
    st.lists(st.floats(0.0, 1.0), min_size=22, max_size=22).filter(any),
    st.floats(0.001, 0.999),
)
def test_an_interval_always_holds_its_own_answer(shares, coverage):
    """Also where the report card says that the model is mostly too low, or too high."""
    model = NumberModel(Terms(5, 1, 0.03))
    card = NumberCard(np.array(shares) / sum(shares), model._ends(), 0.1)
    below, above = card.offsets(coverage)
    assert below <= 0.0 <= above


def test_questions_to_everybody_keep_to_the_pace():
    assert LocalMean().due(0.5 * FIRST_SHARE) is None
    assert LocalMean().due(FIRST_SHARE) == FIRST_SHARE


def test_sums_that_were_told_stay_true_when_the_centre_moves():
    moved, still = LocalMean(), LocalMean()
    for local in (moved, still):
        local.note(sums(50, 0.4), GRID)
    moved._move(GRID // 4)
    about = sums(50, 0.4) - np.array([0, 50 * GRID // 4])
    assert moved.answer(about, GRID) == pytest.approx(still.answer(sums(50, 0.4), GRID), abs=0.02)


def trained(noise, seed=0, people=5000.0, slope=0.0):
    """A model that was told noise, and what records of `slope` would say."""
    rng = np.random.default_rng(seed)
    model = NumberModel(Terms(5, 1, 0.03))
    rows = rng.integers(-127, 128, size=(200, 5)).astype(np.int8)
    model.absorb(PublicRows(False, 1, rows))
    cells = np.zeros(2 * CELLS + 1)
    cells[CELLS : 2 * CELLS] = people * np.exp(-((np.arange(CELLS) - 15.5) ** 2) / 30) / 9.7
    model.absorb(TallyRelease(0, GRID, (cells * GRID).astype(np.int64)))
    while model.due() == "step":
        weights, scale = model.weights, model.scale
        whole, lengths = rows_of(model.map.apply(rows)[:, : len(weights.whole) - 1])
        wrong = numbers(whole, lengths, weights) - slope * rows[:, 0] / 127.0
        wrong = np.clip(wrong, -model.clip, model.clip)
        exact = people / len(rows) * (whole / lengths[:, None]).T @ wrong * STEP_GRID
        told = np.rint(exact + noise * scale * rng.normal(size=len(exact))).astype(np.int64)
        model.absorb(Gradient(model.step, model.follow - 1, scale, told))
    return model, rows


def test_before_the_first_round_nobody_but_newcomers_is_counted():
    """What the first count says of people who took part before is noise."""
    model, cells = NumberModel(Terms(5, 1, 0.03)), np.full(2 * CELLS + 1, 100.0)
    model.absorb(PublicRows(False, 1, np.ones((60, 5), dtype=np.int8)))
    model.absorb(TallyRelease(0, GRID, (cells * GRID).astype(np.int64)))
    assert model.count == 100.0 * CELLS


def test_noise_alone_leaves_the_model_at_the_mean():
    model, rows = trained(1.0)
    said = model.rule("card").said(rows)
    assert model.rounds == 1
    assert said.std() < 0.05 * model.spread
    assert said.mean() == pytest.approx(model.mean, abs=0.05)


def test_what_stands_out_from_the_noise_is_learned():
    model, rows = trained(1.0, people=50_000.0, slope=0.3)
    said = model.rule("card").said(rows)
    assert np.corrcoef(said, rows[:, 0])[0, 1] > 0.9


def test_weights_are_not_taken_for_a_shift_of_the_mean():
    """A multiple of the mean row was measured too. It must not look like weights."""
    rng = np.random.default_rng(0)
    values, chance, mean, truth = np.full(20, 0.05), np.full(20, 1e-6), np.zeros(20), rng.normal(size=20)
    mean[0], truth[0] = 0.8, 0.0
    found = _likely(values, values * truth + 0.5 * mean, chance, [np.zeros(20)], mean, doubt=1.0)
    assert found == pytest.approx(truth, abs=0.2)


def test_releases_come_in_their_order():
    model, _ = trained(0.0)
    assert model.step == STEPS
    assert model.due() == "card"
    with pytest.raises(StoreError, match="was due"):
        model.absorb(ModelShown())


def test_what_a_twin_is_told_does_not_change_the_adviser():
    """A twin only looks ahead. In a cluster it looks further ahead than with one shard."""
    settings = Settings.of(3, (), target="number", bounds=(0, 1))
    adviser = new_adviser(settings, new_model(settings))
    query = settings.quantise(np.ones((1, 3)), "the query")
    votes = Votes(30 << 20, 1 << 20, 0, 0.1, 0.5, np.array([1 << 24, 1 << 22]))
    before = adviser.mixed(np.zeros(1), votes)
    adviser.twin().note(query, votes)
    assert adviser.mixed(np.zeros(1), votes) == before
    adviser.note(query, votes)
    assert adviser.mixed(np.zeros(1), votes) != before
