"""What the shared model sees of a record follows from that record and public things alone, bit for bit."""

from threading import current_thread
from types import SimpleNamespace

import numpy as np
import pytest

from conftest import blobs
from indknn import tables
from indknn.core.kernels import Cosine
from indknn.core.noise import SeededNoise
from indknn.core.quantise import EXACT_FEATURES, LEVELS, quantise
from indknn.engine import Engine
from indknn.ledger import MemoryLedger
from indknn.models import feature_map as maps
from indknn.models.feature_map import FOURIER, LEAST_ROWS, FeatureMap, feature_map, number_map, numbers_in, widths_in
from indknn.models.rules import BINS, CELLS, HOPE, OPTIMISM, Card, Neighbours, bins, cells, edges, margins
from indknn.models.shared_model import MOST_ROWS, SharedModel
from indknn.records import derived as derived_module
from indknn.records.derived import PORTION, Derived
from indknn.records.indexes import make_index
from indknn.records.shard import Shard
from indknn.settings import MAX_FEATURES, Settings
from indknn.tables.schema import to_plain
from indknn.types import ROW, Cohort

EXACT = 1 << 24  # whole numbers below this are exact in float32, and so are their sums
EVERYBODY = Cohort(before=1, most=1000)


def rows(n, d, seed=0):
    return quantise(np.random.default_rng(seed).normal(size=(n, d))).values


@pytest.mark.parametrize(("d", "n_public"), [(12, 400), (12, 0), (300, 400), (300, 10)])
def test_a_row_is_mapped_alike_in_whatever_batch(d, n_public):
    public, values = rows(n_public, d, 1) if n_public else np.zeros((0, d), np.int8), rows(3000, d, 2)
    mapped = feature_map(public, 3, 1000.0, 0)
    together, order = mapped.apply(values), np.random.default_rng(3).permutation(3000)
    assert (mapped.apply(values[order]) == together[order]).all()
    one_by_one = np.concatenate([mapped.apply(values[i : i + 1]) for i in range(0, 3000, 50)])
    assert (one_by_one == together[::50]).all()
    assert together.shape == (3000, mapped.width)
    assert np.abs(together.astype(int)).max() <= LEVELS
    assert mapped.width == (d + FOURIER if d <= maps.FEW_FEATURES else d)
    assert (mapped.stretch is None) == (n_public < LEAST_ROWS)


@pytest.mark.parametrize(
    ("d", "n_public", "signal"), [(12, 400, 1000.0), (12, 0, 1000.0), (12, 60, 5.0), (300, 400, 5e3)]
)
def test_a_row_is_mapped_alike_for_regression_too_and_no_sum_is_rounded(d, n_public, signal):
    public, values = rows(n_public, d, 1) if n_public else np.zeros((0, d), np.int8), rows(600, d, 2)
    mapped = number_map(public, signal, 0, ((0, 5),), ((1.0, 1.0, 2.0, 1.0, 9.0),))
    together, order = mapped.apply(values), np.random.default_rng(3).permutation(600)
    assert (mapped.apply(values[order]) == together[order]).all()
    assert (np.concatenate([mapped.apply(values[i : i + 1]) for i in range(0, 600, 50)]) == together[::50]).all()
    assert together.shape == (600, mapped.width)
    if mapped.stretch is not None:
        assert np.linalg.norm(mapped.stretch, axis=0).max() <= maps._STRETCH + 0.5 * np.sqrt(len(mapped.stretch))


def test_rows_for_regression_keep_their_length():
    """As shares of the radius, features are what the matrix says, except for rows that are longer than the radius."""
    public = quantise(np.random.default_rng(1).normal(size=(400, 6)) + 2.0 * np.eye(6)[0]).values
    mapped = number_map(public, 60.0, 0)
    exact = (maps._expanded(public, None, np.zeros(0)) - mapped.centre).astype(float) @ mapped.stretch
    short, found = np.linalg.norm(exact, axis=1) <= mapped.radius, mapped.apply(public).astype(float)
    assert 0.85 < short.mean() < 0.95
    shares = (found / np.linalg.norm(found, axis=1, keepdims=True))[:, :-1]
    assert np.abs(shares - exact / mapped.radius)[short].max() < 0.02
    assert np.linalg.norm(exact[short], axis=1).std() > 0.1 * mapped.radius  # lengths differ, and would be lost


