"""The public side: a model from noisy releases, and how far it is believed. It must not be fooled by noise."""

from dataclasses import replace
from itertools import count

import numpy as np
import pytest

from conftest import blobs
from indknn.core.accounting import to_units
from indknn.core.noise import SeededNoise
from indknn.core.quantise import quantise
from indknn.core.releases import Gradient, ModelOnly, ModelShown, PublicRows, TallyRelease, decode, encode
from indknn.core.statistics import headcount, noisy_tally, tally, tally_scale
from indknn.core.training import Weights, gradient, noisy_gradient, predicted
from indknn.errors import StoreError
from indknn.models import SharedModel
from indknn.models.feature_map import LEAST_ROWS, feature_map
from indknn.models.rules import SURE
from indknn.models.shared_model import (
    CARD_PRICE,
    CLIP,
    COUNT_PRICE,
    MOST_CLIP,
    RECOUNT_PRICE,
    STEPS,
    TAIL,
    Terms,
    _log_shares,
    fitted,
)
from indknn.types import GRID

D, C, B = 8, 3, 0.5


def data(n, seed=0):
    """Records, labels, and as many queries with theirs, of the same three clumps."""
    X, y = blobs(2 * n, C, D, seed=seed)
    values = quantise(X).values
    return values[:n], y[:n], values[n:], y[n:]


def trained(values, labels, public, noise, budget=B):
    """A first round over these records by the book, and its releases."""
    model = SharedModel(Terms(D, C, budget))
    told = [public if isinstance(public, PublicRows) else PublicRows(False, 1, public)]
    model.absorb(told[0])
    who, rich = np.arange(len(values)), np.full(len(values), to_units(budget))
    for step in count():
        due = model.due()
        if due is None:
            return model, told
        if due == "show":
            told.append(ModelShown())
        elif due == "step":
            sums = gradient(model.map.apply(values), labels, who, rich, model.weights, model.clip, model.scale).sums
            noisy = noisy_gradient(sums, model.scale, noise).ravel()
            told.append(Gradient(model.step, model.follow - 1, model.scale, noisy))
        else:
            scale = tally_scale(model.price(due))
            if due == "card":
                sums = tally(model.cells(values, labels), who, rich, model.n_cells(due), scale).sums
            else:
                sums = headcount(labels + C, who, rich, model.n_cells(due), scale, most=256).sums
            told.append(TallyRelease(int(due == "card"), scale, noisy_tally(sums, scale, noise)))
        model.absorb(told[-1])
        assert step < 2 * STEPS


def counted(n, price=RECOUNT_PRICE):
    scale = tally_scale(price * B)
    return TallyRelease(0, scale, np.array([6000, n, (6000 + n) / 256]).astype(int) * GRID)


@pytest.fixture(scope="module")
def crowd():
    values, labels, queries, truth = data(6000)
    return (*trained(values, labels, queries[:400], SeededNoise(1)), queries[400:], truth[400:])


def test_releases_alone_make_a_good_model(crowd):
    model, told, queries, truth = crowd
    assert [type(one).__name__ for one in told] == [
        "PublicRows",
        "TallyRelease",
        *["Gradient"] * 32,
        "TallyRelease",
        "ModelShown",
    ]
    assert model.ready
    assert model.count == pytest.approx(6000, rel=0.05)
    scores, sure = model.shown.scores(queries)
    right = scores.argmax(axis=1) == truth
    assert right.mean() > 0.9
    assert scores.sum(axis=1) == pytest.approx(np.ones(len(queries)), abs=0.01)
    assert sure.mean() > 0.5
    assert right[sure].mean() > SURE
    assert model.card.overall == pytest.approx(right.mean(), abs=0.05)


def test_a_model_is_the_same_after_it_was_read_back(crowd):
    model, told, queries, _ = crowd
    again = SharedModel(Terms(D, C, B))
    for release in told:
        again.absorb(decode(encode(release)))
    assert (again.weights.whole == model.weights.whole).all()
    for mine, theirs in zip(model.shown.scores(queries), again.shown.scores(queries), strict=True):
        assert (mine == theirs).all()
    assert (again.due(), again.since, again.count) == (model.due(), model.since, model.count)