def test_with_little_signal_regression_has_the_map_of_classes():
    public = quantise(np.random.default_rng(1).normal(size=(400, 60))).values
    for signal, numbers, whole in ((47.0, (), False), (48.0, (), True), (59.0, ((0, 3),) * 20, False)):
        assert (number_map(public, signal, 0, numbers, ((1.0,) * 3,) * 20).radius is not None) == whole


@pytest.mark.parametrize(("classes", "each", "bent"), [(99, 40, True), (150, 40, False), (150, 120, True)])
def test_many_classes_need_more_signal_for_fourier_features(classes, each, bent):
    rows = quantise(np.random.default_rng(0).normal(size=(200, 8))).values
    assert (feature_map(rows, classes, float(each * classes), 0).frequencies is not None) == bent


def test_a_table_of_numbers_is_stretched_as_rows_of_more_signal_are():
    """Where signal is weak, small directions are given up. Between columns they may tell as much as large ones."""
    public = quantise(np.random.default_rng(0).normal(size=(400, 200)) * np.geomspace(1.0, 0.1, 200)).values
    numbers, few = ((0, 80), (80, 160)), ((0, 80),)

    def stretch(signal, *numbers, measured=False):
        return feature_map(public, 2, signal, 0, numbers, measured=measured).stretch

    assert (stretch(100.0, *numbers) == stretch(100.0 * maps.SHARPNESS / maps.TABLE_SHARPNESS)).all()
    assert (stretch(100.0, *numbers) != stretch(100.0)).any()
    assert (stretch(100.0, *few) == stretch(100.0)).all()
    assert (stretch(100.0, *numbers, measured=True) == stretch(100.0, measured=True)).all()


def test_few_people_get_no_fourier_features():
    assert feature_map(rows(100, 12), 3, 10.0, 0).width == 12


def test_the_map_follows_from_public_rows_and_the_seed():
    one, again, other = (feature_map(rows(200, 12), 3, 1000.0, seed).apply(rows(50, 12, 7)) for seed in (0, 0, 1))
    assert (one == again).all()
    assert (one != other).any()


def exact_rows(mapped, values):
    """The stretched rows in integers, and the largest sum of absolute values on the way."""
    start = (maps._expanded(values, mapped.frequencies, mapped.phases) - mapped.centre).astype(np.int64)
    return start @ mapped.stretch.astype(np.int64)


@pytest.mark.parametrize("d", [1, 2, 16, maps.FEW_FEATURES, 1000])
@pytest.mark.parametrize("numeric", [False, True])
def test_stretched_rows_are_exact_even_at_their_largest(d, numeric):
    """Public rows that all point one way, and private rows that point against them: the largest that can be."""
    rng = np.random.default_rng(d)
    one_way = np.clip(127 + rng.integers(-3, 1, size=(400, d)), -127, 127).astype(np.int8)
    enough, columns = 4.0 * maps.ENOUGH_SIGNAL, ((0, d),)
    mapped = number_map(one_way, enough, 0, columns, ((1.0,) * d,)) if numeric else feature_map(one_way, 2, enough, 0)
    worst = np.concatenate([-one_way[:5], one_way[:5], rows(100, d, 4)])
    exact = exact_rows(mapped, worst)
    assert np.abs(exact).max() < EXACT
    if numeric:
        exact = np.hstack([exact, np.rint(np.sqrt(np.maximum(mapped.radius**2 - (exact**2).sum(1, keepdims=True), 0)))])
    floats = np.rint(exact / np.maximum(np.abs(exact).max(axis=1), 1)[:, None] * LEVELS)
    assert np.abs(mapped.apply(worst) - floats).max() <= 1  # equal up to the rounding of a quotient