def test_what_it_says_of_a_row_does_not_depend_on_the_others(crowd):
    model, _, queries, truth = crowd
    together, cells = model.shown.scores(queries[:300])[0], model.cells(queries[:300], truth[:300])
    for i in range(0, 300, 30):
        assert (model.shown.scores(queries[i : i + 1])[0] == together[i]).all()
        assert model.cells(queries[i : i + 1], truth[i : i + 1])[0] == cells[i]


@pytest.mark.parametrize("seed", range(5))
def test_a_model_of_nobody_is_sure_of_nothing(seed):
    nobody = np.zeros((0, D), np.int8), np.zeros(0, np.int64)
    model, _ = trained(*nobody, data(200)[0], SeededNoise(seed), budget=0.01)
    scores, sure = model.shown.scores(data(200, seed=1)[0])
    assert not sure.any()
    assert np.isfinite(scores).all()


def test_newcomers_call_for_another_round_only_above_the_noise(crowd):
    for n, steps, start in ((0, 0, False), (40, 0, False), (1500, STEPS, False), (60_000, STEPS, True)):
        model = SharedModel(Terms(D, C, B))
        for release in crowd[1]:
            model.absorb(release)
        model.absorb(PublicRows(False, 2, np.zeros((0, D), np.int8)))  # those that there are stay
        assert model.due() == "count"
        assert len(model.public) == 400
        model.absorb(counted(n))
        assert model.follow == steps
        assert model.trained != start
        assert model.ready  # what is shown stays
        assert model.due() == ("step" if steps else None)


def test_where_nothing_has_changed_a_later_round_hardly_moves_the_model(crowd):
    model = SharedModel(Terms(D, C, B))
    for release in crowd[1]:
        model.absorb(release)
    model.absorb(PublicRows(False, 2, np.zeros((0, D), np.int8)))
    model.absorb(counted(1500))
    before = model.shown.scores(crowd[2])[0].argmax(axis=1)
    source = SeededNoise(9)
    for step in range(STEPS):
        noise = source.draw(model.scale, model.weights.whole.size)
        model.absorb(Gradient(step, STEPS - 1 - step, model.scale, noise))
    assert model.due() == "card"
    model.absorb(TallyRelease(1, model.scale, np.zeros(model.n_cells("card"), np.int64)))
    model.absorb(ModelShown())
    assert (model.shown.scores(crowd[2])[0].argmax(axis=1) == before).mean() > 0.97


@pytest.mark.parametrize(("rows", "newcomers", "kept"), [(500, 0, 400), (900, 0, 900), (500, 1500, 500)])
def test_public_rows_that_come_later_are_taken_if_they_are_many_or_with_a_round(crowd, rows, newcomers, kept):
    model = SharedModel(Terms(D, C, B))
    for release in crowd[1]:
        model.absorb(release)
    model.absorb(PublicRows(True, 2, crowd[2][:rows]))
    model.absorb(counted(newcomers))
    assert model.due() == ("step" if newcomers else "card" if kept == rows else None)  # a card costs everybody
    assert len(model.public) == kept


def test_prices_are_shares_of_the_shared_budget():
    model = SharedModel(Terms(D, C, B))
    assert model.price("count") == pytest.approx(COUNT_PRICE * B)
    full = STEPS * (CLIP * 2.0**26) ** 2 / (2.0 * model.scale**2)
    assert 0.99 * (B - model.reserve) < full <= B - model.reserve


def test_somebody_who_paid_for_all_steps_can_pay_for_another_round_and_little_more():
    two_rounds = COUNT_PRICE + RECOUNT_PRICE + 2 * CARD_PRICE
    assert two_rounds * B <= SharedModel(Terms(D, C, B)).reserve <= 1.1 * two_rounds * B


def test_what_is_no_release_of_the_model_is_refused():
    with pytest.raises(StoreError, match="not one of the shared model"):
        SharedModel(replace(Terms(D, C, B), seed=3)).absorb(ModelOnly())


@pytest.mark.parametrize("seed", range(3))
def test_few_and_unbalanced_records_do_not_fall_below_the_commonest_label(seed):
    rng = np.random.default_rng(seed)
    labels = (rng.random(1600) < 0.2).astype(np.int64)
    values = quantise(rng.normal(size=(1600, D)) + 0.1 * labels[:, None]).values  # next to nothing to learn
    model, _ = trained(values[:400], labels[:400], values[400:600], SeededNoise(seed), budget=0.1)
    right = model.shown.scores(values[600:])[0].argmax(axis=1) == labels[600:]
    assert right.mean() > (labels[600:] == 0).mean() - 0.05


# Labelled public rows, rare classes, much signal


def hard(n, seed=0):
    """Rows of three classes that overlap, in a random direction each."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(C, size=n)
    return quantise(rng.normal(size=(n, D)) + np.random.default_rng(9).normal(size=(C, D))[labels]).values, labels


@pytest.mark.parametrize(("n", "budget", "gain"), [(300, 0.001, 0.02), (3000, 0.02, -0.005)])
def test_a_model_is_hardly_below_its_labelled_public_rows(n, budget, gain):
    """With few records their labels help much. With many, the records say the same."""
    values, labels = hard(n + 4500)
    public, queries = values[n : n + 500], values[n + 500 :]
    told = PublicRows(False, 1, public, labels[n : n + 500])
    model, releases = trained(values[:n], labels[:n], told, SeededNoise(1), budget)
    alone = Weights.of(fitted(model.map.apply(public), labels[n : n + 500], C, model.map.stretch))
    start = model.shown.rule.start
    assert (start is None) == (n == 3000)  # the card compares with the rows alone where they tell more
    assert start is None or (start.whole == alone.whole).all()
    right = [
        (scores.argmax(axis=1) == labels[n + 500 :]).mean()
        for scores in (model.shown.scores(queries)[0], predicted(model.map.apply(queries), alone))
    ]
    assert right[0] > right[1] - 0.01
    without, _ = trained(values[:n], labels[:n], public, SeededNoise(1), budget)
    assert right[0] > (without.shown.scores(queries)[0].argmax(axis=1) == labels[n + 500 :]).mean() + gain
    again = SharedModel(model.terms)
    for release in releases:
        again.absorb(decode(encode(release)))
    assert (again.weights.whole == model.weights.whole).all()


def test_what_public_rows_say_does_not_depend_on_where_they_are_in_memory():
    """As in a process that reads them back: products of whole numbers, whose sums are exact in any order."""
    values, labels = hard(400)
    stretch = np.rint(2000.0 * np.eye(D) - 50.0).astype(np.float32)
    found = fitted(values, labels, C, stretch)
    room = np.zeros(values.size + 64, dtype=np.int8)
    for shift in range(0, 64, 7):
        moved = room[shift : shift + values.size].reshape(values.shape)
        moved[:] = values
        assert (fitted(moved, labels, C, stretch) == found).all()
    order = np.concatenate([np.random.default_rng(0).permutation(300), np.arange(300, 400)])
    assert (fitted(values[order], labels[order], C, stretch) == found).all()


def test_public_rows_are_read_as_they_were_before_they_were_stretched():
    """Whitening makes the small directions as large as the others, and these few rows say nothing about them."""
    rng = np.random.default_rng(0)
    labels = rng.integers(C, size=4200)
    X = rng.normal(size=(4200, 60)) * np.append(np.full(4, 3.0), np.full(56, 1.0))
    X[:, :4] += 2.5 * np.eye(C, 4)[labels]
    values = quantise(X).values
    made = feature_map(values[:200], C, 1e6, 0)
    rows, queries = made.apply(values[:200]), made.apply(values[200:])

    def right(stretch):
        weights = Weights.of(fitted(rows, labels[:200], C, stretch))
        return (predicted(queries, weights).argmax(axis=1) == labels[200:]).mean()

    assert right(made.stretch) > right(2048.0 * np.eye(made.width, dtype=np.float32)) + 0.01


def test_a_model_that_started_from_labelled_rows_is_averaged_too():
    values, labels = hard(4000)
    model, _ = trained(values[500:], labels[500:], PublicRows(False, 1, values[:500], labels[:500]), SeededNoise(1))
    plain = model.shown.rule.plain(values)
    near = model.shown.rule.neighbours.average(values)
    np.testing.assert_allclose(model.shown.rule.other(plain, values), plain + (near - plain) / 3.0, atol=1e-12)


def test_few_labelled_public_rows_and_those_that_lack_a_class_do_no_harm():
    values, labels = hard(3000)
    few = PublicRows(False, 1, values[: LEAST_ROWS - 1], labels[: LEAST_ROWS - 1])
    assert trained(values[500:], labels[500:], few, SeededNoise(1))[0].shown.rule.start is None
    two = labels[:500] < 2
    lacking = PublicRows(False, 1, values[:500][two], labels[:500][two])
    model, _ = trained(values[500:], labels[500:], lacking, SeededNoise(1))
    found = model.shown.scores(values[:500])[0].argmax(axis=1)
    assert (found == labels[:500])[~two].mean() > 0.5


def test_a_rare_class_is_ranked_better_if_the_map_knows_that_it_is_rare(monkeypatch):
    rng = np.random.default_rng(0)
    labels = (rng.random(12000) < 0.03).astype(np.int64)
    X = rng.normal(size=(12000, D)) * np.array([3.0, 3.0, 1, 1, 1, 1, 1, 1])
    values = quantise(X + labels[:, None] * np.array([2.5, 2.5, 0, 0, 0, 0, 0, 0])).values

    def ranked():
        model, _ = trained(values[:6000], labels[:6000], values[6000:7000], SeededNoise(1), 0.002)
        scores = model.shown.scores(values[7000:])[0][:, 1]
        order = np.argsort(np.argsort(scores))
        yes = labels[7000:] == 1
        return (order[yes].mean() - (yes.sum() - 1) / 2.0) / (~yes).sum()

    known = ranked()
    monkeypatch.setattr(SharedModel, "_telling", 1.0)
    assert known > ranked() + 0.02


def test_the_clip_grows_with_the_signal_and_with_nothing_else():
    few, many = (SharedModel(Terms(D, C, B), count=n) for n in (1e3, 1e7))
    assert (few.clip, many.clip) == (CLIP, MOST_CLIP)
    assert many.scale == pytest.approx(few.scale * MOST_CLIP / CLIP, rel=1e-6)  # a full gradient costs the same


@pytest.mark.parametrize(("budget", "labelled", "many"), [(4.0, False, TAIL), (0.002, True, TAIL), (0.002, False, 1)])
def test_a_round_that_arrives_ends_at_the_mean_of_its_last_steps(budget, labelled, many, monkeypatch):
    """Near the end single steps swing. While they still climb, with little signal, the last one is the best."""
    values, labels = hard(2500)
    public = PublicRows(False, 1, values[:500], labels[:500] if labelled else None)
    model, releases = trained(values[500:], labels[500:], public, SeededNoise(1), budget)
    monkeypatch.setattr(SharedModel, "_arrives", False)
    other, path = SharedModel(model.terms), []
    for release in releases:
        other.absorb(release)
        if isinstance(release, Gradient):
            path.append(other._floats)
    np.testing.assert_allclose(model._floats, np.mean(path[-many:], axis=0), rtol=1e-12)


def test_noise_on_counts_makes_no_label_impossible():
    rng, sigma = np.random.default_rng(0), 100.0
    least = min(np.exp(_log_shares(120.0 + sigma * rng.normal(size=10), sigma)).min() for _ in range(300))
    assert least > 0.1 / 10
    counts = np.array([9000.0, 3000.0, 1000.0])
    assert np.exp(_log_shares(counts, 10.0)) == pytest.approx(counts / counts.sum(), rel=1e-3)
    assert np.isfinite(_log_shares(np.array([5000.0, -900.0]), 20.0)).all()