def test_no_partial_sum_of_a_stretched_row_can_leave_the_exact_numbers():
    """By Cauchy and Schwarz, for every map: |row - centre| times the longest column of the matrix."""
    fourier = np.sqrt(FOURIER) * np.abs(maps._COSINES).max()
    longest, width = np.hypot(ROW, fourier), MAX_FEATURES + FOURIER
    row = 2.0 * longest + 0.5 * np.sqrt(width)  # the centre is no longer than a row, and then rounded
    column = maps._STRETCH + 0.5 * np.sqrt(width)  # no eigenvalue is above 1, and regression makes the longest 1
    assert row * column < EXACT


def test_no_matrix_stretches_anything():
    for n, d, noise in ((60, 5, 1e-3), (60, 200, 0.1), (1000, 20, 10.0)):
        rows = np.random.default_rng(n).normal(size=(n, d)) * np.logspace(-6, 0, d)
        for measured in (False, True):
            stretch = maps._stretch(rows, noise, measured)
            assert np.linalg.norm(stretch, 2) <= 1.0 + 1e-9


def test_moments_of_few_rows_are_trusted_where_few_directions_say_everything():
    rng = np.random.default_rng(0)
    plain, few = rng.normal(size=(60, 100)), rng.normal(size=(60, 3)) @ rng.normal(size=(3, 100))
    trusted = [1.0 - maps.shrinkage(rows, rows.T @ rows / len(rows)) for rows in (plain, few)]
    assert trusted[0] < 0.3
    assert trusted[1] > 0.9


def test_fourier_turns_are_exact():
    """The largest frequencies that public rows can make, at the largest row: whole numbers far below 2^53."""
    close = np.clip(np.array([[127] * 128]) + np.zeros((60, 1), int), -127, 127).astype(np.int8)
    mapped = feature_map(close, 2, 1000.0, 0)
    unit = ROW * maps.FEW_FEATURES * np.abs(mapped.frequencies).max() + np.abs(mapped.phases).max()
    assert unit < 2.0**53
    assert (np.rint(mapped.frequencies) == mapped.frequencies).all()


def test_a_row_at_the_centre_becomes_nothing_and_is_not_divided_by():
    mapped = FeatureMap(None, np.zeros(0), np.array([ROW, 0.0], dtype=np.float32), None)
    assert mapped.apply(np.array([[127, 0]], dtype=np.int8)).tolist() == [[0, 0]]


# Neighbours


def test_neighbours_know_clumps_and_do_not_care_where_a_row_stands():
    rng = np.random.default_rng(0)
    clump = rng.integers(40, size=MOST_ROWS + 1000)
    values = quantise(rng.normal(size=(40, 8))[clump] + 0.1 * rng.normal(size=(len(clump), 8))).values
    noisy = np.eye(2)[clump % 2] + 0.8 * rng.normal(size=(len(clump), 2))
    near = Neighbours(values[:MOST_ROWS], noisy[:MOST_ROWS])
    together = near.average(values[MOST_ROWS:])
    assert (together.argmax(axis=1) == clump[MOST_ROWS:] % 2).mean() > 0.9
    one_by_one = np.concatenate([near.average(values[i : i + 1]) for i in range(MOST_ROWS, len(values))])
    assert (together == one_by_one).all()


def test_sums_over_neighbours_are_exact_at_their_largest():
    """All public rows alike, as long as can be, all scores at an end of their range."""
    alike = np.full((MOST_ROWS, 2000), 127, dtype=np.int8)
    near = Neighbours(alike, np.repeat([[0.0, 1.0]], MOST_ROWS, axis=0) * (np.arange(MOST_ROWS) % 2)[:, None])
    kappa = alike[:1].astype(np.int64) @ near._rows.T.astype(np.int64)
    assert kappa.max() < EXACT
    weights = np.trunc(kappa * (31.0 / (256.0 * 127.0 * np.sqrt(2000.0)))).astype(np.int64)
    assert np.abs(weights @ np.abs(near._scores).astype(np.int64)).max() < EXACT
    assert near.average(alike[:1])[0].tolist() == pytest.approx([0.0, 0.5], abs=1e-6)
    widest = LEVELS * np.sqrt(MAX_FEATURES) * (256.0 + 0.5 * np.sqrt(MAX_FEATURES))
    assert widest < EXACT
    assert EXACT_FEATURES > 1000  # what whole products of int8 need is checked there


def test_far_from_all_public_rows_the_average_says_their_mean():
    near = Neighbours(rows(100, 6), np.random.default_rng(0).random((100, 3)))
    assert near.average(np.zeros((1, 6), np.int8))[0] == pytest.approx(near._mean)


def test_rows_agree_with_those_near_them_in_clumps_and_not_where_classes_are_mixed():
    rng = np.random.default_rng(0)
    clump = rng.integers(30, size=600)
    values = quantise(rng.normal(size=(30, 8))[clump] + 0.1 * rng.normal(size=(600, 8))).values
    assert Neighbours(values, np.eye(3)[clump % 3]).agreement() > 0.95
    assert abs(Neighbours(values, np.eye(3)[rng.integers(3, size=600)]).agreement()) < 0.15
    rare = (rng.random(600) < 0.05).astype(int)  # most rows agree here, by chance
    assert abs(Neighbours(values, np.eye(2)[rare]).agreement()) < 0.15
    assert Neighbours(values, np.eye(2)[np.zeros(600, int)]).agreement() == 0.0


# The card


def test_every_record_is_in_one_cell_and_the_bins_part_public_rows_evenly():
    rng = np.random.default_rng(0)
    plain, smooth, labels = rng.dirichlet(np.ones(4), 1000), rng.dirichlet(np.ones(4), 1000), rng.integers(4, size=1000)
    ends = edges(plain)
    found = cells(plain, smooth, labels, ends)
    assert found.min() >= 0
    assert found.max() < CELLS
    assert np.bincount(found // 4, minlength=BINS).tolist() == [1000 // BINS] * BINS
    assert ((found // 2 % 2 == 1) == (plain.argmax(axis=1) == labels)).all()
    assert ((found % 2 == 1) == (smooth.argmax(axis=1) == labels)).all()
    alone = [int(cells(plain[i : i + 1], smooth[i : i + 1], labels[i : i + 1], ends)[0]) for i in range(1000)]
    assert found.tolist() == alone


def test_margins_and_bins_where_there_is_little():
    assert margins(np.array([[0.2, 0.5, 0.3]])).tolist() == pytest.approx([0.2])
    assert margins(np.ones((3, 1))).tolist() == [0.0, 0.0, 0.0]
    assert len(edges(np.zeros((0, 3)))) == BINS - 1
    assert bins(np.array([[1.0, 0.0], [0.5, 0.5]]), edges(np.zeros((0, 2)))).tolist() == [BINS - 1, 0]


def counts(both_wrong, smooth_right, plain_right, both_right):
    return np.array([[both_wrong, smooth_right, plain_right, both_right]] * BINS, dtype=float).ravel()


def test_a_card_reads_counts():
    card = Card.read(counts(50, 60, 10, 880), 1.0, hope=HOPE)
    assert card.other
    assert card.right == pytest.approx([0.94] * BINS)
    assert card.overall == pytest.approx(0.94)
    assert (card.surely_right() < card.right).all()
    assert not Card.read(counts(50, 60, 10, 880), 1.0, hope=None).other
    worse = Card.read(counts(50, 10, 60 + 1000 * OPTIMISM, 880), 1.0, hope=HOPE)
    assert not worse.other
    assert worse.overall == pytest.approx(0.94, abs=0.005)


def test_a_card_that_is_mostly_noise_changes_no_mind():
    """A gain of .01 with an error of .003, and of .03: only the first is more than chance."""
    better, worse = counts(50, 35, 25, 890), counts(50, 25, 35, 890)
    for sigma, decided in ((4.0, True), (40.0, False)):
        assert Card.read(better, sigma, hope=-HOPE).other == decided
        assert Card.read(worse, sigma, hope=HOPE).other != decided


def test_a_small_model_can_hardly_learn_its_records_by_heart():
    """So its card is taken at its word; that of a large one flatters the plain model by a little."""
    nearly_level = counts(50, 10, 10 + 500 * OPTIMISM, 930)
    assert Card.read(nearly_level, 0.05, hope=HOPE).other
    assert Card.read(nearly_level, 0.05, hope=HOPE, parameters=1000.0).other
    assert not Card.read(nearly_level, 0.05, hope=HOPE, parameters=10.0).other


def test_noise_alone_never_looks_like_a_crowd_that_is_right():
    rng = np.random.default_rng(0)
    cards = [Card.read(1e4 * rng.normal(size=CELLS), 1e4, hope=HOPE) for _ in range(400)]
    assert not any((card.surely_right() >= 0.9).any() for card in cards)
    assert all(np.isfinite([*card.right, *card.error, card.overall, card.overall_error]).all() for card in cards)


# Values by record


def test_derived_values_follow_their_records_through_every_change():
    shard = Shard(make_index("exact", Cosine(), 4), MemoryLedger(1000))
    looked = SimpleNamespace(at=0)

    def rule(values, labels):
        looked.at += len(values)
        return values[:, 0].astype(np.int64) * 10 + labels

    def right(slots):
        return shard.values_of(slots)[:, 0].astype(np.int64) * 10 + shard.labels_of(slots)

    X, y = blobs(PORTION + 500, 5, 4)
    shard.add(quantise(X[:200]), y[:200], [f"p{i % 90}" for i in range(200)])
    derived = Derived(shard, rule, EVERYBODY)
    assert not (derived.of(shard.slots()) != right(shard.slots())).any()
    assert derived.of(shard.slots()[5:9]).tolist() == right(shard.slots()[5:9]).tolist()
    assert looked.at == 200  # once each
    shard.forget(shard.slots_of_owners(["p3", "p7"]))
    slots = shard.slots()
    assert (derived.of(slots) == right(slots)).all()
    shard.add(quantise(X[200:]), y[200:], [f"q{i}" for i in range(len(X) - 200)])  # into the free slots, and new ones
    assert derived.fill(100)
    while derived.fill():
        pass
    assert looked.at == len(X)
    slots = shard.slots()
    assert (derived.of(slots) == right(slots)).all()
    assert not derived.fill()


def test_of_very_many_records_nothing_is_kept(monkeypatch):
    shard = Shard(make_index("exact", Cosine(), 4), MemoryLedger(1000))
    X, y = blobs(300, 5, 4)
    shard.add(quantise(X), y, [f"p{i % 90}" for i in range(300)])
    shard.forget(shard.slots_of_owners(["p3"]))
    kept, computed = (Derived(shard, lambda values, labels: values[:, ::-1], EVERYBODY) for _ in range(2))
    slots, some = shard.slots(), np.array([5, 0, 17])
    expected = kept.of(slots)[some]
    monkeypatch.setattr(derived_module, "MOST_KEPT", 100)
    assert not computed.fill()
    np.testing.assert_array_equal(computed.of(slots)[some], expected)
    assert computed._values is None


def test_nothing_is_derived_from_no_records():
    shard = Shard(make_index("exact", Cosine(), 4), MemoryLedger(1000))
    assert len(Derived(shard, lambda values, labels: labels, EVERYBODY).of(shard.slots())) == 0


def test_a_map_is_made_by_another_thread_while_answers_are_given(monkeypatch):
    made, original = [], SharedModel.make_map

    def make_map(model):
        made.append(current_thread())
        return original(model)

    monkeypatch.setattr(SharedModel, "make_map", make_map)
    X, y = blobs(400, 3, 6)
    engine = Engine(Settings(n_features=6, classes=(0, 1, 2), epsilon=8.0), SeededNoise(1))
    engine.add(X[:300], y[:300])
    engine.declare_public(X[300:])
    for _ in engine.train():
        pass
    (thread,) = made
    assert thread is not current_thread()
    assert engine.predictor.model.ready


# Tables


def test_the_numbers_of_a_table_are_where_the_schema_puts_them():
    used = {
        "job": tables.Category(values=("a", "b")),
        "age": tables.Number(bounds=(0, 100)),
        "skipped": tables.Ignored(),
        "rank": tables.Ordered(values=("low", "middle", "high"), missing="refuse"),
        "born": tables.Date(bounds=("2025-01-01", "2026-01-01"), knots=("2025-07-01",), missing="refuse"),
        "text": tables.Text(extractor="some", width=7),
        "owns": tables.YesNo(),
        "paid": tables.Number(bounds=(1, 1000), scale="log", missing=3),
        "one": tables.Number(bounds=(0, 1), knots=()),
    }
    schema = tables.Schema(used)
    for plain in (to_plain(schema), {"columns": {**to_plain(schema)["columns"], "skipped": "ignored"}}):
        expected = []
        for name in ("age", "born", "paid", "one"):
            part, pieces = schema.parts[name], len(used[name].edges) - 1
            expected.append((part.start, part.start + pieces))
        assert numbers_in(plain) == tuple(expected)
        assert [len(pieces) for pieces in widths_in(plain)] == [end - first for first, end in expected]
    assert numbers_in(None) == widths_in(None) == ()
    assert numbers_in({"columns": {"text": {"kind": "text", "extractor": "some"}}}) == ()


def table(n, columns=12, pieces=12, seed=0):
    """Rows of numeric columns as a schema encodes them, and where their pieces are."""
    z = np.random.default_rng(seed).random((n, columns))
    X = np.clip(z[:, :, None] * pieces - np.arange(pieces), 0.0, 1.0).reshape(n, -1) - 0.5
    return (
        z,
        quantise(np.hstack([X, np.ones((n, 1))])).values,
        tuple((i * pieces, (i + 1) * pieces) for i in range(columns)),
    )


def test_a_wide_table_of_numbers_gets_fourier_features_of_its_columns_if_the_signal_allows():
    _, values, numbers = table(500)
    strong = maps.TABLE_SIGNAL * 2
    mapped = feature_map(values, 3, strong, 0, numbers)
    assert mapped.width == values.shape[1] + FOURIER
    assert (mapped.frequencies[0] == mapped.frequencies[11]).all()  # all pieces of a column count alike
    assert (mapped.frequencies[0] != mapped.frequencies[12]).any()
    assert (mapped.frequencies[-1] == 0.0).all()
    for c, signal, spans in ((3, 0.9 * maps.TABLE_SIGNAL, numbers), (300, strong, numbers), (3, strong, numbers[:8])):
        assert feature_map(values, c, signal, 0, spans).width == values.shape[1]
    assert feature_map(values[:10], 3, strong, 0, numbers).width == values.shape[1]
    one_by_one = np.concatenate([mapped.apply(values[i : i + 1]) for i in range(0, 500, 50)])
    assert (one_by_one == mapped.apply(values)[::50]).all()
    unit = ROW * np.abs(mapped.frequencies).sum(axis=0).max() + np.abs(mapped.phases).max()
    assert unit < 2.0**53


def test_with_little_signal_the_pieces_of_a_number_are_one_coordinate():
    _, values, numbers = table(500)
    weak = 0.9 * maps.PIECES_SIGNAL * len(numbers) * 3
    merged, kept = (feature_map(values, 3, signal, 0, numbers).stretch for signal in (weak, 2.0 * weak))
    assert np.linalg.matrix_rank(merged / maps._STRETCH, tol=0.02) <= len(numbers) + 1
    assert np.linalg.matrix_rank(kept / maps._STRETCH, tol=0.02) > 2 * len(numbers)
    assert np.linalg.norm(merged / maps._STRETCH, 2) < 1.01


def test_merged_pieces_are_as_certain_as_one_coordinate_however_many_they_are():
    rng = np.random.default_rng(0)
    z = rng.normal(size=(100, 2)) @ rng.normal(size=(2, 12)) + 0.1 * rng.normal(size=(100, 12))  # they hang together

    def unevenness(pieces):
        X = np.clip((pieces / (1.0 + np.exp(-z)))[:, :, None] - np.arange(pieces), 0.0, 1.0).reshape(100, -1) - 0.5
        numbers = tuple((i * pieces, (i + 1) * pieces) for i in range(12))
        stretch = feature_map(quantise(X).values, 3, 0.9 * maps.PIECES_SIGNAL * 12 * 3, 0, numbers).stretch
        sizes = np.linalg.svd(stretch, compute_uv=False)
        return sizes[0] / sizes[11]

    assert [unevenness(pieces) / unevenness(2) for pieces in (4, 12)] == pytest.approx([1.0, 1.0], abs=0.1)
